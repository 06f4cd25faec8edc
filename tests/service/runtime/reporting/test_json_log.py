"""The JSON log: one object per line with fields to correlate them, and errors on stderr too."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from replayfilter.errors import DeliveryError
from replayfilter.service.runtime.reporting.json_log import JsonLog
from tests.support.batches import batch


def lines_of(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_each_batch_is_a_line_with_its_counts() -> None:
    out = io.StringIO()
    with JsonLog("orders", out) as log:
        log.info("status page and metrics: http://127.0.0.1:9400/")
        log.batch(batch(7, 1.0, unique=3, duplicate=2, state_keys=9))
    started, done, ended = lines_of(out)
    assert (started["service"], started["level"]) == ("orders", "info")
    assert "batch" not in started, "no batch was finished yet"
    assert (done["event"], done["batch"], done["unique"], done["keys"]) == ("batch", 7, 3, 9)
    assert done["seconds"] == 2.0
    assert (ended["event"], ended["batch"]) == ("ended", 7)
    assert all(line["time"].endswith("Z") for line in (started, done, ended))


def test_an_error_carries_the_last_batch_and_its_lane(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    log = JsonLog("orders", out)
    log.batch(batch(7, 1.0, unique=3))
    lost = DeliveryError("lane my-orders-12 could not deliver 5 records: broker went", lane=12)
    log.warning(f"{lost}; starting again in 1 s", lost)
    log.error("the last error:\n two lines, \u00e4nd more", cause=DeliveryError("without a lane"))
    _, warning, error = lines_of(out)
    assert (warning["level"], warning["lane"], warning["batch"]) == ("warning", 12, 7)
    assert error["level"] == "error"
    assert "lane" not in error
    assert capsys.readouterr().err == "the last error:\n two lines, \u00e4nd more\n"
