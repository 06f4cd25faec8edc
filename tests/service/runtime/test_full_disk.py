"""A disk that is full, under the checkpoint and under the scratch folder: the service waits and goes on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replayfilter.demo.check import compare
from replayfilter.demo.kafka_io import create_topic, publish, read_topic
from replayfilter.demo.stream import OUTPUTS, expected_routes, generate
from replayfilter.demo.walkthrough import PARTITIONS, write_config
from replayfilter.devbroker import DevBroker
from tests.support.service_process import Checkpoint, ServiceProcess, wait_for

pytestmark = pytest.mark.spark

NAME = "full"
RECORDS = 12_000
DISK_BYTES = 256 << 20


class SmallDisk:
    """A file system of its own in a folder, which can be filled to its last byte and emptied again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self) -> None:
        """Fill what is free now; what is deleted later is free again until the next call."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        """Remove what :meth:`fill` has written."""
        self._ballast.unlink()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[dict[str, SmallDisk]]:
    """A small disk for the checkpoint and one for temporary files. Needs the right to mount."""
    mounted: dict[str, SmallDisk] = {}
    try:
        for name in ("checkpoint", "scratch"):
            (tmp_path / name).mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", NAME, str(tmp_path / name)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                pytest.skip(f"a small file system can't be mounted here: {ended.stderr.strip()}")
            mounted[name] = SmallDisk(tmp_path / name)
        yield mounted
    finally:
        for disk in mounted.values():
            subprocess.run(["umount", "--lazy", str(disk.folder)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_goes_on_once_there_is_room(
    broker: DevBroker, tmp_path: Path, disks: dict[str, SmallDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    end_ms = int(time.time() * 1000)
    stream = generate(RECORDS, end_ms=end_ms, seed=5)
    expected = expected_routes(stream, end_ms=end_ms)
    config = write_config(tmp_path, broker.bootstrap, NAME, batch_records=1_000)
    for topic in (NAME, *(f"{NAME}.{route}" for route in OUTPUTS)):
        create_topic(broker.bootstrap, topic, PARTITIONS)
    monkeypatch.setenv("TMPDIR", str(disks["scratch"].folder))
    checkpoint, thirds = Checkpoint(tmp_path / "checkpoint"), iter(range(0, RECORDS, RECORDS // 3))

    def publish_third() -> None:
        first = next(thirds)
        publish(broker.bootstrap, NAME, stream[first : first + RECORDS // 3])

    def await_batch(service: ServiceProcess) -> None:
        committed = checkpoint.committed()
        service.await_change(lambda: checkpoint.committed() > committed)

    publish_third()
    with ServiceProcess(config) as service:
        await_batch(service)
        for disk in disks.values():
            told = service.log.read_text().count("no room is left")
            disk.fill()
            publish_third()

            def is_told(disk: SmallDisk = disk, told: int = told) -> bool:
                disk.fill()
                return service.log.read_text().count("no room is left") > told

            service.await_change(is_told, every=0.2)
            last = [line for line in service.log.read_text().splitlines() if "no room is left" in line][-1]
            assert [str(each.folder) in last for each in disks.values()] == [
                each is disk for each in disks.values()
            ], last
            disk.make_room()
            await_batch(service)
        assert "Traceback" not in service.tail()
    wait_for(lambda: not service.pids(), 60, "processes are left")
    with ServiceProcess(config, "--once") as service:
        assert service.end(300) == 0, service.tail()
    found = {route: read_topic(broker.bootstrap, f"{NAME}.{route}") for route in OUTPUTS}
    for verdict in compare(stream, expected, found).values():
        assert verdict.ok, verdict
