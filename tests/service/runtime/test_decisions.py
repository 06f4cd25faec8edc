"""The settings that the last batch was begun with: which batch is decided with which."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.routing import Route
from replayfilter.core.rules import Rules, Scope
from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.errors import CheckpointError, RegistryError
from replayfilter.formats import AvroSpec, KeySpec, ProtobufSpec
from replayfilter.formats.spec import MAX_UNKNOWN
from replayfilter.service.runtime.checkpoint import DECISIONS, SPARK
from replayfilter.service.runtime.decisions import RecordedDecisions, UnknownSchemasPoller
from replayfilter.spark.checkpoint_folder import LocalFolder
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.spark.query import SettingsChange
from replayfilter.watermark.client import UpstreamStages
from tests.support.registry_server import FAST_RETRIES, RegistryServer

AVRO = AvroSpec("confluent", "http://registry:8081", (("basic.auth.user.info", "me:hunter2"),))
SETTINGS = PipelineSettings(
    service="orders",
    checkpoint="file:/checkpoint/spark",
    bootstrap="kafka:9092",
    options={"sasl.password": "hunter2"},
    upstream=UpstreamStages(("http://one:8321",), "hunter2", "orders"),
    topics=("orders",),
    keys=KeySpec("avro", ("id",), "ts", "ms", AVRO),
    rules=Rules(watermark=WatermarkRules(("a", "b"), partitions={"orders": 3})),
    outputs={Route.UNIQUE: Output("orders.unique", 3), Route.ERROR: Output("orders.error", 1)},
    output_pids={"orders.unique": {"orders": -5_000_000_000_000_000_000}},
    shards=2,
    lanes=2,
)


def with_rules(**changes: Any) -> PipelineSettings:
    return replace(SETTINGS, rules=replace(SETTINGS.rules, **changes))


def with_avro(**changes: Any) -> PipelineSettings:
    return replace(SETTINGS, keys=replace(SETTINGS.keys, avro=replace(AVRO, **changes)))


PROTOBUF = ProtobufSpec("confluent", registry="http://registry:8081", options=AVRO.options)


def with_protobuf(**changes: Any) -> PipelineSettings:
    keys = KeySpec("protobuf", ("id",), "ts", "ms", protobuf=replace(PROTOBUF, **changes))
    return replace(SETTINGS, keys=keys)


class Checkpoint:
    """A checkpoint with Spark's logs, and the decisions in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []

    @property
    def decisions(self) -> RecordedDecisions:
        """As a new process sees them."""
        return RecordedDecisions(LocalFolder(self.folder), self.messages.append)

    def _write(self, name: str) -> None:
        path = self.folder / SPARK / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def plan(self, batch: int) -> None:
        self._write(f"offsets/{batch}")

    def route(self, batch: int) -> None:
        self._write(f"state/0/1/{batch + 1}_5f0c1c3e-0000-4000-8000-000000000000.changelog")

    def finish(self, batch: int) -> None:
        self._write(f"commits/{batch}")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


DECIDING = {
    "period": with_rules(period=7_200_000),
    "mark_ttl": with_rules(mark_ttl_us=1),
    "max_jump": with_rules(max_jump=5),
    "refresh": with_rules(refresh=True),
    "conflict": with_rules(content="content-1"),
    "conflict_fields": replace(SETTINGS, keys=replace(SETTINGS.keys, content=("a",))),
    "replay.enabled": with_rules(replay=False),
    "watermark.enabled": with_rules(watermark=None),
    "clock": with_rules(clock=Clock.SYSTEM),
    "scope": with_rules(scope=Scope.PARTITION),
    "stamp": replace(SETTINGS, stamp="header"),
    "on_invalid": replace(SETTINGS, on_invalid="error"),
    "max_future": replace(SETTINGS, max_future_us=1),
    "output.stamp": replace(SETTINGS, output_stamp="none"),
    "a topic": replace(SETTINGS, outputs={**SETTINGS.outputs, Route.UNIQUE: Output("other", 3)}),
    "its partitions": replace(
        SETTINGS, outputs={**SETTINGS.outputs, Route.UNIQUE: Output("orders.unique", 4)}
    ),
    "replay.topic": replace(SETTINGS, outputs={**SETTINGS.outputs, Route.REPLAY: Output("replays", 3)}),
    "no error topic": replace(SETTINGS, outputs={Route.UNIQUE: Output("orders.unique", 3)}),
    "pids": replace(SETTINGS, output_pids={"orders.unique": {"orders": 6}}),
    "unknown": with_avro(unknown=(7,)),
    "schemas": with_avro(schemas=('"string"',)),
}


