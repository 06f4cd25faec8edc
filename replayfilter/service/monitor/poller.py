"""The base of the threads that check something periodically while the query runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

END_SECONDS = 2.0  # how long __exit__ waits for a poll in progress; one that waits for a broker is abandoned


class Poller(threading.Thread, ABC):
    """A thread that calls :meth:`poll` every ``every`` seconds. As a context manager it starts and ends."""

    def __init__(self, name: str, every: float) -> None:
        super().__init__(name=name, daemon=True)
        self._every = every
        self._ended = threading.Event()

    @abstractmethod
    def poll(self) -> None:
        """Check once and report the result. Called by this thread only; an exception ends the thread."""

    def run(self) -> None:
        """Poll until the end."""
        while True:
            self.poll()
            if self._ended.wait(self._every):
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join(END_SECONDS)
