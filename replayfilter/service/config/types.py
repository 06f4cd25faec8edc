"""The sections of a config and all their keys: kind, default, meaning, unit and examples.

docs/reference/configuration.md and schemas/config.schema.json are made from these (``make docs``,
``make schemas``). ""
and [] mean "not set". What must be set depends on other keys, so checks.py says it, not pydantic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import NoDecode

from replayfilter.settings import value_types as kinds

MUST = "must be set"


def setting(
    default: object, meaning: str, examples: Sequence[object], unit: str = "", unset: str = "", **limits: Any
) -> Any:
    """A key of a section, with what its documentation says of it.

    ``examples``: as they are written in the file, the first for messages, the last for the documentation.
    ``unit``: unit or values, where the type doesn't say them. ``unset``: what the default means, where it
    is no value.
    """
    shown: dict[str, Any] = {name: text for name, text in (("unit", unit), ("unset", unset)) if text}
    return Field(
        default=default, description=meaning, examples=list(examples), json_schema_extra=shown, **limits
    )


class Section(BaseModel):
    """What all sections share: unknown keys are faults, and nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Service(Section):
    """Who the service is, where it remembers, and how much it takes at once."""

    name: kinds.ServiceName = setting(
        "",
        "Names the consumer group, the transactions (`<name>-<lane>`) and the state. One running "
        "service per name and Kafka cluster.",
        ["orders"],
        unit="up to 200 of `a-z A-Z 0-9 . _ -`, first a letter or digit",
        unset=MUST,
    )
    checkpoint: kinds.Checkpoint = setting(
        "",
        "The folder of the service's memory: marks, remembered keys, offsets. Relative paths start at "
        "the folder in which the command is run. With workers on other machines, a folder that all of "
        "them mount at the same place. `hdfs:/` and `s3a:` URLs are refused by `run` in this version: "
        "the service could not keep a second one off such a checkpoint.",
        ["checkpoint/orders"],
        unit="a path, or a `file:/` URL",
        unset=MUST,
    )
    master: kinds.Master = setting(
        "local[*]",
        "Where Spark runs.",
        ["local[4]"],
        unit="`local`, `local[N]`, `local[*]`, `spark://...`, `yarn`, `k8s://...`",
    )
    shards: int = setting(
        0,
        "Into how many parts state and delivery are divided: at most so many tasks work at once. Fixed "
        "in the checkpoint at first start. `0`: the cores of a local master; for a cluster it must be "
        "set.",
        [16],
        unit="0 to 1024",
        ge=0,
        le=1024,
    )
    batch_records: int = setting(
        1_200_000,
        "The most records in one micro-batch. Less costs throughput after a standstill, more costs disk "
        "space for shuffling and makes a batch longer.",
        [200000],
        unit="records",
        ge=1,
    )
    batch_bytes: Annotated[kinds.Bytes, Field(ge=1_000_000)] = setting(
        512_000_000, "The most bytes in one micro-batch, estimated by the average record seen.", ["1GiB"]
    )


class Kafka(Section):
    """The cluster, and client settings by Kafka's own names."""

    bootstrap: kinds.Brokers = setting(
        "",
        "Brokers to ask first.",
        ["localhost:9092", "kafka-1:9092,kafka-2:9092"],
        unit="`host:port`, several with commas",
        unset=MUST,
    )
    options: kinds.Options = setting(
        {},
        "Client settings by Kafka's own names, for reading and writing. `${NAME}` in a value is "
        "replaced by the environment variable NAME; one that is not set is a fault. Secrets belong "
        "there: they are never shown.",
        [{"security.protocol": "SASL_SSL"}],
        unit="texts, numbers, booleans",
        unset="none",
        repr=False,
    )


class Input(Section):
    """What is read, and where its records carry their stamp."""

    topics: kinds.Topics = setting(
        [], "What is read.", [["orders"], ["orders", "refunds"]], unit="list of topics", unset=MUST
    )
    format: Literal["json", "avro", "raw"] = setting(
        "json",
        "How fields are taken out of a value. `raw` has no fields: only `@` names can be used. `avro`: "
        "see the section [avro].",
        ["raw"],
    )
    stamp: Literal["key", "header", "none"] = setting(
        "key",
        "Where records carry the stamp by which replays are known. `none` needs `replay.enabled = false`.",
        ["header"],
        unit="`key`, `header` (`rf-stamp`), `none`",
    )
    starting: Literal["earliest", "latest"] = setting(
        "earliest", "Where the first start begins; later ones go on where the last ended.", ["latest"]
    )


