"""Virtual time, and actors of which one runs at a time: the next one is chosen by the seed.

An actor is a thread, because the code under test is ordinary blocking code. It holds the baton until it comes
to a *point*, a named step of the protocol. There the seed may give the baton to another actor, and a planned
fault may happen: see faults.py. Nothing depends on real time, so a seed always gives the same history.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

EPOCH_S = 1_700_000_000.0
MOST_STEPS = 60_000  # a history that is longer makes no progress
LONGEST_LINE = 150  # characters of an error in the history
SWITCH = 0.25  # how often a point gives the baton away


class Killed(BaseException):
    """Raised in an actor whose process was killed: no code of a dead process runs on."""


class Stuck(AssertionError):
    """All actors wait, or nothing comes to an end."""


@dataclass(eq=False)
class Process:
    """An operating system process. Nothing that it has in memory outlives it."""

    name: str
    service: str = ""  # the deployment that it belongs to
    dead: bool = False
    cut_until: float = 0.0  # no broker can be reached before
    frozen_until: float = 0.0  # none of its actors runs before (SIGSTOP)
    memory: dict[str, dict[object, object]] = field(default_factory=dict)  # globals of its modules


class Actor:
    """One thread of one process."""

    def __init__(self, name: str, process: Process, run: Callable[[], None]) -> None:
        self.name, self.process, self.run = name, process, run
        self.paused_until = 0.0
        self.condition: Callable[[], bool] | None = None
        self.done = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)

    def ready(self, now: float) -> bool:
        """Whether it can go on. A killed one can: it ends."""
        if self.process.dead:
            return True
        if now < max(self.paused_until, self.process.frozen_until):
            return False
        return self.condition is None or self.condition()


class Scheduler:
    """Runs actors until all have ended.

    ``at_point`` is called at each point with its name and how often it was reached. ``history``: what
    happened, in words.
    """

    def __init__(self, seed: object, at_point: Callable[[str, int], None]) -> None:
        self.random = Random(f"{seed}/schedule")
        self.clock = EPOCH_S
        self.history: list[str] = []
        self.reached: Counter[str] = Counter()
        self.current: Actor | None = None
        self._at_point = at_point
        self._actors: list[Actor] = []
        self._all_ended = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._steps = 0
        self._timers: list[float] = []  # when a limited wait ends

    @property
    def process(self) -> Process:
        """The process whose code runs now."""
        assert self.current is not None
        return self.current.process

    def note(self, what: str) -> None:
        """Add a line to the history."""
        who = self.current.name if self.current else "-"
        self.history.append(f"{self.clock - EPOCH_S:10.2f} s  {who:14}  {what[:LONGEST_LINE]}")

    def spawn(self, name: str, process: Process, run: Callable[[], None]) -> Actor:
        """Start an actor; it runs when the baton comes to it."""
        actor = Actor(name, process, run)
        self._actors.append(actor)
        threading.Thread(target=self._live, args=(actor,), daemon=True).start()
        return actor

    def run(self) -> None:
        """Run until all actors have ended. Raises the first error that none of them handled."""
        self._hand_on(None)
        self._all_ended.acquire()
        if self._failure is not None:
            raise self._failure

    def point(self, name: str) -> None:
        """A step of the protocol: anything may happen between the code before it and the code after it."""
        self._check_alive()
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Stuck(f"no end after {MOST_STEPS} steps")
        self.clock += 0.0005
        self.reached[name] += 1
        self._at_point(name, self.reached[name])
        if self.random.random() < SWITCH or not self._runs(self.current):
            self.give_way()
        self._check_alive()

    def give_way(self) -> None:
        """Let another actor run, perhaps."""
        self._hand_on(self.current)
        self._check_alive()

    def wait(self, condition: Callable[[], bool], limit: float = 1e9) -> bool:
        """Wait until the condition holds, for at most ``limit`` seconds; whether it does."""
        actor, until = self.current, self.clock + limit
        assert actor is not None
        if not condition():
            actor.condition = lambda: condition() or self.clock >= until
            if limit < 1e9:
                self._timers.append(until)
            self.give_way()
            actor.condition = None
        return condition()

    def sleep(self, seconds: float) -> None:
        """Let time pass for this actor; others may run meanwhile."""
        self._check_alive()
        assert self.current is not None
        self.current.paused_until = max(self.current.paused_until, self.clock + seconds)
        self.give_way()

    def _check_alive(self) -> None:
        if self.current is not None and self.current.process.dead:
            raise Killed

    def _runs(self, actor: Actor | None) -> bool:
        return actor is not None and actor.ready(self.clock)

    def _live(self, actor: Actor) -> None:
        actor.go.acquire()
        try:
            if not actor.process.dead:
                actor.run()
        except Killed:
            pass
        except BaseException as error:
            actor.error = error
            self._fail(error)
        actor.done = True
        self._actors.remove(actor)
        self._hand_on(None)

    def _fail(self, error: BaseException) -> None:
        """End the history: everything is killed."""
        self._failure = self._failure or error
        for actor in self._actors:
            actor.process.dead = True

    def _hand_on(self, me: Actor | None) -> None:
        """Give the baton to an actor that can go on; time advances if none can."""
        if not self._actors:
            self._all_ended.release()
            return
        chosen = self._choose()
        self.current = chosen
        if chosen is me:
            return
        chosen.go.release()
        if me is not None:
            me.go.acquire()

    def _choose(self) -> Actor:
        while True:
            ready = [actor for actor in self._actors if actor.ready(self.clock)]
            if ready:
                return ready[0] if len(ready) == 1 else self.random.choice(ready)
            moments = [max(actor.paused_until, actor.process.frozen_until) for actor in self._actors]
            later = [moment for moment in (*moments, *self._timers) if moment > self.clock]
            if not later:
                self._fail(Stuck("all wait for each other: " + ", ".join(each.name for each in self._actors)))
                continue
            self.clock = min(later)
            self._timers = [moment for moment in self._timers if moment > self.clock]
