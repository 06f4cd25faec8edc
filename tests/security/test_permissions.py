"""A service needs exactly the documented permissions: each that is missing is named before the start."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer
from rich.console import Console

from replayfilter.core.watermark.stages import Lows
from replayfilter.errors import BrokerError, DeliveryError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.reader import RangeReader
from replayfilter.service.config.loader import config_from
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.preflight import Findings, inspect
from replayfilter.service.tools.topics import create_output_topics
from replayfilter.service.tools.transactions.transactions_report import abort_transactions
from replayfilter.watermark.kafka_store import KafkaStore
from replayfilter.watermark.table import Changes
from tests.support.deployment import Deployment
from tests.support.lane_service import LaneService
from tests.support.secure_broker import Permission, SecureBroker, service_permissions

WAY = "oauth"  # knows every user
_numbers = itertools.count()


class Limited(NamedTuple):
    """A service whose topics exist, and a user without permissions."""

    secure: SecureBroker
    deployment: Deployment
    user: str

    @property
    def permissions(self) -> list[Permission]:
        """What the documentation says that it needs."""
        outputs = self.deployment.data()["output"].values()
        return service_permissions(self.deployment.name, [self.deployment.name], outputs)

    def config(self) -> Config:
        """The service's config, as this user."""
        options = self.secure.options(WAY, self.user)
        return config_from(
            self.deployment.data(kafka={"bootstrap": self.secure.address(WAY), "options": options})
        )

    def inspect(self) -> Findings:
        """What the checks before the start find, as this user."""
        return inspect(self.config(), from_committed=False)


@pytest.fixture
def limited(secure: SecureBroker, tmp_path: Path) -> Limited:
    deployment = Deployment(secure.bootstrap, tmp_path)
    deployment.name = f"limited-{next(_numbers)}"
    deployment.create(inputs=1)
    return Limited(secure, deployment, f"user-of-{deployment.name}")


def test_the_documented_permissions_are_enough_for_the_checks(limited: Limited) -> None:
    limited.secure.allow(limited.permissions, limited.user)
    found = limited.inspect()
    assert (found.errors, found.warnings) == ([], [])


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("described", [False, True])
def test_each_missing_permission_is_named(limited: Limited, number: int, described: bool) -> None:
    taken = limited.permissions[number]
    left = [each for each in limited.permissions if each != taken]
    if described:  # READ and WRITE include it, so this is less
        left.append(taken._replace(operation="DESCRIBE"))
    limited.secure.allow(left, limited.user)
    assert limited.inspect().errors == [
        f"the service may not {taken.operation} {taken.kind} {taken.name!r}: its principal lacks this "
        f"permission; add it with: kafka-acls --add --allow-principal User:NAME --operation "
        f"{taken.operation} --{taken.kind} {taken.name}"
    ]


def test_all_missing_permissions_are_named_at_once(limited: Limited) -> None:
    assert len(limited.inspect().errors) == len(limited.permissions) - 1  # not that for transactional ids


@pytest.mark.parametrize(
    ("kind", "operation", "error"),
    [
        ("topic", "READ", "opic authorization failed"),
        ("topic", "WRITE", "opic authorization failed.*write to the topic"),
        ("transactional_id", "WRITE", "lane .*-0 could not be taken over.*transactional id may be used"),
    ],
)
def test_a_lane_names_what_it_may_not_do(secure: SecureBroker, kind: str, operation: str, error: str) -> None:
    service = LaneService(secure.bootstrap)
    user = f"user-of-{service.name}"
    permissions = service_permissions(service.name, [service.name], service.outputs)
    secure.allow([each for each in permissions if each[::2] != (kind, operation)], user)
    lanes = Lanes(secure.address(WAY), service.name, secure.options(WAY, user))
    with closing(lanes), pytest.raises(DeliveryError, match=error):
        service.deliver(lanes, 0, 0, 10)
    service.assert_exactly(0, ())


