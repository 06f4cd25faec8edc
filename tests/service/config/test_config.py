"""The configuration: what is taken, what is refused, and in which words."""

from __future__ import annotations

import copy
import os
import tomllib
from pathlib import Path

import pytest

from replayfilter.errors import ConfigError
from replayfilter.service.config.model import Config, keys_by_section, load
from replayfilter.settings.durations import length_in_units, parse_bytes, parse_duration
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "orders.toml"


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("REPLAYFILTER_"):
            monkeypatch.delenv(name)


def config_with(**sections: dict[str, object] | None) -> Config:
    """The example with some keys changed (None: left out)."""
    data = copy.deepcopy(tomllib.loads(EXAMPLE.read_text()))
    for section, keys in sections.items():
        if keys is None:
            del data[section]
            continue
        for key, value in keys.items():
            data.setdefault(section, {})[key] = value
            if value is None:
                del data[section][key]
    return Config(**data)


def faults_of(**sections: dict[str, object] | None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_with(**sections)
    return caught.value.faults


def test_the_example_is_right_and_defaults_are_those_of_the_docs() -> None:
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


def test_all_faults_come_at_once_each_with_its_path_and_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(ALL_WRONG)
    with pytest.raises(ConfigError) as caught:
        load(path)
    faults = caught.value.faults
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
        'input.topics.1 = "a b"': "not a topic's name",
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
        matching = [fault for fault in faults if fault.startswith(head)]
        assert len(matching) == 1, (head, faults)
        assert remedy in matching[0]
    assert len(faults) == len(expected)
    assert "hunter2" not in str(caught.value)


def test_faults_come_in_the_order_of_the_documentation() -> None:
    faults = faults_of(http={"port": -1}, service={"name": "!"}, dedup={"period": "x"})
    assert [fault.split(" ")[0] for fault in faults] == ["service.name", "dedup.period", "http.port"]


# ---- environment -------------------------------------------------------------------------------------


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
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
        "kafka.options": '{"client.id": "x"}', "http.port": "80", "http.stale_after": "9s",
        "replay.mark_ttl": "2s",
        "replay.enabled": "true", "dedup.enabled": "true", "dedup.max_future": "1s",
        "service.master": "local[2]", "kafka.bootstrap": "h:1", "input.format": "json",
        "input.stamp": "header",
        "input.starting": "latest", "replay.on_invalid": "error", "dedup.unit": "s", "dedup.clock": "ordered",
        "dedup.period": "60", "dedup.bucket_span": "5", "dedup.max_jump": "7",
        "dedup.remember_origin": "true", "dedup.cache": "5GB", "dedup.match": "bucket",
        "output.key": "preserve", "avro.encoding": "plain", "avro.registry": "https://registry:8081",
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
            if key not in ("enabled", "format"):  # the only other values of these don't go with the rest
                got = config.value_of(f"{section}.{key}")
                assert got != getattr(getattr(defaults, section), key), f"{section}.{key}"


def test_a_fault_names_the_variable_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_HTTP__PORT", "many")
    monkeypatch.setenv("REPLAYFILTER_KAFAK__BOOTSTRAP", "h:1")
    port, section = faults_of()
    assert "REPLAYFILTER_HTTP__PORT" in port
    assert section.startswith("REPLAYFILTER_KAFAK__BOOTSTRAP")
    assert "did you mean kafka.bootstrap?" in section


def test_variables_without_the_delimiter_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYFILTER_JARS", "elsewhere")
    monkeypatch.setenv("REPLAYFILTER_SERVICE_HOST", "10.0.0.1")  # Kubernetes sets these for a service's name
    assert load(EXAMPLE).service.name == "orders"


# ---- client options ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "name",
    ["enable.idempotence", "transactional.id", "isolation.level", "acks", "group.id", "enable.auto.commit",
     "bootstrap.servers", "auto.offset.reset"],
)  # fmt: skip
def test_options_that_exactly_once_rests_on_are_refused(name: str) -> None:
    (fault,) = faults_of(kafka={"options": {name: "1"}})
    assert fault.startswith(f"kafka.options.{name}")


