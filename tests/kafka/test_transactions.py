"""The steps of a transaction, where the client's behaviour is known and can't be produced at will."""

from __future__ import annotations

import gc
import weakref

import pytest
from confluent_kafka import KafkaError, KafkaException

from replayfilter.kafka.transactions import unwrap_fatal


class Held:
    """Something that a frame refers to."""


def test_a_fatal_error_that_the_client_keeps_keeps_no_frames() -> None:
    """The client never frees the SystemError that it raises for a fatal error, in about half of all cases."""
    kept = SystemError("a callback returned a result with an exception set")
    kept.__cause__ = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
    held: list[weakref.ref[Held]] = []

    def flush() -> None:
        owner = Held()
        held.append(weakref.ref(owner))
        with unwrap_fatal():
            raise kept

    with pytest.raises(KafkaException, match="fenced"):
        flush()
    gc.collect()
    assert held[0]() is None
