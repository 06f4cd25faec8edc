"""Numbers in a producer's settings that Kafka limits.

librdkafka fills a batch up to ``batch.size`` bytes, counted before it is compressed. A broker refuses a batch
that is larger than the topic's ``max.message.bytes``, and librdkafka does not split it, although each of its
records may be small. A record that is larger than ``batch.size`` is sent alone.
"""

from __future__ import annotations

from collections.abc import Mapping

BATCH_SIZE, LARGEST_RECORD = "batch.size", "message.max.bytes"
_NUMBERS = {BATCH_SIZE: "bytes", LARGEST_RECORD: "bytes", "max.request.size": "bytes"}


def wrong_numbers(options: Mapping[str, str]) -> dict[str, str]:
    """The options, in Kafka's own names, whose numbers can't be used, each with a sentence that says why."""
    return {
        name: f"kafka.options.{name} = {options[name]!r}: not a number of {unit}; correct it"
        for name, unit in _NUMBERS.items()
        if name in options and not options[name].strip().isdecimal()
    }


def largest_batch(settings: Mapping[str, object]) -> int:
    """The bytes up to which a producer with these settings fills a batch."""
    return min(int(str(settings[name])) for name in (BATCH_SIZE, LARGEST_RECORD))
