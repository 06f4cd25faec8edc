"""The user's options in Kafka's own names: how they are translated, and which can't be set."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaException, Producer

from replayfilter.errors import ConfigError
from replayfilter.kafka.client_settings import client_settings, lane_settings, unusable_options

BOOTSTRAP = {"bootstrap.servers": "b:1"}


def settings(options: Mapping[str, str], *, produces: bool = False) -> dict[str, object]:
    """The settings for these options, with underscores for dots, without the bootstrap servers."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    found = client_settings("b:1", named, produces=produces)
    return {name: value for name, value in found.items() if BOOTSTRAP.get(name) != value}


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "enable.idempotence",
        "transactional.id",
        "isolation.level",
        "group.id",
        "bootstrap.servers",
        "retries",
    ],
)
@pytest.mark.parametrize("produces", [True, False])
def test_settings_that_delivery_depends_on_cannot_be_set(name: str, produces: bool) -> None:
    with pytest.raises(ConfigError, match=rf"kafka\.options\.{name} = 'x' can't be set: .*; remove it"):
        client_settings("b:1", {name: "x"}, produces=produces)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        client_settings("b:1", {"acks": "1", "ssl.truststore.location": "a.jks", "group.id": "g"})
    assert [error.split(" ")[0] for error in caught.value.errors] == [
        "kafka.options.acks",
        "kafka.options.ssl.truststore.location",
        "kafka.options.group.id",
    ]


def test_each_client_gets_what_it_reads() -> None:
    given = {"linger_ms": "5", "max_poll_records": "9", "fetch_max_wait_ms": "7", "security_protocol": "SSL"}
    assert settings(given, produces=True) == {"linger.ms": "5", "security.protocol": "SSL"}
    assert settings(given) == {"fetch.wait.max.ms": "7", "security.protocol": "SSL"}


def test_a_size_that_is_no_number_is_an_error() -> None:
    for name in ("batch.size", "max.request.size", "message.max.bytes"):
        with pytest.raises(ConfigError, match=rf"{name} = '1 MB': not a number of bytes"):
            client_settings("b:1", {name: "1 MB"}, produces=True)


@pytest.mark.parametrize(
    ("options", "limit", "batch_size"),
    [
        ({}, None, 1_000_000),
        ({}, 262_144, 262_144),
        ({}, 5_000_000, 1_000_000),
        ({"batch.size": "100000"}, 262_144, 100_000),
        ({"batch.size": "300000"}, 262_144, 262_144),
    ],
)
def test_batches_are_no_larger_than_the_output_topics_take(
    options: Mapping[str, str], limit: int | None, batch_size: int
) -> None:
    assert int(str(lane_settings("b:1", options, limit)["batch.size"])) == batch_size


@pytest.mark.parametrize(
    ("options", "delivery"),
    [
        ({}, 120_000),
        ({"transaction.timeout.ms": "60000"}, 60_000),
        ({"transaction.timeout.ms": "900000"}, 120_000),
        ({"transaction.timeout.ms": "60000", "delivery.timeout.ms": "30000"}, 30_000),
        ({"transaction.timeout.ms": "60000", "message.timeout.ms": "30000"}, 30_000),
        ({"transaction.timeout.ms": "60000", "socket.timeout.ms": "60100", "linger.ms": "0.5"}, 60_000),
    ],
)
def test_a_record_waits_no_longer_than_its_transaction(options: Mapping[str, str], delivery: int) -> None:
    found = lane_settings("b:1", options)
    assert int(str(found.get("message.timeout.ms", found.get("delivery.timeout.ms")))) == delivery
    Producer(found | {"transactional.id": "x", "bootstrap.servers": "", "log_level": 0})  # accepts them


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"transaction.timeout.ms": "999"},
            "transaction.timeout.ms = 999: too short; set it to 1000 or more",
        ),
        ({"transaction.timeout.ms": "1m"}, "transaction.timeout.ms = '1m': not a number of milliseconds"),
        (
            {"transaction.timeout.ms": "60000", "delivery.timeout.ms": "60001"},
            "delivery.timeout.ms = 60001: longer than transaction.timeout.ms = 60000; shorten it",
        ),
        ({"message.timeout.ms": "300001"}, "message.timeout.ms = 300001: longer than transaction.timeout.ms"),
        (
            {"transaction.timeout.ms": "60000", "socket.timeout.ms": "60101"},
            "socket.timeout.ms = 60101: longer than transaction.timeout.ms = 60000",
        ),
        (
            {"transaction.timeout.ms": "60000", "linger.ms": "60000"},
            "linger.ms = 60000: not below delivery.timeout.ms = 60000; shorten it",
        ),
    ],
)
def test_timeouts_that_do_not_fit_each_other(options: Mapping[str, str], error: str) -> None:
    (found,) = unusable_options(options, produces=True).values()
    assert found.startswith(f"kafka.options.{error}")
    lane = {"transactional.id": "x", "transaction.timeout.ms": "300000", "message.timeout.ms": "60000"}
    with pytest.raises(KafkaException):  # so the rules are librdkafka's
        Producer({**lane, "log_level": 0, **options})


def test_a_login_in_java_form() -> None:
    jaas = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="al" password="a\\"b c";'
    )
    assert settings({"sasl_jaas_config": jaas}) == {"sasl.username": "al", "sasl.password": 'a"b c'}
    for unreadable in ("com.example.LoginModule required;", "PlainLoginModule required username='al';"):
        with pytest.raises(ConfigError, match="can't be read") as caught:
            settings({"sasl_jaas_config": unreadable})
        assert unreadable not in str(caught.value)  # it may hold a password


def test_stores_in_java_form() -> None:
    pem = {"ssl_truststore_type": "PEM", "ssl_truststore_location": "ca.pem"}
    assert settings(pem) == {"ssl.ca.location": "ca.pem"}
    key = {"ssl_keystore_type": "pem", "ssl_keystore_location": "me.pem", "ssl_key_password": "s"}
    assert settings(key) == {
        "ssl.certificate.location": "me.pem",
        "ssl.key.location": "me.pem",
        "ssl.key.password": "s",
    }
    p12 = {"ssl_keystore_type": "PKCS12", "ssl_keystore_location": "me.p12", "ssl_keystore_password": "s"}
    assert settings(p12) == {"ssl.keystore.location": "me.p12", "ssl.keystore.password": "s"}
    with pytest.raises(ConfigError, match=r"'me\.jks' is a JKS store.*PEM or PKCS12"):
        settings({"ssl_keystore_location": "me.jks"})


def test_the_host_check_can_be_turned_off_as_in_java() -> None:
    name = "ssl.endpoint.identification.algorithm"
    assert client_settings("b:1", {name: ""})[name] == "none"
    assert client_settings("b:1", {name: "https"})[name] == "https"
