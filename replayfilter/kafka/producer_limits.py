"""Numbers in a producer's settings that limit each other, or that Kafka limits.

librdkafka fills a batch up to ``batch.size`` bytes, counted before it is compressed. A broker refuses a batch
that is larger than the topic's ``max.message.bytes``, and librdkafka does not split it, although each of its
records may be small. A record that is larger than ``batch.size`` is sent alone.

A record in a transaction must be sent or given up before the transaction times out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

BATCH_SIZE, LARGEST_RECORD = "batch.size", "message.max.bytes"
TRANSACTION_TIMEOUT, DELIVERY_TIMEOUT = "transaction.timeout.ms", "delivery.timeout.ms"
DEFAULT_TRANSACTION_MS = 300_000  # how long a dead owner of a lane can hold readers back
LONGEST_DELIVERY_MS = 120_000  # by default: a record that isn't acknowledged by then fails the attempt

_BYTES = (BATCH_SIZE, LARGEST_RECORD, "max.request.size")
_DELIVERY = (DELIVERY_TIMEOUT, "message.timeout.ms")  # Kafka's name, librdkafka's name
_LINGER = ("linger.ms", "queue.buffering.max.ms")
_SOCKET = "socket.timeout.ms"
_MILLISECONDS = (TRANSACTION_TIMEOUT, *_DELIVERY, *_LINGER, _SOCKET)
_SHORTEST_TRANSACTION_MS = 1_000
_SOCKET_MARGIN_MS = 100  # librdkafka allows a request to take so much longer than a transaction


def wrong_numbers(options: Mapping[str, str]) -> dict[str, str]:
    """The options, in Kafka's own names, whose numbers can't be used, each with a sentence that says why."""
    numbers: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name in (*_BYTES, *_MILLISECONDS):
        if name in options:
            try:
                numbers[name] = float(options[name]) if name in _LINGER else int(options[name])
            except ValueError:
                unit = "bytes" if name in _BYTES else "milliseconds"
                errors[name] = f"kafka.options.{name} = {options[name]!r}: not a number of {unit}; correct it"
    return errors | {
        name: f"kafka.options.{name} = {options[name]}: {reason}" for name, reason in _wrong_timeouts(numbers)
    }


def default_delivery_ms(transaction_ms: int) -> int:
    """How long a record may wait for its acknowledgement: no longer than its transaction."""
    return min(LONGEST_DELIVERY_MS, transaction_ms)


def largest_batch(settings: Mapping[str, object]) -> int:
    """The bytes up to which a producer with these settings fills a batch."""
    return min(int(str(settings[name])) for name in (BATCH_SIZE, LARGEST_RECORD))


def _wrong_timeouts(numbers: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    transaction = int(numbers.get(TRANSACTION_TIMEOUT, DEFAULT_TRANSACTION_MS))
    if transaction < _SHORTEST_TRANSACTION_MS:
        yield TRANSACTION_TIMEOUT, f"too short; set it to {_SHORTEST_TRANSACTION_MS} or more"
        return
    longer = (
        f"longer than {TRANSACTION_TIMEOUT} = {transaction}; shorten it, or set {TRANSACTION_TIMEOUT} higher"
    )
    for name in _DELIVERY:
        if numbers.get(name, 0) > transaction:
            yield name, longer
    if numbers.get(_SOCKET, 0) > transaction + _SOCKET_MARGIN_MS:
        yield _SOCKET, longer
    given = [numbers[name] for name in _DELIVERY if name in numbers]
    delivery = given[-1] if given else default_delivery_ms(transaction)
    for name in _LINGER:
        if 0 < delivery <= numbers.get(name, 0):  # 0: no limit
            yield name, f"not below {DELIVERY_TIMEOUT} = {delivery:.0f}; shorten it"
