"""Decode without Spark: stamps and headers of Arrow columns."""

from __future__ import annotations

import pyarrow as pa

from replayfilter.core.replay.stamp_audit import unlikely
from replayfilter.core.stamp import Stamp
from replayfilter.spark.decode import last_headers, read_stamps

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_stamps_of_a_slice_are_read() -> None:
    good = [Stamp(7, 1, offset).to_bytes() for offset in range(3)]
    column = pa.array([good[0], None, good[1], b"", b"short", good[2]], pa.binary())
    stamps = read_stamps(column.slice(1, 5))
    assert stamps.valid.tolist() == [False, True, False, False, True]
    assert stamps.offsets.tolist() == [0, 1, 0, 0, 2]
    assert read_stamps(pa.nulls(2, pa.binary())).valid.tolist() == [False, False]


def test_keys_that_are_no_stamps_are_counted() -> None:
    keys = [
        b"2024-05-01T12:00:00Z",
        b"\xff" * 20,
        Stamp(7, 3, -1).to_bytes(),
        Stamp(-7, 3, 0).to_bytes(),
        b"k",
    ]
    stamps = read_stamps(pa.array(keys, pa.binary()))
    assert unlikely(stamps).tolist() == [True, True, True, False, False]


def test_the_last_header_of_a_name_counts() -> None:
    rows = [
        [("s", b"before the slice")],
        [("s", b"1"), ("x", b"2"), ("s", b"3")],
        None,
        [],
        [("x", b"4")],
        [("s", None)],
        [("s", b"5")],
    ]
    found = last_headers(pa.array(rows, HEADERS).slice(1), "s")
    assert found.to_pylist() == [b"3", None, None, None, None, b"5"]
    assert last_headers(pa.nulls(2, HEADERS), "s").to_pylist() == [None, None]
