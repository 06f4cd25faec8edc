"""Roster files that change while the service runs: when a change takes effect, and what is ignored."""

from __future__ import annotations

from pathlib import Path

from replayfilter.core.watermark.watermark_state import WatermarkRules
from replayfilter.service.config.filter_sections import Watermark
from replayfilter.service.runtime.roster_poller import RosterPoller, watermark_rules

PARTITIONS = {"t": 2}


class PolledFiles:
    """Two roster files, and what the poller did with them."""

    def __init__(self, folder: Path) -> None:
        self.roster, self.idle = folder / "hosts.txt", folder / "idle.txt"
        self.roster.write_text("a\nb\n")
        self.idle.write_text("# no origin\n")
        settings = Watermark(enabled=True, roster=str(self.roster), idle=str(self.idle))
        self.restarts, self.messages, self.warnings = list[WatermarkRules](), list[str](), list[str]()
        rules = watermark_rules(settings, PARTITIONS)
        assert rules == WatermarkRules(("a", "b"), "1", PARTITIONS, ())
        self.poller = RosterPoller(
            settings, rules, self.restarts.append, self.messages.append, self.warnings.append
        )

    def poll(self) -> list[WatermarkRules]:
        """Poll twice, since a change counts once the file stays the same; the rules that took effect."""
        before = len(self.restarts)
        self.poller.poll()
        assert len(self.restarts) == before, "somebody may still be writing the file"
        self.poller.poll()
        return self.restarts[before:]


def test_a_changed_file_takes_effect_once_and_an_unchanged_one_never(tmp_path: Path) -> None:
    files = PolledFiles(tmp_path)
    assert files.poll() == [], "the query started with these rules"
    files.roster.write_text("b\nc\nd\n")
    assert files.poll() == [WatermarkRules(("b", "c", "d"), "1", PARTITIONS, ())]
    assert "3 origins, 2 added, 1 removed, 0 idle" in files.messages[0]
    assert files.poll() == []
    files.idle.write_text("c\n")
    assert files.poll() == [WatermarkRules(("b", "c", "d"), "1", PARTITIONS, ("c",))]
    files.roster.touch()
    assert files.poll() == []
    assert files.warnings == []


def test_a_file_that_cannot_be_used_changes_nothing_and_is_reported_once(tmp_path: Path) -> None:
    files = PolledFiles(tmp_path)
    files.poll()
    files.roster.write_text("\n")
    assert files.poll() == []
    assert files.poll() == []
    assert len(files.warnings) == 1
    assert "names no origin" in files.warnings[0]
    files.roster.unlink()
    assert files.poll() == []
    assert "the roster stays as it was" in files.warnings[1]
    files.roster.write_text("z\n")
    assert [rules.roster for rules in files.poll()] == [("z",)]


def test_without_files_there_is_nothing_to_poll() -> None:
    settings = Watermark(enabled=True, roster=["a"], idle=["a"])
    rules = watermark_rules(settings, PARTITIONS)
    assert rules == WatermarkRules(("a",), "1", PARTITIONS, ("a",))
    ignored: list[object] = []
    poller = RosterPoller(settings, rules, ignored.append, ignored.append, ignored.append)
    poller.start()
    poller.join(5)
    assert not poller.is_alive()
    assert watermark_rules(Watermark(enabled=True), PARTITIONS).roster is None
