"""``replayfilter transactions list|abort``: what they print."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.transaction_log import Transaction
from replayfilter.service.config.model import Config
from replayfilter.service.tools.transactions.open_transactions import (
    MEMBER_SECONDS,
    POLL_SECONDS,
    HeldBack,
    OpenTransactions,
    await_end_of_service,
    end_transactions,
    find_open,
    own_ids,
)

SETTLE_SECONDS = 10.0  # the end of a transaction is written in milliseconds
_SHOWN_PARTITIONS = 4


def list_transactions(config: Config, console: Console) -> None:
    """Print what is open in the service's topics, and whose it is. Raises BrokerError."""
    cluster = Cluster(config.kafka.bootstrap, config.client_options())
    found = find_open(config, cluster)
    if hosts := cluster.members(config.service.name):
        _print(
            console,
            f"a service of this name is running at {', '.join(sorted(set(hosts)))}: its own transactions "
            "come and go",
        )
    print_open(config, found, console)


def abort_transactions(
    config: Config, console: Console, confirm: Callable[[str], bool], limit: float = MEMBER_SECONDS
) -> bool:
    """End the service's own transactions after ``confirm``; whether it was confirmed, or nothing was open.

    Raises BrokerError if the service is still a member of its group after ``limit`` seconds, or if Kafka
    refuses.
    """
    cluster = Cluster(config.kafka.bootstrap, config.client_options())
    why = "its transactions are its own to end"
    await_end_of_service(cluster, config.service.name, why, lambda text: _print(console, text), limit)
    found = find_open(config, cluster)
    print_open(config, found, console)
    ids = own_ids(config, found)
    if not ids:
        return True
    if not confirm(f"Abort {_names(ids)}?"):
        return False
    end_transactions(config, ids)
    _print(
        console,
        f"aborted: {_names(ids)}; nothing of it was delivered, and the next start of the service delivers it",
    )
    left = _settled(config, cluster)
    for each in left.held_back:
        _print(console, f"still {_held_back(each, left, _now_ms())}")
    return True


def print_open(config: Config, found: OpenTransactions, console: Console) -> None:
    """Print a row for each transaction, and a line for each partition that is held back."""
    now_ms = _now_ms()
    if found.unknown:
        _print(
            console,
            "whose transactions are open, and since when, isn't known, since Kafka's log of them can't be "
            f"read: {found.unknown}",
        )
    elif not found.own:
        _print(console, f"no transaction of {config.service.name} is open")
    if found.own or found.others:
        table = Table(box=None, pad_edge=False)
        for name in ("transactional id", "whose", "state", "for", "ends after", "partitions"):
            table.add_column(name, no_wrap=name != "partitions")
        for whose, transactions in (("this service", found.own), ("other", found.others)):
            for each in transactions:
                table.add_row(each.id, whose, each.state, *_times(each, now_ms), _partitions(each))
        console.print(table)
    for held_back in found.held_back:
        _print(console, _held_back(held_back, found, now_ms))


def _held_back(each: HeldBack, found: OpenTransactions, now_ms: int) -> str:
    """A sentence about a partition, and about who holds it back if that is known."""
    topic, number = each.partition
    behind = each.written - each.readable
    text = (
        f"held back: {topic}-{number} can be read up to offset {each.readable}, {behind:,} offsets "
        "before its end"
    )
    if holding := found.holding(each.partition):
        first = min(holding, key=lambda transaction: transaction.start_ms)
        return f"{text}, for {_seconds(now_ms - first.start_ms)} by {first.id}"
    if found.unknown:
        return text
    return (
        f"{text}, by a transaction that its coordinator doesn't know; if this stays, end it with "
        f"`kafka-transactions.sh abort --topic {topic} --partition {number} --start-offset {each.readable}`"
    )


def _settled(config: Config, cluster: Cluster) -> OpenTransactions:
    """What is open once nothing of this service is, at the latest after some seconds."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = find_open(config, cluster)
        mine = found.own or (found.unknown and found.held_back)
        if not mine or time.monotonic() > deadline:
            return found
        time.sleep(POLL_SECONDS)


def _times(each: Transaction, now_ms: int) -> tuple[str, str]:
    return _seconds(now_ms - each.start_ms), _seconds(each.timeout_ms)


def _partitions(each: Transaction) -> str:
    return _names([f"{topic}-{number}" for topic, number in each.partitions])


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_PARTITIONS} more" if len(names) > _SHOWN_PARTITIONS else ""
    return ", ".join(names[:_SHOWN_PARTITIONS]) + more


def _seconds(ms: int) -> str:
    return f"{max(0, ms) / 1000:,.0f} s"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
