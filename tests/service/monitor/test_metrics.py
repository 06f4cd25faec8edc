"""The complete list of metrics: what is exposed, what the documentation says, which values labels have."""

from __future__ import annotations

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from replayfilter.service.monitor.metrics import LABELS, METRICS, PREFIX, registry_of
from replayfilter.service.monitor.status import BUCKETS, Status
from tests.support.batches import batch, busy_status
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


def name_of(metric: str, kind: str) -> str:
    return f"{PREFIX}{metric}_total" if kind == "counter" else f"{PREFIX}{metric}"


def test_the_docs_list_every_metric_with_its_type_unit_and_labels() -> None:
    section, _, _ = DOCS.read_text().partition("\n## Watermark server\n")
    documented = {
        name: (kind, unit.strip(), set(re.findall(r"`(\w+)`", labels)))
        for name, kind, unit, labels, _ in ROW.findall(section)
    }
    real = {name_of(m.name, m.kind): (m.kind, m.unit, set(m.labels)) for m in METRICS}
    assert documented == real


def test_every_metric_has_a_value_after_the_first_batch() -> None:
    names = {name for name, _ in exposed(busy_status())}
    for metric in METRICS:
        name = name_of(metric.name, metric.kind)
        assert (f"{name}_bucket" if metric.kind == "histogram" else name) in names


def test_every_label_has_a_bounded_set_of_values() -> None:
    for metric in METRICS:
        assert set(metric.labels) <= LABELS.keys()
    for _, labels in exposed(busy_status()):
        for label, value in labels:
            if label != "le":
                known = LABELS[label]
                assert known is None or value in known, (label, value)


def test_values_after_two_batches() -> None:
    found = exposed(busy_status())
    assert found["replayfilter_records_total", (("route", "replay"),)] == 14
    assert found["replayfilter_error_records_total", (("reason", "future"),)] == 14
    assert found["replayfilter_gaps_total", ()] == 14
    assert found["replayfilter_keys", ()] == 7, "a gauge: the value of the last batch"
    assert found["replayfilter_lag_records", (("partition", "0"), ("topic", "orders"))] == 30
    assert found["replayfilter_lag_seconds", (("partition", "0"), ("topic", "orders"))] == 3.5
    assert ("replayfilter_lag_seconds", (("partition", "1"), ("topic", "orders"))) not in found, "not known"
    assert found["replayfilter_held_back_records", (("partition", "0"), ("topic", "orders"))] == 0
    assert found["replayfilter_held_back_records", (("partition", "1"), ("topic", "orders"))] == 11
    assert found["replayfilter_held_back_seconds", (("partition", "1"), ("topic", "orders"))] == 65
    assert found["replayfilter_last_commit_age_seconds", ()] == 10
    assert found["replayfilter_phase", (("phase", "running"),)] == 1
    assert found["replayfilter_phase", (("phase", "failed"),)] == 0
    assert found["replayfilter_delay_seconds", (("record", "oldest"),)] == 0.007
    assert found["replayfilter_watermark_behind_seconds", ()] == 2.5
    assert found["replayfilter_watermark_origins", (("origins", "lagging"),)] == 4
    assert found["replayfilter_watermark_origins", (("origins", "expected"),)] == 30
    assert found["replayfilter_watermark_may_lag", ()] == 3


def test_the_histogram_of_batch_seconds_adds_up() -> None:
    found = exposed(busy_status())
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


def test_the_histograms_of_lengths_have_the_periods_as_bounds() -> None:
    status = Status("orders", 120.0, {}, 1000.0)
    status.add_batch(batch(0, 1990.0, state_late_unique_0=5, state_late_unique_4=2, state_apart_14=3))
    status.add_batch(batch(1, 1991.0, state_late_unique_4=1, state_late_expired_0=9))
    found = exposed(status)
    name = "replayfilter_lateness_seconds_bucket"
    late = [
        found[name, (("le", bound), ("route", "unique"))] for bound in ("10.0", "900.0", "3600.0", "+Inf")
    ]
    assert late == [5, 5, 8, 8]
    name = "replayfilter_duplicate_distance_seconds_bucket"
    apart = [value for (each, _), value in found.items() if each == name]
    assert sorted(apart) == [*[0] * 14, 3]


def test_before_the_first_batch_unknown_values_are_absent() -> None:
    status = Status("orders", 120.0, {}, 1000.0)
    found = exposed(status)
    assert found["replayfilter_ready", ()] == 0
    assert found["replayfilter_records_total", (("route", "unique"),)] == 0
    for name in ("keys", "last_commit_age_seconds", "state_bytes"):
        assert (f"replayfilter_{name}", ()) not in found


def test_state_size_in_total_and_per_key() -> None:
    found = exposed(busy_status())
    for location, size in {"memory": 7, "disk": 140, "disk_all": 210}.items():
        assert found["replayfilter_size_bytes", (("place", location),)] == size
        assert found["replayfilter_key_size_bytes", (("place", location),)] == size / 7
    status = busy_status()
    status.add_batch(batch(2, 1995.0, state_keys=0, state_memory=99))
    assert found.keys() - exposed(status).keys() >= {("replayfilter_key_size_bytes", (("place", "disk"),))}
