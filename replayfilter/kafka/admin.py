"""What the service asks a cluster at start: is it there, which topics has it, how far were they delivered.

Every question has a time limit, and an answer in words when nobody answers:

    cluster = Cluster("localhost:9092")
    cluster.id                                   # raises BrokerError
    cluster.topics(["orders", "orders.unique"])  # {"orders": Topic(id="...", partitions=4)}
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

# the stubs leave out some of these names
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from replayfilter.errors import BrokerError, ConfigError
from replayfilter.kafka.chunk import InputPartition
from replayfilter.kafka.client_settings import client_settings

ANSWER_LIMIT_S = 10.0  # a cluster that is up answers in milliseconds; longer only keeps the user waiting
BROKER_DEFAULT = -1  # replication factor: what the broker has as its default
LEADER_POLL_S = 0.02  # between two looks at a new topic; leaders are there after about 50 ms

_UNREACHABLE = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}
_COORDINATOR_STARTS = {  # asked again: at a cluster's first use its coordinator is still being made
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

_UNSETTLED = (
    "the offsets of group {group!r} are not settled: a transaction that moves them is open, perhaps of a "
    "service that was killed in a delivery; start the service again, which ends it, or wait 5 minutes for "
    "Kafka to"
)

_URL_SAFE = str.maketrans("+/", "-_")
_Answer = TypeVar("_Answer")


class Topic(NamedTuple):
    """A topic's id, which changes when it is deleted and made again, and its number of partitions."""

    id: str
    partitions: int


