"""The consumers and admin clients that the code under test gets; as clients.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from replayfilter.core.input_partition import InputPartition
from tests.sim import world
from tests.sim.broker import Broker
from tests.sim.clients import SESSION_S, Settings, request


class SimConsumer:
    """A consumer as the service uses it: it reads committed offsets, or is the static member of the group."""

    def __init__(self, settings: Settings, logger: object = None) -> None:
        self._group, self._instance = settings["group.id"], settings.get("group.instance.id")
        self._stable = settings.get("isolation.level", "read_committed") == "read_committed"
        self._membership = json.dumps([self._group, "", -1]).encode()
        self._member = ""
        self._listening = False
        self._ended: Callable[[], bool] = lambda: False
        self._on_assign: Any = None
        self._on_revoke: Any = None

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        wanted = [(each.topic, each.partition) for each in partitions]
        try:
            found = request(
                "read offsets", lambda broker: broker.committed(self._group, wanted, self._stable), timeout
            )
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNSTABLE_OFFSET_COMMIT:  # the client tries until its limit
                world.running().sleep(min(0.5, timeout))
            raise
        return [TopicPartition(*at, *found.get(at, (-1001, ""))) for at in wanted]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        """Commit without a transaction."""
        wanted = {(each.topic, each.partition): (each.offset, each.metadata or "") for each in offsets}

        def commit(broker: Broker) -> None:
            broker.commit(self._group, self._membership, wanted)
            world.running().on_commit()

        request("commit offsets", commit)
        return []

    def consumer_group_metadata(self) -> bytes:
        return self._membership

    def memberid(self) -> str:
        return self._member

    def subscribe(self, topics: list[str], on_assign: Any = None, on_revoke: Any = None) -> None:
        self._on_assign, self._on_revoke, self._listening = on_assign, on_revoke, True

    def unsubscribe(self) -> None:
        self._listening = False

    def assign(self, partitions: object) -> None:
        """The service reads no record with this consumer."""

    def unassign(self) -> None:
        """As assign."""

    def ends_with(self, ended: Callable[[], bool]) -> None:
        """Tell the consumer who waits for it, so that an idle poll is one step."""
        self._ended = ended

    def poll(self, timeout: float = -1) -> Any:
        """Join; then wait until the membership has ended, by another member or by silence."""
        sim = world.running()
        if not self._listening:
            sim.wait(self._ended)
            return None
        try:
            if not self._member:
                self._join()
                return None
            group = sim.broker.groups[self._group]
            sim.wait(lambda: self._ended() or group.members.get(self._instance or "") != self._member)
            if self._ended():
                return None
            sim.point("heartbeat")
            if self._instance in group.members and sim.random.random() < 0.5:
                return SimpleNamespace(error=lambda: KafkaError(KafkaError._FATAL))
            self._member = ""  # its session is over, as it finds out itself
            self._on_revoke(self, [])
        except KafkaException as error:
            reason = error.args[0]
            return SimpleNamespace(error=lambda: reason)
        return None

    def _join(self) -> None:
        assert self._instance is not None
        found = request("join", lambda broker: broker.join(self._group, self._instance or ""))
        self._membership, self._member = found, json.loads(found)[1]
        world.running().process.memory["member"] = {"id": self._member}
        self._on_assign(self, [])

    def close(self) -> None:
        """A static member that closes stays a member until its session ends."""
        if self._member:
            member, group, sim = self._member, self._group, world.running()
            sim.later(SESSION_S, lambda: sim.broker.expire_member(group, member))


class SimReader(SimConsumer):
    """A consumer that reads records: all partitions of its topics, each in order."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._topics: list[str] = []
        self._positions: dict[InputPartition, int] = {}

    def subscribe(
        self, topics: list[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None
    ) -> None:
        super().subscribe(topics, on_assign, on_revoke)
        self._topics = topics

    def assign(self, partitions: Any) -> None:
        self._positions |= {(each.topic, each.partition): max(0, each.offset) for each in partitions}

    def poll(self, timeout: float = -1) -> Any:
        sim = world.running()
        logs = {log.at: log for topic in self._topics for log in sim.broker.topics[topic]}
        new = [TopicPartition(*at) for at in logs if at not in self._positions]
        if new:
            self._on_assign(self, new)
            if not logs.keys() <= self._positions.keys():
                return None  # it failed
        sim.point("poll")
        for at in sim.chance.sample(sorted(logs), len(logs)):
            for offset, record in logs[at].committed(self._positions[at]):
                self._positions[at] = offset + 1
                values: Any = (*at, offset, record.key, record.value, record.headers, None)
                names = ("topic", "partition", "offset", "key", "value", "headers", "error")
                return SimpleNamespace(**{n: lambda v=v: v for n, v in zip(names, values, strict=True)})
        sim.broker.pass_time()
        sim.sleep(timeout)
        return None

    def get_watermark_offsets(self, at: TopicPartition, cached: bool) -> tuple[int, int]:
        log = world.running().broker.log((at.topic, at.partition))
        return log.start, log.stable_end()


class _Answered:
    """A future that has its answer."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def result(self, timeout: float = -1) -> Any:
        return self._answer()


class SimAdmin:
    """An admin client of a broker that doesn't tell what is allowed."""

    def __init__(self, settings: Settings) -> None:
        pass

    def describe_cluster(self, request_timeout: float) -> _Answered:
        return _Answered(lambda: SimpleNamespace(cluster_id="sim"))

    def poll(self, seconds: float) -> int:
        return 0

    def list_topics(self, timeout: float) -> None:
        request("leaders", lambda broker: None)

    def describe_topics(
        self, names: Any, request_timeout: float, include_authorized_operations: bool = False
    ) -> dict[str, _Answered]:
        def answer(name: str) -> Any:
            if include_authorized_operations:
                return SimpleNamespace(authorized_operations=None)
            count = request("metadata", lambda broker: len(broker.topics[name]))
            return SimpleNamespace(topic_id=f"id-{name}", partitions=range(count))

        return {name: _Answered(lambda name=name: answer(name)) for name in names.topic_names}  # type: ignore[misc]

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, _Answered]:
        config = {"max.message.bytes": "1048588"}
        entries = {name: SimpleNamespace(value=value) for name, value in config.items()}
        return {each: _Answered(lambda: entries) for each in resources}

    def list_offsets(self, asked: Mapping[TopicPartition, Any], isolation_level: object, request_timeout: float) -> dict[Any, _Answered]:  # fmt: skip  # noqa: E501
        def ask(broker: Broker) -> dict[InputPartition, int]:
            broker.pass_time()
            logs = {(at.topic, at.partition): broker.log((at.topic, at.partition)) for at in asked}
            latest = {at: log.stable_end() for at, log in logs.items()}
            return latest if _is_latest(asked) else {at: log.start for at, log in logs.items()}

        try:
            found = request("list offsets", ask)
        except KafkaException as error:
            return {at: _Answered(lambda error=error: _raise(error)) for at in asked}  # type: ignore[misc]
        answers = {at: SimpleNamespace(offset=found[at.topic, at.partition]) for at in asked}
        return {at: _Answered(lambda answer=answer: answer) for at, answer in answers.items()}  # type: ignore[misc]

    def describe_consumer_groups(
        self, groups: list[str], request_timeout: float, include_authorized_operations: bool = False
    ) -> dict[str, _Answered]:
        def answer(name: str) -> Any:
            if include_authorized_operations:
                return SimpleNamespace(authorized_operations=None)
            members = request("describe group", lambda broker: dict(broker.groups[name].members))
            found = [SimpleNamespace(group_instance_id=at, member_id=each) for at, each in members.items()]
            return SimpleNamespace(members=found)

        return {name: _Answered(lambda name=name: answer(name)) for name in groups}  # type: ignore[misc]


def _is_latest(asked: Mapping[TopicPartition, Any]) -> bool:
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    return next(iter(asked.values())) is OffsetSpec.latest()  # type: ignore[no-untyped-call]


def _raise(error: KafkaException) -> None:
    raise error
