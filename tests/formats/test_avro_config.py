"""The [avro] section of the config: required keys, errors, and how it gets to the pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from replayfilter.errors import ConfigError, MissingDependency
from replayfilter.formats import AvroSpec, KeySpec, build_extractor
from replayfilter.service.config.loader import load
from tests.support.example_plan import EXAMPLE, settings_with

SCHEMA = '{"type": "record", "name": "E", "fields": [{"name": "event_id", "type": "string"}]}'


def errors_of(tmp_path: Path, **avro: Any) -> list[str]:
    lines = EXAMPLE.read_text().replace('format = "json"', 'format = "avro"')
    path = tmp_path / "avro.toml"
    path.write_text(f"{lines}\n[avro]\n" + "\n".join(f"{key} = {value}" for key, value in avro.items()))
    try:
        load(path)
    except ConfigError as error:
        return error.errors
    return []


@pytest.mark.parametrize(
    ("avro", "start", "remedy"),
    [
        ({}, "avro.registry: missing", 'registry = "http://localhost:8081"'),
        ({"encoding": '"plain"'}, "avro.schemas: missing", 'schemas = ["schemas/order.avsc"]'),
        ({"encoding": '"single-object"'}, "avro.schemas: missing", "[avro]"),
        ({"encoding": '"confluence"'}, 'avro.encoding = "confluence"', "'confluent'"),
        ({"registry": '"registry:8081"'}, 'avro.registry = "registry:8081"', "http://host:8081"),
        (
            {"registry": '"http://me:hunter2@r"'},
            'avro.registry = "http://***@r"',
            "credentials in the options",
        ),
        ({"registry": '"http://r"', "options.no.such": "1"}, "avro.registry, avro.options", "no.such"),
        ({"registry": '"http://r"', "options.timeout": '"soon"'}, "avro.options.timeout = 'soon'", "number"),
        (
            {"registry": '"http://r"', "options.basic.auth.user.info": '"hunter2"'},
            "avro.registry",
            "username",
        ),
        (
            {"registry": '"http://r"', "options.basic.auth.user.info": '"${RF_TEST_UNSET}"'},
            "avro.options.basic.auth.user.info",
            "RF_TEST_UNSET",
        ),
        (
            {"encoding": '"plain"', "schemas": '["none.avsc"]'},
            'avro.schemas.0 = "none.avsc"',
            "check the path",
        ),
    ],
)
def test_one_error_one_sentence(tmp_path: Path, avro: dict[str, Any], start: str, remedy: str) -> None:
    (error,) = errors_of(tmp_path, **avro)
    assert error.startswith(start)
    assert remedy in error
    assert "hunter2" not in error


def test_schema_files_are_read_when_the_config_is_checked(tmp_path: Path) -> None:
    good, bad, text = tmp_path / "good.avsc", tmp_path / "bad.avsc", tmp_path / "bytes.avsc"
    good.write_text(SCHEMA)
    bad.write_text('{"type": "recrod", "name": "E"}')
    text.write_bytes(b'"\xff"')
    assert errors_of(tmp_path, encoding='"plain"', schemas=f'["{good}"]') == []
    assert errors_of(tmp_path, encoding='"single-object"', schemas=f'["{good}"]') == []
    (two,) = errors_of(tmp_path, encoding='"plain"', schemas=f'["{good}", "{good}"]')
    assert "give only one" in two
    wrong = errors_of(tmp_path, encoding='"single-object"', schemas=f'["{bad}", "{good}", "{text}"]')
    assert ["avro.schemas.0" in wrong[0], "not an Avro schema" in wrong[0]] == [True, True]
    assert ["avro.schemas.2" in wrong[1], "can't be read" in wrong[1], len(wrong)] == [True, True, 2]


def test_the_pipeline_gets_schema_texts_and_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RF_TEST_PASSWORD", "hunter2")
    path = tmp_path / "e.avsc"
    path.write_text(SCHEMA)
    options = {"basic.auth.user.info": "me:${RF_TEST_PASSWORD}"}
    avro = {"registry": "https://r", "options": options, "schemas": [str(path)]}
    settings = settings_with(input={"format": "avro"}, avro=avro)
    spec = AvroSpec("confluent", "https://r", (("basic.auth.user.info", "me:hunter2"),), (SCHEMA,))
    assert settings.keys == KeySpec("avro", ("event_id",), "ts", "ms", spec)
    assert "hunter2" not in repr(settings)
    assert settings_with(avro=avro).keys.avro is None


def test_options_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_AVRO__OPTIONS__BASIC_AUTH_USER_INFO", "a:b")
    assert load(EXAMPLE).client_options("avro") == {"basic.auth.user.info": "a:b"}


def test_without_fastavro_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("replayfilter.formats.avro.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(MissingDependency, match=r"needs fastavro.*replayfilter\[avro\]"):
        build_extractor(KeySpec("avro", ("id",), None, "ms", AvroSpec("plain", schemas=(SCHEMA,))))
    (error,) = errors_of(tmp_path, registry='"http://r"')
    assert error.startswith('input.format = "avro": needs fastavro; pip install')


def test_a_spec_without_schemas() -> None:
    with pytest.raises(ConfigError, match=r"set avro\.encoding"):
        build_extractor(KeySpec("avro", ("id",), None, "ms"))


def test_the_example_is_a_config() -> None:
    config = load(EXAMPLE.with_name("orders-avro.toml"))
    assert (config.input.format, config.avro.registry) == ("avro", "http://localhost:8081")
