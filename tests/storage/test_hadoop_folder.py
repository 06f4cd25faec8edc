"""The service's own files on each file system, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from replayfilter.errors import StorageError
from replayfilter.spark.hadoop_folder import HadoopFolder
from replayfilter.spark.session import hadoop_settings, session_settings, start_jvm
from tests.support.s3_server import Fault, Faults, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.storage]

Open = Callable[[str], HadoopFolder]
# The client does not try for long.
IMPATIENT = {
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.connection.timeout": "1s",
    "fs.s3a.retry.throttle.limit": "2",
    "ipc.client.connect.max.retries": "1",
}


@pytest.fixture
def opened(s3_server: S3Server) -> Open:
    """Opens a folder by its URL."""
    jvm = start_jvm(session_settings("files", "s3a://any", "local[1]", "off"))

    def open_folder(url: str) -> HadoopFolder:
        conf = hadoop_settings(jvm, url)
        if url.startswith("s3a:"):
            seconds = jvm.java.time.Duration.ofSeconds(1)
            jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(seconds)
        keys = {"fs.s3a.access.key": "any", "fs.s3a.secret.key": "any", "fs.s3a.endpoint": s3_server.endpoint}
        for name, value in (IMPATIENT | keys).items():
            conf.set(name, value)
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
    folder.remove("sub")
    assert folder.names("") == []


def test_spark_is_refused_to_replace_an_entry_of_its_log(storage: str, opened: Open) -> None:
    folder = opened(f"{storage}/logs")
    folder.write("another", b"")  # makes the folder
    first, second = (folder._files.createAtomic(folder._path("0"), False) for _ in range(2))
    for entry, content in ((first, b"first"), (second, b"second")):
        entry.write(content)
    first.close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        second.close()
    assert folder.read("0") == b"first"


def test_a_store_that_replaces_entries_is_refused(
    s3_server: S3Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_server.proxy, "ignores_conditions", True)
    folder = opened(f"{s3_server.url}/replaces")
    entry: Any = folder._files.createAtomic(folder._path("0"), False)
    entry.write(b"first")
    with pytest.raises(Py4JJavaError, match=r"has replaced .* in spite of If-None-Match"):
        entry.close()


def once(fault: Fault, method: str) -> Faults:
    """This fault for the first request with this method."""
    left = [fault]
    return lambda asked, path: left.pop() if left and asked == method else None


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_write_to_s3_is_tried_again(
    fault: Fault, overwrite: bool, s3_server: S3Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(f"{s3_server.url}/{fault.name}-{overwrite}")
    entry: Any = folder._files.createAtomic(folder._path("0"), overwrite)
    entry.write(b"content")
    monkeypatch.setattr(s3_server.proxy, "faults", once(fault, "PUT"))
    entry.close()
    assert folder.read("0") == b"content"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_upload_is_an_error_and_changes_nothing(
    overwrite: bool, s3_server: S3Server, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(f"{s3_server.url}/failed-{overwrite}")
    folder.write("a.json", b"before")
    name = "a.json" if overwrite else "new.json"
    entry: Any = folder._files.createAtomic(folder._path(name), overwrite)
    entry.write(b"after")
    with monkeypatch.context() as busy:
        busy.setattr(s3_server.proxy, "faults", lambda method, path: Fault.BUSY if method == "PUT" else None)
        with pytest.raises(Py4JJavaError, match="503"):
            entry.close()
    assert folder.read("a.json") == b"before"
    assert folder.read("new.json") is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3a://missing/x", "create the bucket, or correct its name"),
        ("hdfs://nowhere.invalid/x", "UnknownHostException: nowhere.invalid); check the address"),
        ("hdfs://127.0.0.1:1/x", "ConnectException: Connection refused); check the address"),
    ],
)
def test_each_error_says_what_to_do(url: str, message: str, opened: Open) -> None:
    with pytest.raises(StorageError) as refused:
        opened(url).write("a.json", b"")
    assert f"service.checkpoint: {url} can't be used (" in str(refused.value)
    assert message in str(refused.value)


def test_missing_credentials_are_named(s3_server: S3Server, opened: Open) -> None:
    jvm = start_jvm(session_settings("files", "s3a://any", "local[1]", "off"))
    conf = hadoop_settings(jvm, "s3a://any")
    conf.set("fs.s3a.endpoint", s3_server.endpoint)
    conf.set("fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider")
    with pytest.raises(StorageError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        HadoopFolder("s3a://other/x", jvm, conf).write("a.json", b"")