class Avro(Section):
    """Where the schemas of Avro values are; read with ``input.format = "avro"``."""

    encoding: Literal["confluent", "single-object", "plain"] = setting(
        "confluent",
        "What stands before each value. `confluent`: a zero byte and the schema's id in a registry (4 "
        "bytes). `single-object`: `C3 01` and the schema's fingerprint (CRC-64-AVRO, 8 bytes). `plain`: "
        "nothing, all values have one schema.",
        ["plain"],
    )
    registry: kinds.Registries = setting(
        "",
        "The schema registry, for `confluent`.",
        ["http://localhost:8081", "https://registry:8081"],
        unit="URL, several with commas: the next is asked when one does not answer",
        unset="must be set for `confluent`",
    )
    options: kinds.Options = setting(
        {},
        "Settings of the registry's client by its own names, with `${NAME}` as in `kafka.options`.",
        [{"ssl.ca.location": "/etc/ssl/registry-ca.pem"}],
        unit="texts, numbers, booleans",
        unset="none",
        repr=False,
    )
    schemas: kinds.Texts = setting(
        [],
        "Schema files, for the other two encodings: one for `plain`, all that writers use for "
        "`single-object`. Read at start.",
        [["schemas/order.avsc"]],
        unit="list of paths",
        unset="must be set for those two",
    )


class Replay(Section):
    """Dropping what an upstream job wrote again."""

    enabled: bool = setting(True, "Drop records that an upstream job wrote again.", [False])
    mark_ttl: Annotated[kinds.Duration, Field(gt=0)] = setting(
        48 * 3600 * 10**6,
        "How long a source may be silent until its mark is forgotten. Longer than any pause after which "
        "an upstream job may write again.",
        ["14d"],
    )
    on_invalid: Literal["pass", "error"] = setting(
        "pass",
        "What becomes of a record without a stamp: it passes unfiltered, or goes to the error topic.",
        ["error"],
    )
    topic: kinds.TopicOrNone = setting(
        "", "Replays go to this topic instead of nowhere.", ["orders.replay"], unit='a topic, or `""`'
    )


class Dedup(Section):
    """Which records are the same, and for how long that is remembered."""

    enabled: bool = setting(
        True,
        "Look for expired and duplicate records. `false`: only replays are filtered, and no other key "
        "of this section is needed.",
        [False],
    )
    key: kinds.Texts = setting(
        [],
        "The fields that make two records the same.",
        [["event_id"], ["shop", "order.id"]],
        unit="list of paths (`user.id`), `@key`, `@value`, `@header:NAME`",
        unset=MUST,
    )
    expiry_key: str = setting(
        "",
        'The field that ages a record. Not needed with `clock = "none"` and `match = "window"`.',
        ["ts"],
        unit="a path or `@timestamp`",
        unset=MUST,
    )
    unit: Literal["s", "ms", "us", "ns", "iso8601", "integer"] = setting(
        "ms",
        "What the expiry key is counted in; `iso8601`: a text such as `2024-05-01T12:00:00Z`, kept in "
        "microseconds. `integer` goes with clocks that don't know time.",
        ["iso8601"],
    )
    clock: Literal["tuple", "system", "watermark", "ordered", "categorical", "none"] = setting(
        "tuple",
        "What time it is. `tuple`: the largest expiry key seen. `system`: the wall clock. `ordered`: as "
        "`tuple`, for any integer key in its own units (transaction and sequence ids). `categorical`: "
        "keys without order that arrive grouped, such as file names; they expire once `period` other "
        "categories have appeared after them in the same input partition. `none`: nothing expires "
        "(bounded data; memory grows with the number of keys). `watermark`: the low watermark of "
        "[watermark]; it must be enabled.",
        ["system"],
    )
    period: str | int = setting(
        "",
        "How far behind the clock a record may be; at that distance it is expired. Keys are remembered "
        'that long. May be changed between two starts. Not used with `clock = "none"`.',
        ["1h", "36h"],
        unit="duration, a whole number of `unit`; a plain integer with `ordered` and `categorical`",
        unset=MUST,
    )
    bucket_span: str | int = setting(
        "",
        "Keys are forgotten in buckets of this width. Narrower: memory is freed sooner, a little more "
        "work per batch. Fixed in the checkpoint at first start.",
        ["5m"],
        unit="as `period`, at most that",
        unset="a twelfth of `period`, rounded down, at least one unit",
    )
    match: Literal["window", "bucket"] = setting(
        "window",
        "`window`: the same key within the period is a duplicate. `bucket`: only within the same "
        "bucket, which is faster, and right when equal keys always carry equal expiry keys.",
        ["bucket"],
    )
    max_future: kinds.Duration = setting(
        600 * 10**6,
        "A record further ahead of the wall clock than this goes to the error topic with reason "
        "`future`, so that one wrong clock can't expire everything.",
        ["1h"],
    )
    max_jump: int | None = setting(
        None,
        'With `clock = "ordered"`: a key more than this above the latest point goes to the error topic '
        "with reason `jump` and moves nothing. The very first key has nothing to be compared with. Left "
        "out: any step is taken.",
        [100000],
        unit="a plain integer",
        unset="none",
        ge=0,
    )
    remember_first: bool = setting(
        False,
        "Duplicates carry the header `rf-first` with the record that they repeat, as "
        "`topic/partition/offset`. Costs 12 more bytes for each key remembered. Belongs to the state: "
        "can't be changed on a live checkpoint.",
        [True],
    )
    cache: Annotated[kinds.Bytes, Field(ge=1_000_000)] = setting(
        2_000_000_000,
        "How much of the remembered keys each host keeps at hand in files, mapped into memory and "
        "shared by its workers; the rest is read from the state when needed. A key takes 18 to 22 bytes "
        "there (30 to 34 with `remember_first`).",
        ["8GB"],
    )


