"""Kinds of values in a config: topics, times, sizes, lists, as they are written and as they are checked."""

from __future__ import annotations

import json
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from replayfilter.core.watermark.low_watermark import Completeness
from replayfilter.settings.durations import parse_bytes, parse_duration

_TOPIC = r"[A-Za-z0-9._-]{1,249}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"  # room is left for "-<lane>" in a transactional id
_MASTER = r"local(\[(\*|[1-9][0-9]*)(, ?[1-9][0-9]*)?\])?|yarn|(spark|k8s)://.+"
_SERVER = r" *([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5} *"
_URL = r" *(https?|mock)://[^\s,@]+ *"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):", re.ASCII)


def like(pattern: str, complaint: str) -> AfterValidator:
    """A text that a pattern fits as a whole; ``complaint`` says what to write instead."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII) or text in (".", ".."):
            raise ValueError(complaint)
        return text

    return AfterValidator(check)


def _checkpoint(text: str) -> str:
    """A place for a checkpoint; ValueError for a URL of another scheme."""
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() not in ("file", "hdfs", "s3a"):
        raise ValueError("not a place for checkpoints; use a path, or a file:/, hdfs:/ or s3a: URL")
    return text


def items(value: object) -> object:
    """A list may come as one text, from the environment: JSON, or items with commas between them."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",")]
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('not a JSON list; write ["a", "b"] or a,b') from None


def option(value: object) -> object:
    """Clients' settings are texts; TOML's numbers and booleans are taken for theirs."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_NOT_TOPIC = "not a topic's name; use up to 249 of a-z A-Z 0-9 . _ and -"
Topic = Annotated[str, like(_TOPIC, _NOT_TOPIC)]
TopicOrNone = Annotated[str, like(f"|{_TOPIC}", f'{_NOT_TOPIC}, or "" for none')]
Duration = Annotated[int, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Options = dict[str, Annotated[str, BeforeValidator(option)]]


Texts = Annotated[list[str], NoDecode, BeforeValidator(items)]
Topics = Annotated[list[Topic], NoDecode, BeforeValidator(items)]
Share = Annotated[str, AfterValidator(lambda text: Completeness(text).text)]
Checkpoint = Annotated[str, AfterValidator(_checkpoint)]
ServiceName = Annotated[
    str, like(_NAME, "not a service's name; use up to 200 of a-z A-Z 0-9 . _ -, first a letter or digit")
]
Master = Annotated[
    str, like(_MASTER, "not a Spark master; use local[*], local[4], spark://host:7077, yarn or k8s://...")
]
Brokers = Annotated[
    str, like(f"{_SERVER}(,{_SERVER})*", 'not brokers; write "host:port", several with commas between them')
]
Registries = Annotated[
    str,
    like(rf"|{_URL}(,{_URL})*", 'not a registry; write "http://host:8081", credentials in avro.options'),
]
Address = Annotated[
    str, like(r"[A-Za-z0-9._:-]+", 'not an address; use "127.0.0.1", "0.0.0.0" for all, or a host name')
]
