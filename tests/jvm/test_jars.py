"""Fetching jars: only locked ones, complete, and once; clear messages if something is missing."""

from __future__ import annotations

import hashlib
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replayfilter.errors import MissingDependency
from replayfilter.jvm import jars
from replayfilter.jvm.java import java
from tests.support.paths import ROOT

BODY = b"a jar"
Deliver = Callable[[bytes], None]


def locked() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(jars.LOCK.read_text("utf-8"))


@pytest.fixture(autouse=True)
def _fresh_java_cache() -> Iterator[None]:
    java.cache_clear()
    yield
    java.cache_clear()


@pytest.fixture
def deliver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deliver:
    """A lock with one jar of known content, and instead of Ivy a function that delivers the given bytes."""
    lock = tmp_path / "jars.lock"
    digest = hashlib.sha256(BODY).hexdigest()
    lock.write_text(f'[kafka]\nroots = ["org:one:1.0"]\n[kafka.sha256]\n"org:one:1.0" = "{digest}"\n')
    monkeypatch.setattr(jars, "LOCK", lock)
    monkeypatch.setenv("REPLAYFILTER_JARS", str(tmp_path / "jars"))

    def choose(body: bytes) -> None:
        def ivy(
            modules: dict[jars.Module, str], scratch: Path, settings: str | None
        ) -> dict[jars.Module, Path]:
            for module in modules:
                (scratch / module.file).write_bytes(body)
            return {module: scratch / module.file for module in modules}

        monkeypatch.setattr(jars, "_ivy", ivy)

    return choose


def test_the_lock_is_for_the_versions_in_pyproject() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["replayfilter"]["jars"]
    assert {kind: locked()[kind]["roots"] for kind in locked()} == wanted, "run `make lock`"


def test_the_cached_jars_are_the_locked_ones() -> None:
    hashes = [*locked()["kafka"]["sha256"].values(), *locked()["connector"]["sha256"].values()]  # type: ignore[attr-defined]
    files = jars.kafka_jars() + jars.connector_jars()
    assert [hashlib.sha256(file.read_bytes()).hexdigest() for file in files] == hashes


def test_the_connector_is_only_what_pyspark_does_not_bring() -> None:
    names = {file.name.rpartition("-")[0] for file in jars.connector_jars()}
    assert names == {
        "commons-pool2",
        "kafka-clients",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    }


def test_jars_are_fetched_once(deliver: Deliver, tmp_path: Path) -> None:
    deliver(BODY)
    [jar] = jars.kafka_jars()
    assert jar == tmp_path / "jars" / "kafka-1.0" / "one-1.0.jar"
    assert jar.read_bytes() == BODY
    deliver(b"something else")
    assert jars.kafka_jars() == [jar]
    assert jar.read_bytes() == BODY
    assert list(jar.parent.iterdir()) == [jar], "the scratch folder is gone"


def test_a_wrong_checksum_is_refused_and_leaves_nothing(deliver: Deliver, tmp_path: Path) -> None:
    deliver(b"tampered")
    with pytest.raises(
        MissingDependency, match=r"one-1\.0\.jar was fetched with SHA-256 .* but jars\.lock says"
    ):
        jars.kafka_jars()
    assert list((tmp_path / "jars" / "kafka-1.0").iterdir()) == []


def test_a_jar_that_was_removed_is_fetched_again(deliver: Deliver) -> None:
    deliver(BODY)
    [jar] = jars.kafka_jars()
    jar.unlink()
    assert jars.kafka_jars() == [jar]
    assert jar.read_bytes() == BODY


def test_two_fetches_at_once_share_a_folder(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(BODY)
    both, one = threading.Barrier(2, timeout=20), jars._ivy
    monkeypatch.setattr(jars, "_ivy", lambda *given, **named: (both.wait(), one(*given, **named))[1])
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(jars.kafka_jars())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [jar.read_bytes() for jar in found[0]] == [BODY]


def test_a_cache_that_cannot_be_written_is_reported(
    deliver: Deliver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deliver(BODY)
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPLAYFILTER_JARS", str(tmp_path / "file"))
    with pytest.raises(MissingDependency, match=r"can't be written .*REPLAYFILTER_JARS"):
        jars.kafka_jars()


def test_the_cache_is_in_the_users_home_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REPLAYFILTER_JARS", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars._cache() == tmp_path / ".cache" / "replayfilter" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jars._cache() == tmp_path / "xdg" / "replayfilter" / "jars"


def test_a_missing_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPLAYFILTER_JARS", str(tmp_path))
    monkeypatch.setattr(jars, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"PySpark is not installed: pip install .replayfilter\[spark\]"
    ):
        jars.connector_jars()


def test_a_failed_fetch_is_reported_with_the_output_of_ivy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(monkeypatch, tmp_path, 'openjdk version "17.0.1"', then="echo no route to host; exit 1")
    monkeypatch.setenv("REPLAYFILTER_JARS", str(tmp_path / "jars"))
    with pytest.raises(MissingDependency, match=r"(?s)could not be fetched.*no route to host"):
        jars.connector_jars()


def fake_java(monkeypatch: pytest.MonkeyPatch, home: Path, version: str, then: str = "exit 1") -> None:
    command = home / "bin" / "java"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nif [ \"$1\" = -version ]; then echo '{version}' >&2; exit; fi\n{then}\n")
    command.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))


@pytest.mark.parametrize(
    "version", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS']
)
def test_java_17_and_21_are_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    fake_java(monkeypatch, tmp_path, version)
    assert java() == tmp_path / "bin" / "java"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ('java version "1.8.0_292"', "is Java 8: install a Java 17 or 21"),
        ('openjdk version "25.0.1" 2025-10-21', "is Java 25: install a Java 17 or 21"),
        ("what?", "is Java of an unknown release: install a Java 17 or 21"),
    ],
)
def test_other_javas_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, message: str
) -> None:
    fake_java(monkeypatch, tmp_path, version)
    with pytest.raises(MissingDependency, match=message):
        java()


def test_a_missing_java_is_reported_with_the_place_that_was_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        MissingDependency, match=r"no java command in JAVA_HOME \(.*: install a Java 17 or 21"
    ):
        java()
    java.cache_clear()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="no java command on PATH: install a Java 17 or 21"):
        java()


def test_the_jars_for_s3_are_only_fetched_by_their_own_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPLAYFILTER_JARS", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"once with `python -m replayfilter\.jvm\.jars s3a`"):
        jars.s3a_jars()
    assert list(tmp_path.iterdir()) == []


def test_the_jars_for_s3_are_of_the_hadoop_that_pyspark_has() -> None:
    hadoop = {jar.name for jar in jars._pyspark_jars().glob("hadoop-client-api-*.jar")}
    aws = next(name for name in locked()["s3a"]["sha256"] if ":hadoop-aws:" in name)
    assert hadoop == {f"hadoop-client-api-{aws.rpartition(':')[2]}.jar"}
    assert not any(":bundle:" in name for name in locked()["s3a"]["sha256"])
