"""How a file becomes a config, and how all its errors are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.config.loader import load
from tests.support.configs import EXAMPLE, config_with, errors_of


def test_the_example_is_valid_and_has_the_documented_defaults() -> None:
    config = load(EXAMPLE)
    assert config.service.name == "orders"
    assert config.replay.mark_ttl == 48 * 3600 * 10**6
    assert config.dedup.max_future == 600 * 10**6
    assert (config.period_units, config.span_units) == (3_600_000, 300_000)
    assert config.output_topics() == {
        "output.unique": "orders.unique",
        "output.duplicate": "orders.duplicate",
        "output.expired": "orders.expired",
        "output.error": "orders.error",
    }


ALL_WRONG = """
nmae = 3
[service]
name = "ord ers"
master = "lokal"
batch_records = 0
[kafka]
bootstrap = "localhost"
password = "hunter2"
[kafka.options]
"sasl.password" = "${RF_TEST_UNSET}"
"isolation.level" = "read_uncommitted"
"ssl.key.password" = ["hunter2"]
[input]
topics = ["orders", "a b"]
format = "avro"
stamp = "none"
[avro.options]
basic.auth.user.info = "me:${RF_TEST_UNSET}"
[dedupe]
x = 1
[dedup]
perod = "1h"
key = ["a..b", "@foo"]
unit = "s"
period = "1500ms"
max_future = 3
[output]
unique = "o"
duplicate = "o"
[http]
port = 99999
"""


def test_cloudevents_set_the_key_and_what_ages_events() -> None:
    """But not over what is set, and no time for clocks that don't read one."""
    nothing = {"key": None, "expiry_key": None, "unit": None}
    for changes, expected in (
        ({}, (["source", "id"], "time", "iso8601")),
        ({"unit": "s"}, (["source", "id"], "time", "s")),
        ({"key": ["id"], "expiry_key": "@timestamp"}, (["id"], "@timestamp", "ms")),
        ({"clock": "none", "period": None}, (["source", "id"], "", "ms")),
        ({"clock": "ordered", "period": 9, "expiry_key": "sequence"}, (["source", "id"], "sequence", "ms")),
    ):
        dedup = config_with(input={"format": "cloudevents"}, dedup=nothing | changes).dedup
        assert (dedup.key, dedup.expiry_key, dedup.unit) == expected
    wrong = {"format": "cloudevents"}
    assert (
        "dedup.expiry_key: missing"
        in errors_of(input=wrong, dedup=nothing | {"clock": "ordered", "period": 9})[0]
    )
    assert "not an attribute" in errors_of(input=wrong, dedup=nothing | {"key": ["data.id"]})[0]


def test_debezium_sets_what_connectors_need() -> None:
    nothing = {"key": None, "expiry_key": None, "unit": None}
    config = config_with(input={"format": "debezium", "stamp": None}, dedup=nothing)
    assert (config.dedup.key[:2], config.dedup.expiry_key, config.dedup.unit) == (
        ["@key", "source"],
        "source.ts_ms",
        "ms",
    )
    assert (config.input.stamp, config.input.on_null, config.replay.enabled) == ("none", "unique", False)
    assert config.output.stamp == "header"
    given = {"format": "debezium", "stamp": "header"}
    config = config_with(input=given, dedup={"key": ["after.id"]}, output={"stamp": "none"})
    assert (config.dedup.key, config.input.stamp, config.replay.enabled) == (["after.id"], "header", True)
    assert (config.dedup.expiry_key, config.output.stamp) == ("ts", "none")
    wrong = {"format": "debezium", "stamp": None, "on_null": "key"}
    assert errors_of(input=wrong, dedup=nothing) == [
        'input.on_null = "key": with input.format = "debezium" null values are tombstones and pass; remove it'
    ]
    assert "not a table" in errors_of(input={"format": "debezium"}, replay=5, output=[], dedup=nothing)[0]


def test_all_errors_are_reported_at_once_with_path_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(ALL_WRONG)
    with pytest.raises(ConfigError) as caught:
        load(path)
    errors = caught.value.errors
    expected = {
        'service.name = "ord ers"': "letter or digit",
        "service.checkpoint: missing": 'checkpoint = "checkpoint/orders"',
        'service.master = "lokal"': "use local[*]",
        "service.batch_records = 0": "greater than or equal to 1",
        'kafka.bootstrap = "localhost"': "host:port",
        'kafka.password = "***"': "kafka has bootstrap, options",
        "kafka.options.sasl.password": "RF_TEST_UNSET",
        "kafka.options.isolation.level": "remove it",
        'kafka.options.ssl.key.password = "***"': "valid string",
        'input.topics.1 = "a b"': "not a topic name",
        "avro.registry: missing": 'registry = "http://localhost:8081"',
        "avro.options.basic.auth.user.info": "RF_TEST_UNSET",
        "replay.enabled = true": "set replay.enabled = false",
        "dedup.key.0": "empty name",
        "dedup.key.1": "@foo",
        "dedup.expiry_key: missing": 'expiry_key = "ts"',
        'dedup.period = "1500ms"': "not a whole number of the expiry key's unit, s",
        "dedup.max_future = 3": "not a duration",
        'dedup.perod = "1h"': "did you mean dedup.period?",
        'output.duplicate = "o"': "output.unique names that topic too",
        "output.expired: missing": "[output]",
        "output.error: missing": "[output]",
        "http.port = 99999": "65535",
        "dedupe = ": "did you mean dedup?",
        "nmae = 3": "the sections are service,",
    }
    for head, remedy in expected.items():
        matching = [error for error in errors if error.startswith(head)]
        assert len(matching) == 1, (head, errors)
        assert remedy in matching[0]
    assert len(errors) == len(expected)
    assert "hunter2" not in str(caught.value)


def test_errors_come_in_the_order_of_the_documentation() -> None:
    errors = errors_of(http={"port": -1}, service={"name": "!"}, dedup={"period": "x"})
    assert [error.split(" ")[0] for error in errors] == ["service.name", "dedup.period", "http.port"]


def test_a_file_that_is_missing_or_not_toml(tmp_path: Path) -> None:
    for name, content, words in [
        ("missing.toml", None, "no such file"),
        ("broken.toml", b"[service\n", "line 1"),
        ("latin.toml", b"# caf\xe9", "not UTF-8 at byte 5"),
    ]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=words) as caught:
            load(tmp_path / name)
        assert name in caught.value.errors[0]
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path)
