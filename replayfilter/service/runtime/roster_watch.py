"""Whom the watermark waits for: the roster and the idle ones, from the config or from files that may change.

Workers on several machines must all go by the same roster, from one batch on. So only the driver looks at the
files, and a change ends the query after the batch in hand and starts it again with the new one. A batch that
is tried again then still decides the same, since it goes by the watermark before it (core/tide.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.service.config.types import Watermark
from replayfilter.service.monitor.poller import Watch
from replayfilter.watermark.roster_file import read_roster

LOOK_SECONDS = 1.0  # a file is taken up once it has stayed the same for so long: nobody is writing it

_Mark = tuple[tuple[int, int, int, int] | None, ...]


def watermark_rules(mark: Watermark, partitions: Mapping[str, int]) -> WatermarkRules:
    """The rules by the config, and its files as they are now; ``partitions``: how many each input topic has.

    ValueError, with a sentence, if a file can't be used.
    """
    roster, idle = mark.roster, mark.idle
    if isinstance(roster, str):
        roster = read_roster(Path(roster)) if roster else []
    if isinstance(idle, str):
        idle = read_roster(Path(idle), may_be_empty=True) if idle else []
    return WatermarkRules(tuple(roster) or None, mark.completeness, partitions, tuple(idle))


class RosterWatch(Watch):
    """Looks at the files every second and gives the rules to ``restart_with`` when they have become other ones.

    ``rules``: those in force. ``say`` takes a sentence for each change, ``warn`` for each file that can't be
    used; then the rules stay as they were.
    """

    def __init__(
        self,
        mark: Watermark,
        rules: WatermarkRules,
        restart_with: Callable[[WatermarkRules], None],
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__("roster-watch", LOOK_SECONDS)
        self._mark, self._rules, self._renew, self._say, self._warn = mark, rules, restart_with, say, warn
        self._paths = [path for path in (mark.roster, mark.idle) if isinstance(path, str) and path]
        self._seen: _Mark | None = None
        self._taken: _Mark | None = None

    def run(self) -> None:
        """Look until the end; not at all if the config names no file."""
        if self._paths:
            super().run()

    def look(self) -> None:
        """Take up what has changed, if it has stayed the same since the last look."""
        before, self._seen = self._seen, tuple(map(_mark_of, self._paths))
        if self._seen != before or self._seen == self._taken:
            return
        self._taken = self._seen
        try:
            rules = watermark_rules(self._mark, self._rules.partitions)
        except ValueError as error:
            self._warn(f"{error}; the roster stays as it was")
            return
        if rules == self._rules:
            return
        self._say(_change(self._rules, rules))
        self._rules = rules
        self._renew(rules)


def _change(before: WatermarkRules, after: WatermarkRules) -> str:
    old, new = set(before.roster or ()), set(after.roster or ())
    return (
        f"the roster changed: {len(new):,} origins, {len(new - old):,} added, {len(old - new):,} removed, "
        f"{len(new & set(after.idle)):,} idle; from the next batch on it counts"
    )


def _mark_of(path: str) -> tuple[int, int, int, int] | None:
    """What changes when a file does; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
