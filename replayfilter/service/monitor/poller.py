"""What looks at something beside the query, again and again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

END_SECONDS = 2.0  # for a look under way at the end; one that waits for a silent broker is left behind


class Watch(threading.Thread, ABC):
    """A thread that calls :meth:`look` every ``every`` seconds, from the start of its ``with`` to its end."""

    def __init__(self, name: str, every: float) -> None:
        super().__init__(name=name, daemon=True)
        self._every = every
        self._ended = threading.Event()

    @abstractmethod
    def look(self) -> None:
        """Look, and tell whoever wants to know."""

    def run(self) -> None:
        """Look until the end."""
        while True:
            self.look()
            if self._ended.wait(self._every):
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join(END_SECONDS)
