"""The config of a service that only filters replays, and its topics."""

from __future__ import annotations

from pathlib import Path

from replayfilter.kafka.admin import Cluster

CONFIG = """\
[service]
name = "{name}"
checkpoint = "{folder}/{name}"
master = "local[2]"
[kafka]
bootstrap = "{bootstrap}"
[input]
topics = ["{topic}"]
format = "raw"
stamp = "{stamp}"
[replay]
topic = "{name}.replay"
[dedup]
enabled = false
[output]
unique = "{name}.unique"
error = "{name}.error"
"""


def prepare_replay_service(
    folder: Path, bootstrap: str, name: str, topic: str, partitions: int, stamp: str = "key"
) -> Path:
    """Create the output topics and write the config into ``folder``; return the config's path."""
    Cluster(bootstrap).create({f"{name}.{route}": partitions for route in ("unique", "error", "replay")})
    path = folder / f"{name}.toml"
    text = CONFIG.format(name=name, folder=folder, bootstrap=bootstrap, topic=topic, stamp=stamp)
    path.write_text(text, "utf-8")
    return path
