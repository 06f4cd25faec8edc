"""Kafka clients that are alive in this process, to find those that are never freed."""

from __future__ import annotations

import gc
import threading

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient


def clients() -> list[object]:
    """All Kafka clients that are still referenced; garbage is collected first."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Consumer | Producer | AdminClient)]


def hanging_steps() -> int:
    """How many transaction steps never returned from librdkafka and were abandoned."""
    return sum(thread.name == "kafka-step" for thread in threading.enumerate())
