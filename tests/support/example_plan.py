"""The pipeline settings that the example config gives, with some keys changed."""

from __future__ import annotations

import tomllib
from typing import Any

from replayfilter.kafka.admin import Topic
from replayfilter.service.config.loader import config_from
from replayfilter.service.runtime.checkpoint import identity_of
from replayfilter.service.runtime.plan import pipeline_settings_of
from replayfilter.service.runtime.preflight import Findings
from replayfilter.spark.pipeline_settings import PipelineSettings
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "orders.toml"


def settings_with(**sections: dict[str, Any]) -> PipelineSettings:
    """The settings of the example, with the given keys of some sections."""
    data = tomllib.loads(EXAMPLE.read_text())
    for section, keys in sections.items():
        data.setdefault(section, {}).update(keys)
    config = config_from(data)
    identity = identity_of(config, "cluster", {"orders": "id"}, cores=3, kept=None)
    topics = {
        name: Topic(f"id of {name}", 5) for name in [*config.input.topics, *config.output_topics().values()]
    }
    return pipeline_settings_of(config, Findings([], identity=identity, topics=topics))
