"""The development broker: a real one, which survives a kill, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its stubs

from replayfilter.devbroker import DevBroker
from replayfilter.errors import BrokerError

QUIET = {"log_level": 0}  # these tests stop brokers on purpose


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(timeout=30)


def write(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(30)


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "isolation.level": "read_committed",
        **QUIET,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def until(true: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie is dead, though its parent has not waited for it


def test_it_accepts_transactions_and_serves_them(bootstrap: str) -> None:
    create(bootstrap, "devbroker-serves")
    write(bootstrap, "devbroker-serves", b"1", b"2")
    assert read(bootstrap, "devbroker-serves", 2) == [b"1", b"2"]


def test_it_creates_no_topic_by_itself(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert admin.list_topics("devbroker-unasked", timeout=10).topics["devbroker-unasked"].error is not None


@pytest.mark.slow
def test_it_restarts_on_the_same_port_and_data_after_a_kill() -> None:
    with DevBroker() as broker:
        before, pid = broker.bootstrap, broker.pid
        create(before, "kept")
        write(before, "kept", b"before")
        broker.kill()
        assert broker.pid is None
        assert pid is not None
        assert not alive(pid)
        broker.restart()
        assert broker.bootstrap == before
        write(before, "kept", b"after")
        assert read(before, "kept", 2) == [b"before", b"after"]
        assert broker.folder.is_dir()
    assert broker.pid is None
    assert not broker.folder.exists()
    broker.stop()  # a second time does no harm


@pytest.mark.slow
def test_a_given_folder_is_kept(tmp_path: Path) -> None:
    given = tmp_path / "with space"
    with DevBroker(data=given) as first:
        create(first.bootstrap, "kept")
        write(first.bootstrap, "kept", b"value")
    with DevBroker(data=given) as second:
        assert read(second.bootstrap, "kept", 1) == [b"value"]


PARENT = """
import sys, time
from replayfilter.devbroker import DevBroker
broker = DevBroker()
broker.start()
print(broker.pid, broker.folder, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_parent_even_if_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    first, folder = parent.stdout.readline().split()
    pid = int(first)
    try:
        assert alive(pid)
        assert Path(folder).is_dir()
        parent.kill()
        parent.wait(20)
        assert until(lambda: not alive(pid)), "the broker outlived its parent"
        assert until(lambda: not Path(folder).exists()), "the broker's temporary folder was left behind"
    finally:
        parent.kill()
        parent.communicate()
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = DevBroker(port=port)
        with pytest.raises(BrokerError, match=rf"^Port {port} is in use on 127\.0\.0\.1: stop"):
            broker.start()
    assert broker.pid is None
    assert not broker.folder.exists()


def test_a_broker_that_does_not_start_reports_why_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=x\n")
    broker = DevBroker(data=tmp_path)
    with pytest.raises(BrokerError, match=r"(?s)ended with code 1 while starting; .*Stored node id 7"):
        broker.start()
    assert broker.pid is None


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("not a folder")
    with pytest.raises(BrokerError, match=str(tmp_path)):
        DevBroker(data=tmp_path).start()
