"""The files in schemas/: current, and valid for what the code reads and writes."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import tomllib
from io import BytesIO
from typing import Any

import fastavro
import jsonschema
import pytest

from replayfilter.core.stamp import STAMP_BYTES, Stamp
from replayfilter.demo.stream import generate
from replayfilter.formats import AvroSpec, KeySpec, RecordColumns, build_extractor
from replayfilter.service.config.model import keys_by_section
from replayfilter.spark.error_reasons import REASONS
from replayfilter.spark.output_headers import CONNECT_HEADERS, CONNECT_MESSAGE
from tests.support.paths import ROOT

FOLDER = ROOT / "schemas"


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((FOLDER / name).read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schemas_are_those_that_the_code_generates() -> None:
    generated: dict[str, str] = runpy.run_path(str(FOLDER / "remake.py"))["contents"]()
    stored = {
        path.name: path.read_text("utf-8") for path in FOLDER.iterdir() if path.suffix in (".json", ".avsc")
    }
    assert stored == generated, "run `make schemas`"


# ---- the config -------------------------------------------------------------------------------------------


def examples() -> list[str]:
    """All TOML in the reference of the config, whole configs in other pages, and the files in examples/."""
    found = []
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = [block.split("```")[0] for block in page.read_text("utf-8").split("```toml\n")[1:]]
        found += [block for block in blocks if page.name == "configuration.md" or "[service]" in block]
    return [*found, *(path.read_text("utf-8") for path in (ROOT / "examples").glob("*.toml"))]


def test_every_example_is_valid() -> None:
    assert len(examples()) >= 4
    for text in examples():
        validator("config.schema.json").validate(tomllib.loads(text))


def test_the_config_schema_has_every_key() -> None:
    schema = json.loads((FOLDER / "config.schema.json").read_text("utf-8"))
    found = {}
    for section, reference in schema["properties"].items():
        found[section] = list(schema["$defs"][reference["$ref"].rpartition("/")[2]]["properties"])
    assert found == keys_by_section()


def test_every_default_is_valid() -> None:
    schema = json.loads((FOLDER / "config.schema.json").read_text("utf-8"))
    for name, section in schema["$defs"].items():
        for key, rules in section["properties"].items():
            assert "default" in rules, (name, key)
            if rules["default"] not in ("", None):  # "": not set; null can't be written in TOML
                jsonschema.Draft202012Validator(rules).validate(rules["default"])


@pytest.mark.parametrize(
    "wrong",
    [{"nmae": {}}, {"service": {"nmae": "x"}}, {"service": {"name": "a b"}}, {"service": {"shards": 2000}},
     {"kafka": {"bootstrap": "host"}}, {"input": {"format": "xml"}}, {"replay": {"mark_ttl": 48}},
     {"replay": {"mark_ttl": "48 hours"}}, {"service": {"batch_bytes": "1TB"}}, {"dedup": {"key": "id"}},
     {"input": {"topics": ["a b"]}}, {"avro": {"registry": "localhost"}}, {"avro": {"options": "x"}}],
)  # fmt: skip
def test_wrong_configs_are_refused(wrong: dict[str, Any]) -> None:
    assert not validator("config.schema.json").is_valid(wrong)


# ---- events, headers, stamps ------------------------------------------------------------------------------


def test_the_orders_of_the_demo_are_valid_and_the_broken_ones_are_not() -> None:
    """JSON and Avro give the same keys for the valid ones."""
    values = [record.value for record in generate(3_000, end_ms=1_760_000_000_000)]
    json_extract = build_extractor(KeySpec("json", ("event_id",), "ts", "ms"))
    broken = {error.row for error in json_extract(RecordColumns(values)).errors}
    check = validator("order.schema.json")
    for row in broken:
        with contextlib.suppress(ValueError, TypeError):
            assert not check.is_valid(json.loads(values[row]))  # type: ignore[arg-type]
    orders = [json.loads(value) for row, value in enumerate(values) if row not in broken]  # type: ignore[arg-type]
    assert len(orders) > 2_500
    assert broken

    schema = (FOLDER / "order.avsc").read_text("utf-8")
    parsed = fastavro.parse_schema(json.loads(schema))
    avro: list[bytes | None] = []
    for order in orders:
        check.validate(order)
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, order)
        avro.append(out.getvalue())
    spec = AvroSpec("plain", schemas=(schema,))
    as_avro = build_extractor(KeySpec("avro", ("event_id",), "ts", "ms", spec))(RecordColumns(avro))
    as_json = json_extract(RecordColumns([json.dumps(order).encode() for order in orders]))
    assert as_avro.errors == as_json.errors == []
    assert as_avro.expiry.tolist() == as_json.expiry.tolist()
    assert as_avro.digests.tolist() == as_json.digests.tolist()


def test_every_reason_is_valid_in_the_headers() -> None:
    headers = {"rf-reason": "json", "rf-message": "why", "rf-stage": "decode"}
    headers |= {CONNECT_MESSAGE: "why"} | dict(zip(CONNECT_HEADERS, ("orders", "0", "17"), strict=True))
    check = validator("error-headers.schema.json")
    parsed = fastavro.parse_schema(json.loads((FOLDER / "error-headers.avsc").read_text("utf-8")))
    for reason in REASONS:
        check.validate(headers | {"rf-reason": reason})
        named = headers | {"rf-reason": reason}
        in_avro = {re.sub("[-.]", "_", name): value for name, value in named.items()}
        fastavro.schemaless_writer(BytesIO(), parsed, in_avro)
    assert not check.is_valid(headers | {"rf-reason": "because"})
    assert not check.is_valid(headers | {CONNECT_HEADERS[2]: "-"})


def test_a_stamp_is_valid_in_its_schemas() -> None:
    stamp = Stamp(-5, 3, 2**40)
    parsed = fastavro.parse_schema(json.loads((FOLDER / "stamp.avsc").read_text("utf-8")))
    out = BytesIO()
    fastavro.schemaless_writer(out, parsed, stamp.to_bytes())
    assert out.getvalue() == stamp.to_bytes()
    assert len(out.getvalue()) == STAMP_BYTES
    check = validator("stamp.schema.json")
    check.validate({"pid": stamp.pid, "partition": stamp.partition, "offset": stamp.offset})
    assert not check.is_valid({"pid": 2**63, "partition": 0, "offset": 0})
