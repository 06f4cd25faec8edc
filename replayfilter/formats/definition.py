"""What a registry or a file says about a schema, or why it can't be used. Avro and Protobuf share this."""

from __future__ import annotations

from typing import NamedTuple


class Definition(NamedTuple):
    """A schema as ``text``, and as (name, text) pairs those that it refers to, each after its own references.

    ``type``: what the registry says the schema is, "AVRO", "PROTOBUF" or "JSON".
    """

    text: str
    references: tuple[tuple[str, str], ...] = ()
    type: str = "AVRO"


class SchemaError(ValueError):
    """A schema that can't be used; the message says why."""

    @classmethod
    def of(cls, error: Exception, expected: str) -> SchemaError:
        """From an error that a library raised for the schema's text, which is not what is ``expected``."""
        shown = ascii(str(error)[:200])[1:-1]  # it may go into a header
        return cls(f"not {expected} ({type(error).__name__}: {shown})")
