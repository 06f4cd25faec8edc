"""Jobs that are killed 15 times, followed by real services: every record arrives once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess
from tests.support.stamped_job import check_exact, fill, run_job
from tests.support.topics import new_topic, read_all

pytestmark = pytest.mark.spark


def serve(folder: Path, bootstrap: str, name: str, topic: str, partitions: int, stamp: str = "key") -> None:
    """Run a service until it has processed all that is in ``topic`` now."""
    config = prepare_replay_service(folder, bootstrap, name, topic, partitions, stamp)
    with ServiceProcess(config, "--once") as service:
        assert service.end(300) == 0, service.tail()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_jobs_killed_15_times_and_two_services_in_a_row(bootstrap: str, tmp_path: Path) -> None:
    """4 -> 3 -> 8 partitions; half of the stream arrives while the services are stopped."""
    sources = [fill(bootstrap, "left", 4, 20_000), fill(bootstrap, "right", 2, 6_000)]
    target = new_topic(bootstrap, "chain", 3)
    first, second = f"{target}-b", f"{target}-c"
    hit = run_job(bootstrap, sources[0], target, tmp_path)
    serve(tmp_path, bootstrap, first, target, 8)
    hit += run_job(bootstrap, sources[1], target, tmp_path, kills=4)
    serve(tmp_path, bootstrap, first, target, 8)
    serve(tmp_path, bootstrap, second, f"{first}.unique", 8)
    published, written = read_all(bootstrap, *sources), read_all(bootstrap, target)
    for name in (first, second):
        found = read_all(bootstrap, f"{name}.unique")
        for message in found:  # the first topic has source partition % 3, the services keep it
            source_partition = int((message.value() or b"").decode().split()[1])
            assert message.partition() == source_partition % 3
        assert len(found) == len(published)
        check_order(published, found)
        assert read_all(bootstrap, f"{name}.error") == []
    replays = read_all(bootstrap, f"{first}.replay")
    assert len(replays) == len(written) - len(published) > 0
    assert {m.value() for m in replays} <= {m.value() for m in published}
    assert read_all(bootstrap, f"{second}.replay") == []
    assert hit >= 15


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stamps_in_the_header_and_more_partitions(bootstrap: str, tmp_path: Path) -> None:
    source = fill(bootstrap, "headed", 4, 12_000)
    target = new_topic(bootstrap, "headed-chain", 8)
    run_job(bootstrap, source, target, tmp_path, stamp="header", kills=6)
    serve(tmp_path, bootstrap, f"{target}-b", target, 8, "header")
    check_exact(read_all(bootstrap, source), read_all(bootstrap, f"{target}-b.unique"), 8)


def check_order(published: list, found: list) -> None:  # type: ignore[type-arg]
    """Check that each source's records are complete and in order, whatever their partitions."""

    def by_source(messages: list) -> dict[str, list[bytes]]:  # type: ignore[type-arg]
        rows: dict[str, list[bytes]] = {}
        for message in messages:
            rows.setdefault(message.value().decode().rsplit(" ", 1)[0], []).append(message.value())
        return rows

    assert by_source(found) == by_source(published)
