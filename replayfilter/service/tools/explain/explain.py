"""Explains one record: what it is, where it was written, and what the state says about it now.

Kafka still has the record itself and what was written for it. The state is that of now: what it was when the
record was decided is not kept, and each line about it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
from confluent_kafka import Message

from replayfilter.core.digest import partition_salt
from replayfilter.core.rules import Rules, Scope
from replayfilter.core.stamp import STAMP_HEADER, Stamp, last_header
from replayfilter.errors import BrokerError, ConfigError, ReplayfilterError
from replayfilter.formats import Extraction, KeySpec, RecordColumns, build_extractor
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk_reader import ChunkReader
from replayfilter.kafka.client_settings import Settings, client_settings
from replayfilter.kafka.offsets import FIRST
from replayfilter.kafka.reader import RangeReader
from replayfilter.service.config.model import Config
from replayfilter.service.runtime.checkpoint import (
    IDENTITY,
    Identity,
    identity_of,
    open_checkpoint,
)
from replayfilter.service.runtime.plan import key_spec_of, rules_of
from replayfilter.service.runtime.preflight import core_count
from replayfilter.service.tools.explain.record_search import (
    Address,
    address_of,
    find_by_input_offset,
    find_earlier_writes,
    find_equal_keys,
    read_one,
)
from replayfilter.service.tools.explain.state_lines import Line, bucket_text, expiry_text, state_lines
from replayfilter.service.tools.explain.stored_facts import DedupKey
from replayfilter.service.tools.own_stamps import own_pids
from replayfilter.spark.output_headers import CONFLICT_HEADER, CONNECT_HEADERS, FIRST_HEADER, LATE_HEADER
from replayfilter.watermark.times import format_time

_SHOWN_HEADERS = ("rf-reason", "rf-message", "rf-stage", LATE_HEADER, FIRST_HEADER, CONFLICT_HEADER)
_DUPLICATES = ("output.duplicate", "output.conflict")
_ROUTES = {"replay.topic": "replay"}  # the others are named after their key in the config

# A search reads a little at many places. A fetch that waits at the end of a partition holds up the next one.
_SEEKING: Settings = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5}


class Explainer:
    """Explains records of one service. Raises BrokerError if a topic is missing or can't be read."""

    def __init__(self, config: Config) -> None:
        self._config = config
        options = config.client_options()
        self._cluster = Cluster(config.kafka.bootstrap, options)
        self.settings: Settings = _SEEKING | client_settings(config.kafka.bootstrap, options)
        self._outputs = {topic: path for path, topic in config.output_topics().items()}
        names = [*config.input.topics, *self._outputs]
        self._topics = self._cluster.topics(names)
        if missing := set(names) - self._topics.keys():
            raise BrokerError(f"there is no topic {', '.join(sorted(missing))}; correct the config")
        cluster_id = self._cluster.id
        self._pids = own_pids(
            cluster_id, config.service.name, self._topics, config.input.topics, self._outputs
        )
        ids = {name: self._topics[name].id for name in config.input.topics}
        self._checkpoint = open_checkpoint(config)
        stored = self._checkpoint.read(IDENTITY)
        kept = Identity.from_bytes(stored) if stored is not None else None
        self._has_state = kept is not None
        identity = identity_of(config, cluster_id, ids, core_count(config.service.master), kept)
        self._rules: Rules = rules_of(config, identity, None)
        self._keys: KeySpec = key_spec_of(config, identity)
        self._stamps_in = config.input.stamp if config.replay.enabled else "none"

    def lines(self, asked: Address, with_state: bool = True, find_first: bool = False) -> Iterator[Line]:
        """The explanation of a record in an input or an output topic, line by line as it is found.

        ``with_state``: also what the state says. ``find_first``: search the unique topic for the record that
        a duplicate repeats, if its headers don't say it.
        Raises ConfigError for a topic of another service, and BrokerError if there is no such record.
        """
        with RangeReader(self.settings, "replayfilter-explain", offset_reset="earliest") as reader:
            if asked.topic in self._outputs:
                at = self._origin(reader, asked)
                yield Line("asked for", f"{asked}, a record in {self._outputs[asked.topic]}, made from {at}")
            elif asked.topic in self._config.input.topics:
                at = asked
            else:
                raise ConfigError([
                    f"--record {asked}: {asked.topic} is neither an input nor an output of this config; use "
                    f"one of {', '.join(self._topics)}"
                ])  # fmt: skip
            begin, message = self._read_input(reader, at)
            stamp: Stamp | None = None
            key: DedupKey | None = None
            if message is None:
                yield Line("record", f"{at}: no longer in the topic, which begins at offset {begin}")
            else:
                stamp = self._stamp(message)
                yield from self._record_lines(at, message, stamp)
                key, lines = self._decoded(at, message)
                yield from lines
            yield from self._written_lines(reader, at, message, stamp, begin, find_first)
        if with_state and not self._has_state:
            yield Line("state", f"no service has run with the checkpoint {self._config.service.checkpoint}")
        elif with_state:
            yield from state_lines(self._config, self._checkpoint, self._rules, stamp, key)

    # -- the record ----------------------------------------------------------------------------------

    def _origin(self, reader: RangeReader, asked: Address) -> Address:
        """The input record that a record in an output topic was made from."""
        begin, message = self._read_input(reader, asked)
        if message is None:
            raise BrokerError(f"--record {asked}: no longer in the topic, which begins at offset {begin}")
        origin = self._input_address(message.key(), message.headers())
        if origin is None:
            raise BrokerError(
                f"--record {asked}: it has neither a stamp of this service nor headers that say where it "
                "comes from; give the input record, or see `verify`"
            )
        return origin

    def _read_input(self, reader: RangeReader, at: Address) -> tuple[int, Message | None]:
        """The begin of the record's partition, and the record; None if it is no longer there.

        Raises BrokerError if it was never there.
        """
        if at.partition >= self._topics[at.topic].partitions:
            raise BrokerError(
                f"--record {at}: {at.topic} has only the partitions 0 to "
                f"{self._topics[at.topic].partitions - 1}"
            )
        begin = self._cluster.beginning_offsets([at.input_partition])[at.input_partition]
        end = self._cluster.end_offsets([at.input_partition])[at.input_partition]
        if at.offset >= end:
            raise BrokerError(f"--record {at}: there is no such record yet, the partition ends at {end}")
        if at.offset < begin:
            return begin, None
        message = read_one(reader, at)
        if message is None:
            raise BrokerError(
                f"--record {at}: no record is at this offset; it is that of the end of a transaction, or of "
                "a record that was aborted or compacted away"
            )
        return begin, message

    def _record_lines(self, at: Address, message: Message, stamp: Stamp | None) -> Iterator[Line]:
        value, time_ms = message.value(), message.timestamp()[1]
        size = "null" if value is None else f"{len(value):,} bytes"
        yield Line("record", f"{at}: {size}, timestamp {format_time(time_ms * 1000)}")
        if self._stamps_in == "none":
            yield Line("stamp", "not read: replay.enabled = false")
        elif stamp is None:
            where = "key" if self._stamps_in == "key" else f"header {STAMP_HEADER}"
            yield Line("stamp", f"none in the {where}, so it can't be a replay")
        else:
            yield Line("stamp", f"source {stamp.pid}/{stamp.partition}, offset {stamp.offset}")
        if redriven := _header(message, "rf-redriven"):
            yield Line("redriven", f"{redriven.decode('utf-8', 'replace')} times")

    def _decoded(self, at: Address, message: Message) -> tuple[DedupKey | None, list[Line]]:
        """The record's key, and what the config of now reads in it."""
        try:
            extraction = _extract(self._keys, message)
        except ReplayfilterError as error:
            return None, [Line("decoded", f"not now: {error}")]
        if extraction.errors:
            _, reason, why = extraction.errors[0]
            return None, [Line("decoded", f"an error, by the config of now: {reason}, {why}")]
        if not self._rules.dedup:
            return None, [Line("decoded", "without errors; dedup.enabled = false, so no key is read")]
        hi, lo = extraction.digests[0].tolist()
        if self._rules.scope is Scope.PARTITION:
            salt = partition_salt(*at.input_partition)
            hi, lo = hi ^ salt[0], lo ^ salt[1]
        if extraction.nulls:
            text = f'a null value; input.on_null = "{self._config.input.on_null}"'
            if message.value() is not None:
                text = "a record of a kind that has no key of its own; it passes as unique"
            return None, [Line("decoded", text)]
        key = DedupKey(hi, lo, int(extraction.expiry[0]))
        text = f"digest of the key {hi:016x}{lo:016x}"
        if self._rules.clock.expires:
            text += f", expiry key {expiry_text(key.expiry, self._rules)}"
        return key, [Line("decoded", text), Line("bucket", bucket_text(key, self._rules))]

    # -- where it was written ------------------------------------------------------------------------

    def _written_lines(
        self,
        reader: RangeReader,
        at: Address,
        message: Message | None,
        stamp: Stamp | None,
        begin: int,
        find_first: bool,
    ) -> Iterator[Line]:
        entries = self._cluster.committed_entries(
            self._config.service.name, [at.input_partition], stable=False
        )
        entry = entries.get(at.input_partition)
        if entry is None or entry.offset <= at.offset or entry.metadata == FIRST:
            where = "has no offset here" if entry is None else f"is at offset {entry.offset}"
            yield Line("delivered", f"not yet: the service's group {where}")
            return
        yield Line("delivered", f"yes: the service's group is at offset {entry.offset}")
        found = self._find_output(reader, at, message)
        if found is not None:
            place = address_of(found)
            path = self._outputs[place.topic]
            yield Line("written", f"to {place}: {_ROUTES.get(path, path.split('.')[1])}")
            for name in _SHOWN_HEADERS:
                if (text := _header(found, name)) is not None:
                    yield Line(name, text.decode("utf-8", "replace"))
            if path in _DUPLICATES and _header(found, FIRST_HEADER) is None:
                yield from self._first_lines(at, message, find_first)
            if path == "replay.topic" and stamp is not None:
                yield Line("repeats", self._replay_of(reader, at, stamp, begin) or "records that are gone")
            return
        yield from self._dropped_lines(reader, at, message, stamp, begin)

    def _first_lines(self, at: Address, message: Message | None, find_first: bool) -> Iterator[Line]:
        """The unique records with the key of a duplicate."""
        extract = build_extractor(self._keys)
        if not find_first or message is None:
            hint = "not remembered; --find-first searches the unique topic"
            yield Line("repeats", f"{hint}, dedup.remember_first = true puts it into the header rf-first")
            return
        if "keys" in extract.needs and self._config.output.stamp == "key":
            yield Line("repeats", "can't be found: dedup.key reads @key, which output.stamp has replaced")
            return
        topic = self._config.output.unique
        partitions = [(topic, number) for number in range(self._topics[topic].partitions)]
        begins, ends = self._cluster.beginning_offsets(partitions), self._cluster.end_offsets(partitions)
        options = self._config.client_options()
        digest = _extract(self._keys, message).digests[0]
        count, scoped = 0, self._rules.scope is Scope.PARTITION
        with closing(ChunkReader(self._config.kafka.bootstrap, "replayfilter-explain", options)) as chunks:
            ranges = {each: (begins[each], ends[each]) for each in partitions}
            for place, key, headers in find_equal_keys(chunks, ranges, extract, digest):
                origin = self._input_address(key, headers)
                if origin is None or not scoped or origin.input_partition == at.input_partition:
                    count += 1
                    yield Line("repeats", f"{place}" + (f", made from {origin}" if origin else ""))
        if not count:
            yield Line("repeats", f"no record in {topic} has its key any more")
        elif count > 1:
            yield Line("repeats", "one of these: their keys were forgotten in between")

    def _dropped_lines(
        self, reader: RangeReader, at: Address, message: Message | None, stamp: Stamp | None, begin: int
    ) -> Iterator[Line]:
        """Why a record that was decided is in no output."""
        if message is None or stamp is None:
            text = "in no output any more: a replay, or the output has been deleted"
            if self._config.output.stamp == "none":
                text = "not found: outputs have no stamps, and the record to compare them with is gone"
            yield Line("written", text)
            return
        if (why := self._replay_of(reader, at, stamp, begin)) is not None:
            yield Line("written", f"nowhere: {why}")
            return
        yield Line(
            "written",
            f"in no output, and no earlier record of its source is in {at.topic}-{at.partition} from "
            f"offset {begin} on: its mark came from records that are gone or in another partition, or "
            "the output has been deleted; `verify` checks all records",
        )

    def _replay_of(self, reader: RangeReader, at: Address, stamp: Stamp, begin: int) -> str | None:
        """Why a record is a replay; None if its input partition doesn't show it."""
        earlier = find_earlier_writes(reader, at, begin, stamp, self._stamp)
        if earlier.same is not None:
            return f"a replay of {earlier.same}, which has the same stamp"
        if earlier.above is not None:
            place, other = earlier.above
            return f"a replay, since {place} of the same source has offset {other.offset}"
        return None

    def _find_output(self, reader: RangeReader, at: Address, message: Message | None) -> Message | None:
        """The record that was written for an input record."""

        def input_offset(written: Message) -> int | None:
            origin = self._input_address(written.key(), written.headers())
            return origin.offset if origin and origin.input_partition == at.input_partition else None

        for partition, begin, end in self._candidates(at):
            found = find_by_input_offset(reader, partition, begin, end, at.offset, input_offset)
            if found is not None:
                return found
        if self._config.output.stamp == "none" and message is not None:
            return self._find_equal(reader, at, message)
        return None

    def _candidates(self, at: Address) -> Iterator[tuple[tuple[str, int], int, int]]:
        """The output partitions that it may be in, with begin and end; those of earlier counts come last."""
        seen: set[tuple[str, int]] = set()
        for back in range(max(self._topics[topic].partitions for topic in self._outputs)):
            new = {
                (topic, at.partition % (self._topics[topic].partitions - back))
                for topic in self._outputs
                if self._topics[topic].partitions > back
            } - seen
            seen |= new
            begins, ends = self._cluster.beginning_offsets(new), self._cluster.end_offsets(new)
            for partition in sorted(new):
                yield partition, begins[partition], ends[partition]

    def _find_equal(self, reader: RangeReader, at: Address, message: Message) -> Message | None:
        """A record with the same value and timestamp, where outputs have no stamps."""
        for partition, begin, end in self._candidates(at):
            first = self._cluster.offsets_at([partition], message.timestamp()[1])[partition]
            for written in reader.read({partition: (max(begin, first), end)} if first >= 0 else {}):
                if written.value() == message.value() and written.timestamp() == message.timestamp():
                    return written
        return None

    def _input_address(self, key: Any, headers: Any) -> Address | None:
        """The input record that an output record was made from: by its stamp, else by its headers."""
        named = dict(headers or ())  # the last header of a name
        for blob in (key, named.get(STAMP_HEADER)):
            stamp = Stamp.from_bytes(blob if isinstance(blob, bytes) else None)
            if stamp is not None and (written := self._pids.get(stamp.pid)) is not None:
                return Address(written.input_topic, stamp.partition, stamp.offset)
        topic, *numbers = ((named.get(name) or b"").decode("utf-8", "replace") for name in CONNECT_HEADERS)
        if topic in self._config.input.topics and all(
            each.isascii() and each.isdecimal() for each in numbers
        ):
            return Address(topic, *map(int, numbers))
        return None

    def _stamp(self, message: Message) -> Stamp | None:
        """The stamp that the record came with."""
        if self._stamps_in == "none":
            return None
        blob: Any = message.key() if self._stamps_in == "key" else _header(message, STAMP_HEADER)
        return Stamp.from_bytes(blob)


def _extract(keys: KeySpec, message: Message) -> Extraction:
    headers: Any = message.headers() or None
    value: Any = message.value()
    key: Any = message.key()
    columns = RecordColumns([value], [key], np.array([message.timestamp()[1]], np.int64), [headers])
    return build_extractor(keys)(columns)


def _header(message: Message, name: str) -> bytes | None:
    """The value of the last header with this name; None if there is none."""
    pairs: Any = message.headers()
    return last_header(pairs, name)
