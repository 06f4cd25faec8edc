"""Keys that environment variables set."""

from __future__ import annotations

from pathlib import Path

import pytest

from replayfilter.service.config.loader import load
from replayfilter.service.config.model import Config, keys_by_section
from tests.support.configs import EXAMPLE, config_with, errors_of


def test_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_KAFKA__BOOTSTRAP", "broker:1")
    monkeypatch.setenv("REPLAYFILTER_INPUT__TOPICS", "a, b")
    monkeypatch.setenv("REPLAYFILTER_DEDUP__KEY", '["x,y", "z"]')
    monkeypatch.setenv("REPLAYFILTER_REPLAY__MARK_TTL", "10s")
    monkeypatch.setenv("REPLAYFILTER_REPLAY__ENABLED", "false")
    config = load(EXAMPLE)
    assert config.kafka.bootstrap == "broker:1"
    assert config.input.topics == ["a", "b"]
    assert config.dedup.key == ["x,y", "z"]
    assert (config.replay.mark_ttl, config.replay.enabled) == (10_000_000, False)
    assert config.output.unique == "orders.unique"


def test_every_key_can_be_set_by_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "service.shards": "3", "service.batch_records": "5", "service.batch_bytes": "2MB",
        "service.interval": "3s",
        "kafka.options": '{"client.id": "x"}', "http.port": "80", "http.stale_after": "9s",
        "replay.mark_ttl": "2s", "replay.max_sources": "9",
        "replay.enabled": "true", "dedup.enabled": "true", "dedup.max_future": "1s",
        "service.master": "local[2]", "kafka.bootstrap": "h:1", "input.format": "json",
        "input.stamp": "header", "input.on_null": "key",
        "input.starting": "latest", "replay.on_invalid": "error", "dedup.unit": "s", "dedup.clock": "ordered",
        "dedup.period": "60", "dedup.bucket_span": "5", "dedup.max_jump": "7",
        "dedup.remember_first": "true", "dedup.cache": "5GB", "dedup.match": "bucket",
        "dedup.scope": "partition", "dedup.refresh": "false",
        "dedup.conflict": "topic",
        "output.stamp": "none", "avro.encoding": "plain", "protobuf.encoding": "plain",
        "avro.registry": "https://registry:8081",
        "protobuf.registry": "https://registry:8081", "protobuf.options": '{"timeout": "3"}',
        "avro.options": '{"timeout": "3"}', "watermark.enabled": "true", "watermark.unit": "s",
        "watermark.completeness": "0.999", "watermark.roster": str(tmp_path / "hosts"),
        "watermark.idle": str(tmp_path / "hosts"),
    }  # fmt: skip
    (tmp_path / "hosts").write_text("a\nb\n")
    for section, keys in keys_by_section().items():
        for key in keys:
            value = values.get(f"{section}.{key}", f"{section}-{key}")
            monkeypatch.setenv(f"REPLAYFILTER_{section}__{key}".upper(), value)
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    config = load(empty)
    defaults = Config.model_construct()
    for section, keys in keys_by_section().items():
        for key in keys:
            if key not in ("enabled", "format", "refresh"):  # their other values don't fit the rest
                got = config.value_of(f"{section}.{key}")
                assert got != getattr(getattr(defaults, section), key), f"{section}.{key}"


def test_an_error_names_the_variable_that_set_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_HTTP__PORT", "many")
    monkeypatch.setenv("REPLAYFILTER_KAFAK__BOOTSTRAP", "h:1")
    port, section = errors_of()
    assert "REPLAYFILTER_HTTP__PORT" in port
    assert section.startswith("REPLAYFILTER_KAFAK__BOOTSTRAP")
    assert "did you mean kafka.bootstrap?" in section


def test_variables_without_the_delimiter_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_JARS", "elsewhere")
    monkeypatch.setenv("REPLAYFILTER_SERVICE_HOST", "10.0.0.1")  # Kubernetes sets these for a service's name
    assert load(EXAMPLE).service.name == "orders"


def test_options_take_secrets_from_the_environment_and_never_show_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RF_TEST_PASSWORD", "hunter2")
    monkeypatch.setenv("REPLAYFILTER_KAFKA__OPTIONS__SECURITY_PROTOCOL", "SASL_SSL")
    options = {
        "security": {"protocol": "PLAINTEXT"},
        "sasl.password": "<${RF_TEST_PASSWORD}>",
        "linger.ms": 5,
    }
    config = config_with(kafka={"options": options})
    assert config.client_options() == {
        "security.protocol": "SASL_SSL",
        "sasl.password": "<hunter2>",
        "linger.ms": "5",
    }
    assert "hunter2" not in repr(config) + str(config)
