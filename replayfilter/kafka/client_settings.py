"""Client settings for librdkafka, from the user's ``[kafka.options]`` in Kafka's own names.

Kafka's own names are those of its Java client. :func:`client_settings` translates the few that have another
name in librdkafka. Settings that exactly-once delivery depends on can't be changed: they are refused with the
reason before anything connects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from replayfilter.errors import ConfigError
from replayfilter.kafka.producer_limits import (
    BATCH_SIZE,
    DEFAULT_TRANSACTION_MS,
    DELIVERY_TIMEOUT,
    LARGEST_RECORD,
    TRANSACTION_TIMEOUT,
    default_delivery_ms,
    largest_batch,
    wrong_numbers,
)

if TYPE_CHECKING:  # `replayfilter check` reads this module and is fast because it loads no client
    from confluent_kafka import KafkaException

Settings = dict[str, str | int | float | bool]

# The reason why each of these can't be set by the user.
_RESERVED = {
    "bootstrap.servers": "set kafka.bootstrap instead",
    "group.id": "the consumer group is service.name",
    "group.instance.id": "it is service.name, so that a second service of the name replaces the first",
    "group.protocol": "a service replaces an earlier one with the classic protocol only",
    "transactional.id": "each lane's id is made from service.name; another id would not fence earlier owners",
    "transactional.id.prefix": "each lane's id is made from service.name",
    "enable.idempotence": "without it a retry inside the client can write a record twice",
    "acks": "anything below 'all' can lose a record that was acknowledged",
    "request.required.acks": "anything below 'all' can lose a record that was acknowledged",
    "retries": "delivery retries until its time is up; set delivery.timeout.ms to change that time",
    "max.in.flight": "above 5 the order within a partition is not kept",
    "max.in.flight.requests.per.connection": "above 5 the order within a partition is not kept",
    "isolation.level": "read_uncommitted would read records of transactions that were aborted",
    "enable.auto.commit": "offsets are committed inside the delivery transactions only",
    "enable.auto.offset.store": "offsets are committed inside the delivery transactions only",
    "enable.gapless.guarantee": "it ends a producer at a failed record before delivery can report which one",
    "allow.auto.create.topics": "a topic created by accident has the wrong number of partitions",
    "delivery.report.only.error": "delivery needs a report for every failed record",
}
_RENAMED = {  # Java's name: librdkafka's
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": LARGEST_RECORD,
}
_PRODUCER_ONLY = {
    "batch.num.messages",
    "batch.size",
    "compression.codec",
    "compression.level",
    "compression.type",
    DELIVERY_TIMEOUT,
    "linger.ms",
    "message.timeout.ms",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "request.timeout.ms",
    TRANSACTION_TIMEOUT,
}
_INPUT_ONLY = {"fetch.max.wait.ms", "fetch.max.bytes", "fetch.min.bytes", "max.partition.fetch.bytes"}
_JAVA_ONLY = {"max.poll.records", "default.api.timeout.ms"}  # accepted, but librdkafka has nothing like it
# Chosen by measurement: 200,000 records of 200 bytes to one partition, two cores shared with the broker.
_LANE_DEFAULTS: Settings = {
    "compression.type": "lz4",  # needs no more CPU than none, and a fraction of the bytes
    "linger.ms": 20,  # for full batches; a commit flushes at once, so small transactions don't wait
    BATCH_SIZE: 1_000_000,  # bytes; 100,000 needs twice the CPU, 16,384 four times
    "queue.buffering.max.messages": 200_000,  # records in flight, about 300 bytes each besides the payload
    "queue.buffering.max.kbytes": 65_536,  # payload in flight; bounds a worker's memory to about twice this
    LARGEST_RECORD: 32_000_000,  # half the queue, so that every record fits; the topic sets the limit
    TRANSACTION_TIMEOUT: DEFAULT_TRANSACTION_MS,
    "retry.backoff.ms": 10,  # the last transaction's markers take 10 ms; the default of 100 adds a wait
}
_LANE_PINNED: Settings = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
_JAAS_LOGIN = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_JAAS_MODULES = ("PlainLoginModule", "ScramLoginModule")


def client_settings(
    bootstrap: str, options: Mapping[str, str] | None = None, *, produces: bool = False
) -> Settings:
    """Settings for one librdkafka client: a producer's if ``produces``, else a consumer's or an admin's.

    ``options`` maps Kafka's own names to values. Settings that only the other kind of client reads are
    left out. Raises :class:`ConfigError` with one sentence for each option that can't be used.

    >>> client_settings("localhost:9092", {"linger.ms": "5", "fetch.max.wait.ms": "100"}, produces=True)
    {'bootstrap.servers': 'localhost:9092', 'linger.ms': '5'}
    """
    settings, errors = _translated(options or {}, produces)
    if errors:
        raise ConfigError(list(errors.values()))
    return {"bootstrap.servers": bootstrap, **settings}


def unusable_options(options: Mapping[str, str], *, produces: bool = False) -> dict[str, str]:
    """The options that can't be used, each with a sentence that says why and what to do."""
    return _translated(options, produces)[1]


