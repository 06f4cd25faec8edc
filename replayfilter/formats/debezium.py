"""The "debezium" format: change events in JSON, compared by where the change is in the database's log.

A connector that starts again writes the events since its last committed offset once more. The second copy
of an event has the same place in the log, so two events are the same if these are equal (:data:`KEY`):

- the record's key, which Debezium makes of the row's primary key;
- ``source``, which has the place in the log: file, position and row of MySQL, LSN and transaction of
  PostgreSQL, and so on. What may differ between two copies is left out: :data:`_CHANGING`;
- ``op`` and the change itself. An update that changes the primary key becomes two events at one place.

Which of two places is later is never asked. It can't be known in general: docs/guides/filter-change-data.md.

Some records have no place of their own, so they pass as unique: they may arrive twice, but none is lost.

- Records of snapshots: a second snapshot must arrive in full. Their ``source.snapshot`` is not false.
- Records without a key. PostgreSQL gives all rows of one insert the same place, and without a primary key two
  equal rows are two. (MySQL and SQL Server number the rows.)
- Changes in a transaction of MongoDB, which all have the same place, also several of one document.

The envelope is the value, or its member ``payload`` if the converter writes schemas. Paths begin in the
envelope. A value without ``source`` and ``op`` is an error: a change of a schema, or a record that a
transform has flattened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from replayfilter.core.digest import MISSING
from replayfilter.formats.fields import Field, Location, look_up
from replayfilter.formats.json import JsonReader
from replayfilter.formats.spec import Reason, RecordColumns, RecordError

KEY = ("@key", "source", "op", "before", "after", "updateDescription", "message")
EXPIRY_KEY, UNIT = "source.ts_ms", "ms"
PASSING = Field("", Location.PATH, ("",))
"""A path that no config can have: whether a record passes as unique."""

_SOURCE, _OP, _PAYLOAD = "source", "op", "payload"
_encode = msgspec.json.Encoder(order="sorted").encode
_NUMBER_ROWS = frozenset(("mysql", "mariadb", "sqlserver"))
# Debezium's version may change with the start. Of PostgreSQL, xmin is the state of the replication slot, and
# sequence has the last transaction that this execution of the connector has seen.
_CHANGING = frozenset(("version", "sequence", "xmin"))


class DebeziumReader:
    """An :class:`extractor.Reader` of change events, for ``fields`` that are paths into the envelope.

    ``source`` as a whole has only what is the same in each copy of an event. The column of :data:`PASSING`
    has booleans.
    """

    needs = frozenset({"keys"})
    as_text = False

    def __init__(self, fields: Sequence[Field]) -> None:
        self._paths = [field.names for field in fields]
        named = (path[0] for path in self._paths if path != PASSING.names)
        self._members = list(dict.fromkeys((_SOURCE, _OP, *named)))
        names = dict.fromkeys((*self._members, _PAYLOAD))
        self._json = JsonReader([Field(name, Location.PATH, (name,)) for name in names])
        self._payload = list(names).index(_PAYLOAD)

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """One column per path, see :class:`extractor.Reader`."""
        columns = self._json(batch, errors)
        envelopes: list[dict[str, Any]] = []
        for row, (payload, *members) in enumerate(
            zip(columns[self._payload], *columns[: len(self._members)], strict=True)
        ):
            envelope: dict[str, Any] = dict(zip(self._members, members, strict=True))
            if envelope[_SOURCE] is MISSING and isinstance(payload, dict):
                envelope = payload
            if row not in errors and not (isinstance(envelope.get(_SOURCE), dict) and envelope.get(_OP)):
                errors[row] = RecordError(row, Reason.DEBEZIUM, _NO_EVENT)
            envelopes.append({} if row in errors else envelope)
        return [self._column(envelopes, path, batch.keys) for path in self._paths]

    def _column(
        self, envelopes: list[dict[str, Any]], path: tuple[str, ...], keys: Sequence[bytes | None]
    ) -> list[object]:
        if path == PASSING.names:
            sources = [envelope.get(_SOURCE) or {} for envelope in envelopes]
            return [bool(source) and _passes(source, key) for source, key in zip(sources, keys, strict=True)]
        if path != (_SOURCE,):
            return [_compact(look_up(envelope, path)) for envelope in envelopes]
        return [
            _compact(
                {name: value for name, value in envelope.get(_SOURCE, {}).items() if name not in _CHANGING}
            )
            for envelope in envelopes
        ]


def _compact(value: object) -> object:
    """An object or array as bytes, whatever the order of its members: a key is made of these faster."""
    if type(value) not in (dict, list):
        return value
    try:
        return _encode(value)
    except (ValueError, OverflowError):  # text with a lone surrogate, or a huge number
        return value


def is_change_event(document: object) -> bool:
    """Whether a JSON document has the envelope of a change event.

    >>> is_change_event({"payload": {"op": "c", "source": {"connector": "mysql"}}})
    True
    """
    if isinstance(document, dict) and _SOURCE not in document:
        document = document.get(_PAYLOAD)
    if not isinstance(document, dict):
        return False
    source = document.get(_SOURCE)
    return isinstance(source, dict) and "connector" in source and _OP in document


def _passes(source: Mapping[str, Any], key: bytes | None) -> bool:
    snapshot = source.get("snapshot")
    if snapshot is True or (isinstance(snapshot, str) and snapshot.lower() != "false"):
        return True
    connector = source.get("connector")
    if connector == "mongodb":
        return source.get("txnNumber") is not None
    return key is None and connector not in _NUMBER_ROWS


_NO_EVENT = (
    'value: found no "source" and "op", expected a change event of Debezium (no change of a schema, and not '
    "flattened by a transform)"
)
