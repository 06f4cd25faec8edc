"""The host's cache of runs: shared, bounded, and never wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from replayfilter.spark.run_cache import RunCache


def test_another_cache_on_the_folder_finds_a_run(tmp_path: Path) -> None:
    RunCache(tmp_path, 1_000_000).put("a", b"run")
    found = RunCache(tmp_path, 1_000_000).get("a")
    assert found is not None
    assert bytes(found) == b"run"
    assert RunCache(tmp_path, 1_000_000).get("b") is None


def test_a_damaged_file_is_not_taken_for_a_run(tmp_path: Path) -> None:
    cache = RunCache(tmp_path, 1_000_000)
    for name, damaged in {"cut": b"run", "empty": b"", "zeros": bytes(40)}.items():
        (cache.folder / name).write_bytes(damaged)
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
