"""What extraction is asked for and what it answers: the contract between formats and the decode stage."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

UNITS = ("s", "ms", "us", "ns", "iso8601", "integer", "category")


class Reason(enum.StrEnum):
    """Why a record goes to the error topic. These words are stable: alerts and tools match on them."""

    EMPTY = "empty"  # null or no bytes, where the format needs a value
    JSON = "json"  # not well-formed, not UTF-8, nested too deeply, or a number past all limits
    NOT_OBJECT = "not_object"  # well-formed, but an array or a scalar
    AVRO_PREFIX = "avro_prefix"  # does not begin as the encoding wants: no magic bytes, or no schema id
    AVRO_SCHEMA = "avro_schema"  # its schema is unknown to the registry or the files, or can't be used
    AVRO = "avro"  # does not fit its schema: cut short, bytes left over, text that is not UTF-8
    KEY = "key"  # every key field is missing or null
    EXPIRY_MISSING = "expiry_missing"  # no expiry key, or null
    EXPIRY_TYPE = "expiry_type"  # an expiry key that is not of the unit asked for
    EXPIRY_RANGE = "expiry_range"  # outside int64


class Fault(NamedTuple):
    """Row ``row`` of the batch can't be used: ``reason`` for machines, ``message`` for people."""

    row: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class AvroSpec:
    """How to find the schema that an Avro value was written with.

    - ``encoding``: "confluent" (a zero byte and the id in a registry, int32), "single-object" (C3 01 and
      the schema's CRC-64-AVRO) or "plain" (nothing stands before the value).
    - ``registry``: URLs with commas between them; ``options``: the registry client's settings by its own
      names, secrets resolved. For "confluent".
    - ``schemas``: JSON texts of schemas; exactly one for "plain". For the other two.
    """

    encoding: str
    registry: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    schemas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Which fields to take from each record.

    - ``format``: "json", "avro" (then ``avro`` says where its schemas are) or "raw".
    - ``key``: the fields that make two records the same: dotted paths (``user.id``), ``@key``, ``@value``
      or ``@header:NAME`` (the last header of that name). Empty: no dedup, digests stay zero.
    - ``expiry_key``: a dotted path or ``@timestamp``; None: nothing ages, expiry stays zero.
    - ``unit``: s, ms, us, ns, iso8601, integer, or category for keys without an order.
    - ``origin``: who wrote a record, a dotted path or ``@header:NAME``; ``time``: its event time in
      ``time_unit``, a dotted path or ``@timestamp``. None where no low watermark is kept.
    """

    format: str
    key: tuple[str, ...]
    expiry_key: str | None
    unit: str
    avro: AvroSpec | None = None
    origin: str | None = None
    time: str | None = None
    time_unit: str = "ms"


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """n records as columns; those that an extractor's ``needs`` leaves out may be empty.

    ``values`` and ``keys``: bytes or None; ``timestamps_ms``: Kafka's, ms since the epoch;
    ``headers``: (name, value) pairs in the record's order, or None.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] = ()
    timestamps_ms: Sequence[int] | NDArray[np.int64] = ()
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The answer for n records.

    - ``expiry`` int64[n], in the spec's unit; iso8601 gives microseconds since the epoch.
    - ``digests`` uint64[n, 2]: high and low half of the key's XXH3-128.
    - ``faults``: at most one for each row, by ascending row. Their expiry and digest are zero.
    - ``origins``: the origins' values as found, empty if none are asked for; ``times_us`` int64[n]: event
      times in microseconds since the epoch, INT64_MIN where a row has none.
    """

    expiry: NDArray[np.int64]
    digests: NDArray[np.uint64]
    faults: list[Fault]
    origins: Sequence[object] = ()
    times_us: NDArray[np.int64] | None = None


class Extractor(Protocol):
    """Callable on a batch of records; ``needs`` is the subset of "keys", "timestamps", "headers" it reads."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, batch: RecordColumns) -> Extraction: ...


def shorten(value: str | bytes | int | float | Decimal, limit: int = 80) -> str:
    """``value`` for a message, cut to ``limit`` characters of printable ASCII (it may go into a header).

    >>> shorten("x" * 100, limit=10)
    "'xxxxxx..."
    """
    text = ascii(value[:limit]) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
