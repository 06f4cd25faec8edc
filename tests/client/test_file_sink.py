"""The file sink on a real broker: each record is in one file, whenever the sink is killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # not in its stubs

from replayfilter import FileSink
from replayfilter.client import file_sink as file_sink_module
from replayfilter.errors import BrokerError, ConfigError, StorageError
from tests.support.file_sink_process import STEPS_PER_FILE
from tests.support.service_process import wait_for
from tests.support.topics import new_topic


def publish(bootstrap: str, topic: str, values: range, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, b"%d" % value, partition=partition)
    assert producer.flush(30) == 0


def write_lines(path: Path, records: Sequence[Message]) -> None:
    path.write_bytes(b"".join((message.value() or b"") + b"\n" for message in records))


def is_full(path: Path, _: object) -> None:
    path.write_bytes(b"a part")
    raise OSError(28, "No space left on device")


def sink_of(bootstrap: str, topic: str, folder: Path, **limits: float) -> FileSink:
    return FileSink({"bootstrap.servers": bootstrap}, [topic], folder, write_lines, suffix=".txt", **limits)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, list[int]]:
    """The content of each file, by its name without the topic's."""
    return {
        path.name.partition("+")[2]: [int(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.iterdir())
        if path.name != ".lock"
    }


def read_on(sink: FileSink, expected: int) -> None:
    """Read until so many records wait or were written."""
    written = 0

    def is_done() -> bool:
        nonlocal written
        written += sum(len(path.read_text().splitlines()) for path in sink.step(0.2))
        return written + sum(len(waiting.messages) for waiting in sink._waiting.values()) >= expected

    wait_for(is_done, 60, "the sink does not read")


def test_each_partition_goes_on_behind_its_last_file(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "sink.on", 2)
    publish(bootstrap, topic, range(10))
    publish(bootstrap, topic, range(100, 103), 1)
    (tmp_path / "notes.txt").write_text("7\n")
    with sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 13)
    publish(bootstrap, topic, range(10, 12))
    with sink_of(bootstrap, topic, tmp_path, max_seconds=0) as sink:
        read_on(sink, 2)
    assert files(tmp_path) == {
        "": [7],
        "0+0000000000+0000000009.txt": list(range(10)),
        "0+0000000010+0000000011.txt": [10, 11],
        "1+0000000000+0000000002.txt": [100, 101, 102],
    }


@pytest.mark.parametrize("limit", [{"max_records": 20}, {"max_seconds": 0}, {"max_bytes": 0}], ids=str)
def test_a_limit_ends_a_file(bootstrap: str, tmp_path: Path, limit: dict[str, int]) -> None:
    topic = new_topic(bootstrap, "sink.limit")
    publish(bootstrap, topic, range(50))
    sink = sink_of(bootstrap, topic, tmp_path, **limit)
    try:
        read_on(sink, 50)
    finally:
        sink.close()  # without what waits
    found = list(files(tmp_path).values())
    assert [value for values in found for value in values] == list(
        range(40 if "max_records" in limit else 50)
    )
    assert "max_records" not in limit or len(found) == 2


def test_what_is_in_no_file_is_read_again(bootstrap: str, tmp_path: Path) -> None:
    topic = new_topic(bootstrap, "sink.again")
    publish(bootstrap, topic, range(5))
    with pytest.raises(ZeroDivisionError), sink_of(bootstrap, topic, tmp_path) as sink:  # noqa: PT012
        read_on(sink, 5)
        raise ZeroDivisionError
    assert files(tmp_path) == {}
    with sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 5)
    assert list(files(tmp_path).values()) == [[0, 1, 2, 3, 4]]


def test_a_file_that_could_not_be_written_is_tried_again(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(bootstrap, "sink.full")
    publish(bootstrap, topic, range(5))
    with sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 5)
        with monkeypatch.context() as full:
            full.setattr(sink, "_write", is_full)
            with pytest.raises(OSError, match="No space"):
                sink.flush()
        sink.flush()
    assert list(files(tmp_path).values()) == [[0, 1, 2, 3, 4]]


