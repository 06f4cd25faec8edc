"""The headers of output records: the record's own headers first, then those that this service adds.

- Error: ``rf-reason``, ``rf-message`` and ``rf-stage`` (the stage that found it: ``decode`` or ``route``).
- Expired: ``rf-late-by``, how many milliseconds it is behind the latest point.
- Error and expired: where the record was in the input, under the names that Kafka Connect gives it.
- Duplicate, with ``dedup.remember_first``: ``rf-first``, the record that it repeats.
- Conflict: ``rf-conflict``, the fields that were compared.
- With ``output.stamp = "header"``: ``rf-stamp``, in place of the one that the record came with.
- With a low watermark: ``rf-watermark`` and ``rf-service``, in place of those that the record came with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN
from replayfilter.core.frames import ChunkId
from replayfilter.core.routing import Route
from replayfilter.core.stamp import STAMP_HEADER
from replayfilter.core.watermark.carried import SERVICE_HEADER, WATERMARK_HEADER
from replayfilter.kafka.chunk import Headers
from replayfilter.spark.error_reasons import JUMP_MESSAGE, REASON_OF_ROUTE

FIRST_HEADER = "rf-first"  # topic/partition/offset
CONFLICT_HEADER = "rf-conflict"
_COMPARED_CHARACTERS = 500  # output topics have room for 4,096 bytes of headers
LATE_HEADER = "rf-late-by"
# Kafka Connect's names, with text as values like there: most tools that read dead letters know these.
CONNECT_HEADERS = tuple(f"__connect.errors.{name}" for name in ("topic", "partition", "offset"))
CONNECT_MESSAGE = "__connect.errors.exception.message"
_IS_ERROR = np.array([route == Route.ERROR or route in REASON_OF_ROUTE for route in Route])
_IS_REFUSED = _IS_ERROR | np.array([route == Route.EXPIRED for route in Route])


def output_headers(
    records: pa.RecordBatch,
    codes: NDArray[np.uint8],
    chunks: Sequence[ChunkId],
    number: NDArray[np.intp],
    compared: Sequence[str] = (),
) -> list[Headers | None] | None:
    """The headers of each record, without those of the watermark; None if no record has any.

    ``records``: as in a Payload, and if known the columns ``first`` and ``late_by`` with the texts for
    ``rf-first`` and ``rf-late-by``. ``codes``: their routes, uint8[n]. ``number`` intp[n]: the index of each
    record's chunk in ``chunks``. ``compared``: the fields by which conflicts are found.
    """
    refused = np.flatnonzero(_IS_REFUSED[codes]).tolist()
    names = records.schema.names
    firsts = records.column("first").to_pylist() if "first" in names else []
    conflicts = np.flatnonzero(codes == Route.CONFLICT).tolist() if compared else []
    if "headers" not in names and not refused and not any(firsts) and not conflicts:
        return None
    headers: list[Headers | None] = [None] * records.num_rows
    if "headers" in names:
        headers = own_headers(records.column("headers"))
    for row in refused:
        route, chunk = Route(codes[row]), chunks[number[row]]
        origin = (chunk.topic, chunk.partition, records.column("offset")[row])
        why = _error_headers(records, row, route) if route != Route.EXPIRED else _late_header(records, row)
        headers[row] = [*(headers[row] or ()), *why, *zip(CONNECT_HEADERS, map(str, origin), strict=True)]
    for row, first in enumerate(firsts):
        if first is not None:
            headers[row] = [*(headers[row] or ()), (FIRST_HEADER, first)]
    for row in conflicts:
        text = ", ".join(compared)[:_COMPARED_CHARACTERS]
        headers[row] = [*(headers[row] or ()), (CONFLICT_HEADER, text)]
    return headers


def own_headers(column: pa.ListArray) -> list[Headers | None]:
    """The headers that records came with, as Python values."""
    pairs = column.flatten()
    named = list(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True))
    ends = np.cumsum(column.value_lengths().fill_null(0).to_numpy()).tolist()
    return [named[start:end] or None for start, end in zip([0, *ends], ends, strict=False)]


def replace_stamps(headers: list[Headers | None], stamps: Sequence[bytes]) -> list[Headers | None]:
    """The same headers with these stamps, of 20 bytes each."""
    return [
        [*(pair for pair in own or () if pair[0] != STAMP_HEADER), (STAMP_HEADER, stamp)]
        for own, stamp in zip(headers, stamps, strict=True)
    ]


def replace_watermark(headers: list[Headers | None], watermark_us: int, service: str) -> list[Headers | None]:
    """The same headers with ``watermark_us`` as the low watermark of ``service``, or with none if UNKNOWN."""
    new: Headers = [(WATERMARK_HEADER, str(watermark_us)), (SERVICE_HEADER, service)]
    if watermark_us == UNKNOWN:
        new = []
    replaced = (WATERMARK_HEADER, SERVICE_HEADER)
    return [[*(pair for pair in own or () if pair[0] not in replaced), *new] or None for own in headers]


def _error_headers(records: pa.RecordBatch, row: int, route: Route) -> Headers:
    if route in REASON_OF_ROUTE:
        reason, stage = REASON_OF_ROUTE[route], "route"
    else:
        reason, stage = records.column("reason")[row].as_py(), "decode"
    message = JUMP_MESSAGE if route == Route.JUMP else records.column("message")[row].as_py()
    return [("rf-reason", reason), ("rf-message", message), ("rf-stage", stage), (CONNECT_MESSAGE, message)]


def _late_header(records: pa.RecordBatch, row: int) -> Headers:
    if "late_by" not in records.schema.names:  # the clock has no latest point
        return []
    return [(LATE_HEADER, records.column("late_by")[row].as_py())]
