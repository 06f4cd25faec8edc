"""The audit of stamps: what it warns of, and what it must not warn of."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable

from replayfilter.core.replay.stamp_audit import SourceAudit, StampAudit, WarningKind
from replayfilter.core.stamp import Stamp


def audited(offsets: Iterable[int], partition: int = 0) -> SourceAudit:
    source = SourceAudit()
    for offset in offsets:
        source.add(partition, offset)
    return source


def crashing(rng: random.Random, records: int, gap: int) -> list[int]:
    """A job that crashes now and then, also while it writes again, and reads a source with gaps."""
    source = sorted(rng.sample(range(records * gap), records))
    written, at = [], 0
    while at < records:
        written.append(source[at])
        at = max(0, at - rng.randrange(300)) if rng.random() < 0.002 else at + 1
    return written


def test_crashes_cause_replays_and_nothing_worse() -> None:
    rng = random.Random(1)
    for gap in (1, 4):
        written = crashing(rng, 3_000, gap)
        found = audited(written)
        assert found.replays == len(written) - len(set(written)) > 0
        assert (found.out_of_order, found.jumps, found.two_writers) == (0, 0, False)
        assert found.missing == max(written) - min(written) + 1 - len(set(written))


def test_a_sample_that_begins_within_a_replay() -> None:
    found = audited([500, 501, 400, 401, *range(402, 510)])
    assert (found.out_of_order, found.two_writers, found.replays) == (0, False, 102)


def test_out_of_order_is_what_did_not_occur_before() -> None:
    found = audited([0, 1, 4, 5, 2, 3, 2, 6, 7])
    assert (found.out_of_order, found.replays, found.gaps, found.missing) == (2, 1, 1, 2)


def test_two_jobs_with_one_pid() -> None:
    rng = random.Random(2)
    ahead, behind = iter(range(1_000, 2_000)), iter(range(900, 1_900))
    mixed = [next(rng.choice((ahead, behind))) for _ in range(500)]
    assert audited(mixed).two_writers
    assert audited([n for n in range(200) for _ in range(2)]).two_writers, "in step"
    assert not audited([*range(100), *range(50, 90), *range(50, 200)]).two_writers, "two crashes"


def test_random_keys_of_20_bytes_are_not_stamps() -> None:
    audit = StampAudit()
    for number in range(5_000):
        audit.add(0, hashlib.sha1(str(number).encode()).digest())
    assert audit.unlikely > 4_980
    (warning, *_) = audit.warnings()
    assert warning.kind is WarningKind.NOT_STAMPS
    assert "SHA-1" in warning.message
    assert "header" in warning.message


def test_stamps_with_any_pid_are_likely() -> None:
    rng = random.Random(3)
    audit = StampAudit()
    for _ in range(1_000):
        pid = rng.randrange(-(1 << 63), 1 << 63)
        audit.add(0, Stamp(pid, rng.randrange(10_000), rng.randrange(1 << 62)).to_bytes())
    assert (audit.unlikely, audit.unstamped, audit.stamped) == (0, 0, 1_000)
    assert audit.warnings() == []


def test_each_problem_has_its_warning() -> None:
    audit = StampAudit()
    for offset in (1, 2, 9, 3, 10):
        audit.add(0, Stamp(1, 0, offset).to_bytes())
    for offset in range(20):
        audit.add(offset % 2, Stamp(2, 1, offset).to_bytes())
        audit.add(0, Stamp(3, 0, 1_000 - 200 * (offset % 2) + offset).to_bytes())
    audit.add(0, None)
    audit.add(0, b"own key")
    assert [(warning.kind, warning.sources) for warning in audit.warnings()] == [
        (WarningKind.UNSTAMPED, ()),
        (WarningKind.TWO_WRITERS, ((3, 0),)),
        (WarningKind.OUT_OF_ORDER, ((1, 0),)),
        (WarningKind.SEVERAL_PARTITIONS, ((2, 1),)),
    ]
    text = "\n".join(warning.message for warning in audit.warnings())
    assert "2 of 47 records have no stamp" in text
    assert "source 1/0 (1 records): offsets out of order" in text
    assert "source 2/1 (partitions 0, 1): records in more than one partition" in text
    assert "source 3/0: two jobs" in text
