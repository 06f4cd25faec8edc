"""The host's cache of runs: shared, bounded, and never wrong."""

from __future__ import annotations

import contextlib
import glob
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replayfilter.core import key_run
from replayfilter.spark import run_cache
from replayfilter.spark.run_cache import RunCache
from tests.support.service_process import wait_for

WORKERS, BATCHES, RUN_BYTES = 4, 3_000, 20_000


def test_another_cache_on_the_folder_finds_a_run(tmp_path: Path) -> None:
    RunCache(tmp_path, 1_000_000).put("a", b"run")
    found = RunCache(tmp_path, 1_000_000).get("a")
    assert found is not None
    assert bytes(found) == b"run"
    assert RunCache(tmp_path, 1_000_000).get("b") is None


def test_a_damaged_file_is_not_taken_for_a_run(tmp_path: Path) -> None:
    cache = RunCache(tmp_path, 1_000_000)
    for name, damaged in {"cut": b"run", "empty": b"", "zeros": bytes(40)}.items():
        (cache.folder / f"{key_run.BLOOM_LAYOUT}-{name}").write_bytes(damaged)
        assert cache.get(name) is None


def test_it_stays_within_its_limit_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = RunCache(tmp_path, 100_000)
    for number in range(100):
        cache.put(str(number), bytes(5_000))
        assert RunCache(tmp_path, 100_000).get("0") is not None  # used again and again
    size = sum(file.stat().st_size for file in cache.folder.iterdir())
    assert size <= 100_000 * (1 + 1 / 16) + 5_016
    assert cache.get("99") is not None
    assert cache.get("1") is None


def test_a_mapped_run_can_be_read_after_its_file_is_removed(tmp_path: Path) -> None:
    cache = RunCache(tmp_path, 1_000_000)
    cache.put("a", b"run")
    held = cache.get("a")
    cache.drop("a")
    assert held is not None
    assert bytes(held) == b"run"
    assert cache.get("a") is None


def test_several_caches_write_at_once(tmp_path: Path) -> None:
    def work(number: int) -> bool:
        cache = RunCache(tmp_path, 20_000)
        for name in map(str, range(50)):
            cache.put(name, name.encode() * 500)
            found = cache.get(name)
            if found is not None and bytes(found) != name.encode() * 500:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_it_uses_no_folder_that_others_can_write_to(tmp_path: Path) -> None:
    folder = RunCache(tmp_path, 1_000).folder
    folder.chmod(0o777)
    assert RunCache(tmp_path, 1_000).folder != folder


def deleted_bytes(folder: Path) -> int:
    """Bytes of removed files below ``folder`` that this process still maps."""
    total = 0
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        if str(folder) in line and line.endswith("(deleted)"):
            start, end = line.split()[0].split("-")
            total += int(end, 16) - int(start, 16)
    return total


def open_files(folder: Path) -> int:
    """How many descriptors this process has on files below ``folder``."""
    links = (os.readlink(link) for link in glob.glob("/proc/self/fd/*") if os.path.lexists(link))
    return sum(str(folder) in link for link in links)


def test_workers_let_go_of_runs_that_another_one_merged_away(tmp_path: Path) -> None:
    limit = 1_000_000
    workers = [RunCache(tmp_path, limit) for _ in range(WORKERS)]
    for batch in range(BATCHES):
        writer = workers[batch % WORKERS]  # Spark gives a shard to any worker
        writer.put(str(batch), os.urandom(RUN_BYTES))
        for worker in workers:
            worker.get(str(batch))
        writer.drop(str(batch - 1))  # merged into the new run
    assert deleted_bytes(tmp_path) <= limit
    assert open_files(tmp_path) == 0


def test_an_idle_worker_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "RELEASE_SECONDS", 0.01)
    idle, busy = RunCache(tmp_path, 1_000_000), RunCache(tmp_path, 1_000_000)
    idle.release_while_idle()
    busy.put("a", os.urandom(RUN_BYTES))
    idle.get("a")
    busy.drop("a")
    wait_for(lambda: deleted_bytes(tmp_path) == 0, 30, "the idle worker still maps a removed run")


def test_without_descriptors_the_state_is_asked(tmp_path: Path) -> None:
    cache = RunCache(tmp_path, 1_000_000)
    cache.put("a", b"run")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        found = cache.get("a")
        cache.put("b", b"other")
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found is None
    assert cache.get("a") is not None


def test_another_layout_of_the_filter_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunCache(tmp_path, 1_000_000).put("a", b"run")
    monkeypatch.setattr(run_cache, "BLOOM_LAYOUT", key_run.BLOOM_LAYOUT + 1)
    assert RunCache(tmp_path, 1_000_000).get("a") is None
