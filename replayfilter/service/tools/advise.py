"""``replayfilter advise``: proposes a config for a topic, with what each choice of a period would cost.

It reads a sample of the topic (``topic_sample.py``) and writes nothing but the config.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from replayfilter.core.period_study import SPANS, Choice, Result
from replayfilter.errors import BrokerError, ReplayfilterError
from replayfilter.formats.spec import RegistryAddress
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.chunk_reader import ChunkReader
from replayfilter.kafka.time_slices import time_slices
from replayfilter.service.tools.advised_config import choose_period, config_text, secret_variables
from replayfilter.service.tools.topic_sample import Finding, Sample, look, read_columns, read_sample
from replayfilter.settings.durations import duration_text
from replayfilter.settings.variables import expanded

LOOKED_AT = 20_000  # records by which format and fields are found
SLICES = 100  # what stands for a batch is a hundredth of the sample
SHOWN_CANDIDATES = 5


class AdviceError(ReplayfilterError):
    """There are no records to give advice on, or the config can't be written."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asks for.

    ``records``: how many to read, 0 for all. ``key``, ``expiry_key``: fields to use instead of a proposal.
    ``registry``: its URL, or "". Values of ``options`` and ``registry_options`` may contain ``${NAME}``.
    ``output``: the config to write.
    """

    topic: str
    bootstrap: str
    options: Mapping[str, str] = field(repr=False)
    records: int
    key: tuple[str, ...]
    expiry_key: str
    registry: str
    registry_options: Mapping[str, str] = field(repr=False)
    output: Path | None


def advise_on(request: Request, console: Console) -> None:
    """Read the sample, print what it shows and what follows from it, and write the config if asked to.

    Raises BrokerError, RegistryError, ConfigError for wrong options or fields, and AdviceError.
    """
    if request.output and request.output.exists():
        raise AdviceError(f"--output {request.output}: exists already; give the name of a new file")
    options = expanded("--option", request.options)
    registry = None
    if request.registry:
        given = expanded("--registry-option", request.registry_options)
        registry = RegistryAddress(request.registry, tuple(given.items()))
    cluster, now_ms = Cluster(request.bootstrap, options), int(time.time() * 1_000)
    topics = cluster.topics([request.topic])
    if request.topic not in topics:
        raise BrokerError(f"there is no topic {request.topic!r} at {request.bootstrap}; correct its name")
    partitions = [(request.topic, number) for number in range(topics[request.topic].partitions)]
    begins, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
    reader = ChunkReader(request.bootstrap, "replayfilter-advise", options, "earliest")
    try:
        share = -(-LOOKED_AT // len(partitions))
        newest = {each: (max(begins[each], ends[each] - share), ends[each]) for each in partitions}
        batch = read_columns(reader, newest)
        if not batch.values:
            raise AdviceError(
                f"{request.topic}: has no records that can be read, so there is nothing to advise"
            )
        finding = look(batch, request.key, request.expiry_key, registry, now_ms)
        _print_finding(console, request, finding)
        slices = time_slices(
            begins, ends, request.records, SLICES, lambda at: cluster.offsets_at(partitions, at), now_ms
        )
        total = sum(end - start for ranges in slices for start, end in ranges.values())
        with _progress(console, total) as progress:
            sample = read_sample(reader, slices, finding, now_ms, progress)
    finally:
        reader.close()
    result = sample.study.result()
    if not result.records:
        raise AdviceError(
            f"{request.topic}: by these fields none of {sample.records:,} records can be filtered "
            f"({_left_out(sample, result)}); choose others with --key and --expiry-key"
        )
    choice = choose_period(result)
    _print_result(console, sample, result, choice)
    text = config_text(
        finding, choice, topic=request.topic, bootstrap=request.bootstrap, options=request.options,
        registry=request.registry, registry_options=request.registry_options,
    )  # fmt: skip
    _write(console, request, text)


def _write(console: Console, request: Request, text: str) -> None:
    path = request.output
    if path is None:
        _say(console, "\n--output FILE writes a config to start from.")
        return
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise AdviceError(
            f"--output {path}: can't be written ({error.strerror}); correct the path"
        ) from error
    _say(console, f"\n{path}: written; `replayfilter check {path}` checks it, also after changes")
    for options in (request.options, request.registry_options):
        for name, variable in secret_variables(options).items():
            _say(console, f"It has no secrets: put {name} into the environment variable {variable}.")


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; the function is called with the number of records that were read."""
    columns = (
        TextColumn("reading"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda records: bar.update(task, advance=records)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_finding(console: Console, request: Request, finding: Finding) -> None:
    detected = finding.detected
    stamps = {"key": "in the keys", "header": "in the headers", "none": "none"}[finding.stamp]
    _say(
        console,
        f"{request.topic}: format {detected.format}, stamps {stamps} (the last {finding.records:,} records)",
    )
    if detected.note:
        _say(console, f"note: {detected.note}")
    table = Table(box=None, pad_edge=False)
    table.add_column("dedup key", no_wrap=True)
    for name in ("repeated by", "with other content"):
        table.add_column(name, justify="right")
    given = bool(request.key) or detected.format in ("cloudevents", "debezium")
    for number, each in enumerate(finding.keys[: SHOWN_CANDIDATES + given]):
        shares = ("", "") if given and not number else (f"{each.repeated:.2%}", f"{each.changed:.2%}")
        table.add_row(f"{'> ' if not number else '  '}{' + '.join(each.fields)}", *shares)
    console.print(table, highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("expiry key", "unit", "distance to Kafka's timestamp"):
        table.add_column(name, justify="right" if name.startswith("distance") else "left", no_wrap=True)
    for number, time_ in enumerate(finding.times[:SHOWN_CANDIDATES]):
        distance = _length(time_.distance_ms * 1_000)
        table.add_row(f"{'> ' if not number else '  '}{time_.field}", time_.unit, distance)
    console.print(table, highlight=False)


def _print_result(console: Console, sample: Sample, result: Result, choice: Choice) -> None:
    length = _length(result.length_us)
    _say(console, f"\n{sample.records:,} records read, which are {length} long by their expiry keys")
    if left_out := _left_out(sample, result):
        _say(console, f"not counted below: {left_out}")
    if result.share < 1:
        _say(console, f"keys and duplicates are estimated: one of {1 / result.share:.0f} keys was followed")
    table = Table(box=None, pad_edge=False)
    for name in ("period", "duplicates", "expired", "keys", "state", "repeats apart", "records late"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, each in enumerate(result.choices):
        keys = "?" if each.keys is None else f"{each.keys:,}"
        state = "?" if each.state_bytes is None else decimal(each.state_bytes)
        seen = (f"{each.duplicates:,}", f"{each.expired:,}") if each.seen else ("?", "?")
        mark = "> " if each.period_us == choice.period_us else ""
        apart, late = result.distances[number], result.lateness[number]
        table.add_row(f"{mark}{duration_text(each.period_us)}", *seen, keys, state, f"{apart:,}", f"{late:,}")
    table.add_row("longer", "", "", "", "", f"{result.distances[-1]:,}", f"{result.lateness[-1]:,}")
    console.print(table, highlight=False)
    changed = f", {result.changed:,} of them with other content" if result.changed else ""
    _say(console, f"{result.repeats:,} records repeat a key{changed}")
    _say(
        console,
        f'proposed: period = "{duration_text(choice.period_us)}", bucket_span = '
        f'"{duration_text(choice.period_us // SPANS)}"',
    )
    if not choice.seen:
        _say(
            console,
            f"The sample is only {length} long and can't show duplicates that are further apart. Read more "
            "of the topic with --records, or choose the period by how late a job may write records again.",
        )


def _left_out(sample: Sample, result: Result) -> str:
    counts = {"replays": sample.replays, "always unique": sample.passing, "in the future": result.future}
    counts |= {f"errors ({reason})": count for reason, count in sample.errors.most_common()}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _length(us: int) -> str:
    """A duration for people: rounded down to what matters.

    >>> _length(90_061_000_000), _length(7_203_000_000), _length(61_000_000)
    ('1d 1h', '2h', '1m 1s')
    """
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, us = divmod(us, size * 10**6)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(filter(None, parts[:2])) or "less than a second"
