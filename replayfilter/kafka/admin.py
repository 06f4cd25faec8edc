"""Questions to a Kafka cluster: its id, topics and settings, and the offsets of partitions and groups.

Each question has a time limit, and a :class:`BrokerError` that says what to do when nobody answers:

    cluster = Cluster("localhost:9092")
    cluster.id                                   # raises BrokerError
    cluster.topics(["orders", "orders.unique"])  # {"orders": Topic(id="...", partitions=4)}
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

# the stubs leave out some of these names
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError
from replayfilter.kafka.client_settings import client_settings, refused_setting
from replayfilter.kafka.offsets import PENDING, Committed, GroupOffsets

ANSWER_LIMIT_S = 10.0  # a cluster that is up answers in milliseconds; longer only keeps the user waiting
BROKER_DEFAULT = -1  # the replication factor that the broker is configured with
LEADER_POLL_S = 0.02  # at first: a new topic has its leaders after about 50 ms
SLOWEST_LEADER_POLL_S = 1.0  # later, since it asks for the metadata of all topics
LEADER_ANSWER_LIMIT_S = 3.0  # before it is asked again who leads
LEADER_LIMIT_S = 60.0  # with thousands of new partitions on a busy broker it takes more than 10 s

_UNREACHABLE = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}

# While a partition is new, or its leader moves, client and broker may each know of another leader.
_NO_LEADER = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,  # of librdkafka, if no partition that is asked for has a leader
}

_LEADER_MOVES = _NO_LEADER | {KafkaError._TIMED_OUT}

_OPEN_TRANSACTION = (
    "the offsets of group {group!r} can't be read yet, since a transaction that moves them is open, perhaps "
    "of a service that was killed during a delivery; start the service again, which ends the transaction, "
    "or run `replayfilter transactions abort CONFIG`, or wait 5 minutes until Kafka ends it"
)

_REFUSED_CONNECTIONS = {KafkaError._AUTHENTICATION, KafkaError._SSL}

_URL_SAFE = str.maketrans("+/", "-_")
_Answer = TypeVar("_Answer")
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # not in its stubs
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # not in its stubs


class Topic(NamedTuple):
    """A topic's id, which changes when it is deleted and made again, and its number of partitions."""

    id: str
    partitions: int


