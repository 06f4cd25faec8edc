"""Schemas from a registry, over HTTP.

If the registry doesn't answer or refuses a request, :class:`RegistryError` ends the task. Spark tries the
task again; in the end the query stops, and its offsets stay where they were. A problem of the registry is
therefore never mistaken for a problem of a record.

Records with an id that the registry doesn't know are errors. But the registry may learn the id a moment
later, and a batch must be decided in the same way whenever it is tried again. Therefore such an answer counts
only once it is recorded: the first attempt raises :class:`UnknownSchemas` and delivers nothing, the driver
adds the id to the settings of the batch (``unknown``), and later attempts don't ask for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError

from replayfilter.errors import ConfigError, RegistryError, UnknownSchemas
from replayfilter.formats.definition import Definition, SchemaError
from replayfilter.formats.schema_header import LARGEST_ID, shown_id
from replayfilter.formats.spec import MAX_UNKNOWN

# The client waits up to 0.5, 1, 2, 4, 8, 8 s between its tries: it gives up after 12 s on average. Spark runs
# a task up to four times.
_DEFAULTS = {"timeout": "10", "max.retries": "6", "retries.wait.ms": "500", "retries.max.wait.ms": "8000"}
_NUMBERS = {*_DEFAULTS, "cache.capacity", "cache.latest.ttl.sec"}
_NO_SUCH = range(40400, 40500)  # the registry's own error codes; any other 404: the address is wrong
RETRY_SECONDS = 0.5  # a replica of a registry may get an id after its first record was read
_MAX_RETRIED = 16  # with more unknown ids the values have no prefix, rather than the schemas late
FORGET_SECONDS = 30.0  # until an unknown id is requested again
_FORMATS = {"protobuf": "serialized"}  # a FileDescriptorProto in base64 instead of the text of a .proto file
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*")


class Registry:
    """A client of a schema registry. A ``mock://`` address is the client library's own test double.

    ``section`` is "avro" or "protobuf": the type of the schemas, and where the config has the settings.
    ``options`` are the client's settings under its own names. ``recorded`` are the ids that count as unknown.
    Raises :class:`ConfigError` for settings that the client does not accept.
    """

    def __init__(
        self, section: str, url: str, options: Mapping[str, str], recorded: Iterable[int] = ()
    ) -> None:
        self._section, self._type, self._format = section, section.upper(), _FORMATS.get(section)
        self._url, self._recorded = url, frozenset(recorded)
        self._unknown: dict[int, float] = {}  # id -> when it may be requested again
        settings: dict[str, Any] = {
            name: _number(f"{section}.options.{name}", text) if name in _NUMBERS else text
            for name, text in (_DEFAULTS | dict(options)).items()
        }
        try:
            self._client = SchemaRegistryClient.new_client(settings | {"url": url})
        except Exception as error:  # ValueError, TypeError, or OSError for certificates
            settings_at = f"{section}.registry, {section}.options"
            raise ConfigError([f"{settings_at}: {error}; change that setting"]) from None

    def find(self, refs: Iterable[int]) -> dict[int, Definition | SchemaError]:
        """The schema of each id, or why it can't be used.

        Raises :class:`UnknownSchemas` for unknown ids that are not recorded. An unknown id is requested
        twice, and then not for half a minute.
        """
        now = time.monotonic()
        self._unknown = {id_: until for id_, until in self._unknown.items() if until > now}
        possible = [id_ for id_ in refs if id_ >= 0 and id_ not in self._recorded]
        requested = [id_ for id_ in possible if id_ not in self._unknown]
        found = {id_: self._request(id_) for id_ in requested}
        missing = [id_ for id_ in requested if found[id_] is None]
        if 0 < len(missing) <= _MAX_RETRIED:
            time.sleep(RETRY_SECONDS)
            found |= {id_: self._request(id_) for id_ in missing}
        until = time.monotonic() + FORGET_SECONDS
        self._unknown |= {id_: until for id_ in missing if found[id_] is None}
        new = sorted(id_ for id_ in possible if id_ in self._unknown)
        if new and len(self._recorded) < MAX_UNKNOWN:
            raise UnknownSchemas(new[:MAX_UNKNOWN])
        return {id_: self._usable(id_, found.get(id_)) for id_ in refs}

    def types(self, ids: Iterable[int]) -> dict[int, str]:
        """The types of those schemas that the registry knows now, such as "AVRO", by their ids."""
        found = {id_: self._request(id_) for id_ in ids}
        return {id_: definition.type for id_, definition in found.items() if definition is not None}

    def _usable(self, id_: int, found: Definition | None) -> Definition | SchemaError:
        if found is None:
            return SchemaError(f"the registry has no schema with the id {shown_id(id_)}")
        if found.type != self._type:
            return SchemaError(f"schema {shown_id(id_)} is of the type {found.type}, not {self._type}")
        return found

    def _request(self, id_: int) -> Definition | None:
        """The schema; None if the registry doesn't know it. One of another type comes without references."""
        references: dict[tuple[str, int], tuple[str, str]] = {}
        try:
            schema = self._schema(id_)
            if schema is None:
                return None
            type_ = schema.schema_type or "AVRO"
            if type_ == self._type:
                self._add_references(schema.references or [], references)
        except Exception as error:  # from the client, HTTP, TLS, OAuth or JSON: the registry is unusable
            raise RegistryError(self._describe(error, id_)) from error
        definition = Definition(schema.schema_str or "", tuple(references.values()), type_)
        texts = [definition.text, *(text for _, text in definition.references)]
        if type_ == self._type and self._format and not all(map(_BASE64.fullmatch, texts)):
            raise RegistryError(
                f"{self._setting}: gives schema {shown_id(id_)} as text, although the request has "
                f"format={self._format}; use a registry that gives descriptors, or protobuf.descriptors"
            )
        return definition

    def _schema(self, id_: int) -> Schema | None:
        try:
            if id_ <= LARGEST_ID:
                return self._client.get_schema(id_, fmt=self._format)
            return self._client.get_schema_by_guid(str(UUID(int=id_)), fmt=self._format)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _NO_SUCH:
                return None
            raise

    def _add_references(
        self, references: list[SchemaReference], found: dict[tuple[str, int], tuple[str, str]]
    ) -> None:
        """Add all referenced schemas recursively, each once and after the schemas that it refers to."""
        for reference in references:
            subject, version = reference.subject or "", reference.version or 0
            if (subject, version) not in found:
                schema = self._client.get_version(subject, version, deleted=True, fmt=self._format).schema
                self._add_references(schema.references or [], found)
                found[subject, version] = (reference.name or "", schema.schema_str or "")

    @property
    def _setting(self) -> str:
        return f"{self._section}.registry = {without_credentials(self._url)}"

    def _describe(self, error: Exception, id_: int) -> str:
        if isinstance(error, SchemaRegistryError):
            remedy = "check the address and the registry's log"
            if error.http_status_code in (401, 403):
                remedy = f"check the credentials in {self._section}.options"
            elif error.http_status_code == 404 and id_ > LARGEST_ID:
                remedy = "check the address, and that this version of the registry knows GUIDs"
            status = f"HTTP {error.http_status_code} ({error})"
            return f"{self._setting}: refuses schema {shown_id(id_)} with {status}; {remedy}"
        return (
            f"{self._setting}: no answer for schema {shown_id(id_)} ({type(error).__name__}: {error}); "
            "nothing is lost: start the registry, then the service"
        )


def without_credentials(urls: str) -> str:
    """Addresses that can be shown: passwords are masked.

    >>> without_credentials("https://me:secret@registry:8081")
    'https://***@registry:8081'
    """
    return re.sub(r"//[^/@,]*@", "//***@", urls)


def _number(setting: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError([f"{setting} = {text!r}: not a number; write one"]) from None
