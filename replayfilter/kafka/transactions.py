"""The steps of a Kafka transaction, with time limits that hold, and counts of what was done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from replayfilter.core.input_partition import InputPartition

STEP_LIMIT_S = 60.0  # for init and commit: a broker's restart takes less
OFFSETS_LIMIT_S = 10.0  # for sending offsets, which takes 2-5 ms; after that a new producer is faster
ABORT_LIMIT_S = 10.0  # if an abort takes longer, the next owner's init_transactions does it
RETRY_S = 0.02  # between two tries of a step that Kafka calls retriable


@dataclass(slots=True)
class LaneStats:
    """Counts of one delivery, or the sum of several (``+=``)."""

    written: int = 0  # records given to Kafka in the transaction
    skipped: int = 0  # records left out because an earlier attempt had delivered them
    transactions: int = 0  # committed transactions
    takeovers: int = 0  # successful calls of init_transactions
    fences: int = 0  # times that another owner had taken the lane
    retries: int = 0  # steps tried again because the broker wasn't ready

    def __iadd__(self, other: LaneStats) -> Self:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


def initialise(producer: Producer, stats: LaneStats) -> None:
    """Own the producer's transactional id: every earlier owner is fenced and its transaction aborted."""
    _retry(producer.init_transactions, stats, STEP_LIMIT_S)


def send_offsets(
    producer: Producer, offsets: dict[InputPartition, int], group: Any, stats: LaneStats, metadata: str = ""
) -> None:
    """Add next offsets to the open transaction; for each input partition the last one sent counts."""
    wanted = [TopicPartition(*partition, offset, metadata) for partition, offset in offsets.items()]
    send = partial(producer.send_offsets_to_transaction, wanted, group)
    call_in_thread(OFFSETS_LIMIT_S, lambda: _retry(send, stats, OFFSETS_LIMIT_S))


def commit(producer: Producer, stats: LaneStats) -> None:
    """Commit the open transaction.

    After a KafkaException only the group's committed offsets show whether it was committed.
    """
    _retry(producer.commit_transaction, stats, STEP_LIMIT_S)


def abort(producer: Producer) -> None:
    """Abort the open transaction. After a KafkaException the lane's next owner aborts it."""
    call_in_thread(ABORT_LIMIT_S + 1, lambda: producer.abort_transaction(ABORT_LIMIT_S))


def discard(producer: Producer) -> None:
    """Drop a producer at once, with the records in its queue: their callbacks keep the rows in memory."""
    producer.purge()
    for _ in range(2):  # if it was fenced, the first poll raises that and runs no callbacks
        with suppress(KafkaException):
            call_in_thread(STEP_LIMIT_S, lambda: producer.poll(0))


@contextmanager
def unwrap_fatal() -> Iterator[None]:
    """Raise a client's fatal error as KafkaException instead of SystemError.

    Needed around every call that runs delivery callbacks. After a fatal error the client sets its
    KafkaException and then runs a callback; Python reports that as a SystemError caused by the exception.

    confluent-kafka 2.16 sometimes never frees that SystemError. With a traceback, it or its cause would keep
    their frames, and so the producer, for ever. So both are left without one.
    """
    try:
        yield
    except SystemError as error:
        if not isinstance(error.__cause__, KafkaException):
            raise
        error.with_traceback(None)
        raise KafkaException(*error.__cause__.args) from None


def _retry(step: Callable[[float], None], stats: LaneStats, limit: float) -> None:
    """Call a transactional step until it succeeds or Kafka calls the error final; it resumes where it was."""
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
    """Call the client in its own thread, for at most ``limit`` seconds; raises its KafkaException.

    There are two reasons. While an exception is being handled the client must not be called directly: a
    KafkaException raised then keeps the other exception for ever, with its frames and everything they refer
    to (confluent-kafka 2.16 never frees the context of a KafkaError). And a producer whose group coordinator
    was restarted may never return from sending offsets (librdkafka issue 5511, open in 2.16). Such a thread
    is left behind, asleep. Nothing is lost, since such a producer can't commit.
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
    failure = outcome[0] if outcome else KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if failure is not None:
        raise failure


def is_fence(error: KafkaError) -> bool:
    """Whether the error says that another owner has taken the lane."""
    return error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