def test_a_topic_that_may_not_be_read_is_named(secure: SecureBroker) -> None:
    service = LaneService(secure.bootstrap)
    at, user = (service.name, 0), f"user-of-{service.name}"
    secure.allow([Permission("topic", service.name, "DESCRIBE")], user)
    settings = client_settings(secure.address(WAY), secure.options(WAY, user))
    with (
        RangeReader(settings, "a-group-without-permissions") as reader,
        pytest.raises(BrokerError, match=f"{service.name}-0 can't be read.*opic authorization failed"),
    ):
        list(reader.read({at: (0, 1)}))


def test_the_topics_command_needs_to_read_settings_and_to_create(limited: Limited) -> None:
    deployment = limited.deployment
    deployment.name += "-new"
    outputs = list(deployment.data()["output"].values())
    deployment.cluster.create({deployment.name: 3})
    limited.secure.allow(limited.permissions, limited.user)
    limited.secure.allow([Permission("topic", output, "CREATE") for output in outputs], limited.user)
    with pytest.raises(BrokerError, match=r"refused the settings of topic .*opic authorization failed"):
        create_output_topics(limited.config())
    limited.secure.allow([Permission("topic", deployment.name, "DESCRIBE_CONFIGS")], limited.user)
    lines = create_output_topics(limited.config())
    assert lines == [f"{output}: created with 3 partitions" for output in outputs]


def test_permissions_are_not_asked_for_where_there_is_no_authorizer(limited: Limited) -> None:
    """The super user may do everything, like every client of a broker without an authorizer."""
    cluster = Cluster(limited.secure.bootstrap)
    allowed = cluster.topic_operations([limited.deployment.name, "no-such-topic"])
    assert allowed.keys() == {limited.deployment.name}
    assert {"READ", "WRITE", "DESCRIBE"} <= (allowed[limited.deployment.name] or set())


def test_open_transactions_are_ended_without_a_view_of_their_log(limited: Limited) -> None:
    """Most clusters let only administrators read __transaction_state. Then it is said, and all lanes end."""
    deployment, name = limited.deployment, limited.deployment.name
    outputs = list(deployment.data()["output"].values())
    limited.secure.allow(limited.permissions, limited.user)
    limited.secure.allow([Permission("topic", output, "READ") for output in outputs], limited.user)
    left = Producer({"bootstrap.servers": deployment.bootstrap, "transactional.id": f"{name}-1"})
    left.init_transactions()
    left.begin_transaction()
    left.produce(outputs[0], b"v")
    left.flush()
    kafka = {"bootstrap": limited.secure.address(WAY), "options": limited.secure.options(WAY, limited.user)}
    config = config_from(deployment.data(kafka=kafka, service={"shards": 2}))
    console = Console(width=400)
    with console.capture() as printed:
        assert abort_transactions(config, console, lambda _: True)
    unknown, held_back, aborted = printed.get().splitlines()
    assert "can't be read: " in unknown
    assert "__transaction_state" in unknown
    assert held_back == f"held back: {outputs[0]}-0 can be read up to offset 0, 1 offsets before its end"
    assert aborted.startswith(f"aborted: {name}-0, {name}-1; nothing")
    with pytest.raises(KafkaException):
        left.commit_transaction()


def test_a_watermark_store_needs_the_documented_permissions(secure: SecureBroker) -> None:
    """docs/reference/watermark-server.md#a-store-in-kafka."""
    topic = f"watermark-{next(_numbers)}"
    user = f"user-of-{topic}"
    needed = [
        *(Permission("topic", topic, each) for each in ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE")),
        Permission("transactional_id", f"replayfilter-watermark-{topic}", "WRITE"),
    ]
    connection = topic, secure.address(WAY), secure.options(WAY, user)
    secure.allow(needed[:-1], user)
    with closing(KafkaStore(*connection)) as store, pytest.raises(BrokerError, match="transactional id"):
        store.take_lease(store.lease(), "one")
    secure.allow(needed[-1:], user)
    with closing(KafkaStore(*connection)) as store:
        assert store.take_lease(store.lease(), "one")
        with store.transaction():
            store.write({"web": Changes(Lows(3, 2), 1, 4)})
