"""kill -9 of a service that keeps a low watermark: the watermark in the header stays right.

It never goes back, and it is never ahead of later records. Every record names its origin in a header, and
each origin writes in the order of Kafka's timestamps. So after an output record with the watermark W, no
record may have a timestamp below W.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.demo.check import ConsumerRecord, compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, STAMP, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from tests.support.interruption import Group, interrupted_phase
from tests.support.service_process import Checkpoint, ServiceProcess

pytestmark = pytest.mark.spark

NAME, RECORDS, BATCH = "tidekill", 20_000, 1_500
OURS = (WATERMARK_HEADER, SERVICE_HEADER)
HOSTS = [f"host-{number}" for number in range(3 * PARTITIONS)]
WATERMARK = f"""
[watermark]
enabled = true
origin = "@header:host"
time = "@timestamp"
roster = {HOSTS}
"""


def low_of(row: ConsumerRecord) -> int | None:
    """The watermark that a record carries, in microseconds; None for none."""
    found = [int(value or b"") for name, value in row.headers if name == WATERMARK_HEADER]
    assert len(found) <= 1
    return found[0] if found else None


def check_lows(rows: Iterable[ConsumerRecord]) -> int:
    """The number of different watermarks in a partition. None goes back or is ahead of a later record."""
    ordered = list(rows)
    lows = [low for row in ordered if (low := low_of(row)) is not None]
    assert lows == sorted(lows)
    oldest_to_come = 2**63
    for row in reversed(ordered):
        oldest_to_come = min(oldest_to_come, row.timestamp_ms * 1_000)
        assert (low_of(row) or 0) <= oldest_to_come, row
    first = next((at for at, row in enumerate(ordered) if low_of(row) is not None), 0)
    assert all(low_of(row) is not None for row in ordered[first:]), (
        "every record after the first one with a watermark has one"
    )
    return len(set(lows))


@pytest.mark.parametrize(
    "rows",
    [[(5, None), (6, 4), (7, 3)], [(5, None), (4, 4), (3, 4)], [(5, 6)], [(5, 1), (6, None)]],
    ids=["goes back", "a later record is behind it", "ahead of its own record", "missing later"],
)
def test_the_check_finds_wrong_watermarks(rows: list[tuple[int, int | None]]) -> None:
    right = [(5, None), (4, None), (6, 4), (4, 4), (9, 6)]
    assert check_lows(row_of(*each) for each in right) == 2
    with pytest.raises(AssertionError):
        check_lows(row_of(*each) for each in rows)


def row_of(time_ms: int, low_ms: int | None) -> ConsumerRecord:
    """A record with a time and a watermark."""
    carried = [] if low_ms is None else [(WATERMARK_HEADER, b"%d" % (low_ms * 1_000))]
    return ConsumerRecord(0, None, None, time_ms, [("note", b""), *carried])


def by_input(outputs: Mapping[str, list[ConsumerRecord]]) -> dict[int, list[ConsumerRecord]]:
    """The output of each input partition over all topics, in input order."""
    found: defaultdict[int, list[tuple[int, ConsumerRecord]]] = defaultdict(list)
    for rows in outputs.values():
        for row in rows:
            _, partition, offset = STAMP.unpack(row.key or b"")
            found[partition].append((offset, row))
    return {partition: [row for _, row in sorted(rows)] for partition, rows in found.items()}


def await_delivery(service: ServiceProcess, checkpoint: Checkpoint, group: Group) -> None:
    """Wait for two batches, so that there is a watermark, and then for the delivery of another one."""
    batch = checkpoint.committed() + 2
    service.await_change(lambda: checkpoint.committed() >= batch)
    offsets = group.offsets()
    service.await_change(lambda: group.offsets() != offsets, every=0.002)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_after_kills_the_watermarks_are_still_right(bootstrap: str, tmp_path: Path) -> None:
    seed = int(time.time())
    rng, end_ms = random.Random(seed), seed * 1_000
    stream = [
        record._replace(
            headers=[*record.headers, ("host", rng.choice(HOSTS[record.partition :: PARTITIONS]).encode())]
        )
        for record in generate(RECORDS, end_ms=end_ms, seed=seed)
    ]
    config = write_config(tmp_path, bootstrap, NAME, batch_records=BATCH)
    config.write_text(config.read_text() + WATERMARK)
    for topic in (NAME, *(f"{NAME}.{route}" for route in OUTPUTS)):
        create_topic(bootstrap, topic, PARTITIONS)
    publish(bootstrap, NAME, stream)
    checkpoint, group = Checkpoint(tmp_path / "checkpoint"), Group(bootstrap, NAME)
    hit = []
    for kill in range(2):
        with ServiceProcess(config) as service:
            await_delivery(service, checkpoint, group)
            time.sleep(rng.choice((0.0, 0.02, 0.2)))
            service.kill(service.pids())
        hit.append(interrupted_phase(checkpoint, group))
        print(f"kill {kill + 1}: batch {checkpoint.started()}, {hit[-1]}", flush=True)
    group.close()
    with ServiceProcess(config, "--once") as service:
        assert service.end(200) == 0, service.tail()
    outputs = {route: read_topic(bootstrap, f"{NAME}.{route}") for route in OUTPUTS}
    assert hit != ["no batch in flight"] * 2, "the kills prove nothing"

    for route, rows in outputs.items():
        for partition in range(PARTITIONS):
            assert check_lows(row for row in rows if row.partition == partition), (seed, route, partition)
    counted = [check_lows(rows) for rows in by_input(outputs).values()]
    assert len(counted) == PARTITIONS
    assert min(counted) >= RECORDS // BATCH // 2, f"seed {seed}: about one per batch"
    plain = {
        route: [row._replace(headers=[each for each in row.headers if each[0] not in OURS]) for row in rows]
        for route, rows in outputs.items()
    }
    for verdict in compare(stream, expected_routes(stream, end_ms=end_ms), plain).values():
        assert verdict.ok, f"seed {seed}, {verdict}"
