"""``Config``: all sections of a checked configuration, and what follows from several of its keys.

docs/reference/configuration.md describes each key. loader.py makes a ``Config`` from a file and reports all
errors; the constructor of ``Config`` alone checks each value by its type, and no rules between keys.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from replayfilter.core.clock.clocks import Clock
from replayfilter.service.config.filter_sections import Dedup, Replay, Watermark
from replayfilter.service.config.io_sections import Avro, Http, Input, Kafka, Output, Protobuf, Service
from replayfilter.service.config.section import Section
from replayfilter.settings.durations import length_in_units
from replayfilter.settings.variables import expand


class Config(BaseModel):
    """The configuration of a service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: Service = Field(default_factory=Service)
    kafka: Kafka = Field(default_factory=Kafka)
    input: Input = Field(default_factory=Input)
    avro: Avro = Field(default_factory=Avro)
    protobuf: Protobuf = Field(default_factory=Protobuf)
    replay: Replay = Field(default_factory=Replay)
    dedup: Dedup = Field(default_factory=Dedup)
    watermark: Watermark = Field(default_factory=Watermark)
    output: Output = Field(default_factory=Output)
    http: Http = Field(default_factory=Http)

    @property
    def clock(self) -> Clock:
        """The clock that ages records, if ``dedup`` is enabled."""
        return Clock(self.dedup.clock)

    @property
    def expires(self) -> bool:
        """Whether records can be too old."""
        return self.dedup.enabled and self.clock.expires

    @property
    def length_unit(self) -> str:
        """The unit of period and bucket span: the expiry key's, or "integer" for a key that is not a time."""
        return "integer" if self.clock.reads_integers else self.dedup.unit

    @property
    def period_units(self) -> int:
        """The period in units of the expiry key; 0 if nothing expires."""
        return length_in_units(self.dedup.period, self.length_unit) if self.expires else 0

    @property
    def expiry_unit(self) -> str:
        """The unit in which the expiry key is read; "category" if its values have no order."""
        return "category" if self.clock is Clock.CATEGORICAL else self.length_unit

    @property
    def span_units(self) -> int:
        """A bucket's width in units of the expiry key: as set, or a twelfth of the period, at least 1."""
        if self.expires and self.dedup.bucket_span != "":
            return length_in_units(self.dedup.bucket_span, self.length_unit)
        return max(1, self.period_units // 12)

    @property
    def compared_fields(self) -> list[str]:
        """The fields by which conflicts are found; empty if they are not looked for."""
        dedup = self.dedup
        return dedup.conflict_fields if dedup.enabled and dedup.conflict != "off" else []

    def output_topics(self) -> dict[str, str]:
        """The topics that records may go to, by the key that names each: {"output.unique": "orders"}."""
        paths = ["output.unique"]
        paths += ["output.duplicate"] * self.dedup.enabled
        paths += ["output.conflict"] * bool(self.compared_fields and self.dedup.conflict == "topic")
        paths += ["output.expired"] * self.expires
        paths += ["output.error"] + ["replay.topic"] * bool(self.replay.enabled and self.replay.topic)
        return {path: self.value_of(path) for path in paths}

    def client_options(self, section: str = "kafka") -> dict[str, str]:
        """The options of a section with each ${VARIABLE} replaced. They may hold secrets: don't log them."""
        return {name: expand(text) for name, text in getattr(self, section).options.items()}

    def value_of(self, path: str) -> Any:
        """The value at a dotted path, such as "service.name"."""
        section, key = path.split(".")
        return getattr(getattr(self, section), key)

    def example_of(self, path: str) -> str:
        """A line of TOML that sets ``path``, for a message: name = "orders"."""
        section, key = path.split(".")
        examples = type(getattr(self, section)).model_fields[key].examples
        return f"{key} = {json.dumps(examples[0])}" if examples else f"{key} = ..."


def section_types() -> dict[str, type[Section]]:
    """The class of each section by its name, in the order of the documentation."""
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def keys_by_section() -> dict[str, list[str]]:
    """All keys, in the order of the documentation: {"service": ["name", ...], ...}."""
    return {name: list(section.model_fields) for name, section in section_types().items()}
