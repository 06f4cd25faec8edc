"""Which origins the watermark waits for, and what happens when the roster files change.

Workers on several machines must all use the same roster, starting with the same batch. Therefore only the
driver reads the files. If one changes, the query ends after the current batch and starts again with the new
roster. A batch that is repeated still decides the same, since it uses the watermark of the batch before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.service.config.filter_sections import Watermark
from replayfilter.service.monitor.poller import Poller
from replayfilter.watermark.roster_file import read_roster

POLL_SECONDS = (
    1.0  # a change counts once the file has not changed for this long, so nobody is still writing it
)

_Version = tuple[tuple[int, int, int, int] | None, ...]  # of all files: see _version_of


def watermark_rules(settings: Watermark, partitions: Mapping[str, int]) -> WatermarkRules:
    """The rules from the config and the current content of its files.

    ``partitions`` is the partition count of each input topic. Raises ValueError if a file can't be used.
    """
    roster, idle = settings.roster, settings.idle
    if isinstance(roster, str):
        roster = read_roster(Path(roster)) if roster else []
    if isinstance(idle, str):
        idle = read_roster(Path(idle), may_be_empty=True) if idle else []
    return WatermarkRules(tuple(roster) or None, settings.completeness, partitions, tuple(idle))


class RosterPoller(Poller):
    """Checks the files every second, and calls ``restart_with`` when their content changes the rules.

    ``rules`` are the current ones. ``info`` is called with a message for each change, and ``warn`` for each
    file that can't be used, which leaves the rules unchanged.
    """

    def __init__(
        self,
        settings: Watermark,
        rules: WatermarkRules,
        restart_with: Callable[[WatermarkRules], None],
        info: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__("roster-poller", POLL_SECONDS)
        self._settings, self._rules = settings, rules
        self._restart_with, self._info, self._warn = restart_with, info, warn
        self._paths = [path for path in (settings.roster, settings.idle) if isinstance(path, str) and path]
        self._last_version: _Version | None = None
        self._read_version: _Version | None = None

    def run(self) -> None:
        """Poll until the end. Returns at once if the config names no file."""
        if self._paths:
            super().run()

    def poll(self) -> None:
        """Read the files if they have changed, but not since the last poll."""
        previous, self._last_version = self._last_version, tuple(map(_version_of, self._paths))
        if self._last_version != previous or self._last_version == self._read_version:
            return
        self._read_version = self._last_version
        try:
            rules = watermark_rules(self._settings, self._rules.partitions)
        except ValueError as error:
            self._warn(f"{error}; the roster stays as it was")
            return
        if rules == self._rules:
            return
        self._info(_describe_change(self._rules, rules))
        self._rules = rules
        self._restart_with(rules)


def _describe_change(before: WatermarkRules, after: WatermarkRules) -> str:
    old, new = set(before.roster or ()), set(after.roster or ())
    return (
        f"the roster changed: {len(new):,} origins, {len(new - old):,} added, {len(old - new):,} removed, "
        f"{len(new & set(after.idle)):,} idle; it takes effect with the next batch"
    )


def _version_of(path: str) -> tuple[int, int, int, int] | None:
    """Values that change when the file is changed or replaced; None if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
