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


def asleep() -> int:
    """How many steps of a transaction were left behind since librdkafka did not return from them."""
    return sum(thread.name == "kafka-step" for thread in threading.enumerate())
