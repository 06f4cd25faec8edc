"""A redrive: one job that reads the error or the expired topic and writes chosen records again, exactly once.

A job is known by what it is asked for: the topic it reads, the selection, and where records go. Its id is in
the name of a consumer group of its own. It delivers through one lane of this group (see kafka/lanes.py), so
records and offsets are in the same transactions: killed and started again, it continues where it was, and a
``read_committed`` reader sees nothing twice. With the offsets it commits how much it has done so far.

Stamps: the job has a pid for each partition that it reads and each topic that it writes to. The source
partition is the input partition where the record was first, and the source offset is that of the dead letter.
A record goes to the partition it came from, *source partition % partitions*. So each source is in one
partition, in order, and no mark of an earlier source is in its way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import xxhash

from replayfilter.core.input_partition import InputPartition
from replayfilter.core.stamp import producer_id, stamp_packer
from replayfilter.errors import BrokerError, ConfigError, DeliveryError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk import Chunk, Headers
from replayfilter.kafka.chunk_reader import ChunkReader, InputChunk
from replayfilter.kafka.lanes import Lanes
from replayfilter.kafka.reader import Range
from replayfilter.service.config.model import Config
from replayfilter.service.tools.own_stamps import own_pids
from replayfilter.service.tools.redrive.dead_letter import REASON_HEADER, DeadLetter, Restoring
from replayfilter.service.tools.redrive.request import Done, Request
from replayfilter.service.tools.redrive.selection import LeftOut, Summary

GROUP_INFIX = ".redrive."
TEXT_LIMIT = 3_500  # characters of a request as JSON; an offset has room for 4,095
_LANE = 0

Show = Callable[[int, int], None]  # gets the offsets passed so far, and all


@dataclass(frozen=True, slots=True)
class JobState:
    """What a job has done, and its next offsets in the topic that it reads."""

    done: Done
    next_offsets: Mapping[InputPartition, int]


@dataclass(slots=True)
class _Batch:
    """What is written in one transaction, and the next offsets after it."""

    chunks: list[Chunk] = field(default_factory=list)
    next_offsets: dict[InputPartition, int] = field(default_factory=dict)


class Redrive:
    """One job. Raises ConfigError for what can't be asked for, BrokerError if a topic is missing."""

    def __init__(self, config: Config, request: Request) -> None:
        self.request, self._config = request, config
        keys = config.dedup.key if config.dedup.enabled else []
        self._needs_key = "@key" in keys or config.input.on_null == "key"
        outputs = config.output_topics()
        self.source = _source(request, outputs)
        options = config.client_options()
        self._cluster = Cluster(config.kafka.bootstrap, options)
        inputs = config.input.topics
        names = {self.source, *inputs, *([request.to] if request.to else [])}
        self._topics = self._cluster.topics(names)
        if missing := names - self._topics.keys():
            raise BrokerError(
                f"there is no topic {', '.join(sorted(missing))} at {config.kafka.bootstrap}; correct its "
                "name, or create it first"
            )
        service, cluster_id = config.service.name, self._cluster.id
        self._pids = own_pids(cluster_id, service, self._topics, inputs, [self.source])
        to = f"{request.to} {self._topics[request.to].id}" if request.to else ""
        parts = (cluster_id, self._topics[self.source].id, json.dumps(request.values()), to)
        place = config.input.stamp if config.replay.enabled else "none"
        self._restoring = Restoring(request.route, place, self._pids, config.replay.on_invalid == "pass")
        self.id = xxhash.xxh3_64_hexdigest("\n".join(parts).encode())
        self.group = f"{service}{GROUP_INFIX}{self.id}"
        self._cluster_id = cluster_id
        self._respected: list[tuple[JobState, Request]] = []
        self._own: dict[tuple[int, str], int] = {}  # source partition, topic -> pid
        self._pack = stamp_packer()
        self.partitions = [(self.source, number) for number in range(self._topics[self.source].partitions)]

    # -- the two ways to execute it ------------------------------------------------------------------

    def preview(self, limit: int, show: Show) -> Summary:
        """What :meth:`execute` would do now; writes nothing."""
        summary = Summary()
        committed = self._cluster.committed(self.group, self.partitions, stable=False)
        ranges = self._ranges(committed)
        for _ in self._batches(ranges, summary, limit, show):
            pass
        return summary

    def execute(self, limit: int, show: Show) -> Summary:
        """Write the chosen records that were there at the start, at most ``limit`` (0: all).

        Raises DeliveryError if Kafka refuses one, or if another process executes the same job. Then nothing
        of the last transaction can be read, and the next execution continues before it.
        """
        summary, options = Summary(), self._config.client_options()
        targets = [self.request.to] if self.request.to else self._config.input.topics
        limits = self._cluster.max_message_bytes(targets)
        failed: DeliveryError | None = None
        lanes = Lanes(self._config.kafka.bootstrap, self.group, options, max_message_bytes=limits)
        try:
            with lanes.open(_LANE, self.partitions) as delivery:  # ends what a killed execution left open
                committed = {each: delivery.committed(each) for each in self.partitions}
                delivery.commit({})
            before = self.done()
            ranges = self._ranges(committed)
            for batch in self._batches(ranges, summary, limit, show):
                text = self._done_after(before, summary).to_text()
                self._deliver(lanes, batch, committed, text)
                committed |= batch.next_offsets
        except DeliveryError as error:
            failed = error
        finally:
            lanes.close()
        if failed is not None:  # raised here: clients are not closed while an error is handled
            raise DeliveryError(
                f"{failed}. Run the same command again: it continues where it was, and writes nothing twice"
            ) from failed
        return summary

    def done(self) -> Done:
        """What this job has done so far."""
        return self._state_of(self.group).done

    def others(self) -> list[JobState]:
        """Other jobs of this service that have read the same topic, the last one first."""
        prefix = self._config.service.name + GROUP_INFIX
        groups = [name for name in self._cluster.groups() if name.startswith(prefix) and name != self.group]
        found = [self._state_of(name) for name in groups]
        return sorted((each for each in found if each.done.request), key=lambda each: -each.done.seconds)

    # -- one batch -----------------------------------------------------------------------------------

    def _batches(
        self, ranges: Mapping[InputPartition, Range], summary: Summary, limit: int, show: Show
    ) -> Iterator[_Batch]:
        """The records to write, in batches. The last batch reaches the end, unless the limit comes first."""
        total = sum(end - start for start, end in ranges.values())
        others = [] if self.request.job else [(each, each.done.request) for each in self.others()]
        self._respected = [(job, asked) for job, asked in others if asked and asked.to == self.request.to]
        reached = {partition: start for partition, (start, _) in ranges.items()}
        options, bootstrap = self._config.client_options(), self._config.kafka.bootstrap
        with closing(ChunkReader(bootstrap, self.group, options)) as reader:
            for chunks in reader.read_chunks(ranges):
                batch = _Batch()
                for chunk in chunks:
                    if limit and summary.written >= limit:
                        break
                    self._add(batch, chunk, summary, limit)
                reached |= batch.next_offsets
                yield batch
                show(sum(reached.values()) - sum(start for start, _ in ranges.values()), total)
                if limit and summary.written >= limit:
                    return
        ends = {partition: end for partition, (_, end) in ranges.items() if reached[partition] < end}
        if ends:  # aborted records and the ends of transactions take offsets too
            yield _Batch([], ends)

    def _add(self, batch: _Batch, chunk: InputChunk, summary: Summary, limit: int) -> None:
        """Add what is written of a chunk, up to the limit."""
        rows: list[tuple[int, str, int, bytes | None, bytes | None, int, Headers]] = []
        partition = (chunk.topic, chunk.partition)
        unreadable = set(chunk.unreadable)
        for row, offset in enumerate(chunk.offsets):
            if limit and summary.written >= limit:
                break
            batch.next_offsets[partition] = offset + 1
            headers = (chunk.headers[row] if chunk.headers else None) or []
            letter = DeadLetter(
                chunk.partition, offset, chunk.timestamps_ms[row], chunk.keys[row], chunk.values[row], headers
            )
            summary.read += 1
            if not self.request.selection.takes(letter):
                continue
            where = LeftOut.UNREADABLE if row in unreadable else self._destination(letter, self.request)
            if not isinstance(where, LeftOut) and self._is_written(letter):
                where = LeftOut.WRITTEN
            if isinstance(where, LeftOut):
                summary.leave_out(where)
                continue
            topic, number = where
            reason = letter.text(REASON_HEADER) or self.request.route
            summary.add(reason, letter, topic)
            stamp = self._pack(self._pid(letter.partition, topic), number, offset)
            key, headers_again = self._restoring.restored(letter, stamp)
            number %= self._topics[topic].partitions
            rows.append((offset, topic, number, key, letter.value, letter.timestamp_ms, headers_again))
        if rows:
            batch.chunks.append(Chunk(partition, *map(list, zip(*rows, strict=True))))

    def _is_written(self, letter: DeadLetter) -> bool:
        """Whether another job has written this record to the same topic."""
        at = (self.source, letter.partition)
        return any(
            letter.offset < job.next_offsets.get(at, 0)
            and request.selection.takes(letter)
            and not isinstance(self._destination(letter, request), LeftOut)
            for job, request in self._respected
        )

    def _destination(self, letter: DeadLetter, request: Request) -> InputPartition | LeftOut:
        """The topic that a record goes to, and the input partition that it came from; or why it is left out.

        A record that doesn't say its partition has that of the dead letter, which is *partition % count*.
        """
        inputs, to = self._config.input.topics, request.to
        if letter.times_redriven >= request.max_redriven:
            return LeftOut.TOO_OFTEN
        origin = letter.origin(self._pids)
        if origin is None and len(inputs) == 1:
            origin = inputs[0], letter.partition
        if not to and (origin is None or origin[0] not in inputs):
            return LeftOut.NO_ORIGIN
        topic, number = origin or ("", letter.partition)
        if self._needs_key and (to or topic) in inputs and not letter.has_own_key(self._pids):
            return LeftOut.KEY_LOST
        return to or topic, number

    def _pid(self, partition: int, topic: str) -> int:
        """The pid of this job for the records of one partition that it reads, in the topic that it writes."""
        if (partition, topic) not in self._own:
            source, target = self._topics[self.source], self._topics[topic]
            parts = (self._cluster_id, source.id, self.group, target.id, str(target.partitions))
            self._own[partition, topic] = producer_id(*parts, str(partition))
        return self._own[partition, topic]

    def _deliver(
        self, lanes: Lanes, batch: _Batch, committed: Mapping[InputPartition, int], text: str
    ) -> None:
        with lanes.open(_LANE, batch.next_offsets) as delivery:
            if any(delivery.committed(each) != committed[each] for each in batch.next_offsets):
                raise DeliveryError(
                    f"another process executes the same job ({self.group}) now: let it finish"
                )
            for chunk in batch.chunks:
                delivery.write(chunk)
            delivery.commit(batch.next_offsets, text)

    # -- what is known -------------------------------------------------------------------------------

    def _ranges(self, committed: Mapping[InputPartition, int]) -> dict[InputPartition, Range]:
        begins = self._cluster.beginning_offsets(self.partitions)
        ends = self._cluster.end_offsets(self.partitions)
        starts = {each: max(begins[each], committed.get(each, 0)) for each in self.partitions}
        return {each: (starts[each], max(starts[each], ends[each])) for each in self.partitions}

    def _state_of(self, group: str) -> JobState:
        entries = self._cluster.committed_entries(group, self.partitions, stable=False)
        next_offsets = {partition: entry.offset for partition, entry in entries.items()}
        return JobState(Done.of(entry.metadata for entry in entries.values()), next_offsets)

    def _done_after(self, before: Done, summary: Summary) -> Done:
        left_out = before.left_out + sum(summary.left_out.values())
        return Done(before.written + summary.written, left_out, int(time.time()), self.request)


def _source(request: Request, outputs: Mapping[str, str]) -> str:
    """The topic to read. Raises ConfigError if it is none, or if records would go to an output."""
    errors = []
    if (source := outputs.get(f"output.{request.route}")) is None:
        errors.append(f"--from {request.route}: with this config no record is {request.route}; use another")
    if request.to in outputs.values():
        errors.append(
            f"--to {request.to}: an output of this service, which only the service may write to; choose "
            "another topic"
        )
    if (length := len(json.dumps(request.values()))) > TEXT_LIMIT:
        errors.append(
            f"the options need {length} characters as JSON, and {TEXT_LIMIT} fit into the offsets' metadata: "
            "use fewer or shorter --header"
        )
    if errors or source is None:
        raise ConfigError(errors)
    return source
