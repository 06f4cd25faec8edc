"""The table in a compacted topic: what is acknowledged is in Kafka, and only one server can write it."""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from replayfilter.core.watermark.stages import Lows
from replayfilter.devbroker import DevBroker
from replayfilter.errors import WatermarkError
from replayfilter.kafka.admin import Cluster
from replayfilter.kafka.compacted import MAX_PAUSE_S, CompactedTopic
from replayfilter.watermark.kafka_store import KafkaStore
from replayfilter.watermark.snapshots import PartitionReport
from replayfilter.watermark.stage_row import StoredOrigin
from replayfilter.watermark.store import HISTORY_INTERVAL_US, FencedError, Lease, Store, StoredStage
from replayfilter.watermark.table import Changes
from tests.support.server_process import ServerProcess, write_config
from tests.support.topics import new_topic, read_all

HOSTS = [f"host-{number}" for number in range(100)]
STAGES = (
    f'[stages.web]\nroster = {json.dumps(HOSTS)}\ncompleteness = "0.9"\n[stages.next]\nupstream = ["web"]\n'
)
A = StoredOrigin("a", 10, 7, False, "p", "config")
B = StoredOrigin("b", -(2**63), 0, True, None, "request")
REPORT = PartitionReport(5, None, 12, 1, 2, 99)
_number = itertools.count()


@contextmanager
def store(bootstrap: str, topic: str) -> Iterator[Store]:
    with closing(KafkaStore(topic, bootstrap, {})) as opened:
        yield opened


@pytest.fixture
def topic(bootstrap: str, request: pytest.FixtureRequest) -> str:
    """The name of a topic that doesn't exist yet."""
    return f"{request.node.name[:150]}-{time.time_ns()}"


def wait_for_lease(store: Store, epoch: int, transactions: int, owner: str) -> Lease:
    """The lease once it is this one: readers see a commit a little after the one who has committed it."""
    expected, deadline = Lease(epoch, transactions - 1, owner), time.monotonic() + 30
    while (found := store.lease()) != expected:
        assert time.monotonic() < deadline, found
    return found


def host_config(folder: Path, bootstrap: str, topic: str, options: str = "") -> Path:
    """The config of a server on a host of its own: it shares nothing with others but the topic."""
    host = folder / f"host-{next(_number)}"
    host.mkdir()
    kafka = f'[kafka]\nbootstrap = "{bootstrap}"\n{options}'
    return write_config(host, kafka + STAGES, store=f"kafka:{topic}")


def progress_of(server: ServerProcess) -> dict[str, int]:
    found = server.get("/v1/stages/web/origins", limit=500)["slowest"]
    return {each["origin"]: -1 if each["progress"] is None else each["progress"] for each in found}


