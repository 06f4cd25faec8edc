"""The sections about the service and what it reads and writes: service, kafka, input, avro, output, http."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from replayfilter.service.config.section import REQUIRED, Section, setting
from replayfilter.settings.value_types import (
    Address,
    Brokers,
    Bytes,
    Checkpoint,
    Duration,
    Master,
    Options,
    Registries,
    ServiceName,
    Texts,
    TopicOrNone,
    Topics,
)


class Service(Section):
    """The service's name, its checkpoint, and how much it processes at once."""

    name: ServiceName = setting(
        "",
        "The name of the consumer group and of the state, and the start of each transactional id "
        "(`<name>-<lane>`). Run only one service per name and Kafka cluster.",
        ["orders"],
        unit="up to 200 of `a-z A-Z 0-9 . _ -`, starting with a letter or digit",
        unset=REQUIRED,
    )
    checkpoint: Checkpoint = setting(
        "",
        "The folder for the state: marks, remembered keys, offsets. A relative path starts at the folder in "
        "which the command is run. If workers run on other machines, all must mount the folder at the same "
        "path, or it must be on a file system that all of them reach: "
        "[HDFS or S3](../guides/deploy.md#a-checkpoint-on-hdfs-or-s3).",
        ["checkpoint/orders", "hdfs://name-node/orders", "s3a://bucket/orders"],
        unit="a path, or a `file:`, `hdfs:` or `s3a:` URL",
        unset=REQUIRED,
    )
    master: Master = setting(
        "local[*]",
        "Where Spark runs.",
        ["local[4]"],
        unit="`local`, `local[N]`, `local[*]`, `spark://...`, `yarn`, `k8s://...`",
    )
    shards: int = setting(
        0,
        "The number of partitions of the state, and of delivery lanes: no more tasks than this work at the "
        "same time. The first start stores it in the checkpoint; to change it later, "
        "[rebuild](../guides/rebuild.md) the checkpoint. `0`: the number of cores of a local master; a "
        "cluster needs a number.",
        [16],
        unit="0 to 1024",
        ge=0,
        le=1024,
    )
    interval: Duration = setting(
        10**6,
        "The shortest time between the starts of two micro-batches. A small batch costs nearly as much CPU "
        "as a larger one, so longer intervals save CPU, and records wait longer. If records are left over "
        "that did not fit into a batch, the next one starts at once. `0s`: each batch starts when the last "
        "one has ended, for the shortest delay.",
        ["0s", "5s"],
    )
    batch_records: int = setting(
        1_200_000,
        "The maximum number of records in one micro-batch. Lower values slow catch-up after downtime. Higher "
        "values need more disk space for shuffling and make batches longer.",
        [200000],
        unit="records",
        ge=1,
    )
    batch_bytes: Annotated[Bytes, Field(ge=1_000_000)] = setting(
        512_000_000,
        "The maximum size of one micro-batch, estimated from the average size of the records so far.",
        ["1GiB"],
    )


class Kafka(Section):
    """The Kafka cluster, and settings for its clients."""

    bootstrap: Brokers = setting(
        "",
        "The brokers to connect to first.",
        ["localhost:9092", "kafka-1:9092,kafka-2:9092"],
        unit="`host:port`, several separated by commas",
        unset=REQUIRED,
    )
    options: Options = setting(
        {},
        "Client settings under Kafka's own names, for reading and writing. `${NAME}` in a value is replaced "
        "by the environment variable NAME; it is an error if that is not set. Put secrets into such "
        "variables. Values are never shown.",
        [{"security.protocol": "SASL_SSL"}],
        unit="texts, numbers, booleans",
        unset="none",
        repr=False,
    )


class Input(Section):
    """The input topics, the format of their values, and the location of the stamps."""

    topics: Topics = setting(
        [],
        "The topics to read.",
        [["orders"], ["orders", "refunds"]],
        unit="list of topics",
        unset=REQUIRED,
    )
    format: Literal["json", "avro", "protobuf", "cloudevents", "debezium", "raw"] = setting(
        "json",
        "The format of the values. `avro` and `protobuf` need the sections of that name. `cloudevents`: "
        "fields are the attributes of CloudEvents, in headers or in the value. `debezium`: change events in "
        "JSON, see [Filter change data](../guides/filter-change-data.md). Values in `raw` have no fields: "
        "only `@` names can be used.",
        ["raw"],
    )
    on_null: Literal["error", "unique", "key"] = setting(
        "error",
        "What a record with a null value (a tombstone) is where the format needs a value. `error`: an error. "
        "`unique`: it is passed on. `key`: unique or duplicate, by its Kafka key. See "
        "[Null values](#null-values).",
        ["unique"],
    )
    stamp: Literal["key", "header", "none"] = setting(
        "key",
        "Where a record carries its stamp, which shows whether it is a replay. `none` needs "
        "`replay.enabled = false`.",
        ["header"],
        unit="`key`, `header` (`rf-stamp`), `none`",
    )
    starting: Literal["earliest", "latest"] = setting(
        "earliest",
        "Where the first start begins to read. Later starts continue where the last one ended.",
        ["latest"],
    )


