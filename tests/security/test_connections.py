"""Every client of ours, at a broker that requires TLS and a login, in each of the documented ways."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Message
from typer.testing import CliRunner

from replayfilter.client.consumer import FilteringConsumer
from replayfilter.client.pids import pid_for_topic
from replayfilter.client.producer import StampingProducer
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.membership import Membership
from replayfilter.kafka.reader import RangeReader
from replayfilter.service.cli import main as cli
from tests.support.certificates import Authority
from tests.support.lane_service import LaneService
from tests.support.secure_broker import SECRET, USER, WAYS, Permission, SecureBroker, service_permissions
from tests.support.token_server import TokenServer
from tests.support.topics import new_topic, read_all

REFUSED_IN_S = 4.0


@pytest.mark.parametrize("way", WAYS)
def test_a_service_joins_its_group_reads_and_delivers(secure: SecureBroker, way: str) -> None:
    service = LaneService(secure.bootstrap)
    secure.allow(service_permissions(service.name, [service.name], service.outputs))
    address, options = secure.address(way), secure.options(way)
    settings = client_settings(address, options)
    with (
        Membership(settings, service.name, [service.name]) as membership,
        closing(Lanes(address, service.name, options)) as lanes,
    ):
        lanes.join(membership.current())
        service.deliver(lanes, 0, 0, 10)
    service.assert_exactly(10, (0,))

    # Readers join no group, and need no permission for the name that librdkafka wants to have.
    secure.allow([Permission("topic", service.outputs[0], "READ")])
    at = (service.outputs[0], 0)
    end = Cluster(address, options).end_offsets([at])[at]
    with RangeReader(settings, "a-group-without-permissions") as reader:
        assert [message.value() for message in reader.read({at: (0, end)})] == [b"0", b"2", b"4", b"6", b"8"]


@pytest.mark.parametrize("way", WAYS)
def test_a_job_stamps_and_a_consumer_filters(secure: SecureBroker, way: str) -> None:
    topic = new_topic(secure.bootstrap, f"stamped-{way}", 2)
    secure.allow([Permission("topic", topic, "READ"), Permission("topic", topic, "WRITE")])
    secure.allow([Permission("group", f"{topic}-readers", "READ")])
    settings = client_settings(secure.address(way), secure.options(way))
    pid = pid_for_topic(secure.address(way), topic, "job", secure.options(way))
    for end in (5, 8):  # the second job begins again at its checkpoint
        with StampingProducer(settings, topic, pid) as producer:
            for offset in range(end):
                producer.produce(0, offset, b"%d" % offset)
    with FilteringConsumer({**settings, "group.id": f"{topic}-readers"}) as consumer:
        consumer.subscribe([topic])
        found: list[Message] = []
        deadline = time.monotonic() + 60
        while sum(consumer.counts.values()) < 13 and time.monotonic() < deadline:
            found += consumer.consume(8, 0.5)
        consumer.commit()
    assert [message.value() for message in found] == [b"%d" % offset for offset in range(8)]
    assert consumer.counts["replays"] == 5
    at = (topic, 0)
    assert Cluster(secure.bootstrap).committed(f"{topic}-readers", [at]) == {at: 13}


@pytest.mark.parametrize("way", WAYS)
def test_commands_take_secrets_from_the_environment(
    secure: SecureBroker, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(secure.bootstrap, f"lines-{way}")
    secure.allow([Permission("topic", topic, "READ"), Permission("topic", topic, "WRITE")])
    monkeypatch.setenv("KAFKA_SECRET", SECRET)
    given = [
        f"--option={name}={value.replace(SECRET, '${KAFKA_SECRET}')}"
        for name, value in secure.options(way).items()
    ]
    (file := tmp_path / "lines.txt").write_text("one\ntwo\n")
    address = f"--bootstrap={secure.address(way)}"
    published = CliRunner().invoke(cli.app, ["publish", str(file), address, f"--topic={topic}", *given])
    assert (published.exit_code, published.stderr) == (0, "")
    checked = CliRunner().invoke(cli.app, ["doctor", topic, address, *given])
    assert checked.exit_code == 0, checked.output
    assert "2 records read, 2 with a stamp" in checked.output

    monkeypatch.delenv("KAFKA_SECRET")
    if way != "mtls":
        unset = CliRunner().invoke(cli.app, ["doctor", topic, address, *given])
        assert unset.exit_code != 0
        assert "needs the environment variable KAFKA_SECRET" in unset.output


@pytest.mark.parametrize("way", ["plain", "scram", "oauth"])
def test_a_wrong_secret_is_named_but_not_shown(secure: SecureBroker, way: str) -> None:
    cluster = Cluster(secure.address(way), secure.options(way, secret="wr0ng"), REFUSED_IN_S)
    with pytest.raises(
        BrokerError, match=r"no connection to Kafka at .*; correct the security settings"
    ) as caught:
        _ = cluster.id
    words = "token" if way == "oauth" else "authentication"
    assert words in str(caught.value).lower()
    assert "wr0ng" not in str(caught.value)


def test_new_tokens_are_fetched_before_the_old_ones_expire(
    secure: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, topic = "short-lived", new_topic(secure.bootstrap, "short-lived")
    secure.allow([Permission("topic", topic, "WRITE")], user)
    monkeypatch.setattr(secure.tokens, "lifetime_s", 5)
    settings = client_settings(secure.address("oauth"), secure.options("oauth", user))
    with StampingProducer(settings, topic, 7) as producer:
        first, offset, deadline = secure.tokens.issued[user], 0, time.monotonic() + 90
        while secure.tokens.issued[user] < first + 4:
            assert time.monotonic() < deadline, "no new tokens"
            producer.produce(0, offset, b"v")
            producer.flush(30)
            offset += 1
            time.sleep(0.2)
    assert len(read_all(secure.bootstrap, topic)) == offset


def test_a_consumer_names_the_group_that_it_may_not_use(secure: SecureBroker) -> None:
    user, topic = "no-group", new_topic(secure.bootstrap, "no-group")
    secure.allow([Permission("topic", topic, "READ")], user)
    settings = client_settings(secure.address("oauth"), secure.options("oauth", user))
    with FilteringConsumer({**settings, "group.id": "not-allowed"}) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(BrokerError, match=r"the group can't be read: .*roup authorization failed"):
            consumer.poll(30)


def test_a_token_of_another_provider_is_refused(secure: SecureBroker) -> None:
    with TokenServer(SECRET, issuer=secure.tokens.url) as forger:
        url = {"sasl.oauthbearer.token.endpoint.url": f"{forger.url}/token"}
        cluster = Cluster(secure.address("oauth"), secure.options("oauth") | url, REFUSED_IN_S)
        with pytest.raises(BrokerError, match=r"no connection .*(invalid_token|uthentication failed)"):
            _ = cluster.id
        assert forger.issued.keys() == {USER}


def test_a_broker_with_a_certificate_of_another_authority_is_refused(
    secure: SecureBroker, tmp_path: Path
) -> None:
    other = {"ssl.ca.location": str(Authority(tmp_path, "other").path)}
    cluster = Cluster(secure.address("scram"), secure.options("scram") | other, REFUSED_IN_S)
    with pytest.raises(BrokerError, match=r"no connection to Kafka at .*certificate verify failed"):
        _ = cluster.id


@pytest.mark.parametrize("left_out", ["ssl.certificate.location", "security.protocol"])
def test_a_client_without_certificate_or_tls_gets_no_answer(secure: SecureBroker, left_out: str) -> None:
    options = secure.options("mtls")
    del options[left_out]
    if left_out.startswith("ssl"):
        del options["ssl.key.location"]
    with pytest.raises(BrokerError, match=r"correct .*the security settings in \[kafka\.options\]"):
        _ = Cluster(secure.address("mtls"), options, REFUSED_IN_S).id


def test_a_client_certificate_of_another_authority_is_refused(secure: SecureBroker, tmp_path: Path) -> None:
    forged = str(Authority(tmp_path, "other").issue(USER))
    files = {"ssl.certificate.location": forged, "ssl.key.location": forged}
    with pytest.raises(BrokerError, match=r"correct .*the security settings in \[kafka\.options\]"):
        _ = Cluster(secure.address("mtls"), secure.options("mtls") | files, REFUSED_IN_S).id