# ---- rules between keys ------------------------------------------------------------------------------


def test_span_is_a_twelfth_of_the_period_but_at_least_one_unit() -> None:
    assert config_with(dedup={"period": "13s", "unit": "s"}).span_units == 1
    assert config_with(dedup={"period": "5s", "unit": "s"}).span_units == 1
    assert config_with(dedup={"period": "1d", "unit": "iso8601"}).span_units == 2 * 3600 * 10**6


def test_clocks_without_time_count_in_the_keys_own_units() -> None:
    ordered = config_with(dedup={"clock": "ordered", "period": 1200, "max_jump": 0})
    assert (ordered.period_units, ordered.span_units, ordered.expiry_unit) == (1200, 100, "integer")
    categorical = config_with(dedup={"clock": "categorical", "period": 0})
    assert (categorical.period_units, categorical.expiry_unit) == (0, "category")


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"dedup": {"bucket_span": "2h"}}, "dedup.bucket_span", "longer than dedup.period"),
        ({"dedup": {"bucket_span": "0s"}}, "dedup.bucket_span", "more than zero"),
        ({"dedup": {"period": 3600}}, "dedup.period", "not a duration"),
        ({"dedup": {"period": "1m", "unit": "integer"}}, "dedup.unit", "needs a unit of time"),
        ({"dedup": {"period": "300000d", "unit": "ns"}}, "dedup.period", "too large"),
        ({"dedup": {"key": None}}, "dedup.key", "missing"),
        ({"dedup": {"key": ["@timestamp"]}}, "dedup.key.0", "can't be used here"),
        ({"dedup": {"key": ["@key"]}}, "dedup.key.0", "stamp"),
        ({"dedup": {"expiry_key": "@key"}}, "dedup.expiry_key", "can't be used here"),
        ({"dedup": {"clock": "watermark"}}, "dedup.clock", "set watermark.enabled = true"),
        ({"watermark": {"enabled": True, "origin": "host", "roster": ["a"]}}, "watermark.time", "missing"),
        ({"watermark": {"enabled": True, "origin": "h", "time": "@key", "roster": ["a"]}}, "watermark.time",
         "can't be used here"),
        ({"watermark": {"enabled": True, "origin": "h", "time": "ts", "roster": "no-such-file"}},
         "watermark.roster", "can't be read"),
        ({"watermark": {"enabled": True, "origin": "h", "time": "ts", "roster": ["a", "b\n"]}},
         "watermark.roster", "no origin's name"),
        ({"watermark": {"enabled": True, "origin": "h", "time": "ts", "roster": ["a"], "idle": "no-file"}},
         "watermark.idle", "can't be read"),
        ({"watermark": {"enabled": True, "idle": ["a"]}}, "watermark.idle", "set watermark.roster"),
        ({"watermark": {"completeness": "99.9"}}, "watermark.completeness", "not a share"),
        ({"watermark": {"enabled": True, "token": "${NO_SUCH_VARIABLE}"}}, "watermark.token", "no variable"),
        ({"dedup": {"clock": "ordered", "period": "5m"}}, "dedup.period", "plain"),
        ({"dedup": {"max_jump": 5}}, "dedup.max_jump", 'only clock = "ordered"'),
        ({"dedup": {"clock": "ordered", "period": 5, "max_jump": -1}}, "dedup.max_jump", "greater than"),
        (
            {"dedup": {"clock": "categorical", "period": 5, "bucket_span": 1}},
            "dedup.bucket_span",
            "is a category",
        ),
        ({"dedup": {"clock": "none", "match": "bucket"}}, "dedup.match", "no buckets"),
        ({"input": {"topics": ["orders.unique"]}}, "output.unique", "input.topics"),
        ({"input": {"topics": ["a", "a"]}}, "input.topics", "twice"),
        ({"input": {"topics": []}}, "input.topics", "missing"),
        ({"input": {"stamp": "none"}}, "replay.enabled", "input.stamp"),
        ({"input": {"format": "xml"}}, "input.format", "'json'"),
        ({"replay": {"topic": "orders.error"}}, "replay.topic", "output.error"),
        ({"replay": {"mark_ttl": "0s"}}, "replay.mark_ttl", "greater than 0"),
        ({"replay": 5}, "replay", "not a table"),
        ({"service": {"name": ""}}, "service.name", "not a service's name"),
        ({"service": {"name": "-x"}}, "service.name", "not a service's name"),
        ({"service": {"name": "x" * 201}}, "service.name", "not a service's name"),
        ({"service": {"checkpoint": "s3://b/c"}}, "service.checkpoint", "s3a"),
        ({"service": {"batch_bytes": "1MiBB"}}, "service.batch_bytes", "not a size"),
        ({"kafka": {"bootstrap": "h:1,h"}}, "kafka.bootstrap", "host:port"),
        ({"output": {"error": None}}, "output.error", "missing"),
        ({"output": {"error": ".."}}, "output.error", "not a topic's name"),
    ],
)  # fmt: skip
def test_one_fault_one_sentence(changes: dict[str, object], path: str, words: str) -> None:
    if changes.get("replay") == 5:
        with pytest.raises(ConfigError) as caught:
            Config(**{**tomllib.loads(EXAMPLE.read_text()), "replay": 5})  # type: ignore[arg-type]
        faults = caught.value.faults
    else:
        faults = faults_of(**changes)  # type: ignore[arg-type]
    assert len(faults) == 1, faults
    assert faults[0].startswith((f"{path} = ", f"{path}:"))
    assert words in faults[0]
    assert "; " in faults[0], "there must be a remedy"


