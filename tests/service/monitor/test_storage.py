"""The size of the state on disk, from files laid out as Spark 4.0 does with RocksDB and changelogs."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path

import numpy as np
from rich.console import Console

from replayfilter.core.buckets import Entry
from replayfilter.core.key_run import Run, cached_size, with_bloom
from replayfilter.core.state import ShardState
from replayfilter.service.monitor.storage import Storage, StoragePoller, measure
from replayfilter.service.tools.state_command import print_sizes
from replayfilter.spark.checkpoint_folder import LocalFolder

ONE, TWO = "4a476c46-fd5b-468e-9327-28e8b8bd2bd2", "a401444b-0f42-47bc-94f0-e1746d90dd02"


def snapshot(path: Path, *tables: int) -> int:
    """Write a snapshot that names tables of these sizes; returns its own size."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        sst = [{"localFileName": "8.sst", "dfsSstFileName": "8-x.sst", "sizeBytes": size} for size in tables]
        archive.writestr("metadata", "v2\n" + json.dumps({"sstFiles": sst, "numKeys": -1}))
    return path.stat().st_size


def test_the_latest_version_is_the_last_snapshot_with_its_tables_and_the_changelogs_after_it(
    tmp_path: Path,
) -> None:
    shard = tmp_path / "state" / "0" / "0"
    (shard / "SSTs").mkdir(parents=True)
    (tmp_path / "state" / "0" / "_metadata").mkdir()
    (tmp_path / "state" / "0" / "_metadata" / "0").write_bytes(b"?" * 5)
    old = snapshot(shard / f"1_{ONE}.zip", 300)
    new = snapshot(shard / f"10_{ONE}.zip", 1_000, 2_000)
    written = {
        f"9_{ONE}.changelog": 70,
        f"10_{ONE}.changelog": 80,  # included in the snapshot of the same version
        f"11_{ONE}.changelog": 7,
        f"11_{TWO}.changelog": 9,  # the batch was retried: only one of the two counts
        f"12_{ONE}.changelog": 20,
        f".12_{ONE}.changelog.crc": 3,
    }
    for name, size in written.items():
        (shard / name).write_bytes(b"x" * size)
    for name, size in (("7-x.sst", 300), ("8-x.sst", 1_000), ("9-x.sst", 2_000)):
        (shard / "SSTs" / name).write_bytes(b"x" * size)
    everything = old + new + sum(written.values()) + 3_300 + 5
    assert measure(LocalFolder(tmp_path)) == Storage(new + 3_000 + 9 + 20, everything)


def test_before_the_first_snapshot_and_with_a_truncated_one(tmp_path: Path) -> None:
    assert measure(LocalFolder(tmp_path)) == Storage(0, 0)
    for number, size in ((0, 10), (1, 30)):
        shard = tmp_path / "state" / "0" / str(number)
        shard.mkdir(parents=True)
        (shard / f"1_{ONE}.changelog").write_bytes(b"x" * size)
    assert measure(LocalFolder(tmp_path)) == Storage(40, 40)
    (tmp_path / "state" / "0" / "1" / f"2_{ONE}.zip").write_bytes(b"PK")
    assert measure(LocalFolder(tmp_path)) == Storage(12, 42)


def test_memory_is_the_size_of_the_runs_in_the_cache() -> None:
    digests = np.sort(np.random.default_rng(7).integers(0, 1 << 63, 5_000).astype(np.uint64))
    data = Run(digests, digests, {"age": np.zeros(5_000, np.uint32)}).to_bytes()
    state = ShardState(0, runs={3: [Entry(3, "00" * 16, 5_000, len(data))]})
    header = 100  # of the block; its length depends on the filter's name
    assert 0 <= len(with_bloom(data)) - cached_size(5_000, len(data)) < header
    assert state.keys == 5_000
    assert 21.5 < state.memory / state.keys < 22


def test_the_state_command_prints_the_sizes() -> None:
    out = io.StringIO()
    entry = Entry(3, "00" * 16, 1_000, 20_000)
    shards = [ShardState(0, runs={3: [entry]}), ShardState.empty()]
    print_sizes(Console(file=out, width=100), shards, Storage(24_000, 50_000))
    assert "1,000 keys in 2 shards" in out.getvalue()
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["on", "disk", "24,000", "24.0"] in rows
    assert rows[-1][-2:] == ["50,000", "50.0"]
    print_sizes(Console(file=out, width=100), [], Storage(0, 0))
    assert out.getvalue().splitlines()[-1].split()[-2:] == ["0", "-"]


def test_the_disk_is_measured_again_while_no_records_arrive(tmp_path: Path) -> None:
    found: list[Storage] = []
    shard = tmp_path / "state" / "0" / "0"
    with StoragePoller(LocalFolder(tmp_path), "", found.append, every=0.01) as poller:
        shard.mkdir(parents=True)
        (shard / f"1_{ONE}.changelog").write_bytes(b"x" * 10)
        deadline = time.monotonic() + 10
        while Storage(10, 10) not in found and time.monotonic() < deadline:
            time.sleep(0.01)
    assert found[-1] == Storage(10, 10)
    assert not poller.is_alive()
