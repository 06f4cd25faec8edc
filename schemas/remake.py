"""Generates the schemas in this folder from the code: ``make schemas``. A test checks that they are current.

config.schema.json       the service's TOML, for editors (taplo: ``#:schema schemas/config.schema.json``)
order.avsc, order.schema.json                    the example events, as `demo` writes them
error-headers.avsc, error-headers.schema.json    the headers of a record in the error topic
stamp.avsc, stamp.schema.json                    the stamp: its 20 bytes in Avro, its parts in JSON
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from replayfilter.core.stamp import STAMP_BYTES
from replayfilter.service.config.model import Config
from replayfilter.settings.durations import duration_text, parse_bytes, parse_count, parse_duration
from replayfilter.settings.value_types import as_option
from replayfilter.spark.error_reasons import REASONS
from replayfilter.spark.output_headers import CONNECT_HEADERS, CONNECT_MESSAGE

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DURATION = "^[0-9]{1,30} ?(d|h|m|s|ms|us)$"
SIZE = "^[0-9]{1,30} ?(B|kB|MB|GB|KiB|MiB|GiB)?$"
COUNT = "^[0-9]{1,30}$"
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


class _AsWritten(GenerateJsonSchema):
    """Describes values as in the file; pydantic by itself describes what its validators turn them into."""

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        validator = schema["function"]["function"]
        if validator is parse_duration:
            return {"type": "string", "pattern": DURATION}
        if validator in (parse_bytes, parse_count):
            pattern = SIZE if validator is parse_bytes else COUNT
            return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "integer", "minimum": 0}]}
        if validator is as_option:
            # Without quotes, security.protocol = "SSL" is a table within a table.
            return {"type": ["string", "number", "boolean", "object"]}
        return super().function_before_schema(schema)

    def function_after_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().function_after_schema(schema)
        validator = schema["function"]["function"]
        if inspect.isfunction(validator) and (
            pattern := inspect.getclosurevars(validator).nonlocals.get("pattern")
        ):
            return made | {"pattern": f"^({pattern})$"}
        return made


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a config file. No key is required: the environment may set it instead."""
    made = Config.model_json_schema(schema_generator=_AsWritten)
    for section in made["$defs"].values():
        for key in section["properties"].values():
            key.pop("title", None)
            key.pop("ge", None)  # limits of the number, not of the text
            key.pop("gt", None)
            if key.get("pattern") == DURATION and isinstance(key.get("default"), int):
                key["default"] = duration_text(key["default"])
    return {"$schema": DIALECT, **made, "title": "replayfilter's configuration"}


def event_schemas() -> dict[str, Any]:
    """The example events: orders of a shop."""
    number = {"type": "integer"}
    return {
        "order.avsc": {
            "type": "record",
            "name": "Order",
            "namespace": "replayfilter.example",
            "doc": "An order, as the JSON of order.schema.json.",
            "fields": [
                {"name": "event_id", "type": "string", "doc": "The dedup key."},
                {
                    "name": "ts",
                    "type": {"type": "long", "logicalType": "timestamp-millis"},
                    "doc": "The expiry key: when it was ordered.",
                },
                {"name": "user", "type": "long"},
                {"name": "amount", "type": "double"},
                {"name": "city", "type": "string"},
                {"name": "items", "type": {"type": "array", "items": "long"}},
                {"name": "attempt", "type": "int", "default": 1, "doc": "1, or more if it was sent again."},
            ],
        },
        "order.schema.json": {
            "$schema": DIALECT,
            "title": "An order",
            "type": "object",
            "properties": {
                "event_id": {"type": "string", "description": "The dedup key."},
                "ts": INT64 | {"description": "The expiry key: when it was ordered, ms since 1970."},
                "user": number,
                "amount": {"type": "number"},
                "city": {"type": "string"},
                "items": {"type": "array", "items": number},
                "attempt": {"type": "integer", "minimum": 1},
            },
            "required": ["event_id", "ts"],
        },
    }


def header_schemas() -> dict[str, Any]:
    """The headers of records in the error topic; values are UTF-8."""
    topic, partition, offset = CONNECT_HEADERS
    about = {
        "rf-reason": "The reason, as a name that doesn't change.",
        "rf-message": "The reason, as a sentence for people: field, value found, value expected.",
        "rf-stage": "When it was found: while the record was decoded, or while it was routed.",
        CONNECT_MESSAGE: "The same as rf-message, under Kafka Connect's name.",
        topic: "The input topic, under Kafka Connect's name.",
        partition: "The input partition, in decimal digits.",
        offset: "The offset in the input, in decimal digits.",
    }
    digits = {"type": "string", "pattern": "^[0-9]+$"}
    reasons, stages = sorted(REASONS), ["decode", "route"]
    types: dict[str, Any] = {
        "rf-reason": {"type": "string", "enum": reasons},
        "rf-message": {"type": "string"},
        "rf-stage": {"type": "string", "enum": stages},
        CONNECT_MESSAGE: {"type": "string"},
        topic: {"type": "string"},
        partition: digits,
        offset: digits,
    }
    avro: dict[str, Any] = {
        "rf-reason": {"type": "enum", "name": "Reason", "symbols": reasons},
        "rf-message": "string",
        "rf-stage": {"type": "enum", "name": "Stage", "symbols": stages},
    }
    avro |= dict.fromkeys((CONNECT_MESSAGE, topic, partition, offset), "string")
    return {
        "error-headers.schema.json": {
            "$schema": DIALECT,
            "title": "Headers of a record in the error topic, after its own",
            "type": "object",
            "properties": {name: types[name] | {"description": about[name]} for name in about},
            "required": list(about),
        },
        "error-headers.avsc": {
            "type": "record",
            "name": "ErrorHeaders",
            "namespace": "replayfilter",
            "doc": "For headers stored as Avro, which doesn't allow hyphens and dots in names.",
            "fields": [
                {"name": re.sub("[-.]", "_", name), "type": avro[name], "doc": about[name]} for name in about
            ],
        },
    }


def stamp_schemas() -> dict[str, Any]:
    """The stamp, in a record's key or in its rf-stamp header."""
    layout = "big-endian: pid int64, source partition int32, source offset int64"
    return {
        "stamp.avsc": {
            "type": "fixed",
            "name": "Stamp",
            "namespace": "replayfilter",
            "size": STAMP_BYTES,
            "doc": f"{STAMP_BYTES} bytes, {layout}.",
        },
        "stamp.schema.json": {
            "$schema": DIALECT,
            "title": "The parts of a stamp",
            "description": f"On the wire they are {STAMP_BYTES} bytes, {layout}.",
            "type": "object",
            "properties": {
                "pid": INT64 | {"description": "Producer id: identifies a job and the topic that it reads."},
                "partition": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
                "offset": INT64,
            },
            "required": ["pid", "partition", "offset"],
            "additionalProperties": False,
        },
    }


def contents() -> dict[str, str]:
    """The content of each file, by its name."""
    made = {"config.schema.json": config_schema()} | event_schemas() | header_schemas() | stamp_schemas()
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in made.items()}


if __name__ == "__main__":
    for name, text in contents().items():
        Path(__file__).with_name(name).write_text(text, "utf-8")