def test_a_wrong_value_brings_no_follow_up_faults() -> None:
    (fault,) = faults_of(dedup={"unit": "minutes", "period": "1500us"})
    assert fault.startswith("dedup.unit")


def test_raw_records_have_no_fields() -> None:
    faults = faults_of(input={"format": "raw"})
    assert [fault.split(":")[0] for fault in faults] == ["dedup.key.0", "dedup.expiry_key"]
    right = {"key": ["@value", "@header:id"], "expiry_key": "@timestamp"}
    assert config_with(input={"format": "raw"}, dedup=right).dedup.expiry_key == "@timestamp"


@pytest.mark.parametrize(
    ("changes", "not_needed"),
    [
        ({"dedup": {"enabled": False, "key": None, "expiry_key": None, "period": None}}, "dedup.key"),
        ({"dedup": {"clock": "none", "expiry_key": None, "period": None}}, "dedup.period"),
    ],
)
def test_nothing_is_asked_for_that_is_not_used(
    changes: dict[str, dict[str, object]], not_needed: str
) -> None:
    unused = (
        {"expired": None} if changes["dedup"].get("enabled", True) else {"expired": None, "duplicate": None}
    )
    config = config_with(**changes, output=unused)
    assert config.value_of(not_needed) in ("", [])
    assert "output.expired" not in config.output_topics()


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for name, content, words in [
        ("missing.toml", None, "no such file"),
        ("broken.toml", b"[service\n", "line 1"),
        ("latin.toml", b"# caf\xe9", "not UTF-8 at byte 5"),
    ]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=words) as caught:
            load(tmp_path / name)
        assert name in caught.value.faults[0]
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path)


# ---- lengths -----------------------------------------------------------------------------------------


def test_lengths_are_exact() -> None:
    assert [parse_duration(t) for t in ("7us", "250ms", "10s", "5m", "48h", "1d")] == [
        7, 250_000, 10_000_000, 300_000_000, 172_800_000_000, 86_400_000_000,
    ]  # fmt: skip
    assert length_in_units("9007199254740993us", "us") == 2**53 + 1, "no float on the way"
    assert length_in_units("1us", "ns") == 1000
    assert length_in_units("12", "integer") == 12
    assert (parse_bytes("1KiB"), parse_bytes(77), parse_bytes("2 GB")) == (1024, 77, 2 * 10**9)


@pytest.mark.parametrize(
    "text", ["", "5", "h", "-1s", "1.5h", "1h30m", "1H", "1e3s", "\u0661s", 5, None, True, "1 week"]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("value", ["1h", 1.0, True, "", "-1"])
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(ValueError, match="not a plain integer"):
        length_in_units(value, "integer")
