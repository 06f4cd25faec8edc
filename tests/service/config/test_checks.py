"""The rules between keys: which configs are refused, and with which message."""

from __future__ import annotations

import pytest

from tests.support.configs import config_with, errors_of


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
         "watermark.roster", "not an origin name"),
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
        ({"dedup": {"key": ["a", "b", "a"]}}, "dedup.key", "names a field twice"),
        ({"dedup": {"conflict": "header", "conflict_fields": ["a", "a"]}}, "dedup.conflict_fields", "twice"),
        ({"dedup": {"conflict": "header", "conflict_fields": []}}, "dedup.conflict_fields", "empty"),
        ({"dedup": {"conflict": "header", "conflict_fields": ["@key"]}}, "dedup.conflict_fields.0", "stamp"),
        ({"dedup": {"conflict": "header", "conflict_fields": ["x", "@timestamp"]}},
         "dedup.conflict_fields.1", "can't be used here"),
        ({"dedup": {"conflict": "topic"}}, "output.conflict", 'for example conflict = "orders.conflict"'),
        ({"dedup": {"refresh": True, "match": "bucket"}}, "dedup.refresh", 'set dedup.match = "window"'),
        ({"dedup": {"refresh": True, "clock": "none"}}, "dedup.refresh", 'with clock = "none" no period'),
        ({"dedup": {"refresh": True, "clock": "categorical", "period": 5, "unit": "integer"}},
         "dedup.refresh", 'with clock = "categorical" no period'),
        ({"input": {"topics": ["orders.unique"]}}, "output.unique", "input.topics"),
        ({"input": {"topics": ["a", "a"]}}, "input.topics", "twice"),
        ({"input": {"topics": []}}, "input.topics", "missing"),
        ({"input": {"stamp": "none"}}, "replay.enabled", "input.stamp"),
        ({"input": {"format": "raw", "on_null": "unique"}, "dedup": {"key": ["@value"],
          "expiry_key": "@timestamp"}}, "input.on_null", "a value like any other"),
        ({"input": {"on_null": "key"}}, "input.on_null", "the record's key is its stamp"),
        ({"input": {"on_null": "key", "stamp": "header"}, "dedup": {"clock": "categorical", "period": 5}},
         "input.on_null", "in no category"),
        ({"input": {"on_null": "drop"}}, "input.on_null", "'unique'"),
        ({"input": {"format": "xml"}}, "input.format", "'json'"),
        ({"replay": {"topic": "orders.error"}}, "replay.topic", "output.error"),
        ({"replay": {"mark_ttl": "0s"}}, "replay.mark_ttl", "greater than 0"),
        ({"replay": 5}, "replay", "not a table"),
        ({"service": {"name": ""}}, "service.name", "not a service name"),
        ({"service": {"name": "-x"}}, "service.name", "not a service name"),
        ({"service": {"name": "x" * 201}}, "service.name", "not a service name"),
        ({"service": {"checkpoint": "gs://b/c"}}, "service.checkpoint", "s3a:"),
        ({"service": {"batch_bytes": "1MiBB"}}, "service.batch_bytes", "not a size"),
        ({"service": {"interval": "2m"}}, "service.interval", "http.stale_after"),
        ({"kafka": {"bootstrap": "h:1,h"}}, "kafka.bootstrap", "host:port"),
        ({"output": {"error": None}}, "output.error", "missing"),
        ({"output": {"error": ".."}}, "output.error", "not a topic name"),
    ],
)  # fmt: skip
def test_each_error_has_one_message_with_a_remedy(changes: dict[str, object], path: str, words: str) -> None:
    errors = errors_of(**changes)
    assert len(errors) == 1, errors
    assert errors[0].startswith((f"{path} = ", f"{path}:"))
    assert words in errors[0]
    assert "; " in errors[0], "there must be a remedy"


def test_a_wrong_value_causes_no_further_errors() -> None:
    (error,) = errors_of(dedup={"unit": "minutes", "period": "1500us"})
    assert error.startswith("dedup.unit")


def test_raw_records_have_no_fields() -> None:
    errors = errors_of(input={"format": "raw"})
    assert [error.split(":")[0] for error in errors] == ["dedup.key.0", "dedup.expiry_key"]
    for expiry_key in ("@timestamp", "@header:ts"):
        right = {"key": ["@value", "@header:id"], "expiry_key": expiry_key}
        assert config_with(input={"format": "raw"}, dedup=right).dedup.expiry_key == expiry_key


@pytest.mark.parametrize(
    ("changes", "not_needed"),
    [
        ({"dedup": {"enabled": False, "key": None, "expiry_key": None, "period": None}}, "dedup.key"),
        ({"dedup": {"clock": "none", "expiry_key": None, "period": None}}, "dedup.period"),
    ],
)
def test_keys_that_are_not_used_are_not_required(
    changes: dict[str, dict[str, object]], not_needed: str
) -> None:
    unused = (
        {"expired": None} if changes["dedup"].get("enabled", True) else {"expired": None, "duplicate": None}
    )
    config = config_with(**changes, output=unused)
    assert config.value_of(not_needed) in ("", [])
    assert "output.expired" not in config.output_topics()


@pytest.mark.parametrize(
    "name",
    ["enable.idempotence", "transactional.id", "isolation.level", "acks", "group.id", "enable.auto.commit",
     "bootstrap.servers", "auto.offset.reset"],
)  # fmt: skip
def test_options_that_exactly_once_delivery_depends_on_are_refused(name: str) -> None:
    (error,) = errors_of(kafka={"options": {name: "1"}})
    assert error.startswith(f"kafka.options.{name}")


def test_timeouts_that_do_not_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGEST", "60000")
    timeouts = {"transaction.timeout.ms": "${LONGEST}", "delivery.timeout.ms": "120000"}
    (error,) = errors_of(kafka={"options": timeouts})
    assert error.startswith(
        "kafka.options.delivery.timeout.ms = 120000: longer than transaction.timeout.ms = 60000; shorten it"
    )
    config_with(kafka={"options": {"transaction.timeout.ms": "${LONGEST}"}})
