"""The service's membership of its consumer group: only the service that has started last can deliver.

Transactional ids fence an earlier owner of the same lane. They can't fence a service whose input partitions
are in lanes of other numbers. Therefore the driver joins the group, as a static member whose instance id is
the service's name. Each transaction that commits offsets carries this membership, and Kafka accepts the
offsets only from the current one:

- When a second service of the name joins, it takes the first one's place at once. From then on Kafka refuses
  the first one's offsets, and the first one ends.
- When the driver was frozen for longer than its session, it joins again by itself. Offsets with the old
  membership are refused; the query starts again with the new one. Before it joins again it asks who has the
  place in the group: a service that was replaced while it was frozen must not take the place back.

A service joins before it reads any committed offset. Offsets that Kafka has accepted from another service
before that are either committed or pending, and a read of stable offsets waits for the pending ones.

The consumer never reads a record. As long as it is a member, the group's offsets don't expire.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from replayfilter.errors import BrokerError, ServiceReplaced
from replayfilter.kafka.client_settings import Settings, refused_setting

JOIN_LIMIT_S = 60.0  # a new group waits 3 s for more members (group.initial.rebalance.delay.ms)
POLL_S = 0.1
ANSWER_LIMIT_S = 10.0
ASK_AGAIN_S = 1.0
REFRESH_MS = -1  # never: new partitions would end the membership during a batch; topics_poller.py sees them

# Configure this logger to see librdkafka's log. Every failure is raised, so that nothing is shown twice.
_log = logging.getLogger("replayfilter.librdkafka")
_log.addHandler(logging.NullHandler())

_REPLACED = {KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID}  # a consumer has no other fatal error


class Membership:
    """The membership of the service's driver, which joins at the first call of :meth:`current`.

    Used as a context manager, it ends with the service. ``settings`` are a consumer's. Raises
    :class:`ConfigError` for settings that librdkafka refuses.
    """

    def __init__(self, settings: Settings, service: str, topics: Sequence[str]) -> None:
        self._service, self._topics = service, list(topics)
        joining: Settings = {
            "group.id": service,
            "group.instance.id": service,
            "group.protocol": "classic",  # only this one lets a second member replace the first
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
        }
        try:
            self._consumer = Consumer(settings | joining, logger=_log)
        except KafkaException as error:
            raise refused_setting(error) from error
        self._state = threading.Condition()
        self._membership: bytes | None = None  # None while the group is being joined
        self._replaced = False
        self._member_id = ""
        self._admin = AdminClient(settings | {"log_level": 0})
        self._problem = "the group's coordinator did not answer"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="group-membership", daemon=True)

    def current(self, limit: float = JOIN_LIMIT_S) -> bytes:
        """The membership as transactions carry it; waits until the service has joined.

        Call it only when the service can start, since joining ends another service of this name.
        Raises ServiceReplaced if another service has taken its place, BrokerError after ``limit`` seconds.
        """
        if self._thread.ident is None:  # not started yet
            self._consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke)
            self._thread.start()
        with self._state:
            self._state.wait_for(lambda: self._membership is not None or self._replaced, limit)
            self.check()
            if self._membership is None:
                raise BrokerError(
                    f'service.name: the service could not join its consumer group "{self._service}" within '
                    f"{limit:.0f} s: {self._problem}; check that the brokers are up, that the group may be "
                    "read, and that no other program uses it"
                )
            return self._membership

    def has_changed(self, since: bytes) -> bool:
        """Whether the service has joined again since; Kafka no longer accepts the earlier membership."""
        membership = self._membership
        return membership is not None and membership != since

    def ask(self) -> None:
        """Ask Kafka who has the service's place, and raise ServiceReplaced if it is another service.

        Offsets with an old membership are refused for the same reason if it was this service that joined
        again.
        """
        membership = self.current()
        replaced_now = self._is_taken()
        with self._state:
            self._replaced = self._replaced or (replaced_now and self._membership == membership)
        self.check()

    def check(self) -> None:
        """Raise ServiceReplaced if another service has taken this one's place."""
        if self._replaced:
            raise replaced(self._service)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._consumer.close()

    def _poll(self) -> None:
        while not (self._ended.is_set() or self._replaced):
            try:
                message = self._consumer.poll(POLL_S)
                error = message.error() if message is not None else None
            except KafkaException as raised:
                error = raised.args[0]
            if error is None:
                continue
            with self._state:
                self._problem = error.str()
                self._replaced = self._replaced or error.code() in _REPLACED
                self._state.notify_all()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([])  # Spark reads the records
        with self._state:
            self._membership = bytes(consumer.consumer_group_metadata())
            self._member_id = str(consumer.memberid())
            self._state.notify_all()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Called before the client joins again, which it does when this returns and it has a subscription."""
        with self._state:
            self._membership = None
        if self._is_taken():
            with self._state:
                self._replaced = True
                self._state.notify_all()
            with suppress(KafkaException):  # it was told so already, and can't join again
                consumer.unsubscribe()
        with suppress(KafkaException):
            consumer.unassign()

    def _is_taken(self) -> bool:
        """Whether another member has this one's place. Asks until Kafka answers, or the service ends."""
        while not self._ended.is_set():
            try:
                asked = self._admin.describe_consumer_groups([self._service], request_timeout=ANSWER_LIMIT_S)
                members = asked[self._service].result(ANSWER_LIMIT_S + 1.0).members
            except (KafkaException, TimeoutError):
                self._ended.wait(ASK_AGAIN_S)
                continue
            return any(
                member.group_instance_id == self._service and member.member_id != self._member_id
                for member in members
            )
        return False


def replaced(service: str) -> ServiceReplaced:
    """The error of a service whose place another one has taken."""
    return ServiceReplaced(
        f'another service named "{service}" has started and delivers now, so this one has ended; stop one of '
        "the two for good, or give it a service.name and a service.checkpoint of its own"
    )


def is_replaced(error: KafkaError) -> bool:
    """Whether Kafka refused offsets because another service has taken this one's place."""
    return bool(error.code() == KafkaError.FENCED_INSTANCE_ID)
