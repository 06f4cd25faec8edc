"""The period and the config that ``replayfilter advise`` proposes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from replayfilter.core.period_study import SPANS, Choice, Result
from replayfilter.service.tools.topic_sample import Finding
from replayfilter.settings.durations import duration_text
from replayfilter.settings.messages import is_secret

LEAST_US = 3600 * 10**6  # no sample shows how long an outage lasts after which a job writes again
FOUND, EXPIRED = 0.999, 0.0001  # shares of the duplicates and of the records
_TOPIC_CHARACTERS = 249
_NAME_CHARACTERS = 200


def choose_period(result: Result) -> Choice:
    """The shortest period, from an hour on, with which nearly nothing is missed or expired in the sample."""
    most = max(choice.duplicates for choice in result.choices)
    good = (
        choice
        for choice in result.choices
        if choice.period_us >= LEAST_US
        and choice.duplicates >= FOUND * most
        and choice.expired <= EXPIRED * result.records
    )
    return next(good, result.choices[-1])


def secret_variables(options: Mapping[str, str]) -> dict[str, str]:
    """The variables that the config names instead of secrets that were given as they are."""
    return {
        name: re.sub(r"\W", "_", name).upper()
        for name, text in options.items()
        if is_secret(name) and "${" not in text
    }


def config_text(
    finding: Finding,
    choice: Choice,
    *,
    topic: str,
    bootstrap: str,
    options: Mapping[str, str],
    registry: str,
    registry_options: Mapping[str, str],
) -> str:
    """A config in TOML. It has no errors, as soon as the variables are set that it names.

    ``options``, ``registry_options``: as the user gave them, perhaps with ``${NAME}``.
    """
    name = re.sub("^[^A-Za-z0-9]+", "", topic)[:_NAME_CHARACTERS] or "service"
    detected = finding.detected
    lines = [
        f"# Proposed by `replayfilter advise {topic}` from a sample of the topic.",
        "# docs/reference/configuration.md describes each key.",
        *_section("service", name=name, checkpoint=f"checkpoint/{name}"),
        *_section("kafka", bootstrap=_with_ports(bootstrap)),
        *_options("kafka.options", options),
        *_section("input", topics=[topic], format=detected.format, stamp=finding.stamp),
    ]
    if finding.has_nulls:
        lines.append('on_null = "unique"  # null values pass')
    if detected.schemas is not None:
        lines += _section(detected.format, registry=registry)
        lines += _options(f"{detected.format}.options", registry_options)
    if finding.stamp == "none":
        lines += _section("replay", enabled=False)
    lines += _section(
        "dedup",
        key=list(finding.key),
        expiry_key=finding.time.field,
        unit=finding.time.unit,
        period=duration_text(choice.period_us),
        bucket_span=duration_text(choice.period_us // SPANS),
    )
    lines += _section("output", **_topics(topic))
    if finding.has_keys:
        lines.append('stamp = "header"  # records keep their own keys')
    return "\n".join(lines) + "\n"


def _with_ports(bootstrap: str) -> str:
    """With librdkafka's default port, where there is none.

    >>> _with_ports("kafka-1, kafka-2:9093")
    'kafka-1:9092,kafka-2:9093'
    """
    servers = [server.strip() for server in bootstrap.split(",")]
    return ",".join(server if re.search(r":\d+$", server) else f"{server}:9092" for server in servers)


def _topics(topic: str) -> dict[str, object]:
    routes = ("unique", "duplicate", "expired", "error")
    return {route: f"{topic[: _TOPIC_CHARACTERS - len(route) - 1]}.{route}" for route in routes}


def _section(section: str, **keys: object) -> list[str]:
    return ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]


def _options(section: str, options: Mapping[str, str]) -> list[str]:
    if not options:
        return []
    variables = secret_variables(options)
    texts = {name: f"${{{variables[name]}}}" if name in variables else text for name, text in options.items()}
    return ["", f"[{section}]", *(f"{_toml(name)} = {_toml(text)}" for name, text in texts.items())]


def _toml(value: object) -> str:
    # TOML's texts are those of JSON, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
