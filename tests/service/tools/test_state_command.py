"""``replayfilter state`` on a real checkpoint: a change is applied once, and never to a planned batch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replayfilter import StampingProducer
from replayfilter.service.runtime.checkpoint import locked
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess
from tests.support.topics import new_topic, read_all

pytestmark = pytest.mark.spark

PID = -7


def run_state(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replayfilter", "state", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input="n\n")


def rows(output: str) -> dict[str, list[str]]:
    """Return mark and gaps of the table's rows, by partition."""
    found = [line.split() for line in output.splitlines()]
    return {row[1]: [row[2], row[4]] for row in found if row[:1] == [str(PID)]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_marks_are_shown_set_and_forgotten(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "state", 2)
    name = f"{topic}-service"
    config = prepare_replay_service(tmp_path, bootstrap, name, topic, 2)
    checkpoint = tmp_path / name

    def publish(*offsets: int) -> None:
        with StampingProducer({"bootstrap.servers": bootstrap}, topic, PID) as producer:
            for partition in (0, 1):
                for offset in offsets:
                    producer.produce(partition, offset, f"{partition}:{offset}")

    def serve() -> list[str]:
        """Run the service once, and return all values of its unique topic."""
        before = len(read_all(bootstrap, f"{name}.unique"))
        with ServiceProcess(config, "--once") as service:
            assert service.end(300) == 0, service.tail()
        found = read_all(bootstrap, f"{name}.unique")
        assert len(found) >= before
        return sorted((m.value() or b"").decode() for m in found)

    nothing = run_state(config)
    assert (nothing.returncode, "no service has run there" in nothing.stderr) == (1, True), nothing.stderr
    publish(1, 2, 5, 9)
    first = serve()
    shown = run_state(config)
    assert shown.returncode == 0, shown.stderr
    assert rows(shown.stdout) == {"0": ["9", "2"], "1": ["9", "2"]}
    assert "0 keys in " in shown.stdout, "this service only filters replays"
    disk, disk_all = (int(row.split()[-2].replace(",", "")) for row in shown.stdout.splitlines()[-2:])
    assert 0 < disk < disk_all
    with locked(checkpoint):
        busy = run_state(config)
    assert (busy.returncode, "in use by" in busy.stderr) == (1, True)
    assert run_state(config, "--forget", f"{PID}/0").returncode == 1, "the answer was no"
    assert not (checkpoint / "edits.jsonl").exists()

    changed = run_state(config, "--forget", f"{PID}/0", "--set", f"{PID}/1=20", "--yes")
    assert changed.returncode == 0, changed.stderr
    assert "records 10 to 20 would be taken for replays" in changed.stdout
    assert "at the next start: -7/1 set to 20" in run_state(config).stdout
    publish(9, 20, 21)
    second = serve()
    assert sorted(set(second) - set(first)) == ["0:20", "0:21", "1:21"]
    assert second.count("0:9") == 2, "forgotten, so it passes again"
    shown = run_state(config)
    assert {partition: row[0] for partition, row in rows(shown.stdout).items()} == {"0": "21", "1": "21"}
    assert "at the next start" not in shown.stdout

    # As if killed after Spark planned a batch and before it committed it: a change that is made now must not
    # affect that batch when it is tried again.
    publish(22)
    third = serve()
    last = max(int(path.name) for path in (checkpoint / "spark" / "commits").glob("[0-9]*"))
    for path in (checkpoint / "spark" / "commits").glob(f"*{last}*"):
        path.unlink()
    assert run_state(config, "--set", f"{PID}/0=1000", "--yes").returncode == 0
    line = json.loads((checkpoint / "edits.jsonl").read_text().splitlines()[-1])
    assert (line["batch"], line["before"]) == (last + 1, 21)
    publish(23)
    assert serve() == sorted([*third, "1:23"]), "22 was delivered once, 23 is below the new mark of source 0"
    shutil.rmtree(checkpoint)
