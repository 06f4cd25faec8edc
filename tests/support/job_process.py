"""An at-least-once upstream job for tests that kill it: it reads a topic and writes another with stamps.

``job_process BOOTSTRAP SOURCE TARGET NAME STAMP CHECKPOINT``: it saves its offsets in a file after every 400
records, once these are delivered, and ends when it has read all of the source topic.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from replayfilter import StampingProducer, pid_for_topic

BATCH = 400


def main() -> None:
    """Run to the end of the source topic, or until killed."""
    bootstrap, source, target, name, stamp, path = sys.argv[1:7]
    checkpoint = Path(path)
    kept = json.loads(checkpoint.read_text()) if checkpoint.exists() else {}
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "enable.partition.eof": True}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    partitions = consumer.list_topics(source, timeout=10).topics[source].partitions
    consumer.assign([TopicPartition(source, number, kept.get(str(number), 0)) for number in partitions])
    how: Any = stamp
    with StampingProducer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5},
        target,
        pid_for_topic(bootstrap, source, name),
        stamp=how,
    ) as producer:
        ended: set[int | None] = set()
        written = 0
        while len(ended) < len(partitions):
            for message in consumer.consume(50, 0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
                    continue
                partition, offset = message.partition() or 0, message.offset() or 0
                key = message.key() if stamp == "header" else None
                producer.produce(partition, offset, message.value(), key)
                kept[str(partition)] = offset + 1
                written += 1
            time.sleep(0.01)  # slow enough to be killed within a batch
            if written >= BATCH:
                written = 0
                producer.flush()
                _save(checkpoint, kept)
        producer.flush()
        _save(checkpoint, kept)


def _save(path: Path, kept: dict[str, int]) -> None:
    path.with_suffix(".new").write_text(json.dumps(kept))
    os.replace(path.with_suffix(".new"), path)


if __name__ == "__main__":
    main()
