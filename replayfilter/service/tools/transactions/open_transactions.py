"""What is open in the topics of a service, whose it is, and how the service's own transactions are ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

from replayfilter.core.input_partition import InputPartition
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import lane_settings
from replayfilter.kafka.transaction_log import Transaction
from replayfilter.kafka.transaction_log import open_transactions as all_open_transactions
from replayfilter.kafka.transactions import LaneStats, discard, initialise
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import IDENTITY, Identity, open_checkpoint

MEMBER_SECONDS = 60.0  # a service stays a member of its group for session.timeout.ms, 45 s, after its end
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A partition that can be read up to ``readable``, and not to its end, ``written``."""

    partition: InputPartition
    readable: int
    written: int


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """What is open in the topics of a service.

    ``own``: the transactions of the service. ``others``: those of others in its topics. ``held_back``: its
    partitions in which something is open. ``unknown``: why Kafka's log of transactions can't be read, so
    ``own`` and ``others`` are empty; otherwise empty.
    """

    own: list[Transaction]
    others: list[Transaction]
    held_back: list[HeldBack]
    unknown: str = ""

    def holding(self, partition: InputPartition) -> list[Transaction]:
        """The known transactions that have written to a partition."""
        return [each for each in (*self.own, *self.others) if partition in each.partitions]


def find_open(config: Config, cluster: Cluster) -> OpenTransactions:
    """What is open in the inputs and outputs of a service. Raises BrokerError if Kafka doesn't answer."""
    topics = cluster.topics(dict.fromkeys([*config.input.topics, *config.output_topics().values()]))
    partitions = [(name, number) for name, topic in topics.items() for number in range(topic.partitions)]
    held_back = held_back_of(cluster, partitions)
    try:
        known = all_open_transactions(cluster, config.client_options())
    except BrokerError as error:
        return OpenTransactions([], [], held_back, str(error))
    own_id = re.compile(rf"{re.escape(config.service.name)}-(\d+|first)")
    own = [each for each in known if own_id.fullmatch(each.id)]
    others = [each for each in known if each not in own and not set(partitions).isdisjoint(each.partitions)]
    return OpenTransactions(own, others, held_back)


def held_back_of(cluster: Cluster, partitions: list[InputPartition]) -> list[HeldBack]:
    """The partitions in which a transaction is open, in their order."""
    readable, written = cluster.end_offsets(partitions), cluster.written_ends(partitions)
    return [
        HeldBack(at, readable[at], written[at]) for at in sorted(partitions) if readable[at] < written[at]
    ]


def own_ids(config: Config, found: OpenTransactions, lanes: int = 0) -> list[str]:
    """The transactional ids whose transactions are to be ended.

    Those that are open; if that isn't known, and something is held back, those of all lanes that the service
    has. ``lanes``: how many; 0: those of the config or of the checkpoint. Raises BrokerError if neither says.
    """
    if not found.unknown:
        return [each.id for each in found.own]
    if not found.held_back:
        return []
    lanes = lanes or config.service.shards or _kept_lanes(config)
    if not lanes:
        raise BrokerError(
            f"which transactions are open isn't known ({found.unknown}), nor how many lanes the service has: "
            "set service.shards to what it was, or run this as a user who may READ topic __transaction_state"
        )
    return [f"{config.service.name}-{lane}" for lane in range(lanes)]


def _kept_lanes(config: Config) -> int:
    """How many lanes the service had, by its checkpoint; 0 without one."""
    kept = open_checkpoint(config).read(IDENTITY)
    return 0 if kept is None else Identity.from_bytes(kept).lanes


def end_transactions(config: Config, ids: Iterable[str]) -> None:
    """Abort what is open with these transactional ids, as the next start of the service would.

    Who still used one of them can't commit any more. Raises BrokerError if Kafka refuses that.
    """
    own = lane_settings(config.kafka.bootstrap, config.client_options()) | {"log_level": 0}  # all is raised
    for id_ in ids:
        producer = Producer(own | {"transactional.id": id_})
        try:
            initialise(producer, LaneStats())
        except KafkaException as error:
            raise BrokerError(
                f"the transaction of {id_} could not be ended: {error.args[0].str()}; check that the service "
                "may use this transactional id, or wait 5 minutes until Kafka ends it"
            ) from error
        finally:
            discard(producer)


def await_end_of_service(
    cluster: Cluster, service: str, why: str, say: Callable[[str], None], limit: float = MEMBER_SECONDS
) -> None:
    """Wait until the group has no member.

    ``why`` ends the sentence of the BrokerError that is raised if it still has one after ``limit`` seconds.
    """
    deadline, told = time.monotonic() + limit, False
    while hosts := cluster.members(service):
        if time.monotonic() > deadline:
            raise BrokerError(
                f"service.name = {service}: its consumer group has a member at "
                f"{', '.join(sorted(set(hosts)))}, so a service of this name is running; stop it, since {why}"
            )
        if not told:
            say(
                f'waiting until the last service has left the consumer group "{service}" (45 s after its end)'
            )
        told = True
        time.sleep(POLL_SECONDS)
