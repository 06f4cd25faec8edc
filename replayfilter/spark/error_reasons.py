"""Why a record goes to the error topic: the closed list of reasons, and the messages of decode and route.

Most reasons come from the formats, each with its own message. This module adds the others: a missing stamp
and unreadable headers, which decode finds, and the routes FUTURE and JUMP, which the shards decide.

Only decode knows the numbers in the message of FUTURE. Therefore it stores that message with each record that
may be too far in the future, and deliver writes it if the shards route the record to FUTURE.
"""

from __future__ import annotations

from datetime import UTC, datetime

from replayfilter.core.routing import Route
from replayfilter.core.stamp import STAMP_BYTES, STAMP_HEADER
from replayfilter.formats import Reason

STAMP_REASON, HEADERS_REASON = "stamp", "headers"
REASON_OF_ROUTE = {Route.FUTURE: "future", Route.JUMP: "jump"}
REASONS = (*(reason.value for reason in Reason), STAMP_REASON, HEADERS_REASON, *REASON_OF_ROUTE.values())

HEADERS_MESSAGE = "the name of a header is not UTF-8; all headers of the record are left out"
JUMP_MESSAGE = "the expiry key is more than max_jump above the latest point before it"


def stamp_message(stamp: str) -> str:
    """The message of a record without a valid stamp; ``stamp``: "key" or "header", where it was expected."""
    where = "key" if stamp == "key" else f"header {STAMP_HEADER}"
    return f"no stamp of {STAMP_BYTES} bytes in the {where}"


def future_message(expiry_key: int, limit: int, batch_time_us: int) -> str:
    """The message of a record whose expiry key is above ``limit``, the largest that is accepted."""
    batch_time = datetime.fromtimestamp(batch_time_us / 1e6, UTC).isoformat(timespec="milliseconds")
    return f"expiry key {expiry_key} is above {limit}, the batch time {batch_time} plus max_future"
