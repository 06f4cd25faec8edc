"""How far the service is behind the end of each input partition: in records and in seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Any

SAMPLES = 720  # an hour of samples, one every five seconds


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one input partition.

    ``next`` is the first offset that is not yet delivered; ``end`` is the offset after the last record.
    ``seconds`` is how long the first waiting record has waited: 0 if none waits, None if not known.
    ``held_back`` are the offsets after ``end`` that nobody can read yet, because a transaction of somebody
    else is open at ``end``; ``held_back_seconds`` is for how long that is known.
    """

    topic: str
    partition: int
    next: int
    end: int
    seconds: float | None = None
    held_back: int = 0
    held_back_seconds: float = 0.0

    @property
    def records(self) -> int:
        """Offsets that are not yet delivered; a few of them may be transaction markers."""
        return max(0, self.end - self.next)

    def as_dict(self) -> dict[str, Any]:
        """The fields that ``/status`` shows."""
        seconds = None if self.seconds is None else round(self.seconds, 1)
        return {
            "topic": self.topic,
            "partition": self.partition,
            "next": self.next,
            "end": self.end,
            "records": self.records,
            "seconds": seconds,
            "held_back": self.held_back,
            "held_back_seconds": round(self.held_back_seconds, 1),
        }


class Arrivals:
    """Samples of one partition's end offset over time, to find out when a record arrived.

    >>> arrivals = Arrivals()
    >>> arrivals.add(end=10, at=100.0); arrivals.add(end=20, at=105.0)
    >>> arrivals.arrived(15), arrivals.arrived(5)
    (105.0, None)
    """

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=SAMPLES)
        self._times: deque[float] = deque(maxlen=SAMPLES)

    def add(self, end: int, at: float) -> None:
        """The partition ended at offset ``end`` at the time ``at``. Times must ascend."""
        if not self._ends or end > self._ends[-1]:
            self._ends.append(end)
            self._times.append(at)

    def arrived(self, offset: int) -> float | None:
        """The time of the first sample that includes this offset; None if it was there before all samples."""
        index = bisect_right(self._ends, offset)
        return self._times[index] if 0 < index < len(self._times) else None