def lane_settings(
    bootstrap: str, options: Mapping[str, str] | None = None, max_message_bytes: int | None = None
) -> Settings:
    """Settings for the producers of lanes; raises :class:`ConfigError` as :func:`client_settings` does.

    ``max_message_bytes``: the largest batch that each output topic takes; None if unknown.
    """
    given = client_settings(bootstrap, options, produces=True)
    settings = _LANE_DEFAULTS | given | _LANE_PINNED
    if DELIVERY_TIMEOUT not in given and "message.timeout.ms" not in given:
        settings[DELIVERY_TIMEOUT] = default_delivery_ms(int(settings[TRANSACTION_TIMEOUT]))
    if max_message_bytes is not None:
        settings[BATCH_SIZE] = min(largest_batch(settings), max_message_bytes)
    return settings


def refused_setting(error: KafkaException) -> ConfigError:
    """The error to raise when librdkafka refuses the settings of a new client."""
    reason = error.args[0].str()
    return ConfigError([f"kafka.options has a setting that the client refuses: {reason}; correct it"])


def _translated(options: Mapping[str, str], produces: bool) -> tuple[Settings, dict[str, str]]:
    """The settings for librdkafka that ``options`` give, and the error for each option that can't be used."""
    settings: Settings = {}
    errors: dict[str, str] = {}
    for name, value in options.items():
        if name in _RESERVED:
            errors[name] = f"kafka.options.{name} = {value!r} can't be set: {_RESERVED[name]}; remove it"
        elif name in _JAVA_ONLY or name in (_INPUT_ONLY if produces else _PRODUCER_ONLY):
            continue
        else:
            settings.update(_translate(name, value, options, errors))
    return settings, errors | (wrong_numbers(options) if produces else {})


def _translate(name: str, value: str, options: Mapping[str, str], errors: dict[str, str]) -> Settings:
    """One option under librdkafka's name; an option without an equivalent is added to ``errors``."""
    if name == "sasl.jaas.config":
        login = {key: re.sub(r"\\(.)", r"\1", text) for key, text in _JAAS_LOGIN.findall(value)}
        if any(module in value for module in _JAAS_MODULES) and len(login) == 2:
            return {f"sasl.{key}": text for key, text in login.items()}
        errors[name] = (
            "kafka.options.sasl.jaas.config can't be read: use PlainLoginModule or ScramLoginModule "
            'with username="..." and password="..."; OAUTHBEARER has settings of its own, such as '
            "sasl.oauthbearer.client.id"
        )
        return {}
    if name in ("ssl.truststore.location", "ssl.keystore.location"):
        return _translate_store(name, value, options, errors)
    if name in ("ssl.truststore.type", "ssl.keystore.type", "ssl.truststore.password"):
        return {}  # see _translate_store; a PEM truststore has no password
    if name == "ssl.endpoint.identification.algorithm":
        return {name: value or "none"}  # an empty value turns the check off in Java
    return {_RENAMED.get(name, name): value}


def _translate_store(name: str, path: str, options: Mapping[str, str], errors: dict[str, str]) -> Settings:
    """A Java key store or trust store: librdkafka reads PEM files, and PKCS#12 for the client's own key."""
    kind = options.get(name.replace(".location", ".type"), "JKS").upper()
    if name == "ssl.keystore.location" and kind == "PKCS12":
        return {"ssl.keystore.location": path}
    if kind == "PEM" and name == "ssl.truststore.location":
        return {"ssl.ca.location": path}
    if kind == "PEM":
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    usable = "PEM" if name == "ssl.truststore.location" else "PEM or PKCS12"
    errors[name] = (
        f"kafka.options.{name} = {path!r} is a {kind} store, which the delivering client can't read: "
        f"convert it and set {name.replace('.location', '.type')} to {usable}"
    )
    return {}
