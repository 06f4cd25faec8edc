"""The library's examples in docs/guides/ run, against a real broker; the Spark one in tests/spark."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from replayfilter import FilteringConsumer, Stamp, StampingProducer, pid_for_topic
from tests.support.paths import ROOT
from tests.support.topics import new_topic, read_all, stamp_of

GUIDES = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs" / "guides").glob("*.md")))
BLOCK = re.compile(r"```python\n# way: (\w+)\n(.*?)```", re.DOTALL)


def example(way: str, bootstrap: str, **topics: str) -> str:
    """Return the code of one way to use the library, with this test's broker and topics."""
    code: str = dict(BLOCK.findall(GUIDES))[way].replace("localhost:9092", bootstrap)
    for name, topic in topics.items():
        code = code.replace(f'"{name.replace("_", ".")}"', f'"{topic}"')
    return code


def test_each_way_takes_ten_lines() -> None:
    ways = dict(BLOCK.findall(GUIDES))
    assert ways.keys() == {"producer", "own", "spark", "consumer", "store", "pubsub", "files"}
    assert all(len(code.strip().splitlines()) <= 10 for code in ways.values())


def test_producer(bootstrap: str) -> None:
    raw, orders = new_topic(bootstrap, "orders.raw"), new_topic(bootstrap, "orders", 4)
    exec(example("producer", bootstrap, orders_raw=raw, orders=orders), {})
    pid = pid_for_topic(bootstrap, raw, "cleaner")
    assert {(m.partition(), stamp_of(m), m.value()) for m in read_all(bootstrap, orders)} == {
        (0, Stamp(pid, 0, 0), b"a"), (0, Stamp(pid, 0, 1), b"b"), (1, Stamp(pid, 1, 0), b"c"),
    }  # fmt: skip


def test_own_producer(bootstrap: str) -> None:
    orders = new_topic(bootstrap, "orders", 4)
    exec(example("own", bootstrap, orders=orders), {})
    (message,) = read_all(bootstrap, orders)
    assert (message.partition(), stamp_of(message).offset) == (1, 7)  # type: ignore[union-attr]


def test_consumer(bootstrap: str) -> None:
    orders = new_topic(bootstrap, "orders")
    with StampingProducer({"bootstrap.servers": bootstrap}, orders, 7) as producer:
        for offset in (1, 2, 1, 2, 3):
            producer.begin_replay()
            producer.produce(0, offset, b"%d" % offset)
    handled: list[Any] = []
    exec(example("consumer", bootstrap, orders=orders, billing=orders), {"handle": handled.append})
    assert [m.value() for m in handled] == [b"1", b"2", b"3"]


def test_store(bootstrap: str) -> None:
    orders, database = new_topic(bootstrap, "orders"), sqlite3.connect(":memory:")
    database.execute("CREATE TABLE done (topic, part, next, marks, PRIMARY KEY (topic, part))")
    names: dict[str, Any] = {"database": database}
    exec(example("store", bootstrap), names)
    with StampingProducer({"bootstrap.servers": bootstrap}, orders, 7) as producer:
        for found in ([b"5"], []):
            producer.begin_replay()
            producer.produce(0, 5, b"5")
            producer.flush()
            settings = {"bootstrap.servers": bootstrap, "group.id": orders}
            with FilteringConsumer(settings, store=names["Store"]()) as consumer:
                consumer.subscribe([orders])
                assert [m.value() for m in consumer.consume(5, 4)] == found
                consumer.commit()


def test_file(bootstrap: str, tmp_path: Path) -> None:
    (line,) = [line for line in GUIDES.splitlines() if line.startswith("replayfilter publish")]
    orders = new_topic(bootstrap, "orders")
    (tmp_path / "orders.ndjson").write_text("{}\n[]\n")
    words = line.replace("localhost:9092", bootstrap).replace("--topic orders", f"--topic {orders}").split()
    subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=True, timeout=60)
    assert [m.value() for m in read_all(bootstrap, orders)] == [b"{}", b"[]"]


def test_files(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = new_topic(bootstrap, "orders.unique")
    with StampingProducer({"bootstrap.servers": bootstrap}, orders, 7) as producer:
        producer.produce(0, 5, b"5")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"running": lambda: not names["sink"]._waiting}
    exec(example("files", bootstrap, orders_unique=orders), names)
    (path,) = (tmp_path / "archive").glob("*.parquet")
    assert path.name == f"{orders}+0+0000000000+0000000000.parquet"
    assert pq.read_table(path)["value"].to_pylist() == [b"5"]


def test_pubsub(bootstrap: str) -> None:
    orders = new_topic(bootstrap, "orders")
    names: dict[str, Any] = {}
    exec(example("pubsub", bootstrap, orders=orders), names)
    acked: list[bool] = []
    callback: Callable[[Any], None] = names["callback"]
    for message_id in ("17", "17", "18"):  # the second time is a redelivery
        attributes = {"event-id": "e"} if message_id == "18" else {}
        message = SimpleNamespace(
            message_id=message_id, attributes=attributes, data=b"x", ack=lambda: acked.append(True)
        )
        callback(message)
    found = [dict(m.headers() or [])["message-id"] for m in read_all(bootstrap, orders)]
    assert found == [b"17", b"17", b"e"]
    assert len(acked) == 3


@pytest.mark.parametrize("module", ["pyspark", "java"])
def test_the_library_needs_neither_pyspark_nor_java(module: str) -> None:
    code = (
        "import sys, subprocess\n"
        "for name in ('pyspark', 'pandas', 'pyarrow', 'py4j', 'rich', 'typer', 'pydantic'):\n"
        "    sys.modules[name] = None  # behave as if it were not installed\n"
        "subprocess.Popen = None\n"
        "import replayfilter\n"
        "for name in replayfilter.__all__: getattr(replayfilter, name)\n"
        "assert 'replayfilter.jvm.java' not in sys.modules and 'replayfilter.jvm.jars' not in sys.modules\n"
        "import replayfilter.spark\n"
    )
    environment = {"PATH": ""} if module == "java" else None
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_base_requirements_include_neither() -> None:
    """All requirements of `pip install replayfilter`, by the metadata of the installed packages."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    todo, found = ["replayfilter"], set()
    while todo:
        for text in requires(todo.pop()) or ():
            wanted = Requirement(text)
            if wanted.name not in found and (not wanted.marker or wanted.marker.evaluate({"extra": ""})):
                found.add(wanted.name)
                todo.append(wanted.name)
    assert {"confluent-kafka", "numpy", "xxhash"} <= found
    assert not found & {"pyspark", "py4j", "pandas", "pyarrow"}
