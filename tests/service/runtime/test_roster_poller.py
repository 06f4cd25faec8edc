"""Roster files that change while the service runs: what is taken up, when, and what changes nothing."""

from __future__ import annotations

from pathlib import Path

from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.service.config.filter_sections import Watermark
from replayfilter.service.runtime.roster_poller import RosterPoller, watermark_rules

PARTITIONS = {"t": 2}


class Watched:
    """Two files, and what the watch made of them."""

    def __init__(self, folder: Path) -> None:
        self.roster, self.idle = folder / "hosts.txt", folder / "idle.txt"
        self.roster.write_text("a\nb\n")
        self.idle.write_text("# nobody\n")
        mark = Watermark(enabled=True, roster=str(self.roster), idle=str(self.idle))
        self.taken, self.said, self.warned = list[WatermarkRules](), list[str](), list[str]()
        rules = watermark_rules(mark, PARTITIONS)
        assert rules == WatermarkRules(("a", "b"), "1", PARTITIONS, ())
        self.watch = RosterPoller(mark, rules, self.taken.append, self.said.append, self.warned.append)

    def look(self) -> list[WatermarkRules]:
        """The rules taken up by two looks, after which a file that nobody writes is taken up."""
        before = len(self.taken)
        self.watch.look()
        assert len(self.taken) == before, "somebody may still be writing it"
        self.watch.look()
        return self.taken[before:]


def test_a_changed_file_is_taken_up_once_and_an_unchanged_one_never(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.look() == [], "it is what the query began with"
    watched.roster.write_text("b\nc\nd\n")
    assert watched.look() == [WatermarkRules(("b", "c", "d"), "1", PARTITIONS, ())]
    assert "3 origins, 2 added, 1 removed, 0 idle" in watched.said[0]
    assert watched.look() == []
    watched.idle.write_text("c\n")
    assert watched.look() == [WatermarkRules(("b", "c", "d"), "1", PARTITIONS, ("c",))]
    watched.roster.touch()
    assert watched.look() == []
    assert watched.warned == []


def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.look()
    watched.roster.write_text("\n")
    assert watched.look() == []
    assert watched.look() == []
    assert len(watched.warned) == 1
    assert "names no origin" in watched.warned[0]
    watched.roster.unlink()
    assert watched.look() == []
    assert "the roster stays as it was" in watched.warned[1]
    watched.roster.write_text("z\n")
    assert [rules.roster for rules in watched.look()] == [("z",)]


def test_without_files_there_is_nothing_to_look_at() -> None:
    mark = Watermark(enabled=True, roster=["a"], idle=["a"])
    rules = watermark_rules(mark, PARTITIONS)
    assert rules == WatermarkRules(("a",), "1", PARTITIONS, ("a",))
    watch = RosterPoller(mark, rules, [].append, [].append, [].append)
    watch.start()
    watch.join(5)
    assert not watch.is_alive()
    assert watermark_rules(Watermark(enabled=True), PARTITIONS).roster is None
