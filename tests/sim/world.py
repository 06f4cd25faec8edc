"""The simulated world: Kafka, a host with its clock and cache, and the modules that meet them.

The code under test is the real one. What it takes from outside (Kafka's clients, time, threads, the globals
of a process) is replaced in its modules while :func:`installed` is active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings

from tests.sim.broker import Broker
from tests.sim.scheduler import Process, Scheduler

_running: list[Simulation] = []


def running() -> Simulation:
    """The simulation that runs now."""
    return _running[-1]


class Simulation(Scheduler):
    """A scheduler with Kafka and a host. ``skew_s``: how wrong the host's clock is.

    ``cache``: the host's cache of runs, by name. What is in it may be forgotten, and outlives every process.
    """

    def __init__(self, seed: int, at_point: Callable[[str, int], None]) -> None:
        super().__init__(seed, at_point)
        self.broker = Broker(Random(f"{seed}/broker"), lambda: self.clock)
        self.chance = Random(f"{seed}/chance")
        self.skew_s = 0.0
        self.away_until = 0.0  # no broker answers before
        self.cache: dict[str, bytes] = {}
        self.on_commit: Callable[[], None] = lambda: None  # when a plain commit takes effect

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something after a while."""

        def act() -> None:
            self.sleep(seconds)
            what()

        self.spawn("kafka", Process("kafka"), act)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Be the simulation that the replaced modules use."""
        _running.append(self)
        try:
            yield
        finally:
            _running.pop()


class _Time:
    """The module ``time``: the host's clock is skewed, the monotonic one is not."""

    def monotonic(self) -> float:
        return running().clock

    def monotonic_ns(self) -> int:
        return int(running().clock * 1e9)

    def time(self) -> float:
        return running().clock + running().skew_s

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        running().sleep(seconds)


class _StepThread:
    """A thread of one step, which its maker joins at once: it runs in the maker's own."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        self._target()

    def join(self, limit: float) -> None:
        """It has ended."""


class _MemberThread:
    """The thread of a membership: an actor of the driver."""

    ident: int | None = None

    def __init__(self, target: Any, name: str, daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        sim, self.ident = running(), 1
        membership = self._target.__self__
        membership._consumer.ends_with(membership._ended.is_set)
        self._actor = sim.spawn(f"{sim.process.name}.member", sim.process, self._target)

    def join(self) -> None:
        running().wait(lambda: self._actor.done)


class _Condition:
    """Only one actor runs at a time, so nothing needs to be locked."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def wait_for(self, condition: Callable[[], bool], limit: float) -> bool:
        return running().wait(condition, limit)

    def notify_all(self) -> None:
        """Waiting actors look for themselves."""


class _Event:
    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        running().sleep(seconds)
        return self._is_set


class _Memory(MutableMapping[object, Any]):
    """A dict among a module's globals: each process has its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _own(self) -> dict[object, Any]:
        return running().process.memory.setdefault(self._name, {})

    def __getitem__(self, key: object) -> Any:
        return self._own()[key]

    def __setitem__(self, key: object, value: Any) -> None:
        self._own()[key] = value

    def __delitem__(self, key: object) -> None:
        del self._own()[key]

    def __iter__(self) -> Iterator[object]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())


class _HostCache:
    """The host's cache of runs: it may have forgotten any of them."""

    def get(self, name: str) -> bytes | None:
        sim = running()
        return sim.cache.get(name) if sim.chance.random() < 0.9 else None

    def put(self, name: str, data: bytes) -> None:
        running().cache.setdefault(name, bytes(data))

    def drop(self, name: str) -> None:
        if running().chance.random() < 0.5:  # the file is there until the worker that made it removes it
            running().cache.pop(name, None)


@contextmanager
def installed() -> Iterator[None]:
    """Replace what the code under test takes from outside."""
    from replayfilter.client import consumer, producer
    from replayfilter.client.producer import PartitionsChanged
    from replayfilter.kafka import admin, membership, offsets, standbys, transactions
    from replayfilter.service.runtime import checkpoint, preflight
    from replayfilter.spark import first_offsets, router, source, worker
    from tests.sim import clients, readers, spark_model

    clock, condition = _Time(), SimpleNamespace(Thread=_MemberThread, Condition=_Condition, Event=_Event)
    with ExitStack() as replaced:
        replaced.enter_context(catch_warnings(category=PartitionsChanged, action="ignore"))
        for module in (admin, checkpoint, consumer, offsets, producer, source, standbys, transactions):
            replaced.enter_context(patch.object(module, "time", clock))
        for module in (first_offsets, producer, standbys):
            replaced.enter_context(patch.object(module, "Producer", clients.SimProducer))
        for module in (membership, offsets):
            replaced.enter_context(patch.object(module, "Consumer", readers.SimConsumer))
        for module in (admin, membership, producer):
            replaced.enter_context(patch.object(module, "AdminClient", readers.SimAdmin))
        step = SimpleNamespace(Thread=_StepThread)
        for owner, name, substitute in (
            (consumer, "Consumer", readers.SimReader),
            (membership, "threading", condition),
            (transactions, "threading", step),
            (worker, "_lanes", _Memory("lanes")),
            (worker, "run_cache", lambda limit: _HostCache()),
            (worker, "reader", spark_model.Reader),
            (preflight, "RangeReader", spark_model.RangeReader),
            (router, "TaskContext", spark_model.TaskContext),
        ):
            replaced.enter_context(patch.object(owner, name, substitute))
        yield
