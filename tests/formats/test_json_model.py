"""The JSON extractor against a slow, obvious model, on random documents and on broken ones."""

from __future__ import annotations

import json
import struct
from decimal import Decimal, InvalidOperation
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from replayfilter.core.digest import MISSING, digest_key
from replayfilter.formats import KeySpec, RecordColumns, build_extractor

KEY = ("id", "user.id", "user.name.first")
EXPIRY = "ts"
EXTRACT = build_extractor(KeySpec("json", KEY, EXPIRY, "integer"))

Answer = tuple[str | None, int, bytes]  # reason, expiry, digest


def model(value: bytes | None) -> Answer:
    """The result for one record, with the standard library alone."""
    if not value:
        return "empty", 0, bytes(16)
    if value[0] == 0 and len(value) > 5:  # the prefix of Confluent's JSON Schema
        value = value[5:]
    try:
        document = json.loads(value.decode(), parse_float=Decimal, parse_constant=int)
    except (ValueError, InvalidOperation, RecursionError):
        return "json", 0, bytes(16)
    if not isinstance(document, dict):
        return "not_object", 0, bytes(16)
    key = [look_up(document, path.split(".")) for path in KEY]
    if all(part is None or part is MISSING for part in key):
        return "key", 0, bytes(16)
    ts = look_up(document, [EXPIRY])
    if ts is None or ts is MISSING:
        return "expiry_missing", 0, bytes(16)
    if isinstance(ts, bool) or not isinstance(ts, int | Decimal):
        return "expiry_type", 0, bytes(16)
    if not -(2**63) <= ts < 2**63:
        return "expiry_range", 0, bytes(16)
    if ts % 1:
        return "expiry_type", 0, bytes(16)
    return None, int(ts), digest_key(key)


def look_up(item: Any, names: list[str]) -> Any:
    for name in names:
        item = item.get(name, MISSING) if isinstance(item, dict) else MISSING
    return item


def extracted(values: list[bytes | None]) -> list[Answer]:
    result = EXTRACT(RecordColumns(values))
    reasons: dict[int, str] = {error.row: error.reason.value for error in result.errors}
    rows = zip(result.expiry.tolist(), result.digests.tolist(), strict=True)
    return [(reasons.get(i), expiry, struct.pack(">QQ", *digest)) for i, (expiry, digest) in enumerate(rows)]


# JSON text rather than values: names may repeat, numbers and names may be written in several ways.
numbers = st.one_of(
    st.integers().map(str),
    st.integers(-(2**63) - 2, 2**63 + 1).map(str),
    st.from_regex(r"-?(0|[1-9]\d{0,20})(\.\d{1,20})?([eE][+-]?\d{1,3})?", fullmatch=True).filter(str.isascii),
)
texts = st.tuples(st.text(st.characters(), max_size=5), st.booleans()).map(
    # UTF-8 can't encode lone surrogates, so these stay escaped.
    lambda pair: json.dumps(pair[0], ensure_ascii=pair[1] or any("\ud800" <= c <= "\udfff" for c in pair[0]))
)
names = st.sampled_from(['"id"', '"ts"', '"user"', '"name"', '"first"', r'"\u0069d"', '"other"']) | texts
gaps = st.sampled_from(["", "", "", " ", "\n\t\r "])
scalars = st.sampled_from(["null", "true", "false"]) | numbers | texts


def arrays(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(gaps, st.lists(items, max_size=3)).map(lambda t: f"[{t[0]}{(',' + t[0]).join(t[1])}]")


def objects(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(names, gaps, items).map(lambda t: f"{t[0]}{t[1]}:{t[1]}{t[2]}"), max_size=4)
    return st.tuples(gaps, members).map(lambda t: f"{t[0]}{{{(t[0] + ',').join(t[1])}{t[0]}}}{t[0]}")


values = st.recursive(scalars, lambda inner: arrays(inner) | objects(inner), max_leaves=6)
user = objects(values) | values
records = st.tuples(objects(values), user, scalars, numbers).map(
    lambda t: f'{{"x":{t[0]},"user":{t[1]},"id":{t[2]},"ts":{t[3]}}}'
)
documents = st.tuples(
    st.sampled_from([b"", b"", b"\0\0\0\0\7"]), (records | objects(values) | values).map(str.encode)
).map(b"".join)


@given(st.lists(documents, max_size=5))
@settings(max_examples=400, deadline=None)
def test_agrees_with_the_model_on_json(values: list[bytes | None]) -> None:
    assert extracted(values) == [model(value) for value in values]


@given(st.lists(st.one_of(st.none(), st.binary(), documents), max_size=5), st.data())
@settings(max_examples=400, deadline=None)
def test_agrees_with_the_model_on_broken_json(values: list[bytes | None], data: st.DataObject) -> None:
    """ASCII only: the extractor does not check the UTF-8 of skipped parts, but the model does."""
    broken = [mutate(value, data) for value in values]
    assert extracted(broken) == [model(value) for value in broken]


def mutate(value: bytes | None, data: st.DataObject) -> bytes | None:
    if not value:
        return value
    at = data.draw(st.integers(0, len(value)))
    until = data.draw(st.integers(at, min(at + 3, len(value))))
    new = data.draw(st.sampled_from([b"", *(bytes([c]) for c in b'{}[]",:\\ \n0-1.eEtfnuNI/\0\x7f')]))
    return bytes(byte & 0x7F for byte in value[:at] + new + value[until:])


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=5))
@example([b'{"id":"\xff","ts":1}'])
@settings(deadline=None)
def test_random_bytes_are_errors(values: list[bytes | None]) -> None:
    for value, (reason, _, _) in zip(values, extracted(values), strict=True):
        assert reason in ({"empty"} if not value else {"json", "not_object", "key"})