@pytest.mark.parametrize("changed", DECIDING.values(), ids=DECIDING.keys())
def test_a_begun_batch_is_finished_before_new_settings_count(
    checkpoint: Checkpoint, changed: PipelineSettings
) -> None:
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    checkpoint.route(0)
    for _ in range(2):  # a kill in between changes nothing
        assert checkpoint.decisions.settings_for_start(changed) == (SETTINGS, True)
    assert checkpoint.messages == ["finishing batch 0 with the settings it was begun with"] * 2
    checkpoint.finish(0)
    assert checkpoint.decisions.settings_for_start(changed) == (changed, False)
    checkpoint.plan(1)
    checkpoint.route(1)
    assert checkpoint.decisions.settings_for_start(changed) == (changed, False)
    assert checkpoint.decisions.settings_for_start(SETTINGS) == (changed, True)


@pytest.mark.parametrize("changed", DECIDING.values(), ids=DECIDING.keys())
def test_a_batch_that_was_never_routed_gets_new_settings(
    checkpoint: Checkpoint, changed: PipelineSettings
) -> None:
    """Its own settings may be what refuses it."""
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    assert checkpoint.decisions.settings_for_start(changed) == (changed, False)
    checkpoint.route(0)
    assert checkpoint.decisions.settings_for_start(SETTINGS) == (changed, True)


OPERATIONAL = {
    "batch_records": replace(SETTINGS, batch_records=5),
    "interval": replace(SETTINGS, interval_us=5),
    "cache": replace(SETTINGS, cache_bytes=5),
    "bootstrap": replace(SETTINGS, bootstrap="other:9092"),
    "options": replace(SETTINGS, options={}),
    "log_level": replace(SETTINGS, log_level="warn"),
    "registry": with_avro(registry="http://other:8081", options=()),
    "roster": with_rules(watermark=WatermarkRules(("a", "c"), partitions={"orders": 3}, idle=("a",))),
}


@pytest.mark.parametrize("changed", OPERATIONAL.values(), ids=OPERATIONAL.keys())
def test_other_settings_count_at_once(checkpoint: Checkpoint, changed: PipelineSettings) -> None:
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    assert checkpoint.decisions.settings_for_start(changed) == (changed, False)


def test_how_a_begun_batch_is_operated_is_as_it_is_now(checkpoint: Checkpoint) -> None:
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    checkpoint.route(0)
    other = with_avro(registry="http://other:8081", options=(("timeout", "5"),))
    upstream = UpstreamStages(("http://two:8321",), "", "orders")
    other = replace(other, bootstrap="other:9092", options={"sasl.password": "new"}, upstream=upstream)
    found, _ = checkpoint.decisions.settings_for_start(replace(other, stamp="header"))
    assert found == other


@pytest.mark.parametrize("settings", [SETTINGS, with_protobuf()], ids=["avro", "protobuf"])
def test_secrets_are_not_recorded(checkpoint: Checkpoint, settings: PipelineSettings) -> None:
    checkpoint.decisions.settings_for_start(settings)
    assert b"hunter2" not in (checkpoint.folder / DECISIONS).read_bytes()


