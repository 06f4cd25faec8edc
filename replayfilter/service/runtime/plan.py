"""From the config to the settings of the pipeline: plain numbers, partition counts, resolved secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from replayfilter.core.clock.clocks import Clock
from replayfilter.core.digest import content_name
from replayfilter.core.routing import Route
from replayfilter.core.rules import Match, OnNull, Rules, Scope
from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.formats import AvroSpec, KeySpec, ProtobufSpec
from replayfilter.kafka.admin import Topic
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import SPARK, Identity, local_folder
from replayfilter.service.runtime.preflight import Findings
from replayfilter.service.runtime.roster_poller import watermark_rules
from replayfilter.settings.variables import expand
from replayfilter.spark.partitioning import output_pids
from replayfilter.spark.pipeline_settings import Output, PipelineSettings
from replayfilter.watermark.client import UpstreamStages

_ROUTES = {
    "output.unique": (Route.UNIQUE,),
    "output.duplicate": (Route.DUPLICATE,),
    "output.conflict": (Route.CONFLICT,),
    "output.expired": (Route.EXPIRED,),
    "output.error": (Route.ERROR, Route.FUTURE, Route.JUMP),
    "replay.topic": (Route.REPLAY,),
}


def pipeline_settings_of(config: Config, findings: Findings) -> PipelineSettings:
    """The settings of the pipeline. ``findings`` must be without errors, otherwise ValueError."""
    identity = findings.identity
    if identity is None or findings.errors:
        raise ValueError("the preflight found errors, so the service can't start")
    service, dedup = config.service, config.dedup
    folder = local_folder(service.checkpoint)
    # With "file:", Spark doesn't resolve the path against fs.defaultFS.
    checkpoint = service.checkpoint.rstrip("/") if folder is None else f"file:{folder}"
    outputs = {
        route: Output(topic, findings.topics[topic].partitions)
        for path, topic in config.output_topics().items()
        for route in _ROUTES[path]
    }
    return PipelineSettings(
        service=service.name,
        checkpoint=f"{checkpoint}/{SPARK}",
        bootstrap=config.kafka.bootstrap,
        options=config.client_options(),
        topics=tuple(config.input.topics),
        starting=findings.starting or config.input.starting,
        topic_ids=dict(identity.topic_ids),
        keys=key_spec_of(config, identity),
        stamp=config.input.stamp,
        upstream=_upstream(config),
        on_invalid=config.replay.on_invalid if config.replay.enabled else "pass",
        rules=rules_of(config, identity, _watermark(config, findings) if config.watermark.enabled else None),
        max_future_us=dedup.max_future,
        outputs=outputs,
        output_stamp=config.output.stamp,
        output_pids=output_pids(
            identity.cluster_id,
            service.name,
            identity.topic_ids,
            {topic: findings.topics[topic] for topic in config.output_topics().values()},
        ),
        shards=identity.shards,
        lanes=identity.lanes,
        master=service.master,
        batch_records=service.batch_records,
        batch_bytes=service.batch_bytes,
        interval_us=service.interval,
        cache_bytes=dedup.cache,
    )


def key_spec_of(config: Config, identity: Identity) -> KeySpec:
    """Which fields are read from each record, and how. Reads the schema files that the config names."""
    watermark = config.watermark
    return KeySpec(
        format=config.input.format,
        key=tuple(identity.key),
        expiry_key=identity.expiry_key or None,
        unit=config.expiry_unit,
        avro=_avro(config) if config.input.format == "avro" else None,
        protobuf=_protobuf(config) if config.input.format == "protobuf" else None,
        origin=watermark.origin or None if watermark.enabled else None,
        time=watermark.time or None if watermark.enabled else None,
        time_unit=watermark.unit,
        on_null=config.input.on_null,
        content=tuple(config.compared_fields),
    )


def rules_of(config: Config, identity: Identity, watermark: WatermarkRules | None) -> Rules:
    """How records are decided."""
    dedup = config.dedup
    return Rules(
        replay=config.replay.enabled,
        mark_ttl_us=config.replay.mark_ttl,
        max_sources=config.replay.max_sources,
        dedup=dedup.enabled,
        clock=Clock(identity.clock),
        period=config.period_units,
        span=identity.span,
        match=Match(identity.match),
        scope=Scope(identity.scope),
        unit=config.length_unit,
        max_jump=dedup.max_jump,
        remember_first=identity.remember_first,
        refresh=dedup.enabled and dedup.refresh,
        content=content_name(config.compared_fields) if config.compared_fields else "",
        watermark=watermark,
        on_null=OnNull(config.input.on_null),
    )


def with_topics(settings: PipelineSettings, cluster_id: str, topics: Mapping[str, Topic]) -> PipelineSettings:
    """The settings with the current partitions of the topics, and the pids that go with them."""
    outputs = {
        route: output._replace(partitions=topics[output.topic].partitions)
        for route, output in settings.outputs.items()
    }
    written = {output.topic: topics[output.topic] for output in outputs.values()}
    rules = settings.rules
    if rules.watermark is not None:
        partitions = {name: topics[name].partitions for name in settings.topics}
        rules = replace(rules, watermark=replace(rules.watermark, partitions=partitions))
    pids = output_pids(cluster_id, settings.service, settings.topic_ids, written)
    return replace(settings, outputs=outputs, output_pids=pids, rules=rules)


def _watermark(config: Config, findings: Findings) -> WatermarkRules:
    """What the watermark waits for: the current roster, or each partition of the input topics."""
    partitions = {topic: findings.topics[topic].partitions for topic in config.input.topics}
    return watermark_rules(config.watermark, partitions)


def _upstream(config: Config) -> UpstreamStages | None:
    """The stages before this service, if its watermark is the one that its input carries."""
    watermark = config.watermark
    if not (watermark.enabled and watermark.servers) or watermark.origin:
        return None
    servers, token = tuple(watermark.servers), expand(watermark.token)
    return UpstreamStages(servers, token, config.service.name, watermark.app)


def _avro(config: Config) -> AvroSpec:
    """Where schemas come from. Files are read here, since workers on other machines don't have them."""
    return AvroSpec(
        encoding=config.avro.encoding,
        registry=config.avro.registry,
        options=tuple(config.client_options("avro").items()),
        schemas=tuple(Path(path).read_text("utf-8") for path in config.avro.schemas),
    )


def _protobuf(config: Config) -> ProtobufSpec:
    """Which messages values are. A file is read here, since workers on other machines don't have it."""
    protobuf = config.protobuf
    descriptors = Path(protobuf.descriptors).read_bytes() if protobuf.descriptors else b""
    return ProtobufSpec(
        encoding=protobuf.encoding,
        descriptors=base64.b64encode(descriptors).decode(),
        message=protobuf.message,
        registry=protobuf.registry,
        options=tuple(config.client_options("protobuf").items()),
    )
