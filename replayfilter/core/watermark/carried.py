"""The carried watermark: what the records of an input partition bring from the services before this one.

Rules:
- A service with a low watermark adds it to each record that it writes, ``rf-watermark``, and its own name,
  ``rf-service``.
- It counts if the record is neither an error nor a replay, and it is not too far ahead of the batch's time.
- The largest watermark of a service counts, since it never goes back. Of several services in one input
  partition the slowest counts.
- A service is forgotten in an input partition after a batch if, since the last batch with a record of it
  there, both the batches' time and the partition's largest watermark have advanced by more than
  :data:`FORGOTTEN_AFTER_US`. The first measures silence. The second stands still while this service is down
  or behind, when silence means nothing.
- Records without a name, from versions before ``rf-service``, count as those of one more service. It is
  forgotten after the first batch without a record of it in which a larger watermark is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayfilter.core.clock.units import UNKNOWN

WATERMARK_HEADER = (
    "rf-watermark"  # the low watermark of the service that wrote the record: decimal microseconds
)
SERVICE_HEADER = "rf-service"  # the name of that service
UNNAMED = ""  # the service of records that don't name one
FORGOTTEN_AFTER_US = 48 * 3600 * 10**6


class Carried(NamedTuple):
    """The watermark ``low``, in microseconds, that a row of a chunk carries from a ``service``."""

    row: int
    service: str
    low: int


class Upstream(NamedTuple):
    """What is remembered of a service in an input partition, in microseconds.

    ``low``: its largest watermark. ``front``, ``seen``: the partition's largest watermark after the last
    batch with a record of it, and that batch's time.
    """

    low: int
    front: int
    seen: int


Upstreams = Mapping[str, Upstream]


def advance(known: Upstreams, carried: Iterable[Carried], batch_time_us: int) -> Upstreams:
    """The services of an input partition after a batch in which these watermarks count."""
    lows = {service: upstream.low for service, upstream in known.items()}
    heard = set()
    for each in carried:
        heard.add(each.service)
        lows[each.service] = max(each.low, lows.get(each.service, UNKNOWN))
    front = max(lows.values(), default=UNKNOWN)
    after = {
        service: Upstream(low, front, batch_time_us) if service in heard else known[service]
        for service, low in lows.items()
    }
    return {
        service: upstream
        for service, upstream in after.items()
        if not _is_forgotten(service, upstream, front, batch_time_us)
    }


def last_of_runs(sources: Iterable[NDArray[np.int64]], codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: the last row of each stretch of rows of one source with one code.

    ``sources``: columns int64[n] that name the rows' sources; ``codes`` int64[n]. If any row of a stretch is
    no replay, the last one is none.
    """
    columns = [codes, *sources]
    order = np.lexsort((np.arange(len(codes)), *columns[1:]))
    last = np.ones(len(codes), np.bool_)
    same = np.ones(max(len(codes) - 1, 0), np.bool_)
    for column in columns:
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    last[order[:-1][same]] = False
    return last


def _is_forgotten(service: str, upstream: Upstream, front: int, batch_time_us: int) -> bool:
    limit = FORGOTTEN_AFTER_US if service != UNNAMED else 0
    return front - upstream.front > limit and batch_time_us - upstream.seen > limit
