"""Stages: steps of processing that read one another's output, and their low watermarks.

Rules:
- The input low of a stage is the smallest of the output lows of the stages it reads, and of its own bound:
  the watermark of its roster, or the smallest watermark that its input partitions carry.
- Without a bound of its own a stage is silent, and its watermarks stay where they are. What the stages before
  it have finished may still wait in its input.
- The output low of a stage is the smaller of its input low and its oldest unfinished work.
- Neither goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from replayfilter.core.clock.units import UNKNOWN


@dataclass(frozen=True, slots=True)
class Lows:
    """The watermarks of a stage: nothing older than ``input`` comes in, or than ``output`` goes out."""

    input: int = UNKNOWN
    output: int = UNKNOWN


class Stages:
    """The graph of stages and their watermarks; ``upstream`` has the stages that each stage reads.

    Raises ``ValueError`` for a cycle, and for an unknown upstream stage.

    >>> stages = Stages({"parse": [], "join": ["parse"]})
    >>> stages.settle({"parse": 9, "join": 8}, {"parse": 7})
    >>> stages.lows["join"]
    Lows(input=7, output=7)
    """

    def __init__(self, upstream: Mapping[str, Sequence[str]], lows: Mapping[str, Lows] | None = None) -> None:
        for stage, names in upstream.items():
            for name in names:
                if name not in upstream:
                    raise ValueError(f'stage "{stage}" reads "{name}", which is not declared; declare it too')
        try:
            self.order = tuple(TopologicalSorter(upstream).static_order())
        except CycleError as error:
            cycle = " -> ".join(error.args[1][::-1])
            raise ValueError(f"stages read one another in a cycle: {cycle}; remove one edge") from None
        self.upstream = {stage: tuple(names) for stage, names in upstream.items()}
        self.lows = {stage: (lows or {}).get(stage, Lows()) for stage in self.order}

    def settle(self, own: Mapping[str, int], oldest: Mapping[str, int]) -> None:
        """Advance all watermarks as far as possible.

        ``own``: the own bounds of stages, without those that are silent; ``oldest``: their oldest unfinished
        work.
        """
        for stage in self.order:
            if stage not in own:
                continue
            before = self.lows[stage]
            bound = min([own[stage], *(self.lows[name].output for name in self.upstream[stage])])
            into = max(before.input, bound)
            out = max(before.output, min(into, oldest.get(stage, into)))
            self.lows[stage] = Lows(into, out)

    def upstream_low(self, stage: str) -> int | None:
        """The smallest output low of the stages that ``stage`` reads; None if it reads none."""
        return min((self.lows[name].output for name in self.upstream[stage]), default=None)

    def overall(self) -> int:
        """The low watermark of all stages together: nothing older comes out of any of them."""
        return min((lows.output for lows in self.lows.values()), default=UNKNOWN)
