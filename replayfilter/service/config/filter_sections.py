"""The sections about what is filtered: replay, dedup, and the watermark by which records may expire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from pydantic_settings import NoDecode

from replayfilter.service.config.section import REQUIRED, Section, setting
from replayfilter.settings.value_types import Bytes, Duration, Share, Texts, TopicOrNone


class Replay(Section):
    """Dropping records that an upstream job wrote again."""

    enabled: bool = setting(True, "Drop records that an upstream job wrote again.", [False])
    mark_ttl: Annotated[Duration, Field(gt=0)] = setting(
        48 * 3600 * 10**6,
        "The mark of a source that has sent nothing for this long is forgotten. Downtime of this service "
        "does not count. Must be longer than any pause after which an upstream job may write records again.",
        ["14d"],
    )
    max_sources: Annotated[int, Field(gt=0)] = setting(
        100_000,
        "With more sources than this, the service stops before it delivers. So many sources usually mean "
        "keys of 20 bytes that are no stamps. Each takes 61 bytes of state in every shard.",
        [1_000_000],
        unit="from 1",
    )
    on_invalid: Literal["pass", "error"] = setting(
        "pass",
        "What happens to a record without a valid stamp. `pass`: it is not checked for replays. `error`: it "
        "goes to the error topic.",
        ["error"],
    )
    topic: TopicOrNone = setting(
        "",
        "A topic for replays. Without one they are dropped.",
        ["orders.replay"],
        unit='a topic, or `""`',
    )


class Dedup(Section):
    """Which records count as the same, and how long their keys are remembered."""

    enabled: bool = setting(
        True,
        "Find expired and duplicate records. `false`: only replays are filtered, and no other key of this "
        "section is needed.",
        [False],
    )
    key: Texts = setting(
        [],
        "The fields of the dedup key: two records in which all are equal are the same.",
        [["event_id"], ["shop", "order.id"]],
        unit="list of paths (`user.id`), `@key`, `@value`, `@header:NAME`",
        unset='required, except with `input.format = "cloudevents"` or `"debezium"`',
    )
    expiry_key: str = setting(
        "",
        'The field that ages a record. Not needed with `clock = "none"` and `match = "window"`.',
        ["ts"],
        unit="a path, `@timestamp` or `@header:NAME`",
        unset='required, except with `input.format = "cloudevents"` or `"debezium"`',
    )
    unit: Literal["s", "ms", "us", "ns", "iso8601", "integer"] = setting(
        "ms",
        "The unit of the expiry key. `iso8601`: a text such as `2024-05-01T12:00:00Z`, stored in "
        "microseconds. `integer`: any integer, for the clocks `ordered` and `categorical`.",
        ["iso8601"],
    )
    clock: Literal["tuple", "system", "watermark", "ordered", "categorical", "none"] = setting(
        "tuple",
        "What the age of a record is measured against. `tuple`: the largest expiry key so far. `system`: "
        "the wall clock. `ordered`: like `tuple`, for any integer key in its own units (transaction and "
        "sequence ids). `categorical`: keys without order that arrive in groups, such as file names; a key "
        "expires after `period` other categories have appeared after it in the same input partition. "
        "`none`: nothing expires (for bounded data: memory grows with the number of keys). `watermark`: the "
        "low watermark, which [watermark] must enable.",
        ["system"],
    )
    period: str | int = setting(
        "",
        "A record this far behind the clock, or further, is expired. Keys are remembered for as long. May be "
        'changed between two starts. Not used with `clock = "none"`.',
        ["1h", "36h"],
        unit="duration, a whole number of `unit`; a plain integer with `ordered` and `categorical`",
        unset=REQUIRED,
    )
    bucket_span: str | int = setting(
        "",
        "The width of the buckets in which keys are forgotten. Narrow buckets free memory sooner and make "
        "each batch slightly slower. The first start stores it in the checkpoint; to change it later, "
        "[rebuild](../guides/rebuild.md) the checkpoint.",
        ["5m"],
        unit="like `period`, and no longer",
        unset="a twelfth of `period`, rounded down, at least one unit",
    )
    match: Literal["window", "bucket"] = setting(
        "window",
        "`window`: a record is a duplicate if its key was seen within the period. `bucket`: only if it was "
        "seen in the same bucket. That is faster, and exact if equal keys always have equal expiry keys.",
        ["bucket"],
    )
    refresh: bool = setting(
        False,
        "A duplicate with a later expiry key starts the period of its key again, so a key that keeps coming "
        "is never unique twice. Costs up to as much state as if each such duplicate were unique. May be "
        'changed between two starts. Needs `match = "window"` and any clock but `categorical` and `none`.',
        [True],
    )
    scope: Literal["input", "partition"] = setting(
        "input",
        "Where equal keys make duplicates. `input`: in all input partitions together. `partition`: only "
        "within an input partition, which is faster, and exact if equal keys always come in the same "
        "partition. Part of the state: to change it, [rebuild](../guides/rebuild.md) the checkpoint.",
        ["partition"],
    )
    max_future: Duration = setting(
        600 * 10**6,
        "A record further ahead of the wall clock than this goes to the error topic with the reason "
        "`future`. This way one wrong clock can't expire everything.",
        ["1h"],
    )
    max_jump: int | None = setting(
        None,
        'With `clock = "ordered"`: a key further above the latest point than this goes to the error topic '
        "with the reason `jump` and doesn't advance the latest point. The very first key is not checked. If "
        "not set, any step is accepted.",
        [100000],
        unit="a plain integer",
        unset="none",
        ge=0,
    )
    conflict: Literal["off", "header", "topic"] = setting(
        "off",
        "Find duplicates whose content differs from that of the record that they repeat, which often means a "
        "wrong key. `header`: they carry the header `rf-conflict` and are counted. `topic`: they also go to "
        "`output.conflict` instead of the duplicate topic. Costs 4 bytes per remembered key. May be changed "
        "between two starts: for keys remembered before, no conflict is found.",
        ["header"],
    )
    conflict_fields: Texts = setting(
        ["@value"],
        "What is compared to find conflicts. `@value`: the values' bytes. Fields are compared like those of "
        "the key. May be changed between two starts, as `conflict`.",
        [["amount", "currency"]],
        unit="list of paths, `@key`, `@value`, `@header:NAME`",
    )
    remember_first: bool = setting(
        False,
        "Each duplicate carries the header `rf-first`: the `topic/partition/offset` of the first record "
        "with its key. Costs 12 more bytes per remembered key. Part of the state: to change it, "
        "[rebuild](../guides/rebuild.md) the checkpoint.",
        [True],
    )
    cache: Annotated[Bytes, Field(ge=1_000_000)] = setting(
        2_000_000_000,
        "The maximum size of the files in which each host caches remembered keys. All its workers map them "
        "into memory. Other keys are read from the state when needed. 18 to 22 bytes per key (30 to 34 with "
        "`remember_first`, and 4 more with `conflict`).",
        ["8GB"],
    )


class Watermark(Section):
    """The low watermark: the time up to which all origins have written their records."""

    enabled: bool = setting(
        False,
        "Compute a watermark. Each record written carries it in the header `rf-watermark` (microseconds "
        "since 1970, as it was before the record's batch), with `service.name` in `rf-service`, and "
        "`dedup.clock` can use it.",
        [True],
    )
    origin: str = setting(
        "",
        "The field that names the host or process that wrote a record. Each origin must write in time order. "
        "A record without one does not count.",
        ["host"],
        unit='a field, `"@key"` or `"@header:NAME"`',
    )
    time: str = setting(
        "",
        "The field with the time at which a record was written.",
        ["ts"],
        unit='a field or `"@timestamp"`',
    )
    unit: Literal["s", "ms", "us", "ns", "iso8601"] = setting("ms", "The unit of `time`.", ["s"])
    roster: Annotated[list[str] | str, NoDecode] = setting(
        "",
        "The origins to expect: a list, or a file with one name per line. A changed file takes effect "
        "without a restart of the service.",
        ["hosts.txt"],
        unit="names or a path",
    )
    idle: Annotated[list[str] | str, NoDecode] = setting(
        "",
        "Origins of the roster that have nothing to write and are not waited for. An origin counts again as "
        "soon as it makes progress. A list or a file.",
        [["host-7"]],
        unit="names or a path",
    )
    completeness: Share = setting(
        "1",
        "The share of origins that must have passed a time before the watermark does.",
        ["0.999"],
        unit="a decimal above 0 and up to 1, as text",
    )
    servers: Texts = setting(
        [],
        "The watermark servers to report to after each batch. They must share one store. The stage is named "
        "like the service. Without a roster, the service also asks them for the watermarks of its upstream "
        "stages.",
        [["http://127.0.0.1:8321"]],
        unit="URLs",
    )
    app: Annotated[str, StringConstraints(min_length=1, max_length=200)] = setting(
        "default",
        "The application of the service's stage: a server's applications have stages of their own. Services "
        "of the same name report to one server as different applications.",
        ["eu"],
        unit="text",
    )
    token: str = setting(
        "", "The servers' token.", ["${RF_TOKEN}"], unit="text, preferably `${VARIABLE}`", repr=False
    )
