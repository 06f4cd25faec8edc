"""The contract between formats and the decode stage: what to extract, and what an extraction returns."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

UNITS = ("s", "ms", "us", "ns", "iso8601", "integer", "category")
# The most schema ids that are recorded as unknown. With more of them the values are not Avro: the others are
# errors at once, and are decided in another way if they are registered between two attempts of their batch.
MAX_UNKNOWN = 100


class Reason(enum.StrEnum):
    """Why a record goes to the error topic. The values are stable: alerts and tools match on them."""

    EMPTY = "empty"  # null or no bytes, where the format needs a value
    JSON = "json"  # not well-formed, not UTF-8, nested too deeply, or a number out of range
    NOT_OBJECT = "not_object"  # well-formed, but an array or a scalar
    AVRO_PREFIX = "avro_prefix"  # lacks the prefix of its encoding: the magic bytes or the schema id
    AVRO_SCHEMA = (
        "avro_schema"  # its schema is unknown to the registry and the schema files, or can't be used
    )
    AVRO = "avro"  # does not match its schema: truncated, trailing bytes, text that is not UTF-8
    PROTOBUF_PREFIX = "protobuf_prefix"  # lacks the prefix of its encoding, or is of another message type
    PROTOBUF_SCHEMA = "protobuf_schema"  # its schema is unknown to the registry, or can't be used
    PROTOBUF = "protobuf"  # does not match its message type: truncated, text that is not UTF-8
    CLOUDEVENT = "cloudevent"  # lacks an attribute that each event has, or its event format is not JSON
    DEBEZIUM = "debezium"  # not a change event: it has no source or no op
    KEY = "key"  # every key field is missing or null
    EXPIRY_MISSING = "expiry_missing"  # no expiry key, or null
    EXPIRY_TYPE = "expiry_type"  # the expiry key does not have the configured unit
    EXPIRY_RANGE = "expiry_range"  # the expiry key does not fit int64


class RecordError(NamedTuple):
    """Why row ``row`` of a batch can't be used: ``reason`` for tools, ``message`` for people."""

    row: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class AvroSpec:
    """Where to find the schema that an Avro value was written with.

    - ``encoding``: "confluent" (a zero byte and the id in a registry, int32), "single-object" (C3 01 and
      the schema's CRC-64-AVRO) or "plain" (no prefix).
    - ``registry``, for "confluent": URLs, separated by commas; ``options``: settings of the registry client
      under the client's own names, with secrets resolved.
    - ``schemas``, for the other two: schemas as JSON text; exactly one for "plain".
    - ``unknown``, for "confluent": ids that count as unknown, whatever the registry says by now.
    """

    encoding: str
    registry: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    schemas: tuple[str, ...] = ()
    unknown: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProtobufSpec:
    """Which messages Protobuf values are, and where their types are.

    - ``encoding``: "confluent" (a zero byte, the id in a registry, int32, and the position of the type) or
      "plain" (no prefix).
    - ``descriptors``: a FileDescriptorSet, in base64; empty if the types are in a registry.
    - ``message``: the full name of the message that each value is; with a registry empty for any.
    - ``registry``, ``options``, ``unknown``, for "confluent" without descriptors: as of :class:`AvroSpec`.
    """

    encoding: str
    descriptors: str = field(default="", repr=False)
    message: str = ""
    registry: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    unknown: tuple[int, ...] = ()


class RegistryAddress(NamedTuple):
    """A schema registry's ``url``, and settings of its client under the client's own names."""

    url: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Which fields to extract from each record.

    - ``format``: "json", "avro" (``avro`` then says where the schemas are), "protobuf" (``protobuf`` says
      which messages), "cloudevents" (a path is the name of an attribute), "debezium" (a path begins in the
      envelope; needs ``on_null`` "unique") or "raw".
    - ``key``: the fields that make two records the same: dotted paths (``user.id``), ``@key``, ``@value``
      or ``@header:NAME`` (the last header of that name). Empty: no dedup; all digests are zero.
    - ``expiry_key``: a dotted path, ``@timestamp`` or ``@header:NAME``. None: records don't age; all
      expiry keys are zero.
    - ``unit``: s, ms, us, ns, iso8601, integer, or category for keys without an order.
    - ``content``: the fields that are compared to find conflicts, named as those of the key. Empty: none.
    - ``origin``: who wrote a record, a dotted path or ``@header:NAME``; ``time``: its event time in
      ``time_unit``, a dotted path or ``@timestamp``. None if there is no low watermark to compute.
    - ``on_null``: what becomes of a null value that the format can't read: "error", "unique" (it is no error
      and has no key) or "key" (its key is ``@key``, and differs from the key of each value).
    """

    format: str
    key: tuple[str, ...]
    expiry_key: str | None
    unit: str
    avro: AvroSpec | None = None
    origin: str | None = None
    time: str | None = None
    time_unit: str = "ms"
    on_null: str = "error"
    protobuf: ProtobufSpec | None = None
    content: tuple[str, ...] = ()

    @property
    def schemas(self) -> AvroSpec | ProtobufSpec | None:
        """Where the schemas of the values are; None if they have none."""
        return self.avro or self.protobuf

    def with_schemas(self, schemas: AvroSpec | ProtobufSpec) -> KeySpec:
        """The spec with other schemas of the same format."""
        if isinstance(schemas, ProtobufSpec):
            return replace(self, protobuf=schemas)
        return replace(self, avro=schemas)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """n records as columns. A column that the extractor's ``needs`` doesn't name may be empty.

    ``values`` and ``keys``: bytes or None; ``timestamps_ms``: Kafka's, ms since the epoch;
    ``headers``: (name, value) pairs in the record's order, or None.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] = ()
    timestamps_ms: Sequence[int] | NDArray[np.int64] = ()
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The result for n records.

    - ``expiry`` int64[n], in the spec's unit; iso8601 gives microseconds since the epoch.
    - ``digests`` uint64[n, 2]: high and low half of the key's XXH3-128.
    - ``errors``: at most one for each row, by ascending row. Their expiry and digest are zero.
    - ``nulls``: rows with a null value that are no errors, ascending; also those that the format lets pass.
      They have no expiry key, so it is zero.
    - ``origins``: the origins' values as found, empty if the spec names none; ``times_us`` int64[n]: event
      times in microseconds since the epoch, INT64_MIN for a row without one.
    - ``contents`` uint32[n]: digests of the content, 0 for errors and null values; None if the spec names no
      content.
    """

    expiry: NDArray[np.int64]
    digests: NDArray[np.uint64]
    errors: list[RecordError]
    origins: Sequence[object] = ()
    times_us: NDArray[np.int64] | None = None
    nulls: Sequence[int] = ()
    contents: NDArray[np.uint32] | None = None


class Extractor(Protocol):
    """What :func:`build_extractor` returns."""

    @property
    def needs(self) -> frozenset[str]:
        """Which of "keys", "timestamps" and "headers" a batch must have."""

    def __call__(self, batch: RecordColumns) -> Extraction:
        """Extract a batch of records. No record makes it raise."""


def shorten(value: str | bytes | int | float | Decimal, limit: int = 80) -> str:
    """``value`` for a message: printable ASCII, at most ``limit`` characters (it may go into a header).

    >>> shorten("x" * 100, limit=10)
    "'xxxxxx..."
    """
    text = ascii(value[:limit]) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