def test_new_partitions_are_read(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sink_module, "REFRESH_S", 0.0)
    topic = new_topic(bootstrap, "sink.more")
    publish(bootstrap, topic, range(2))
    with sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 2)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        wait_for(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 2, 30, "not created")
        publish(bootstrap, topic, range(2, 4), 1)
        read_on(sink, 4)
    assert sorted(files(tmp_path).values()) == [[0, 1], [2, 3]]


def test_records_that_kafka_has_deleted_are_an_error_until_the_last_file_is_renamed(
    bootstrap: str, tmp_path: Path
) -> None:
    topic = new_topic(bootstrap, "sink.gone")
    publish(bootstrap, topic, range(4))
    with sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 4)
    publish(bootstrap, topic, range(4, 9))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 7)])[TopicPartition(topic, 0)].result(30)
    message = re.escape(f"{topic}[0] has no offset 4, which follows on its last file in {tmp_path}")
    with pytest.raises(BrokerError, match=message), sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 5)
    (path,) = tmp_path.glob("*.txt")
    path.rename(path.with_name(path.name.replace("3.txt", "6.txt")))
    with sink_of(bootstrap, topic, tmp_path) as sink:
        read_on(sink, 2)
    assert list(files(tmp_path).values()) == [[0, 1, 2, 3], [7, 8]]


def test_a_second_sink_is_refused(tmp_path: Path) -> None:
    with (
        sink_of("127.0.0.1:1", "t", tmp_path / "new"),
        pytest.raises(StorageError, match=r"another file sink writes to .*new"),
    ):
        sink_of("127.0.0.1:1", "t", tmp_path / "new")


def test_files_with_the_same_records_are_refused(tmp_path: Path) -> None:
    for name in ("t+0+5+9.txt", "t+0+9+12.txt", "t+1+9+12.txt"):
        (tmp_path / name).touch()
    with pytest.raises(StorageError, match=r"t\+0\+5\+9.txt and t\+0\+9\+12.txt hold the same records"):
        sink_of("127.0.0.1:1", "t", tmp_path)
    (tmp_path / "t+0+9+12.txt").unlink()
    sink_of("127.0.0.1:1", "t", tmp_path).close()  # the folder is not locked by the one that failed


def test_settings_that_would_lose_or_repeat_records_are_refused(tmp_path: Path) -> None:
    wrong = {"isolation.level": "read_uncommitted", "enable.auto.commit": True}
    with pytest.raises(ConfigError) as found:
        FileSink({"bootstrap.servers": "127.0.0.1:1"} | wrong, ["t"], tmp_path, write_lines)
    assert len(found.value.errors) == 2
    with pytest.raises(StorageError, match="can't be written to"):
        sink_of("127.0.0.1:1", "t", Path("/dev/null/folder"))


def test_a_killed_sink_loses_and_repeats_nothing(bootstrap: str, tmp_path: Path) -> None:
    """Killed before each step of a file, once within the first file and once in a later one."""
    topic = new_topic(bootstrap, "sink.killed", 2)
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    transactional.init_transactions()
    expected: list[bytes] = []
    for part in range(20):
        transactional.begin_transaction()
        values = [b"%d-%d" % (part, number) for number in range(70)]
        for number, value in enumerate(values):
            transactional.produce(topic, value, partition=number % 2)
        if part % 5 == 4:
            transactional.abort_transaction()
        else:
            transactional.commit_transaction()
            expected += values
    steps = [*range(STEPS_PER_FILE), STEPS_PER_FILE + 3, 1_000]
    for step in steps:
        command = [sys.executable, "-m", "tests.support.file_sink_process", bootstrap, topic, str(tmp_path)]
        arguments = [str(len(expected)), str(step)]
        ended = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=60
        )
        assert ended.returncode == (-signal.SIGKILL if step < 1_000 else 0), ended.stderr
    found: dict[str, list[bytes]] = {"0": [], "1": []}
    for path in sorted(tmp_path.glob("*.parquet")):
        found[path.name.split("+")[1]] += pq.read_table(path)["value"].to_pylist()
    parity = {str(part): [v for v in expected if int(v.split(b"-")[1]) % 2 == part] for part in (0, 1)}
    assert found == parity
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".lock"]
