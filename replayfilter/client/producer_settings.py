"""The settings of a stamping producer: safe defaults, and rules that keep the order and every record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replayfilter.errors import ConfigError

_SAFE: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 20,  # for full batches; flush sends at once
    "batch.size": 1_000_000,  # bytes
    "allow.auto.create.topics": False,  # a topic created by accident has the wrong number of partitions
    "log_level": 3,  # errors only; every failure is raised
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which values of a setting keep the order and lose nothing, and the reason against the others."""

    allows: Callable[[str], bool]  # gets the value in lower case; may raise ValueError, which means no
    reason: str
    in_transactions: bool = True  # whether it also holds for a producer with a transactional id


def _is_true(value: str) -> bool:
    return value in ("true", "1")


def _is_all(value: str) -> bool:
    return value in ("all", "-1")


def _is_positive(value: str) -> bool:
    return int(value) > 0


def _is_at_most_5(value: str) -> bool:
    return int(value) <= 5


def _is_never(value: str) -> bool:
    return int(value) == 0


def _is_fifo(value: str) -> bool:
    return value == "fifo"


def _is_refused(_: str) -> bool:
    return False


_NEEDS_RETRIES = _Rule(_is_positive, "without retries every short problem of a broker is final; leave it out")
_IN_ORDER = _Rule(_is_at_most_5, "above 5 the order is not kept; leave it out")
_NO_TIMEOUT = _Rule(
    _is_never,
    "a record that times out is left out while later ones are written, and is dropped as a replay when it is "
    "written again; leave it out, and give flush a time limit",
    in_transactions=False,  # a transaction is committed completely or not at all
)
_RULES: dict[str, _Rule] = {
    "enable.idempotence": _Rule(
        _is_true, "without it a retry inside the client can change the order; leave it out"
    ),
    "acks": _Rule(_is_all, "below 'all' a record can be lost after later ones were written; leave it out"),
    "request.required.acks": _Rule(_is_all, "below 'all' a record can be lost; leave it out"),
    "retries": _NEEDS_RETRIES,
    "message.send.max.retries": _NEEDS_RETRIES,
    "max.in.flight": _IN_ORDER,
    "max.in.flight.requests.per.connection": _IN_ORDER,
    "enable.gapless.guarantee": _Rule(
        _is_true,
        "a failed record would be left out, and dropped as a replay when it is written again; leave it out",
    ),
    "delivery.timeout.ms": _NO_TIMEOUT,
    "message.timeout.ms": _NO_TIMEOUT,
    "queuing.strategy": _Rule(_is_fifo, "records would be written in another order; leave it out"),
    "transactional.id": _Rule(_is_refused, "give it as transactional_id=..."),
    "delivery.report.only.error": _Rule(_is_refused, "give on_delivery=... to get a report for each record"),
    "on_delivery": _Rule(_is_refused, "give it as on_delivery=..."),
    "dr_cb": _Rule(_is_refused, "give it as on_delivery=..."),
}


def producer_settings(settings: Mapping[str, Any], transactional_id: str | None) -> dict[str, Any]:
    """The user's settings with safe defaults and everything that stamping needs.

    Raises :class:`ConfigError` with one error for each setting that could reorder or lose records.
    """
    transactional = transactional_id is not None
    errors = [
        f"setting {name} = {value!r} of a stamping producer: {rule.reason}"
        for name, value in settings.items()
        if (rule := _RULES.get(name)) is not None
        and (rule.in_transactions or not transactional)
        and not _allows(rule, value)
    ]
    if errors:
        raise ConfigError(errors)
    if transactional:
        return _SAFE | dict(settings) | {"transactional.id": transactional_id}
    # Without these a record that fails or times out is left out while later ones are written, and when the
    # job writes it again it is dropped as a replay. A transaction with such a record is aborted.
    return _SAFE | dict(settings) | {"enable.gapless.guarantee": True, "delivery.timeout.ms": 0}


def _allows(rule: _Rule, value: Any) -> bool:
    try:
        return rule.allows(str(value).lower())
    except ValueError:
        return False
