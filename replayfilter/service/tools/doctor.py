"""``replayfilter doctor``: reads a sample of a stamped topic and reports what is wrong with its stamps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Message
from rich.console import Console
from rich.table import Table

from replayfilter.core.replay.stamp_audit import StampAudit
from replayfilter.core.stamp import STAMP_HEADER, last_header
from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.client_settings import client_settings
from replayfilter.kafka.reader import RangeReader

READ_LIMIT_S = 30.0  # how long no record may arrive
SHOWN_SOURCES = 20
COLUMNS = ("pid", "partition", "records", "offsets", "gaps", "missing", "replays", "out of order", "in")


def doctor(
    console: Console, topic: str, bootstrap: str, options: Mapping[str, str], stamp: str, records: int
) -> bool:
    """Audit the stamps of the last ``records`` records of a topic (0: all), and print the result.

    ``stamp`` says where the stamps are, "key" or "header". Returns True if there is nothing to warn about.
    Raises BrokerError if the topic doesn't exist or can't be read.
    """
    audit = StampAudit()
    for message in sample(topic, bootstrap, options, records):
        audit.add(int(message.partition() or 0), stamp_bytes(message, stamp))
    total = audit.stamped + audit.unstamped + audit.unlikely
    where = "key" if stamp == "key" else f"header {STAMP_HEADER}"
    console.print(
        f"{topic}: {total:,} records read, {audit.stamped:,} with a stamp in the {where}, "
        f"{len(audit.sources):,} sources",
        highlight=False,
    )
    if audit.sources:
        console.print(_table(audit))
    warnings = [warning.message for warning in audit.warnings()]
    if total and not audit.stamped and not audit.unlikely:
        other = "header" if stamp == "key" else "key"
        warnings = [f"no record has a stamp in the {where}; try --stamp {other}, or stamp the records"]
    for text in warnings:
        console.print(f"warning: {text}", highlight=False, markup=False, soft_wrap=True)
    if not warnings:
        console.print("no problem found" if total else "the topic is empty", highlight=False)
    return not warnings


def sample(topic: str, bootstrap: str, options: Mapping[str, str], records: int) -> Iterator[Message]:
    """Yield the last ``records`` records of a topic (0: all), the same number from each partition.

    The records of a partition come in offset order.
    """
    cluster = Cluster(bootstrap, options)
    found = cluster.topics([topic])
    if topic not in found:
        raise BrokerError(f"there is no topic {topic!r} at {bootstrap}; correct its name")
    partitions = [(topic, number) for number in range(found[topic].partitions)]
    begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    share = -(-records // len(partitions)) if records else max(ends.values())
    ranges = {each: (max(begins[each], ends[each] - share), ends[each]) for each in partitions}
    settings = client_settings(bootstrap, options)
    with RangeReader(settings, "replayfilter-doctor", offset_reset="earliest") as reader:
        yield from reader.read(ranges, silence_s=READ_LIMIT_S)


def stamp_bytes(message: Message, stamp: str) -> bytes | None:
    """Return the bytes where the stamp should be, whether they are a stamp or not."""
    found: Any = message.key()
    if stamp == "header":
        headers: Any = message.headers()
        found = last_header(headers, STAMP_HEADER)
    return found.encode() if isinstance(found, str) else found


def _table(audit: StampAudit) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "in" else "right", no_wrap=True)
    by_size = sorted(audit.sources.items(), key=lambda item: (-item[1].records, item[0]))
    for (pid, partition), source in sorted(by_size[:SHOWN_SOURCES]):
        numbers = (source.records, source.gaps, source.missing, source.replays, source.out_of_order)
        records, gaps, missing, replays, disorder = (f"{number:,}" for number in numbers)
        span = f"{source.first}-{source.mark}"
        found_in = ", ".join(map(str, sorted(source.partitions)))
        table.add_row(str(pid), str(partition), records, span, gaps, missing, replays, disorder, found_in)
    if len(by_size) > SHOWN_SOURCES:
        table.caption = f"the {SHOWN_SOURCES} largest of {len(by_size):,} sources"
    return table