class Output(Section):
    """Where each kind of record goes."""

    unique: kinds.TopicOrNone = setting(
        "",
        "Records that are the first of their kind, in time.",
        ["orders.unique"],
        unit="a topic",
        unset=MUST,
    )
    duplicate: kinds.TopicOrNone = setting(
        "",
        "Records whose key was seen before. Not needed with `dedup.enabled = false`.",
        ["orders.duplicate"],
        unit="a topic",
        unset=MUST,
    )
    expired: kinds.TopicOrNone = setting(
        "",
        "Records that are too old. Not needed where nothing expires.",
        ["orders.expired"],
        unit="a topic",
        unset=MUST,
    )
    error: kinds.TopicOrNone = setting(
        "",
        "Records that can't be read, with their own bytes and headers that say why.",
        ["orders.error"],
        unit="a topic",
        unset=MUST,
    )
    key: Literal["stamp", "preserve"] = setting(
        "stamp",
        "The key of what is written: this service's own stamp, so that the next service can filter our "
        "replays, or the key that the record had.",
        ["preserve"],
    )


class Watermark(Section):
    """Counting who is how far, so that it is known when a time is complete."""

    enabled: bool = setting(
        False,
        "Whether a watermark is kept, stamped on every record that is written as `rf-watermark` "
        "(microseconds since the epoch; the watermark before the record's batch), and there for "
        "`dedup.clock`.",
        [True],
    )
    origin: str = setting(
        "",
        "Who wrote a record: each origin writes in time order. A record without one counts for nothing.",
        ["host"],
        unit='a field, `"@key"` or `"@header:NAME"`',
    )
    time: str = setting("", "When it was written.", ["ts"], unit='a field or `"@timestamp"`')
    unit: Literal["s", "ms", "us", "ns", "iso8601"] = setting("ms", "The unit of that time.", ["s"])
    roster: Annotated[list[str] | str, NoDecode] = setting(
        "",
        "The origins to expect: a list, or a file with one a line; a change is taken up without a restart.",
        ["hosts.txt"],
        unit="names or a path",
    )
    idle: Annotated[list[str] | str, NoDecode] = setting(
        "",
        "Those of them with nothing to say until further notice, each until it goes ahead: a list or a file.",
        [["host-7"]],
        unit="names or a path",
    )
    completeness: kinds.Share = setting(
        "1",
        "The share of origins that must have passed a time.",
        ["0.999"],
        unit="a decimal above 0 and up to 1, as text",
    )
    servers: kinds.Texts = setting(
        [],
        "Watermark servers of one store to report to after each batch, to the stage named like the service.",
        [["http://127.0.0.1:8321"]],
        unit="URLs",
    )
    token: str = setting("", "Their token.", ["${RF_TOKEN}"], unit="text, best `${VARIABLE}`", repr=False)


class Http(Section):
    """Metrics, health and the status page."""

    port: int = setting(
        0,
        "Port for metrics, health and the status page; `0`: none.",
        [9400],
        unit="0 to 65535",
        ge=0,
        le=65535,
    )
    bind: kinds.Address = setting(
        "127.0.0.1",
        "The address listened on. Others see what is shown there (counts, topics, this config without "
        "secrets), and there is no password: bind to all addresses only where your network keeps "
        "strangers out.",
        ["0.0.0.0"],
        unit="an address or host name",
    )
    stale_after: Annotated[kinds.Duration, Field(gt=0)] = setting(
        120 * 10**6,
        "`/readyz` says no when records have waited so long without a commit, or Kafka has not answered "
        "for so long. Longer than your longest batch.",
        ["10m"],
    )

    @property
    def host(self) -> str:
        """Where this machine reaches it, for a URL."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind)
        return f"[{host}]" if ":" in host else host