def test_kill_9_at_any_moment_loses_no_acknowledged_report(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    rng = random.Random(7)
    acknowledged: dict[str, int] = {}
    seen = -1  # the largest watermark in a response
    with ExitStack() as started:

        def start(**options: Any) -> ServerProcess:
            return started.enter_context(ServerProcess(host_config(tmp_path, bootstrap, topic), **options))

        active = start()
        active.report("next", low=10**9)  # its watermark is that of web
        for life in range(3):
            standby = start(standby=True)
            refused = standby.http.get("/v1/stages/web/low")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert [each.http.get("/readyz").status_code for each in (active, standby)] == [200, 503]
            killer = threading.Timer(rng.uniform(0, 0.1), active.kill)
            for sequence in itertools.count(1):
                if sequence == 10:
                    killer.start()
                base = life * 1_000 + sequence
                chosen = {host: base + rng.randint(0, 50) for host in rng.sample(HOSTS, 80)}
                try:
                    response = active.report("web", chosen, session=life, sequence=sequence)
                    for host, progress in chosen.items():
                        acknowledged[host] = max(progress, acknowledged.get(host, -1))
                    output = response["stages"]["web"]["output_low"]
                    seen = max(seen, -1 if output is None else output, active.low("next") or -1)
                except httpx.TransportError:
                    break
            killer.join()
            assert active.process.poll() == -signal.SIGKILL
            standby.wait_for_role("active", seconds=60)
            kept = progress_of(standby)
            assert all(kept[host] >= progress for host, progress in acknowledged.items())
            assert seen <= (standby.low("next") or -1)
            active = standby
        active.signal(signal.SIGTERM)
        assert active.process.wait(15) == 0
        alone = start()
        assert progress_of(alone) == kept, "from the topic alone, on an empty disk"
        assert len(alone.get("/v1/stages/web/history")["at_us"]) > 0
    assert seen > 0


def test_a_paused_server_can_acknowledge_nothing_once_another_has_taken_over(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    one, two = (host_config(tmp_path, bootstrap, topic) for _ in range(2))
    acknowledged, woken, ended = [0], threading.Event(), threading.Event()
    after: list[int] = []

    def report_on(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            for number in itertools.count(1):
                if ended.is_set():
                    return
                asked_later = woken.is_set()
                reports = [{"stage": "web", "origins": dict.fromkeys(HOSTS, number)}]
                body = {"session": 1, "sequence": number, "reports": reports}
                status = http.post("/v1/report", json=body).status_code
                if status == 200:
                    acknowledged.append(number)
                if asked_later:
                    after.append(status)

    with ServerProcess(one) as first, ServerProcess(two, standby=True) as second:
        client = threading.Thread(target=report_on, args=[first.url])
        client.start()
        try:
            while len(acknowledged) < 20:
                time.sleep(0.01)
            first.signal(signal.SIGSTOP)
            second.wait_for_role("active", seconds=60)
            woken.set()
            first.signal(signal.SIGCONT)
            while len(after) < 40:
                time.sleep(0.01)
        finally:
            ended.set()
            first.signal(signal.SIGCONT)
            client.join()
        assert set(after) == {503}
        assert min(progress_of(second).values()) >= acknowledged[-1]
        assert first.http.get("/health").json()["role"] == "standby"
        second.report("web", dict.fromkeys(HOSTS, 10**6), session=2)
        second.signal(signal.SIGTERM)
        first.wait_for_role("active", seconds=60)
        assert first.low("web") == 10**6


def test_kafka_refuses_a_transaction_of_the_server_before(bootstrap: str, topic: str) -> None:
    with store(bootstrap, topic) as one, store(bootstrap, topic) as other:
        seen = one.lease()
        assert one.take_lease(seen, "one")
        wait_for_lease(other, 1, 1, "one")
        assert not other.take_lease(seen, "other"), "the lease has changed since it was read"
        with one.transaction():
            pass
        seen = wait_for_lease(other, 1, 2, "one")
        transaction = one.transaction()
        transaction.__enter__()
        one.write({"web": Changes(Lows(1, 1), 1, 1)})
        assert other.take_lease(seen, "other")
        with pytest.raises(FencedError):
            transaction.__exit__(None, None, None)
        assert other.load("web") == StoredStage(Lows(), None, [], {})
        with pytest.raises(FencedError):
            one.release_lease()
        assert other.epoch == 2
        with other.transaction():
            other.write({"web": Changes(Lows(3, 2), 1, 4)})
        wait_for_lease(one, 2, 2, "other")
    keys = [message.key() for message in read_all(bootstrap, topic)]
    assert keys.count(b'["stage","web"]') == 1, "the other one's only"


def test_a_server_that_is_alive_after_all_gets_its_lease_back(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(bootstrap, topic) as one, store(bootstrap, topic) as other:
        assert one.take_lease(one.lease(), "one")
        seen = other.lease()
        with one.transaction():
            one.write({"web": Changes(Lows(3, 2), 1, 4)})
        with monkeypatch.context() as patch:  # the heartbeat comes right after the other has looked
            patch.setattr(other, "lease", lambda: seen)
            assert not other.take_lease(seen, "other")
        with pytest.raises(FencedError), one.transaction():
            pass
        lease = one.lease()
        assert lease.epoch == one.epoch == 1, "by which the table writer knows that it may take it at once"
        assert one.take_lease(lease, "one")
        assert one.load("web").lows == Lows(3, 2)


def test_a_store_has_what_was_written_and_not_what_was_deleted(bootstrap: str, topic: str) -> None:
    minute = 60_000_000
    with store(bootstrap, topic) as one:
        assert one.take_lease(one.lease(), "one")
        with one.transaction():
            one.write(
                {
                    "web": Changes(Lows(1, 1), None, 1, [A, B], [], {"p": REPORT, "q": REPORT}),
                    "gone": Changes(Lows(5, 5), 1, 1, [A]),
                }
            )
        with one.transaction():
            one.write({"web": Changes(Lows(3, 2), 8, 4, [], ["a"], {"q": None})})
        for at in range(0, 3 * minute, HISTORY_INTERVAL_US):
            with one.transaction():
                one.add_history(at, {"web": (Lows(at, -(2**63)), 7)}, minute)
        before = one.history("web", 0, 1_000)
        assert [point[0] for point in before] == list(range(115_000_000, 3 * minute, HISTORY_INTERVAL_US))
        assert before[-1] == (175_000_000, 175_000_000, None, 7)
        one.release_lease()
    with store(bootstrap, topic) as two:
        assert two.take_lease(wait_for_lease(two, 1, 40, ""), "two")
        assert two.load("web") == StoredStage(Lows(3, 2), 8, [B], {"p": REPORT})
        assert two.load("unknown") == StoredStage(Lows(), None, [], {})
        assert two.history("web", 0, 1_000) == before
        assert two.history("web", 170_000_000, 1_000) == before[-2:]
        assert two.history("unknown", 0, 10) == []
    keys = {message.key() for message in read_all(bootstrap, topic) if b"history" in (message.key() or b"")}
    assert len(keys) == 13, "a point takes the place of the oldest"


def test_a_standby_that_slept_for_long_reads_the_topic_again(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(bootstrap, "slept", cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"1", b"a")
    producer.flush()
    with closing(CompactedTopic(topic, bootstrap, {})) as compacted:
        compacted.catch_up()
        compacted.rows[b"deleted"] = b"and the deletion compacted away"
        compacted.catch_up()
        assert compacted.rows.keys() == {b"a", b"deleted"}
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + MAX_PAUSE_S + 1)
        compacted.catch_up()
        assert compacted.rows == {b"a": b"1"}


def test_the_server_creates_its_topic_and_refuses_others(bootstrap: str, topic: str) -> None:
    with store(bootstrap, topic):
        cluster = Cluster(bootstrap)
        assert cluster.topics([topic])[topic].partitions == 1
        assert cluster.settings([topic])[topic]["cleanup.policy"] == "compact"
    deleted = new_topic(bootstrap, "deleted", cleanup_policy="delete")
    wide = new_topic(bootstrap, "wide", 2, cleanup_policy="compact")
    for name, message in ((deleted, "cleanup.policy = delete"), (wide, "has 2 partitions")):
        with pytest.raises(WatermarkError, match=message):
            KafkaStore(name, bootstrap, {})
    foreign = new_topic(bootstrap, "foreign", cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(foreign, b"{}", b"order-17")
    producer.flush()
    with store(bootstrap, foreign) as opened, pytest.raises(WatermarkError, match="order-17"):
        opened.take_lease(opened.lease(), "one")
    later = new_topic(bootstrap, "later", cleanup_policy="compact")
    producer.produce(later, b'{"version": 99, "epoch": 1, "beat": 0, "owner": ""}', b'["lease"]')
    producer.flush()
    with pytest.raises(WatermarkError, match="version 99"):
        KafkaStore(later, bootstrap, {})


def test_the_server_goes_on_when_kafka_is_back(tmp_path: Path) -> None:
    with DevBroker() as broker:
        options = '{"delivery.timeout.ms" = "1000"}'
        config = host_config(tmp_path, broker.bootstrap, "away", f"options = {options}\n")
        with ServerProcess(config) as server:
            server.report("web", dict.fromkeys(HOSTS, 10))
            server.report("next", low=20)
            broker.kill()
            body = {"session": 1, "sequence": 2, "reports": []}
            assert server.http.post("/v1/report", json=body, timeout=120).status_code == 503
            broker.start()
            server.wait_for_role("active", seconds=120)
            assert server.low("web") == 10
            server.report("web", dict.fromkeys(HOSTS, 20), sequence=3)
            assert server.low("next") == 20