class Cluster:
    """A Kafka cluster as an administrator sees it.

    ``options`` are the user's client settings in Kafka's own names. Every method raises :class:`BrokerError`
    if there is no answer within ``limit`` seconds. ``admin`` is an admin client to use instead of a new one.
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
        # every failure is raised; the client's log would repeat it once per second
        self._settings = client_settings(bootstrap, options) | {"log_level": 0}
        self._refusal: _Refusal | None = None
        if admin is not None:  # not `or` below: the length of an admin client is 0
            self._admin = admin
            return
        self._refusal = _Refusal()
        settings: dict[str, Any] = {**self._settings, "error_cb": self._refusal}
        try:
            self._admin = AdminClient(settings)
        except KafkaException as error:
            raise refused_setting(error) from error

    @property
    def id(self) -> str:
        """The cluster's id; also the way to check that it can be reached."""
        answer = self._answer(self._admin.describe_cluster(request_timeout=self._limit), "its id")
        return str(answer.cluster_id)

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """The named topics that exist."""
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
            # Kafka's tools write ids in URL-safe base64, librdkafka in plain base64
            found[name] = Topic(str(answer.topic_id).translate(_URL_SAFE), len(answer.partitions))
        return found

    def topic_operations(self, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        """What this client may do with each named topic that exists: READ, WRITE, DESCRIBE and so on.

        Nothing for a topic that it may not see, whether it exists or not. None if Kafka doesn't tell.
        """
        futures = self._admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=self._limit
        )
        found: dict[str, frozenset[str] | None] = {}
        for name, future in futures.items():
            try:
                found[name] = _operations(self._answer(future, f"topic {name!r}"))
            except BrokerError as error:
                if _code(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found[name] = frozenset()
                elif _code(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def group_operations(self, group: str) -> frozenset[str] | None:
        """What this client may do with a consumer group.

        None if Kafka doesn't tell, for instance since the group's coordinator is still starting.
        """
        futures = self._admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=self._limit
        )
        try:
            return _operations(self._answer(futures[group], f"the members of group {group!r}"))
        except BrokerError as error:
            return frozenset() if _code(error) == KafkaError.GROUP_AUTHORIZATION_FAILED else None

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """All settings of each named topic, including those that it has from the broker's defaults."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(asked, request_timeout=self._limit) if asked else {}
        return {
            resource.name: {
                name: str(entry.value)
                for name, entry in self._answer(future, f"the settings of topic {resource.name!r}").items()
            }
            for resource, future in futures.items()
        }

    def groups(self) -> list[str]:
        """The ids of all consumer groups that may be seen."""
        answer = self._answer(self._admin.list_consumer_groups(request_timeout=self._limit), "its groups")
        return sorted(group.group_id for group in answer.valid)

    def max_message_bytes(self, names: Iterable[str]) -> int | None:
        """The largest batch of records that each of these topics takes; None if Kafka doesn't tell."""
        try:
            found = self.settings(names)
        except BrokerError:  # not allowed, for example
            return None
        return min((int(settings["max.message.bytes"]) for settings in found.values()), default=None)

    def create(
        self,
        partitions: Mapping[str, int],
        replication: int = BROKER_DEFAULT,
        settings: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create the missing topics with these partition counts; returns their names.

        Returns when they can be written to. Existing topics stay as they are.
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
                if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:  # another process was faster
                    raise
        self._await_leaders(created)
        return created

    def members(self, group: str) -> list[str]:
        """The hosts of the group's members. A service stays one for session.timeout.ms after its end."""
        futures = self._admin.describe_consumer_groups([group], request_timeout=self._limit)
        try:
            answer = self._answer(futures[group], f"the members of group {group!r}")
        except BrokerError as error:
            if _code(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise
        return [str(member.host) for member in answer.members]

    def committed(
        self, group: str, partitions: Iterable[InputPartition], *, stable: bool = True
    ) -> dict[InputPartition, int]:
        """The group's next offsets; partitions that have none are left out.

        With ``stable`` it waits until no open transaction may move them. A transaction that a killed service
        left behind stays open until the service starts again; without ``stable`` it is ignored.
        """
        found = self.committed_entries(group, partitions, stable=stable)
        return {partition: entry.offset for partition, entry in found.items()}

    def committed_entries(
        self, group: str, partitions: Iterable[InputPartition], *, stable: bool = True
    ) -> dict[InputPartition, Committed]:
        """What :meth:`committed` returns, with the texts that were committed with the offsets."""
        partitions = list(partitions)
        if not partitions:
            return {}
        offsets = GroupOffsets(self._settings, group, stable=stable)
        try:
            return offsets.read_entries(partitions, self._limit)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
        finally:
            offsets.close()
        if stable and reason.code() in PENDING:
            self.committed(group, partitions, stable=False)  # raises if the broker is away
            raise BrokerError(_OPEN_TRANSACTION.format(group=group))
        raise _broker_error(reason, self.bootstrap, f"the committed offsets of group {group!r}")

    def beginning_offsets(self, partitions: Iterable[InputPartition]) -> dict[InputPartition, int]:
        """The first offset that each partition still holds."""
        return self._offsets(partitions, _EARLIEST)

    def end_offsets(self, partitions: Iterable[InputPartition]) -> dict[InputPartition, int]:
        """The offset after the last record of each partition that a read_committed consumer can read now."""
        return self._offsets(partitions, _LATEST)

    def written_ends(self, partitions: Iterable[InputPartition]) -> dict[InputPartition, int]:
        """The same, with records of transactions that are still open, or whose end is not written yet."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def offsets_at(self, partitions: Iterable[InputPartition], time_ms: int) -> dict[InputPartition, int]:
        """The first offset of each partition whose timestamp is at or after a time; -1 if there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(time_ms))

    def _offsets(
        self,
        partitions: Iterable[InputPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        new: bool = False,
    ) -> dict[InputPartition, int]:
        missing = {TopicPartition(topic, number): spec for topic, number in partitions}
        found: dict[InputPartition, int] = {}
        deadline, pause = time.monotonic() + (LEADER_LIMIT_S if new else self._limit), LEADER_POLL_S
        passing = _LEADER_MOVES | {KafkaError.UNKNOWN_TOPIC_OR_PART} if new else _LEADER_MOVES
        while missing:
            futures = self._admin.list_offsets(
                missing, isolation_level=isolation, request_timeout=min(self._limit, LEADER_ANSWER_LIMIT_S)
            )
            for at, future in futures.items():
                question = f"the offsets of partition {at.partition} of topic {at.topic!r}"
                try:
                    found[at.topic, at.partition] = self._known(
                        self._answer(future, question).offset, question
                    )
                except BrokerError as error:
                    if _code(error) not in passing or time.monotonic() > deadline:
                        raise
                else:
                    del missing[at]
            if missing:
                time.sleep(pause)
                pause = min(2 * pause, SLOWEST_LEADER_POLL_S)
                self._refresh_leaders()
        return found

    def _known(self, offset: int, question: str) -> int:
        """The offset. librdkafka shows no error if a leader's connection has ended before it answered."""
        if offset == OFFSET_INVALID:
            reason = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            raise _broker_error(reason, self.bootstrap, question) from KafkaException(reason)
        return offset

    def _refresh_leaders(self) -> None:
        """Ask for the leaders. Without that, the client would ask a broker again that leads no more."""
        with suppress(KafkaException):
            self._admin.list_topics(timeout=LEADER_ANSWER_LIMIT_S)

    def _await_leaders(self, names: list[str]) -> None:
        """Wait until new topics have leaders: a topic exists a little before it can be written to.

        Brokers learn of a new topic one after another, so one may know it and the next one not yet.
        """
        deadline = time.monotonic() + self._limit
        while len(made := self.topics(names)) < len(names) and time.monotonic() < deadline:
            time.sleep(LEADER_POLL_S)
        partitions = [(name, number) for name, topic in made.items() for number in range(topic.partitions)]
        self._offsets(partitions, _LATEST, new=True)

    def _answer(self, future: Future[_Answer], question: str) -> _Answer:
        try:
            return future.result(self._limit + 1.0)
        except KafkaException as error:
            failure: Exception = error
            reason: KafkaError = error.args[0]
        except TimeoutError as error:
            failure, reason = error, KafkaError(KafkaError._TIMED_OUT)
        if reason.code() in _UNREACHABLE and self._refusal is not None:
            self._admin.poll(0)  # not inside of `except`: see transactions.call_in_thread
            if self._refusal.reason is not None:
                raise BrokerError(
                    f"no connection to Kafka at {self.bootstrap} to ask for {question}: "
                    f"{self._refusal.reason}; correct the security settings in [kafka.options]"
                ) from failure
        raise _broker_error(reason, self.bootstrap, question) from failure


class _Refusal:
    """Why a broker refused a connection, or the client refused the broker: TLS, or the login."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self, error: KafkaError) -> None:
        """Note an error of the client's connections."""
        if error.code() in _REFUSED_CONNECTIONS:
            self.reason = error.str()


def _operations(description: Any) -> frozenset[str] | None:
    found = description.authorized_operations
    return None if found is None else frozenset(operation.name for operation in found)


def _broker_error(error: KafkaError, bootstrap: str, question: str) -> BrokerError:
    if error.code() in _UNREACHABLE:
        return BrokerError(
            f"no Kafka broker answered at {bootstrap} when asked for {question}: start one there (for "
            "development `replayfilter broker`), or correct kafka.bootstrap and the security settings in "
            "[kafka.options]"
        )
    if error.code() in _NO_LEADER:
        return BrokerError(
            f"Kafka at {bootstrap} has no leader for {question}: {error.str()}; see that the topic exists "
            "and all brokers are up, then try again"
        )
    return BrokerError(
        f"Kafka at {bootstrap} refused {question}: {error.str()}; correct the config, or grant the "
        "missing permission"
    )


def _code(error: BrokerError) -> int | None:
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None
