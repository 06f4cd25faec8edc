"""What a stopped service's state says about one record: its mark, latest point, bucket and key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replayfilter.core.buckets import Buckets, RunStore
from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.columns import Columns
from replayfilter.core.key_run import INDEX, OFFSET
from replayfilter.core.rules import Rules
from replayfilter.core.stamp import Stamp
from replayfilter.core.state import ShardState
from replayfilter.spark.state_reader import StoredRuns

SEARCHED_KEYS = 20_000_000  # all buckets are searched if there are no more keys; a key needs 20 to 32 bytes


@dataclass(frozen=True, slots=True)
class DedupKey:
    """A record as the buckets know it: the halves of its digest, uint64, and its expiry key, int64."""

    hi: int
    lo: int
    expiry: int

    def bucket(self, rules: Rules) -> int:
        """The bucket that it belongs to."""
        hi, expiry = np.array([self.hi], np.uint64), np.array([self.expiry], np.int64)
        return int(Buckets(rules, StoredRuns({})).bucket_of(hi, expiry)[0])


@dataclass(frozen=True, slots=True)
class Facts:
    """What the state says.

    ``time_us``: the time of the last batch. ``mark``: of the record's source, None for none. ``latest``: the
    latest point, None while it is unknown. ``bucket_keys`` and ``bucket_runs``: the size of the record's
    bucket. ``remembered``: whether the key is there. ``newest``: the expiry key with which it was accepted
    last, where ages are kept. ``first``: the first record with it, where these are remembered, as
    topic/partition/offset. ``all_buckets``: whether more than its own bucket was searched.
    """

    time_us: int
    mark: int | None = None
    latest: int | None = None
    bucket_keys: int = 0
    bucket_runs: int = 0
    remembered: bool | None = None
    newest: int | None = None
    first: str = ""
    all_buckets: bool = False


def runs_to_search(shards: list[ShardState], rules: Rules, key: DedupKey | None) -> list[str]:
    """The names of the runs in which this key may be."""
    if key is None:
        return []
    keys, bucket = sum(shard.keys for shard in shards), key.bucket(rules)
    everywhere = rules.searches_all_buckets and keys <= SEARCHED_KEYS
    return [
        entry.name
        for shard in shards
        for number, entries in shard.runs.items()
        if everywhere or number == bucket
        for entry in entries
    ]


def facts_of(
    shards: list[ShardState], store: RunStore, rules: Rules, stamp: Stamp | None, key: DedupKey | None
) -> Facts:
    """What the state says of a record with this stamp and key; ``store`` has the runs to search.

    Marks and the latest point are in all shards; the one whose marks were updated last counts.
    """
    newest = max(shards, key=lambda shard: shard.mark_time_us, default=ShardState.empty())
    mark = newest.marks.recent.as_dict().get(stamp[:2]) if stamp is not None else None
    latest = newest.latest if newest.latest != UNKNOWN else None
    if key is None:
        return Facts(newest.time_us, mark, latest)
    number, searched = key.bucket(rules), set(runs_to_search(shards, rules, key))
    own = [entry for shard in shards for entry in shard.runs.get(number, ())]
    remembered, first, newest_expiry = False, "", UNKNOWN
    hi, lo, bucket = np.array([key.hi], np.uint64), np.array([key.lo], np.uint64), np.array([number])
    first_columns: Columns = {}
    if rules.remember_first:
        first_columns = {INDEX: np.zeros(1, np.uint32), OFFSET: np.zeros(1, np.int64)}
    for shard in shards:
        kept = {at: [each for each in entries if each.name in searched] for at, entries in shard.runs.items()}
        found = Buckets(rules, store, kept).find(hi, lo, bucket, first_columns)
        if found.found[0] and (not remembered or int(found.newest[0]) > newest_expiry):
            remembered, newest_expiry = True, int(found.newest[0])
            if rules.remember_first:
                topic, partition = shard.partitions[int(found.kept[INDEX][0])]
                first = f"{topic}/{partition}/{found.kept[OFFSET][0]}"
    return Facts(
        newest.time_us, mark, latest, sum(entry.keys for entry in own), len(own), remembered,
        newest_expiry if remembered and rules.keeps_ages else None, first,
        rules.searches_all_buckets and len(searched) > len(own),
    )  # fmt: skip