class Avro(Section):
    """Where the schemas of Avro values are. Used with ``input.format = "avro"``."""

    encoding: Literal["confluent", "single-object", "plain"] = setting(
        "confluent",
        "The prefix of each value. `confluent`: a zero byte and the schema's id in a registry (4 bytes), or "
        "no prefix, and the schema's GUID in the header `__value_schema_id`. "
        "`single-object`: `C3 01` and the schema's fingerprint (CRC-64-AVRO, 8 bytes). `plain`: no prefix, "
        "all values have the same schema.",
        ["plain"],
    )
    registry: Registries = setting(
        "",
        "The schema registry, for `confluent`.",
        ["http://localhost:8081", "https://registry:8081"],
        unit="URL, several separated by commas: if one does not answer, the next one is asked",
        unset="required for `confluent`",
    )
    options: Options = setting(
        {},
        "Settings of the registry client under its own names, with `${NAME}` as in `kafka.options`.",
        [{"ssl.ca.location": "/etc/ssl/registry-ca.pem"}],
        unit="texts, numbers, booleans",
        unset="none",
        repr=False,
    )
    schemas: Texts = setting(
        [],
        "Schema files, for the other two encodings: one for `plain`, all that producers use for "
        "`single-object`. Read at start.",
        [["schemas/order.avsc"]],
        unit="list of paths",
        unset="required for `single-object` and `plain`",
    )


class Protobuf(Section):
    """Which messages Protobuf values are, and where their types are: in a registry, or in a file.

    Used with ``input.format = "protobuf"``.
    """

    encoding: Literal["confluent", "plain"] = setting(
        "confluent",
        "The prefix of each value. `confluent`: a zero byte, the schema's id in a registry (4 bytes) and the "
        "position of the message's type in its .proto file; or no prefix, and the header `__value_schema_id` "
        "with the schema's GUID and the position. `plain`: none.",
        ["plain"],
    )
    registry: Registries = setting(
        "",
        "The schema registry, for `confluent`.",
        ["http://localhost:8081", "https://registry:8081"],
        unit="URL, several separated by commas: if one does not answer, the next one is asked",
        unset="required for `confluent` without `protobuf.descriptors`",
    )
    options: Options = setting(
        {},
        "Settings of the registry client under its own names, with `${NAME}` as in `kafka.options`.",
        [{"ssl.ca.location": "/etc/ssl/registry-ca.pem"}],
        unit="texts, numbers, booleans",
        unset="none",
        repr=False,
    )
    descriptors: str = setting(
        "",
        "A file of descriptors, which describes the message and all that it imports, instead of a registry. "
        "Read at start.",
        ["schemas/order.desc"],
        unit="a path",
        unset="required for `plain`",
    )
    message: str = setting(
        "",
        "The full name of the message that each value is. Other messages are errors. Without it, with a "
        "registry, each value is read by its own type.",
        ["shop.Order"],
        unit="package and name",
        unset="required for `protobuf.descriptors`",
    )


class Output(Section):
    """The output topics."""

    unique: TopicOrNone = setting(
        "",
        "The topic for unique records: the first record with each key, unless it is expired.",
        ["orders.unique"],
        unit="a topic",
        unset=REQUIRED,
    )
    duplicate: TopicOrNone = setting(
        "",
        "The topic for records whose key was seen before. Not needed with `dedup.enabled = false`.",
        ["orders.duplicate"],
        unit="a topic",
        unset=REQUIRED,
    )
    conflict: TopicOrNone = setting(
        "",
        'The topic for duplicates with other content, with `dedup.conflict = "topic"`.',
        ["orders.conflict"],
        unit="a topic",
        unset='required with `dedup.conflict = "topic"`',
    )
    expired: TopicOrNone = setting(
        "",
        "The topic for records that are too old. Not needed if nothing expires.",
        ["orders.expired"],
        unit="a topic",
        unset=REQUIRED,
    )
    error: TopicOrNone = setting(
        "",
        "The topic for records that can't be processed. They keep their bytes; headers say what is wrong.",
        ["orders.error"],
        unit="a topic",
        unset=REQUIRED,
    )
    stamp: Literal["key", "header", "none"] = setting(
        "key",
        "Where this service's own stamp goes, by which the next service can filter its replays. `key`: "
        "it is the key of the records written. With `header` and `none`, records keep their own keys.",
        ["header"],
        unit="`key`, `header` (`rf-stamp`), `none`",
    )


class Http(Section):
    """Metrics, health checks and the status page."""

    port: int = setting(
        0,
        "The port for metrics, health checks and the status page; `0`: none.",
        [9400],
        unit="0 to 65535",
        ge=0,
        le=65535,
    )
    bind: Address = setting(
        "127.0.0.1",
        "The address to listen on. There is no password, and the status page shows counts, topics and this "
        "config without its secrets. Use `0.0.0.0` only in a network that you trust.",
        ["0.0.0.0"],
        unit="an address or host name",
    )
    stale_after: Annotated[Duration, Field(gt=0)] = setting(
        120 * 10**6,
        "`/readyz` fails after records have waited this long without a commit, or after Kafka has not "
        "answered for this long. Must be longer than your longest batch.",
        ["10m"],
    )

    @property
    def host(self) -> str:
        """The host for a URL that works on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind)
        return f"[{host}]" if ":" in host else host
