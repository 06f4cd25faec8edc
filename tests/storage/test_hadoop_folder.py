"""The service's own files on HDFS, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from replayfilter.errors import StorageError
from replayfilter.spark.hadoop_folder import HadoopFolder
from replayfilter.spark.session import hadoop_settings, session_settings, start_jvm

pytestmark = [pytest.mark.spark, pytest.mark.storage]

Open = Callable[[str], HadoopFolder]


@pytest.fixture
def opened() -> Open:
    """Opens a folder by its URL; the client does not try for long."""
    jvm = start_jvm(session_settings("files", "hdfs://any", "local[1]", "off"))

    def open_folder(url: str) -> HadoopFolder:
        conf = jvm.org.apache.hadoop.conf.Configuration(hadoop_settings(jvm))
        conf.set("ipc.client.connect.max.retries", "1")
        return HadoopFolder(url, jvm, conf)

    return open_folder


def test_files_are_written_replaced_and_listed(storage: str, opened: Open, tmp_path: Path) -> None:
    folder = opened(f"{storage}/files")
    assert folder.read("a.json") is None
    assert folder.names("sub") == []
    assert folder.sizes("sub") == {}
    folder.write("a.json", b"one")
    folder.write("a.json", bytes(range(256)))
    assert folder.read("a.json") == bytes(range(256))
    inner = opened(f"{storage}/files/sub/0")
    inner.write("1.zip", b"12345")
    assert set(folder.names("")) == {"a.json", "sub"}
    assert folder.sizes("sub") == {"0/1.zip": 5}
    copy = folder.on_disk("sub", tmp_path)
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*")} == {"0", "0/1.zip"}
    folder.remove("a.json")
    assert folder.read("a.json") is None


def test_spark_is_refused_to_replace_an_entry_of_its_log(storage: str, opened: Open) -> None:
    folder = opened(f"{storage}/logs")
    folder.write("0", b"first")
    second: Any = folder._files.createAtomic(folder._path("0"), False)
    second.write(b"second")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        second.close()
    assert folder.read("0") == b"first"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hdfs://nowhere.invalid/x", "UnknownHostException: nowhere.invalid); check the address"),
        ("hdfs://127.0.0.1:1/x", "ConnectException: Connection refused); check the address"),
    ],
)
def test_each_error_says_what_to_do(url: str, message: str, opened: Open) -> None:
    with pytest.raises(StorageError) as refused:
        opened(url).write("a.json", b"")
    assert f"service.checkpoint: {url} can't be used (" in str(refused.value)
    assert message in str(refused.value)
