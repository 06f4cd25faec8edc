"""Jobs that use the Java client, killed, refused by the broker, and read by the service. `make test-java`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from replayfilter.core.stamp import Stamp
from replayfilter.jvm.java import java
from tests.support.replay_service import prepare_replay_service
from tests.support.service_process import ServiceProcess
from tests.support.stamped_job import check_exact, fill, run_job
from tests.support.topics import new_topic, read_all

pytestmark = pytest.mark.java

BUILT = Path(__file__).parents[2] / "build" / "clients" / "java"
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "stamp-from-java.md"
PARAMETERS = [
    "KafkaConsumer<byte[], String> consumer",
    "Map<String, Object> settings, long pid, ConsumerRecord<byte[], String> record",
]


def program(name: str) -> list[str]:
    """The command of a class with a main method, of the client's tests."""
    path = f"{BUILT}/test-classes:{BUILT}/classes:{BUILT}/libraries/*"
    level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return [str(java()), level, "-cp", path, f"replayfilter.{name}"]


@pytest.mark.slow
@pytest.mark.parametrize("stamp", ["key", "header"])
def test_a_job_in_java_is_killed_and_a_service_drops_its_replays(
    bootstrap: str, tmp_path: Path, stamp: str
) -> None:
    source = fill(bootstrap, "raw", 4, 30_000)
    target = new_topic(bootstrap, f"java-{stamp}", 3)
    hit = run_job(bootstrap, source, target, tmp_path, stamp=stamp, kills=8, program=program("JobProcess"))
    config = prepare_replay_service(tmp_path, bootstrap, target, target, 3, stamp)
    with ServiceProcess(config, "--once") as service:
        assert service.end(200) == 0, service.tail()
    check_exact(read_all(bootstrap, source), read_all(bootstrap, f"{target}.unique"), 3)
    replays = read_all(bootstrap, f"{target}.replay")
    assert len(replays) == len(read_all(bootstrap, target)) - 30_000 > 0
    assert hit >= 6


def test_nothing_is_written_after_a_refused_record(bootstrap: str) -> None:
    """Kafka's own producer goes on with the next record, which makes the refused one a replay for ever."""
    topic = new_topic(bootstrap, "refused", max_message_bytes="10000")
    ended = subprocess.run(
        [*program("RefusedProcess"), bootstrap, topic], capture_output=True, text=True, timeout=60, check=True
    )
    written = [Stamp.from_bytes(message.key()) for message in read_all(bootstrap, topic)]
    assert written == [Stamp(7, 0, offset) for offset in range(50)]
    assert "start the job again from its last checkpoint" in ended.stdout


def test_the_examples_of_the_page_compile(tmp_path: Path) -> None:
    blocks = re.findall(r"^```java\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for number, (block, parameters) in enumerate(zip(blocks, PARAMETERS, strict=True)):
        imports = "\n".join(line for line in block.splitlines() if line.startswith("import"))
        body = "\n".join(line for line in block.splitlines() if not line.startswith("import"))
        packages = ["clients.admin", "clients.consumer", "clients.producer", "common.serialization"]
        known = "\n".join(f"import org.apache.kafka.{package}.*;" for package in packages)
        source = tmp_path / f"Example{number}.java"
        source.write_text(
            f"import java.time.*; import java.util.*; import replayfilter.*;\n{known}\n{imports}\n"
            f"class Example{number} {{ void run({parameters}) {{\n{body}\n}} }}\n"
        )
        path = f"{BUILT}/classes:{BUILT}/libraries/*"
        compiled = subprocess.run(["javac", "-cp", path, source], capture_output=True, text=True)
        assert compiled.returncode == 0, compiled.stderr
