"""Schemas from a registry over HTTP.

A registry that does not answer, or refuses, stops what asks it: :class:`RegistryError` ends the task, Spark
tries it again, and in the end the query stops with its offsets where they were. So no fault of the registry
is ever taken for one of a record. Only its own word that there is no such id is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient, SchemaRegistryError

from replayfilter.errors import ConfigError, RegistryError
from replayfilter.formats.avro.shape import Definition, SchemaError

# The client waits up to 0.5, 1, 2, 4, 8, 8 s between its tries: on average 12 s until it gives up, and Spark
# tries a task four times.
_DEFAULTS = {"timeout": "10", "max.retries": "6", "retries.wait.ms": "500", "retries.max.wait.ms": "8000"}
_NUMBERS = {*_DEFAULTS, "cache.capacity", "cache.latest.ttl.sec"}
_NO_SUCH = range(40400, 40500)  # the registry's own codes; any other 404 is that of a wrong address
SECOND_ASKING = 0.5  # s: a registry that follows another may hear of an id after its first record was read
_FEW = 16  # unknown ids that are asked for again: where there are more, no schema is late, it is not Avro
FORGET = 30.0  # s until an unknown id is asked for again


class Registry:
    """A schema registry over HTTP; a ``mock://`` address is the client's own double for tests.

    ``options`` are the client's settings by its own names. Raises :class:`ConfigError` for those that it
    does not take.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        self._unknown: dict[int, float] = {}  # until when
        settings: dict[str, Any] = {
            name: _number(name, text) if name in _NUMBERS else text
            for name, text in (_DEFAULTS | dict(options)).items()
        }
        try:
            self._client = SchemaRegistryClient.new_client(settings | {"url": url})
        except Exception as error:  # ValueError, TypeError, OSError of certificates: each in its own words
            raise ConfigError([f"avro.registry, avro.options: {error}; change that setting"]) from None

    def find(self, refs: Iterable[int]) -> dict[int, Definition | SchemaError]:
        """The schema of each id; one that was unknown is asked for twice, then not for half a minute."""
        now = time.monotonic()
        self._unknown = {id_: until for id_, until in self._unknown.items() if until > now}
        asked = [id_ for id_ in refs if id_ >= 0 and id_ not in self._unknown]
        found = {id_: self._ask(id_) for id_ in asked}
        missing = [id_ for id_ in asked if found[id_] is None]
        if 0 < len(missing) <= _FEW:
            time.sleep(SECOND_ASKING)
            found |= {id_: self._ask(id_) for id_ in missing}
        until = time.monotonic() + FORGET
        self._unknown |= {id_: until for id_ in missing if found[id_] is None}
        return {
            id_: found.get(id_) or SchemaError(f"the registry has no schema with the id {id_}")
            for id_ in refs
        }

    def _ask(self, id_: int) -> Definition | SchemaError | None:
        try:
            try:
                schema = self._client.get_schema(id_)
            except SchemaRegistryError as error:
                if error.http_status_code == 404 and error.error_code in _NO_SUCH:
                    return None
                raise
            if schema.schema_type not in (None, "AVRO"):
                return SchemaError(f"schema {id_} is of the type {schema.schema_type}, not AVRO")
            texts: dict[tuple[str, int], str] = {}
            self._add_references(schema.references or [], texts)
        except (
            Exception
        ) as error:  # of the client, of HTTP, of TLS, of OAuth, of JSON: all say that it is down
            raise RegistryError(self._describe(error, id_)) from error
        return (*texts.values(), schema.schema_str or "")

    def _add_references(self, references: list[SchemaReference], texts: dict[tuple[str, int], str]) -> None:
        """Add what schemas refer to, however deep, each once and after what it refers to itself."""
        for reference in references:
            subject, version = reference.subject or "", reference.version or 0
            if (subject, version) not in texts:
                schema = self._client.get_version(subject, version, deleted=True).schema
                self._add_references(schema.references or [], texts)
                texts[subject, version] = schema.schema_str or ""

    def _describe(self, error: Exception, id_: int) -> str:
        place = f"avro.registry = {without_credentials(self._url)}"
        if isinstance(error, SchemaRegistryError):
            remedy = (
                "check the credentials in avro.options"
                if error.http_status_code in (401, 403)
                else "check the address and the registry's log"
            )
            return f"{place}: refuses schema {id_} with HTTP {error.http_status_code} ({error}); {remedy}"
        return (
            f"{place}: no answer for schema {id_} ({type(error).__name__}: {error}); "
            "nothing is lost: start the registry, then the service"
        )


def without_credentials(urls: str) -> str:
    """Addresses as they may be shown.

    >>> without_credentials("https://me:secret@registry:8081")
    'https://***@registry:8081'
    """
    return re.sub(r"//[^/@,]*@", "//***@", urls)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError([f"avro.options.{name} = {text!r}: not a number; write one"]) from None
