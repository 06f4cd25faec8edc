"""The settings of output topics: derived for new topics, checked on existing ones."""

from __future__ import annotations

from replayfilter.service.runtime.output_topics import ADDED_BYTES, output_settings, too_strict


def test_the_longest_retention_of_the_inputs_counts() -> None:
    def topic(ms: int, size: int) -> dict[str, str]:
        return {"max.message.bytes": str(size), "retention.ms": str(ms), "retention.bytes": "-1"}

    settings = output_settings([topic(100, 10), topic(300, 30)])
    assert (settings["retention.ms"], settings["retention.bytes"]) == ("300", "-1")
    assert settings["max.message.bytes"] == str(30 + ADDED_BYTES)
    assert output_settings([topic(100, 10), topic(-1, 30)])["retention.ms"] == "-1"


def test_timestamps_that_the_broker_sets_need_no_tolerance() -> None:
    broker_time = {"max.message.bytes": "10", "message.timestamp.type": "LogAppendTime"}
    generous = {"max.message.bytes": "9999", "message.timestamp.after.max.ms": "5"}
    assert too_strict([broker_time], generous) == []
    assert (
        "own timestamps are lost"
        in too_strict([broker_time], generous | broker_time | {"max.message.bytes": "9999"})[0]
    )
