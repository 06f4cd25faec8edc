"""``replayfilter publish`` on a real broker: whether it is killed, follows or rotates, no line is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from replayfilter import ReplayFilter
from replayfilter.kafka.admin import Cluster
from tests.support.topics import new_topic, read_all, stamp_of


def command(path: Path, bootstrap: str, topic: str, *more: str) -> list[str]:
    start = [sys.executable, "-m", "replayfilter", "publish", str(path), "--bootstrap", bootstrap]
    return [*start, "--topic", topic, *more]


def publish(path: Path, bootstrap: str, topic: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = command(path, bootstrap, topic, *more)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


def filtered(bootstrap: str, topic: str) -> list[bytes]:
    """Return the values that pass a replay filter."""
    replay_filter = ReplayFilter()
    return [m.value() or b"" for m in read_all(bootstrap, topic) if replay_filter.accept(stamp_of(m))]


def wait_for(happened: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_lines_are_stamped_with_their_byte_positions(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "lines", 3), tmp_path / "lines"
    path.write_bytes(b"one\n\ntwo\r\n" + b"\xff\x00 not text\n" + b"last")
    done = publish(path, bootstrap, topic, "--partition", "5")
    assert (done.returncode, "4 records published" in done.stdout) == (0, True), done.stderr
    found = read_all(bootstrap, topic)
    assert [m.value() for m in found] == [b"one", b"two", b"\xff\x00 not text", b"last"]
    assert [stamp_of(m).offset for m in found] == [0, 5, 10, 22]  # type: ignore[union-attr]
    assert {(m.partition(), stamp_of(m).partition) for m in found} == {(2, 5)}  # type: ignore[union-attr]
    publish(path, bootstrap, topic, "--partition", "5")
    assert len(read_all(bootstrap, topic)) == 8
    assert len(filtered(bootstrap, topic)) == 4
    publish(path, bootstrap, topic, "--partition", "5", "--job", "another")
    assert len(filtered(bootstrap, topic)) == 8


@pytest.mark.slow
def test_a_kill_at_any_moment_causes_only_replays(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "killed"), tmp_path / "many"
    lines = [b"%d %s" % (number, b"x" * 200) for number in range(150_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    rng = random.Random()
    cluster, partition = Cluster(bootstrap), (topic, 0)

    def size() -> int:
        return cluster.end_offsets([partition])[partition]

    for _ in range(6):
        before = size()
        process = subprocess.Popen(command(path, bootstrap, topic), stdout=subprocess.DEVNULL)
        while size() == before and process.poll() is None:
            time.sleep(0.003)
        time.sleep(rng.uniform(0, 0.4))
        process.kill()
        process.wait()
    assert publish(path, bootstrap, topic).returncode == 0
    assert filtered(bootstrap, topic) == lines
    assert len(read_all(bootstrap, topic)) > len(lines), "every kill came before or after the work"


@pytest.mark.slow
def test_a_growing_file_is_followed_through_rotation(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "followed"), tmp_path / "app.log"
    path.write_bytes(b"header\na1\na2 half")
    process = subprocess.Popen(command(path, bootstrap, topic, "--follow"), stdout=subprocess.PIPE)
    try:
        wait_for(lambda: len(read_all(bootstrap, topic)) == 2)
        with path.open("ab") as old:
            old.write(b" whole\n")
            old.flush()
            wait_for(lambda: len(read_all(bootstrap, topic)) == 3)
            path.rename(tmp_path / "app.log.1")
            path.write_bytes(b"header\nb1\n")
            old.write(b"a3, after the file was renamed\nno end")
        wait_for(lambda: len(read_all(bootstrap, topic)) == 7)
        process.kill()
        process.wait()
        process = subprocess.Popen(command(path, bootstrap, topic, "--follow"), stdout=subprocess.PIPE)
        with path.open("ab") as new:
            new.write(b"b2\n")
        wait_for(lambda: len(read_all(bootstrap, topic)) == 10)
        process.terminate()
        process.wait(20)
    finally:
        process.kill()
        process.wait()
    assert filtered(bootstrap, topic) == [
        b"header", b"a1", b"a2 half whole", b"a3, after the file was renamed", b"no end",
        b"header", b"b1", b"b2",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_truncated_file_that_starts_with_the_same_line_is_refused(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "cut"), tmp_path / "app.log"
    path.write_bytes(b"header\na1\n")
    process = subprocess.Popen(
        command(path, bootstrap, topic, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: len(read_all(bootstrap, topic)) == 2)
    path.write_bytes(b"header\n")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "was truncated and starts with the same first line" in errors
    assert "--identity" in errors


def test_errors_are_reported_in_plain_messages(bootstrap: str, tmp_path: Path) -> None:
    topic, path = new_topic(bootstrap, "errors"), tmp_path / "file"
    assert "can't be read" in publish(path, bootstrap, topic).stderr
    path.write_bytes(b"a line without an end")
    assert "--identity" in publish(path, bootstrap, topic).stderr
    assert publish(path, bootstrap, topic, "--identity", "2024-05-01").returncode == 0
    missing = publish(path, bootstrap, "no-such-topic", "--identity", "x")
    assert (missing.returncode, "no-such-topic" in missing.stderr) == (1, True)
