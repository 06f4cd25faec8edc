"""Frames: chunks that are cut together are cut as each of them alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest

from replayfilter.core import frames
from replayfilter.core.frames import ChunkId, Cut, Frame, FramePart, cut_frames
from replayfilter.core.stamp import Stamps

SHARDS = 3


def columns(random: Random, n: int) -> dict[str, Any]:
    """N rows of few sources, some without a stamp, with few different expiry keys, out of order."""
    valid = np.array(
        [random.random() < 0.6 for _ in range(n)], np.bool_
    )  # the others are zeros, as when read
    few = np.array([random.choices(range(3), k=n) for _ in range(3)])
    return {
        "stamps": Stamps(
            pids=few[0] * valid,
            partitions=(few[1] * valid).astype(np.int32),
            offsets=np.array([at + random.randrange(4) for at in range(n)], np.int64) * valid,
            valid=valid,
        ),
        "expiry": few[2].astype(np.int64),
        "digests": np.array([(0, random.randrange(9)) for _ in range(n)], np.uint64).reshape(-1, 2),
        "rows": np.arange(n, dtype=np.uint32),
        "future": np.array([random.random() < 0.1 for _ in range(n)], np.bool_),
        "kept": {"offset": np.arange(n, dtype=np.int64), "other": np.arange(n, dtype=np.uint32)},
    }


def cut_together(ids: list[ChunkId], parts: list[dict[str, Any]], expiry_order: bool) -> Cut:
    stamps = [part["stamps"] for part in parts]
    plain = parts[0].keys() - {"stamps", "kept"}
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in plain}
    joined["kept"] = {
        name: np.concatenate([part["kept"][name] for part in parts]) for name in parts[0]["kept"]
    }
    joined["stamps"] = Stamps(*(np.concatenate(column) for column in zip(*stamps, strict=True)))
    ends = np.cumsum([len(part["rows"]) for part in parts])
    return cut_frames(ids, ends, **joined, shards=SHARDS, expiry_order=expiry_order)


def parts_of(frame: Frame) -> dict[ChunkId, dict[str, Any]]:
    read = Frame.from_bytes(frame.to_bytes())
    return {ChunkId(part.topic, part.partition, part.first): as_lists(part) for part in read.parts()}


def as_lists(part: FramePart) -> dict[str, Any]:
    """The columns with rows; without rows it makes no difference which sources are in the table."""
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    values |= values.pop("kept")
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }


def first_difference(seeds: range) -> int | None:
    """The first seed with which chunks cut together differ from chunks cut alone."""
    for seed in seeds:
        random = Random(seed)
        ids = [ChunkId("t", number // 2, 100 * (number % 2)) for number in range(random.randrange(1, 7))]
        parts = [columns(random, random.choice([0, 1, 2, 5, 12])) for _ in ids]
        order = random.random() < 0.5
        together, ends = cut_together(ids, parts, order), np.cumsum([0, *(len(p["rows"]) for p in parts)])
        alone = [cut_together([id_], [part], order) for id_, part in zip(ids, parts, strict=True)]
        replays = [
            start + row for start, cut in zip(ends.tolist(), alone, strict=False) for row in cut.replays
        ]
        if together.replays.tolist() != replays:
            return seed
        for shard, frame in enumerate(together.frames):
            expected: dict[ChunkId, dict[str, Any]] = {}
            for cut in alone:
                expected |= parts_of(cut.frames[shard])
            if parts_of(frame) != expected:
                return seed
    return None


def test_chunks_cut_together_are_cut_as_each_alone() -> None:
    assert first_difference(range(400)) is None


def implied_across_chunks(sources: Any, chunk: Any, *rest: Any, real: Any = frames._implied) -> Any:
    return real(sources, np.zeros_like(chunk), *rest)


def repeats_across_chunks(sources: Any, chunk: Any, expiry: Any, real: Any = frames._repeats) -> Any:
    return real(sources, np.zeros_like(chunk), expiry)


def sources_across_chunks(stamps: Any, chunk: Any, chunks: int, real: Any = frames._find_sources) -> Any:
    return real(stamps, np.minimum(chunk, 1), chunks)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_implied", implied_across_chunks),
        ("_repeats", repeats_across_chunks),
        ("_find_sources", sources_across_chunks),
    ],
)
def test_chunks_that_are_not_kept_apart_are_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(frames, name, bug)
    assert first_difference(range(400)) is not None
