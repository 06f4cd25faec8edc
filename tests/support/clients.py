"""The clients that are alive in this process."""

from __future__ import annotations

import gc
import threading

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient


def clients() -> list[object]:
    """Those that nothing but a mistake or a live object holds: garbage is collected before."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Consumer | Producer | AdminClient)]


def hanging_steps() -> int:
    """How many transaction steps never returned from librdkafka and were abandoned."""
    return sum(thread.name == "kafka-step" for thread in threading.enumerate())
