"""The steps of a Kafka transaction, with time limits that hold, and the counts of what they did."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from replayfilter.kafka.chunk import InputPartition

STEP_LIMIT_S = 60.0  # for init and commit: a broker's restart takes less
OFFSETS_LIMIT_S = 10.0  # for sending offsets, 2-5 ms as a rule: then a new producer is the better hope
ABORT_LIMIT_S = 10.0  # an abort that takes longer is left to the next owner's init_transactions
RETRY_S = 0.02  # between two tries of a step that Kafka says may be tried again


@dataclass(slots=True)
class LaneStats:
    """Counts of one delivery, or the sum of many (``+=``)."""

    written: int = 0  # records handed to Kafka in the transaction
    skipped: int = 0  # records left out because an earlier attempt had delivered them
    transactions: int = 0  # committed
    takeovers: int = 0  # init_transactions done
    fences: int = 0  # times that another owner had taken the lane
    retries: int = 0  # steps asked again because the broker wasn't ready

    def __iadd__(self, other: LaneStats) -> Self:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


def initialise(producer: Producer, stats: LaneStats) -> None:
    """Own the producer's transactional id: every earlier owner is fenced, and its transaction aborted."""
    _insist(producer.init_transactions, stats, STEP_LIMIT_S)


def send_offsets(
    producer: Producer, offsets: dict[InputPartition, int], group: Any, stats: LaneStats
) -> None:
    """Add next offsets to the open transaction; of those sent for a source the last ones count."""
    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    send = partial(producer.send_offsets_to_transaction, wanted, group)
    call_in_thread(OFFSETS_LIMIT_S, lambda: _insist(send, stats, OFFSETS_LIMIT_S))


def commit(producer: Producer, stats: LaneStats) -> None:
    """Commit the open transaction; raises KafkaException, after which only the offsets say what happened."""
    _insist(producer.commit_transaction, stats, STEP_LIMIT_S)


def abort(producer: Producer) -> None:
    """Abort the open transaction; raises KafkaException, after which the next owner will do it."""
    call_in_thread(ABORT_LIMIT_S + 1, lambda: producer.abort_transaction(ABORT_LIMIT_S))


def discard(producer: Producer) -> None:
    """Let a producer go at once. What it still holds is purged, since its reports hold the rows."""
    producer.purge()
    for _ in range(2):  # the first poll raises the fence, if there was one, and takes no reports
        with suppress(KafkaException):
            call_in_thread(STEP_LIMIT_S, lambda: producer.poll(0))


@contextmanager
def unwrap_fatal() -> Iterator[None]:
    """Raise a client's fatal error as the KafkaException that it is.

    For every call that takes delivery reports: a report taken after a fatal error finds that error set,
    and Python then says SystemError, with the KafkaException as its cause.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def _insist(step: Callable[[float], None], stats: LaneStats, limit: float) -> None:
    """Call a transactional step, and again while Kafka says that it may be: it resumes where it was."""
    deadline = time.monotonic() + limit
    while True:
        try:
            with unwrap_fatal():
                return step(max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            stats.retries += 1
            time.sleep(RETRY_S)


def call_in_thread(limit: float, step: Callable[[], object]) -> None:
    """Call the client in a thread of its own: where an exception is being handled, or if the call may hang.

    A KafkaException that the client raises while another exception is handled keeps that one for ever, with
    its frames and all that they hold (confluent-kafka 2.16 never frees what a KafkaError has as its context).
    And a producer that lived through its group coordinator's restart never returns from sending offsets
    (librdkafka issue 5511, open as of 2.16): after ``limit`` seconds it is left behind, asleep. Nothing is
    lost by it, as such a producer can't commit.
    """
    outcome: list[KafkaException | None] = []

    def call() -> None:
        try:
            with unwrap_fatal():
                step()
        except KafkaException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=call, name="kafka-step", daemon=True)
    thread.start()
    thread.join(limit)
    fault = outcome[0] if outcome else KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if fault is not None:
        raise fault


def is_fence(fault: KafkaError) -> bool:
    """Whether another owner has taken the lane."""
    return fault.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