def test_a_checkpoint_of_an_earlier_version_gets_the_current_settings(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    checkpoint.finish(0)
    checkpoint.plan(1)
    checkpoint.route(1)
    assert checkpoint.decisions.settings_for_start(SETTINGS) == (SETTINGS, False)
    assert checkpoint.decisions.settings_for_start(DECIDING["period"]) == (SETTINGS, True)


def test_a_setting_that_a_record_lacks_is_as_it_is_now(checkpoint: Checkpoint) -> None:
    """A later version may have more settings."""
    checkpoint.decisions.settings_for_start(SETTINGS)
    path = checkpoint.folder / DECISIONS
    path.write_text(path.read_text().replace('"stamp": "key",', ""))
    checkpoint.plan(0)
    checkpoint.route(0)
    new = replace(SETTINGS, stamp="header")
    assert checkpoint.decisions.settings_for_start(new) == (new, False)


def test_pids_that_a_record_has_by_input_topic_alone_are_not_used(checkpoint: Checkpoint) -> None:
    """What was delivered of the begun batch keeps the old pid. For the rest, the pid is a new source."""
    checkpoint.decisions.settings_for_start(SETTINGS)
    path = checkpoint.folder / DECISIONS
    recorded = json.loads(path.read_text())
    del recorded["decisions"]["output_pids"]
    recorded["decisions"]["pids"] = {"orders": 6}
    path.write_text(json.dumps(recorded))
    checkpoint.plan(0)
    checkpoint.route(0)
    assert checkpoint.decisions.settings_for_start(SETTINGS) == (SETTINGS, False)
    changed = DECIDING["period"]
    assert checkpoint.decisions.settings_for_start(changed) == (SETTINGS, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"version": 2}', "has format 2, this version reads 1"),
        ('{"version": 1, "first_batch": 0, "decisions": {"shards": "many"}}', "can't be read"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(checkpoint: Checkpoint, content: str, words: str) -> None:
    (checkpoint.folder / DECISIONS).write_text(content)
    checkpoint.plan(0)
    checkpoint.route(0)
    with pytest.raises(CheckpointError, match=f"decisions.json .*{words}"):
        checkpoint.decisions.settings_for_start(SETTINGS)


# ---- unknown schemas ---------------------------------------------------------------------------------


GUID = 0x996AD8602A9A504F8861AEAFD0B2AE29  # ids in headers


def unknown(settings: PipelineSettings) -> tuple[int, ...]:
    assert settings.keys.schemas is not None
    return settings.keys.schemas.unknown


@pytest.mark.parametrize("settings", [SETTINGS, with_protobuf()], ids=["avro", "protobuf"])
def test_a_batch_keeps_the_schemas_that_were_unknown(
    checkpoint: Checkpoint, settings: PipelineSettings
) -> None:
    checkpoint.decisions.settings_for_start(settings)
    checkpoint.plan(0)
    now = checkpoint.decisions.record_unknown(settings, {9, 7})
    assert unknown(now) == (7, 9)
    assert checkpoint.decisions.settings_for_start(now) == (now, False)
    assert unknown(checkpoint.decisions.record_unknown(now, {8, GUID})) == (7, 9, 8, GUID)
    checkpoint.route(0)

    begun, only_this_batch = checkpoint.decisions.settings_for_start(settings)  # a new process
    assert (unknown(begun), only_this_batch) == ((7, 9, 8, GUID), True)
    checkpoint.finish(0)
    assert checkpoint.decisions.settings_for_start(settings) == (settings, False)


@pytest.mark.parametrize("new_is_registry", [True, False])
def test_a_batch_keeps_the_types_of_its_messages(checkpoint: Checkpoint, new_is_registry: bool) -> None:
    """A config may go from a file of descriptors to a registry, and back."""
    described = with_protobuf(registry="", options=(), descriptors="AAAA", message="shop.Order")
    registered = with_protobuf(message="shop.Order")
    old, new = (described, registered) if new_is_registry else (registered, described)
    checkpoint.decisions.settings_for_start(old)
    checkpoint.plan(0)
    checkpoint.route(0)
    begun, only_this_batch = checkpoint.decisions.settings_for_start(new)
    assert only_this_batch
    assert begun.keys.protobuf is not None
    assert old.keys.protobuf is not None
    assert begun.keys.protobuf.descriptors == old.keys.protobuf.descriptors


def test_types_that_an_earlier_version_has_recorded(checkpoint: Checkpoint) -> None:
    """It knew no registry of Protobuf."""
    settings = with_protobuf(registry="", options=(), descriptors="AAAA", message="shop.Order")
    checkpoint.decisions.settings_for_start(settings)
    path = checkpoint.folder / DECISIONS
    recorded = json.loads(path.read_text())
    del recorded["decisions"]["keys"]["protobuf"]["unknown"]
    path.write_text(json.dumps(recorded))
    checkpoint.plan(0)
    checkpoint.route(0)
    assert checkpoint.decisions.settings_for_start(settings) == (settings, False)


def test_unknown_schemas_of_a_batch_with_settings_of_its_own(checkpoint: Checkpoint) -> None:
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    changed = DECIDING["period"]
    now = checkpoint.decisions.record_unknown(changed, {7})
    assert (unknown(now), now.rules) == ((7,), changed.rules)
    assert checkpoint.decisions.settings_for_start(now) == (now, False), "nothing of it was decided"


def test_the_number_of_recorded_ids_is_limited(checkpoint: Checkpoint) -> None:
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    first = checkpoint.decisions.record_unknown(SETTINGS, range(5, 10))
    now = checkpoint.decisions.record_unknown(first, range(1_000, 1_000 + MAX_UNKNOWN))
    assert unknown(now) == (*range(5, 10), *range(1_000, 1_000 + MAX_UNKNOWN - 5))


def test_a_schema_that_an_earlier_attempt_knew_is_not_recorded_as_unknown(checkpoint: Checkpoint) -> None:
    checkpoint.decisions.settings_for_start(SETTINGS)
    checkpoint.plan(0)
    checkpoint.route(0)
    with pytest.raises(
        RegistryError, match="no longer knows the ids 7, which it knew when batch 0 was begun"
    ):
        checkpoint.decisions.record_unknown(SETTINGS, {7})
    checkpoint.finish(0)
    checkpoint.plan(1)
    assert unknown(checkpoint.decisions.record_unknown(SETTINGS, {7})) == (7,)


def test_a_batch_of_an_earlier_version_may_have_met_unknown_schemas(checkpoint: Checkpoint) -> None:
    """That version recorded nothing, and such records were errors."""
    checkpoint.plan(0)
    checkpoint.route(0)
    checkpoint.decisions.settings_for_start(SETTINGS)
    assert unknown(checkpoint.decisions.record_unknown(SETTINGS, {7})) == (7,)


class PolledQuery:
    """A query that restarts at once."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings
        self.restarts = 0

    def restart_with(self, change: SettingsChange) -> None:
        self.settings = change(self.settings)
        self.restarts += 1


@pytest.mark.parametrize("settings_with", [with_avro, with_protobuf])
def test_a_schema_that_is_registered_later_counts_from_the_next_batch_on(
    settings_with: Callable[..., PipelineSettings],
) -> None:
    messages: list[str] = []
    with RegistryServer() as registry:
        options: Mapping[str, str] = FAST_RETRIES | {"max.retries": "1"}
        query = PolledQuery(
            settings_with(registry=registry.url, options=tuple(options.items()), unknown=(7, 9))
        )
        poller = UnknownSchemasPoller(query, messages.append)
        poller.poll()
        registry.add(7, "string")
        registry.fail_with = [503] * 2
        poller.poll()
        assert (query.restarts, messages) == (0, []), "a registry that is down says nothing about schemas"
        poller.poll()
        assert (query.restarts, unknown(query.settings)) == (1, (9,))
        assert messages == ["the schema registry knows the ids 7 now; they count from the next batch on"]
        registry.add(9, "string")
        poller.poll()
        before = len(registry.requests)
        poller.poll()
        assert len(registry.requests) == before, "nothing is unknown any more"
