"""Finds writers' schemas: in a registry, or among the schema files of the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Protocol

from fastavro.schema import fingerprint, to_parsing_canonical_form

from replayfilter.errors import ConfigError
from replayfilter.formats.avro.shape import AN_AVRO_SCHEMA
from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.spec import AvroSpec


class Schemas(Protocol):
    """Finds a schema by a record's reference to it: an id, a GUID, a fingerprint, or none (0)."""

    def find(self, refs: Iterable[int]) -> dict[int, Definition | SchemaError]:
        """The schema of each reference, or why it can't be used.

        Raises :class:`RegistryError`, and :class:`UnknownSchemas` for unknown ids that are not recorded.
        """


def schemas_of(spec: AvroSpec) -> Schemas:
    """The source of schemas that the spec names. Raises :class:`ConfigError`."""
    if spec.encoding == "confluent":
        # The import of the registry's client takes half a second; other encodings don't need it.
        from replayfilter.formats.registry import Registry

        return Registry("avro", spec.registry, dict(spec.options), spec.unknown)
    return KnownSchemas(spec.schemas, by_fingerprint=spec.encoding == "single-object")


class KnownSchemas:
    """Schemas given as text: found by fingerprint, or a single one for all values."""

    def __init__(self, texts: Iterable[str], by_fingerprint: bool) -> None:
        self._by_fingerprint = by_fingerprint
        try:
            self._schemas = {fingerprint_of(text) if by_fingerprint else 0: text for text in texts}
        except SchemaError as error:
            raise ConfigError([f"avro.schemas: {error}; correct the file"]) from None

    def find(self, refs: Iterable[int]) -> dict[int, Definition | SchemaError]:
        """The schema of each reference, or why there is none."""
        return {
            ref: Definition(self._schemas[ref])
            if ref in self._schemas
            else SchemaError(f"none of avro.schemas has the fingerprint {ref:016x}")
            for ref in refs
        }


def fingerprint_of(text: str) -> int:
    """CRC-64-AVRO of a schema's parsing canonical form; raises :class:`SchemaError`.

    >>> format(fingerprint_of('"int"'), "016x")
    '7275d51a3f395c8f'
    """
    try:
        crc = fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
    except Exception as error:  # fastavro raises any Python error for a wrong schema
        raise SchemaError.of(error, AN_AVRO_SCHEMA) from None
    return int.from_bytes(bytes.fromhex(crc), "little")
