"""Types of values in a config, with their checks: topics, durations, sizes, lists, addresses."""

from __future__ import annotations

import json
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from replayfilter.core.watermark.low_watermark import Completeness
from replayfilter.settings.durations import parse_bytes, parse_duration

_TOPIC = r"[A-Za-z0-9._-]{1,249}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"  # leaves room for "-<lane>" in a transactional id
_MASTER = r"local(\[(\*|[1-9][0-9]*)(, ?[1-9][0-9]*)?\])?|yarn|(spark|k8s)://.+"
_SERVER = r" *([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5} *"
_URL = r" *(https?|mock)://[^\s,@]+ *"
HADOOP_SCHEMES = ("hdfs", "s3a")  # file systems of checkpoints, besides local files
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):", re.ASCII)


def matching(pattern: str, message: str) -> AfterValidator:
    """Requires that the whole text matches ``pattern``; ``message`` says what to write instead."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII) or text in (".", ".."):
            raise ValueError(message)
        return text

    return AfterValidator(check)


def _checkpoint(text: str) -> str:
    """A path or URL for a checkpoint; ValueError for a URL of another scheme."""
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() not in ("file", *HADOOP_SCHEMES):
        known = ", ".join(f"{scheme}:" for scheme in ("file", *HADOOP_SCHEMES))
        raise ValueError(f"not a checkpoint location; use a path, or a URL that starts with {known}")
    return text


def as_list(value: object) -> object:
    """A list; one that comes as text, from the environment, is JSON or separated by commas."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",")]
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('not a JSON list; write ["a", "b"] or a,b') from None


def as_option(value: object) -> object:
    """A client setting as text, which is how clients take them: 5 is "5", true is "true"."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_NOT_TOPIC = "not a topic name; use up to 249 of a-z A-Z 0-9 . _ and -"
Topic = Annotated[str, matching(_TOPIC, _NOT_TOPIC)]
TopicOrNone = Annotated[str, matching(f"|{_TOPIC}", f'{_NOT_TOPIC}, or "" for none')]
Duration = Annotated[int, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Options = dict[str, Annotated[str, BeforeValidator(as_option)]]


Texts = Annotated[list[str], NoDecode, BeforeValidator(as_list)]
Topics = Annotated[list[Topic], NoDecode, BeforeValidator(as_list)]
Share = Annotated[str, AfterValidator(lambda text: Completeness(text).text)]
Checkpoint = Annotated[str, AfterValidator(_checkpoint)]
ServiceName = Annotated[
    str,
    matching(
        _NAME, "not a service name; use up to 200 of a-z A-Z 0-9 . _ -, starting with a letter or digit"
    ),
]
Master = Annotated[
    str, matching(_MASTER, "not a Spark master; use local[*], local[4], spark://host:7077, yarn or k8s://...")
]
Brokers = Annotated[
    str,
    matching(
        f"{_SERVER}(,{_SERVER})*", 'not a list of brokers; write "host:port", several separated by commas'
    ),
]
Registries = Annotated[
    str,
    matching(
        rf"|{_URL}(,{_URL})*", 'not a registry URL; write "http://host:8081", and credentials in the options'
    ),
]
Address = Annotated[
    str, matching(r"[A-Za-z0-9._:-]+", 'not an address; use "127.0.0.1", "0.0.0.0" for all, or a host name')
]
