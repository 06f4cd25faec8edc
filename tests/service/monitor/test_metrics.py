"""The closed list of metrics: what is exposed, what the documentation says, what labels can be."""

from __future__ import annotations

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from replayfilter.core.watermark.laggards import Laggards
from replayfilter.service.monitor.lag import Lag
from replayfilter.service.monitor.metrics import LABELS, METRICS, PREFIX, registry_of
from replayfilter.service.monitor.status import BUCKETS, Phase, Status
from replayfilter.service.monitor.storage import Storage
from replayfilter.spark.counts import COUNTS
from tests.support.batches import batch
from tests.support.paths import ROOT

DOCS = ROOT / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(replayfilter_\w+)` \| (\w+) \| ([^|]+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


def exposed(status: Status, now: float = 2000.0) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape by name and labels."""
    text = generate_latest(registry_of(status, lambda: now)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def busy() -> Status:
    """A status in which every count is 7, every level too, after two batches."""
    status = Status("orders", 120.0, {}, 1000.0)
    status.enter(Phase.RUNNING, 1000.0)
    held = Laggards(5_000_000, 7_500_000, 30, 29, 1, 4, 3, (("h-29", None), ("h-1", 5_000_000))).to_text()
    for number in range(2):
        status.batch(batch(number, 1990.0, **dict.fromkeys(COUNTS, 7), laggards=held))
    status.sign_of_life(2000.0)
    status.stored(Storage(140, 210))
    status.lag([Lag("orders", 0, 10, 40, 3.5), Lag("orders", 1, 5, 5, None)], 1995.0)
    return status


def name_of(metric: str, kind: str) -> str:
    return f"{PREFIX}{metric}_total" if kind == "counter" else f"{PREFIX}{metric}"


def test_every_metric_is_in_the_docs_as_it_is() -> None:
    documented = {
        name: (kind, unit.strip(), set(re.findall(r"`(\w+)`", labels)))
        for name, kind, unit, labels, _ in ROW.findall(DOCS.read_text())
    }
    real = {name_of(m.name, m.kind): (m.kind, m.unit, set(m.labels)) for m in METRICS}
    assert documented == real


def test_every_metric_has_a_value_after_the_first_batch() -> None:
    names = {name for name, _ in exposed(busy())}
    for metric in METRICS:
        name = name_of(metric.name, metric.kind)
        assert (f"{name}_bucket" if metric.kind == "histogram" else name) in names


def test_every_label_is_bounded() -> None:
    for metric in METRICS:
        assert set(metric.labels) <= LABELS.keys()
    for (_, labels), _value in exposed(busy()).items():
        for label, value in labels:
            if label != "le":
                known = LABELS[label]
                assert known is None or value in known, (label, value)


def test_values() -> None:
    found = exposed(busy())
    assert found["replayfilter_records_total", (("route", "replay"),)] == 14
    assert found["replayfilter_error_records_total", (("reason", "future"),)] == 14
    assert found["replayfilter_gaps_total", ()] == 14
    assert found["replayfilter_keys", ()] == 7, "a level: the last batch's"
    assert found["replayfilter_lag_records", (("partition", "0"), ("topic", "orders"))] == 30
    assert found["replayfilter_lag_seconds", (("partition", "0"), ("topic", "orders"))] == 3.5
    assert ("replayfilter_lag_seconds", (("partition", "1"), ("topic", "orders"))) not in found, "not known"
    assert found["replayfilter_last_commit_age_seconds", ()] == 10
    assert found["replayfilter_phase", (("phase", "running"),)] == 1
    assert found["replayfilter_phase", (("phase", "failed"),)] == 0
    assert found["replayfilter_delay_seconds", (("record", "oldest"),)] == 0.007
    assert found["replayfilter_watermark_behind_seconds", ()] == 2.5
    assert found["replayfilter_watermark_origins", (("origins", "lagging"),)] == 4
    assert found["replayfilter_watermark_origins", (("origins", "expected"),)] == 30
    assert found["replayfilter_watermark_may_lag", ()] == 3


def test_the_histogram_of_batch_seconds_adds_up() -> None:
    found = exposed(busy())
    buckets = [
        found["replayfilter_batch_seconds_bucket", (("le", bound), ("step", "total"))]
        for bound in (*map(str, BUCKETS), "+Inf")
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["replayfilter_batch_seconds_count", (("step", "total"),)] == 2
    assert found["replayfilter_batch_seconds_sum", (("step", "total"),)] == 4.0
    two_seconds = found["replayfilter_batch_seconds_bucket", (("le", "2.5"), ("step", "total"))]
    assert (two_seconds, found["replayfilter_batch_seconds_bucket", (("le", "1.0"), ("step", "total"))]) == (
        2,
        0,
    )


def test_before_the_first_batch_nothing_is_made_up() -> None:
    status = Status("orders", 120.0, {}, 1000.0)
    found = exposed(status)
    assert found["replayfilter_ready", ()] == 0
    assert found["replayfilter_records_total", (("route", "unique"),)] == 0
    for name in ("keys", "last_commit_age_seconds", "state_bytes"):
        assert (f"replayfilter_{name}", ()) not in found


def test_what_a_key_takes() -> None:
    found = exposed(busy())
    for place, size in {"memory": 7, "disk": 140, "disk_all": 210}.items():
        assert found["replayfilter_size_bytes", (("place", place),)] == size
        assert found["replayfilter_key_size_bytes", (("place", place),)] == size / 7
    status = busy()
    status.batch(batch(2, 1995.0, state_keys=0, state_memory=99))
    assert found.keys() - exposed(status).keys() >= {("replayfilter_key_size_bytes", (("place", "disk"),))}
