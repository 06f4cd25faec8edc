"""A member of a group of filtering consumers: ``consumer_process BOOTSTRAP GROUP TOPIC LOG [STRATEGY]``.

For each record that it handles it writes a line with partition, offset and stamp. It commits after every 20
records, so that a kill can come between handling and commit.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from replayfilter import FilteringConsumer, Stamp
from replayfilter.errors import BrokerError


def main() -> None:
    """Consume until killed."""
    bootstrap, group, topic, path = sys.argv[1:5]
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "log_level": 0,
    }
    if len(sys.argv) > 5:
        settings["partition.assignment.strategy"] = sys.argv[5]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = FilteringConsumer(settings)
    consumer.subscribe([topic])
    handled = 0
    while True:
        message = consumer.poll(0.5)
        if message is not None:
            stamp = Stamp.from_bytes(message.key())
            assert stamp is not None
            os.write(
                log, f"{message.partition()} {message.offset()} {stamp.partition} {stamp.offset}\n".encode()
            )
            handled += 1
        if handled >= 20 or message is None:
            handled = 0
            with suppress(BrokerError):  # the partition was revoked: its new owner starts at the last commit
                consumer.commit()


if __name__ == "__main__":
    main()
