"""``replayfilter doctor``: a sample of a topic, and what its stamps tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Message
from rich.console import Console
from rich.table import Table

from replayfilter.core.replay.stamp_audit import StampAudit
from replayfilter.core.stamp import STAMP_HEADER
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader

READ_LIMIT_S = 30.0  # without any record
SHOWN_SOURCES = 20


def doctor(
    console: Console, topic: str, bootstrap: str, options: Mapping[str, str], stamp: str, records: int
) -> bool:
    """Read the last ``records`` records of a topic (0: all) and print what they tell; True if all is well.

    Raises BrokerError if there is no such topic or nobody answers.
    """
    audit = StampAudit()
    for message in sample(topic, bootstrap, options, records):
        audit.add(int(message.partition() or 0), blob_of(message, stamp))
    total = audit.stamped + audit.unstamped + audit.unlikely
    where = "key" if stamp == "key" else f"header {STAMP_HEADER}"
    console.print(
        f"{topic}: {total:,} records read, {audit.stamped:,} with a stamp in the {where}, "
        f"{len(audit.sources):,} sources",
        highlight=False,
    )
    if audit.sources:
        console.print(_table(audit))
    warnings = audit.warnings()
    if total and not audit.stamped and not audit.unlikely:
        warnings = [f"no record has a stamp in the {where}; try the other place, or stamp the records"]
    for text in warnings:
        console.print(f"warning: {text}", highlight=False, markup=False, soft_wrap=True)
    if not warnings:
        console.print("nothing wrong was found" if total else "there is nothing to look at", highlight=False)
    return not warnings


def sample(topic: str, bootstrap: str, options: Mapping[str, str], records: int) -> Iterator[Message]:
    """The last records of a topic, as many from each partition, each partition's in order."""
    cluster = Cluster(bootstrap, options)
    found = cluster.topics([topic])
    if topic not in found:
        raise BrokerError(f"there is no topic {topic!r} at {bootstrap}; correct its name")
    places = [(topic, number) for number in range(found[topic].partitions)]
    begins, ends = cluster.begins(places), cluster.ends(places)
    share = -(-records // len(places)) if records else max(ends.values())
    ranges = {at: (max(begins[at], ends[at] - share), ends[at]) for at in places}
    settings = client_settings(bootstrap, options)
    with RangeReader(settings, "replayfilter-doctor", offset_reset="earliest") as reader:
        yield from reader.read(ranges, silence_s=READ_LIMIT_S)


def blob_of(message: Message, stamp: str) -> bytes | None:
    """What stands where the stamp should be."""
    blob: Any = message.key()
    if stamp == "header":
        blob = next(
            (value for name, value in reversed(message.headers() or []) if name == STAMP_HEADER), None
        )
    return blob.encode() if isinstance(blob, str) else blob


def _table(audit: StampAudit) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (
        "pid",
        "partition",
        "records",
        "offsets",
        "gaps",
        "missing",
        "replays",
        "out of order",
        "in",
    ):
        table.add_column(name, justify="left" if name == "in" else "right", no_wrap=True)
    by_size = sorted(audit.sources.items(), key=lambda item: (-item[1].records, item[0]))
    for (pid, partition), source in sorted(by_size[:SHOWN_SOURCES]):
        numbers = (source.records, source.gaps, source.missing, source.replays, source.out_of_order)
        records, gaps, missing, replays, disorder = (f"{number:,}" for number in numbers)
        span = f"{source.first}-{source.mark}"
        places = ", ".join(map(str, sorted(source.partitions)))
        table.add_row(str(pid), str(partition), records, span, gaps, missing, replays, disorder, places)
    if len(by_size) > SHOWN_SOURCES:
        table.caption = f"the {SHOWN_SOURCES} largest of {len(by_size):,} sources"
    return table
