"""Kafka's own VerifiableProducer and VerifiableConsumer: what was acknowledged, and what can be read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from replayfilter.jvm.jars import kafka_jars, locked_jars
from replayfilter.jvm.java import java

Events = list[dict[str, Any]]


class VerifiableProducer:
    """Writes the numbers from 0 on, as text, until it is stopped; ``log`` takes what it prints.

    Leaving the context kills it if it still runs.
    """

    def __init__(self, bootstrap: str, topic: str, per_second: int, log: Path) -> None:
        arguments = ["--topic", topic, "--throughput", str(per_second), "--bootstrap-server", bootstrap]
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(_command("VerifiableProducer", arguments), stdout=output)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> Events:
        """End it, and return an event for each record that was acknowledged."""
        self.process.terminate()
        self.process.wait(60)
        events = list(_events(self._log.read_text("utf-8").splitlines()))
        acknowledged = [each for each in events if each["name"] == "producer_send_success"]
        summary = events[-1]
        assert (summary["sent"], summary["acked"]) == (len(acknowledged), len(acknowledged)), summary
        return acknowledged


def consume(bootstrap: str, topic: str, last: set[int], end: str, folder: Path) -> Events:
    """An event for each committed record, up to the value ``end`` in each of the partitions ``last``."""
    settings = folder / f"{topic}.properties"
    settings.write_text("isolation.level=read_committed\n")
    arguments = ["--topic", topic, "--group-id", topic, "--verbose", "--consumer.config", str(settings)]
    command = _command("VerifiableConsumer", [*arguments, "--bootstrap-server", bootstrap])
    found: Events = []
    waiting = set(last)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for event in _events(process.stdout):
            if event["name"] == "record_data" and event["value"] == end:
                waiting.discard(event["partition"])
            elif event["name"] == "record_data":
                found.append(event)
            if not waiting:
                process.kill()
                break
    assert not waiting, f"the consumer ended before the last records of {topic}-{waiting}"
    return found


def _command(name: str, arguments: list[str]) -> list[str]:
    jars = ":".join(map(str, [*locked_jars("tools"), *kafka_jars()]))
    quiet = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]
    return [str(java()), *quiet, "-cp", jars, f"org.apache.kafka.tools.{name}", *arguments]


def _events(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)
