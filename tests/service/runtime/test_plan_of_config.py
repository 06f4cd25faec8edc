"""From the config to the settings of the pipeline."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.digest import content_name
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, Rules, Scope
from replayfilter.core.stamp import producer_id
from replayfilter.formats import KeySpec
from replayfilter.kafka.admin import Topic
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.plan import pipeline_settings_of, with_topics
from replayfilter.service.runtime.preflight import Findings
from replayfilter.spark.pipeline_settings import Output
from replayfilter.watermark.client import UpstreamStages
from tests.support.example_plan import EXAMPLE, settings_with


def test_the_settings_of_the_example_config() -> None:
    plan = settings_with(service={"checkpoint": "file:/var/with%20space/orders"})
    assert plan.checkpoint == "file:/var/with space/orders/spark"
    assert plan.keys == KeySpec("json", ("event_id",), "ts", "ms")
    assert plan.rules == Rules()
    assert plan.outputs == {
        Route.UNIQUE: Output("orders.unique", 5),
        Route.DUPLICATE: Output("orders.duplicate", 5),
        Route.EXPIRED: Output("orders.expired", 5),
        Route.ERROR: Output("orders.error", 5),
        Route.FUTURE: Output("orders.error", 5),
        Route.JUMP: Output("orders.error", 5),
    }
    assert plan.output_pids == {
        f"orders.{route}": {"orders": producer_id("cluster", "id", "orders", f"id of orders.{route}", "5")}
        for route in ("unique", "duplicate", "expired", "error")
    }
    assert (plan.shards, plan.lanes) == (3, 3)


def test_every_setting_reaches_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RF_TEST_PASSWORD", "hunter2")
    plan = settings_with(
        service={"shards": 7, "master": "local[9]", "batch_records": 11, "batch_bytes": "3MB",
                 "interval": "4s"},
        kafka={"options": {"sasl.password": "${RF_TEST_PASSWORD}"}},
        input={"stamp": "header", "starting": "latest", "format": "raw"},
        replay={"mark_ttl": "1s", "max_sources": 9, "on_invalid": "error", "topic": "replays"},
        dedup={"key": ["@key"], "expiry_key": "@timestamp", "unit": "us", "clock": "system",
               "match": "bucket", "scope": "partition",
               "period": "2ms", "bucket_span": "1ms", "max_future": "5us"},
        output={"stamp": "none"},
    )  # fmt: skip
    assert (plan.shards, plan.lanes, plan.master) == (7, 7, "local[9]")
    assert (plan.batch_records, plan.batch_bytes, plan.interval_us) == (11, 3_000_000, 4_000_000)
    assert plan.options == {"sasl.password": "hunter2"}
    assert "hunter2" not in repr(plan)
    assert (plan.stamp, plan.starting) == ("header", "latest")
    assert (plan.on_invalid, plan.output_stamp) == ("error", "none")
    assert plan.keys == KeySpec("raw", ("@key",), "@timestamp", "us")
    rules = Rules(True, 1_000_000, 9, True, Clock.SYSTEM, 2_000, 1_000, Match.BUCKET, "us")
    assert plan.rules == replace(rules, scope=Scope.PARTITION)
    assert plan.max_future_us == 5
    assert plan.outputs[Route.REPLAY] == Output("replays", 5)


def test_duplicates_may_refresh() -> None:
    assert settings_with(dedup={"refresh": True}).rules == Rules(refresh=True)


def test_conflicts_in_the_duplicate_topic() -> None:
    plan = settings_with(dedup={"conflict": "header"}, output={"conflict": "unused"})
    assert plan.keys.content == ("@value",)
    assert plan.rules == Rules(content=content_name(["@value"]))
    assert Route.CONFLICT not in plan.outputs


def test_conflicts_in_a_topic_of_their_own() -> None:
    dedup = {"conflict": "topic", "conflict_fields": ["amount", "currency"]}
    plan = settings_with(dedup=dedup, output={"conflict": "orders.conflict"})
    assert plan.keys.content == ("amount", "currency")
    assert plan.rules.content == content_name(["amount", "currency"]) != content_name(["currency", "amount"])
    assert plan.outputs[Route.CONFLICT] == Output("orders.conflict", 5)
    assert plan.output_pids["orders.conflict"] != plan.output_pids["orders.duplicate"]


def test_without_dedup_nothing_can_expire() -> None:
    plan = settings_with(dedup={"enabled": False, "refresh": True, "conflict": "topic"})
    assert (plan.rules.refresh, plan.rules.content, plan.keys.content) == (False, "", ())
    assert plan.keys.key == ()
    assert plan.keys.expiry_key is None
    assert (plan.rules.dedup, plan.rules.clock) == (False, "none")
    assert plan.outputs.keys() == {Route.UNIQUE, Route.ERROR, Route.FUTURE, Route.JUMP}


def test_more_partitions_change_the_outputs_their_pids_and_the_watermark() -> None:
    plan = settings_with(watermark={"enabled": True})
    names = ["orders", *plan.output_pids]
    topics = {name: Topic(f"id of {name}", 5) for name in names}
    assert with_topics(plan, "cluster", topics) == plan
    topics["orders.unique"] = topics["orders.unique"]._replace(partitions=7)
    topics["orders"] = topics["orders"]._replace(partitions=8)
    raised = with_topics(plan, "cluster", topics)
    assert raised.outputs == {**plan.outputs, Route.UNIQUE: Output("orders.unique", 7)}
    pid = producer_id("cluster", "id", "orders", "id of orders.unique", "7")
    assert raised.output_pids == {**plan.output_pids, "orders.unique": {"orders": pid}}
    assert raised.rules.watermark is not None
    assert raised.rules.watermark.partitions == {"orders": 8}


def test_a_watermark_from_the_input_follows_the_stages_of_its_application() -> None:
    watermark = {"enabled": True, "servers": ["http://one:8321"]}
    plans = [settings_with(watermark=watermark), settings_with(watermark=watermark | {"app": "eu"})]
    followed = [UpstreamStages(("http://one:8321",), "", "orders", app) for app in ("default", "eu")]
    assert [plan.upstream for plan in plans] == followed


def test_a_plan_needs_a_preflight_without_errors() -> None:
    with pytest.raises(ValueError, match="preflight"):
        pipeline_settings_of(config_from(tomllib.loads(EXAMPLE.read_text())), Findings(["something"]))