class Cluster:
    """A Kafka cluster as an administrator sees it.

    ``options`` are the user's client settings in Kafka's own names. Every question raises
    :class:`BrokerError` if it isn't answered within ``limit`` seconds. ``admin``: the client to ask with, if
    there is one already.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, str] | None = None,
        limit: float = ANSWER_LIMIT_S,
        admin: AdminClient | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self._limit = limit
        # its log would print once a second what every question raises in words
        self._settings = client_settings(bootstrap, options) | {"log_level": 0}
        try:
            self._admin = AdminClient(self._settings) if admin is None else admin  # empty, so false
        except KafkaException as error:
            raise ConfigError(
                [f"kafka.options has a setting that the client refuses: {error.args[0].str()}; correct it"]
            ) from error

    @property
    def id(self) -> str:
        """The cluster's id; also the way to find out that it can be reached."""
        answer = self._answer(self._admin.describe_cluster(request_timeout=self._limit), "its id")
        return str(answer.cluster_id)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the named topics that exist."""
        wanted = list(names)
        if not wanted:
            return {}
        futures = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._limit)
        found: dict[str, Topic] = {}
        for name, future in futures.items():
            try:
                answer = self._answer(future, f"topic {name!r}")
            except BrokerError as error:
                if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            # Kafka writes ids in the URL-safe alphabet, librdkafka doesn't
            found[name] = Topic(str(answer.topic_id).translate(_URL_SAFE), len(answer.partitions))
        return found

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings in force of each named topic, the broker's defaults among them."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(asked, request_timeout=self._limit) if asked else {}
        return {
            resource.name: {
                name: str(entry.value)
                for name, entry in self._answer(future, f"the settings of topic {resource.name!r}").items()
            }
            for resource, future in futures.items()
        }

    def create(
        self,
        partitions: Mapping[str, int],
        replication: int = BROKER_DEFAULT,
        settings: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create those topics that are missing, with these partition counts; returns which they were.

        Returns once they can be written to. Existing topics are left as they are.
        """
        missing = [name for name in partitions if name not in self.topics(partitions)]
        config = dict(settings or {})
        new = [NewTopic(name, partitions[name], replication, config=config) for name in missing]
        futures = self._admin.create_topics(new, request_timeout=self._limit) if new else {}
        created = []
        for name, future in futures.items():
            try:
                self._answer(future, f"the creation of topic {name!r} with {partitions[name]} partitions")
                created.append(name)
            except BrokerError as error:
                if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else was faster
                    raise
        self._await_leaders(created)
        return created

    def committed(
        self, group: str, sources: Iterable[InputPartition], settled: bool = True
    ) -> dict[InputPartition, int]:
        """The group's next offsets; sources for which it has none are left out.

        ``settled``: wait until no transaction is open that may move them, which for one that a killed
        service left is until the service starts again. Else what is committed now.
        """
        sources = list(sources)
        asked = [TopicPartition(topic, number) for topic, number in sources]
        if not asked:
            return {}
        question = f"the committed offsets of group {group!r}"
        isolation = "read_committed" if settled else "read_uncommitted"
        # Not asked through the admin client: while the coordinator of a new cluster starts, librdkafka 2.16
        # ends the process there with a segmentation fault, in half of all cases.
        consumer = Consumer(self._settings | {"group.id": group, "isolation.level": isolation})
        try:
            found = self._ask_offsets(consumer, asked)
        finally:
            consumer.close()
        if isinstance(found, KafkaError):
            if settled and found.code() == KafkaError._TIMED_OUT:
                self.committed(group, sources, settled=False)  # raises if the broker is away
                raise BrokerError(_UNSETTLED.format(group=group))
            raise _broker_error(found, self.bootstrap, question)
        fault = next((at.error for at in found if at.error is not None), None)
        if fault is not None:
            raise _broker_error(fault, self.bootstrap, question)
        return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def _ask_offsets(
        self, consumer: Consumer, asked: list[TopicPartition]
    ) -> list[TopicPartition] | KafkaError:
        """Ask for the group's offsets until they are told, or why they are not."""
        deadline = time.monotonic() + self._limit
        while True:
            try:
                return consumer.committed(asked, timeout=self._limit)
            except KafkaException as error:
                fault: KafkaError = error.args[0]
            if fault.code() not in _COORDINATOR_STARTS or time.monotonic() > deadline:
                return fault
            time.sleep(LEADER_POLL_S)

    def begins(self, sources: Iterable[InputPartition]) -> dict[InputPartition, int]:
        """The first offset that each input partition still holds."""
        return self._offsets(sources, OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # not in its stubs

    def ends(self, sources: Iterable[InputPartition]) -> dict[InputPartition, int]:
        """The offset after the last record that a read_committed reader can see now."""
        return self._offsets(sources, OffsetSpec.latest())  # type: ignore[no-untyped-call]  # not in its stubs

    def _offsets(self, sources: Iterable[InputPartition], spec: OffsetSpec) -> dict[InputPartition, int]:
        asked = {TopicPartition(topic, number): spec for topic, number in sources}
        if not asked:
            return {}
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._limit
        )
        found: dict[InputPartition, int] = {}
        for at, future in futures.items():
            question = f"the offsets of partition {at.partition} of topic {at.topic!r}"
            found[at.topic, at.partition] = self._answer(future, question).offset
        return found

    def _await_leaders(self, names: list[str]) -> None:
        """A new topic is known a little before it has leaders; until then it can't be written to."""
        deadline = time.monotonic() + self._limit
        while True:
            made = self.topics(names)
            sources = [(name, number) for name, topic in made.items() for number in range(topic.partitions)]
            try:
                self.ends(sources)
            except BrokerError:
                if time.monotonic() > deadline:
                    raise
            else:
                if len(made) == len(names) or time.monotonic() > deadline:
                    return
            time.sleep(LEADER_POLL_S)

    def _answer(self, future: Future[_Answer], question: str) -> _Answer:
        try:
            return future.result(self._limit + 1.0)
        except KafkaException as error:
            raise _broker_error(error.args[0], self.bootstrap, question) from error
        except TimeoutError as error:
            raise _broker_error(KafkaError(KafkaError._TIMED_OUT), self.bootstrap, question) from error


def _broker_error(fault: KafkaError, bootstrap: str, question: str) -> BrokerError:
    if fault.code() in _UNREACHABLE:
        return BrokerError(
            f"no Kafka broker answered at {bootstrap} when asked for {question}: start one there (for "
            "development `replayfilter broker`), or correct kafka.bootstrap and the security settings in "
            "[kafka.options]"
        )
    return BrokerError(
        f"Kafka at {bootstrap} refused {question}: {fault.str()}; correct the config, or grant the right "
        "that is missing"
    )


def _code(error: BrokerError) -> int | None:
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None
