"""What a query failed with, from the text of Spark's exception."""

from __future__ import annotations

import traceback

import pytest

from replayfilter.errors import CheckpointError, DeliveryError, ReplayfilterError, UnknownSchemas
from replayfilter.spark.failures import explain


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "x\nreplayfilter.errors.DeliveryError: lane a-0 failed; try again\n\tat org",
            DeliveryError,
            "lane a-0",
        ),
        ("x\nreplayfilter.errors.CheckpointError: t-0 is gone\n", CheckpointError, "t-0 is gone"),
        ("Traceback\nValueError: bad\n\tat org.x", ReplayfilterError, "ValueError: bad"),
        (
            "java\nCaused by: java.io.IOException: No space left on device\n",
            ReplayfilterError,
            "No space left",
        ),
        ("something else\nmore", ReplayfilterError, "something else"),
    ],
)
def test_a_failure_becomes_one_sentence(text: str, kind: type[ReplayfilterError], words: str) -> None:
    error = explain(text)
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)


def test_the_ids_of_unknown_schemas_survive_the_text_of_a_traceback() -> None:
    error = explain(
        f"Task 3 failed 4 times\nreplayfilter.errors.UnknownSchemas: {UnknownSchemas([9, 7])}\n\tat org"
    )
    assert isinstance(error, UnknownSchemas)
    assert error.ids == {7, 9}


def test_the_lane_of_a_failed_delivery_survives_the_text_of_its_traceback() -> None:
    try:
        try:
            raise DeliveryError("lane a-1 was fenced; try again", 1)
        except DeliveryError as cause:
            raise DeliveryError("lane a-12 failed; try again", 12) from cause
    except DeliveryError:
        text = f"PythonException: {traceback.format_exc()}\n\tat org.apache.spark.Task"
    error = explain(text)
    assert isinstance(error, DeliveryError)
    assert (str(error), error.lane) == ("lane a-12 failed; try again", 12)
    unknown = explain("replayfilter.errors.DeliveryError: the offsets could not be read; try again\n")
    assert isinstance(unknown, DeliveryError)
    assert unknown.lane is None
