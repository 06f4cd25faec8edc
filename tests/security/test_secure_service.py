"""A service with TLS, SCRAM and the least permissions, whose password is looked for everywhere."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest

from replayfilter import StampingProducer
from replayfilter.kafka.admin import Cluster
from tests.support.secure_broker import SECRET, Permission, SecureBroker, service_permissions
from tests.support.service_process import ServiceProcess
from tests.support.topics import new_topic, read_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

ROUTES = ("unique", "duplicate", "expired", "error", "replay")
CONFIG = """\
[service]
name = "{name}"
checkpoint = "{folder}/checkpoint"
master = "local[2]"
[kafka]
bootstrap = "{address}"
[kafka.options]
security.protocol = "SASL_SSL"
ssl.truststore.type = "PEM"
ssl.truststore.location = "{authority}"
sasl.mechanism = "SCRAM-SHA-512"
sasl.jaas.config = '{module} required username="orders" password="${{KAFKA_PASSWORD}}";'
[input]
topics = ["{name}"]
[replay]
topic = "{name}.replay"
[dedup]
key = ["id"]
expiry_key = "ts"
period = "1h"
[output]
unique = "{name}.unique"
duplicate = "{name}.duplicate"
expired = "{name}.expired"
error = "{name}.error"
[http]
port = {port}
"""
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SPARK_DEFAULTS = """\
spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.dir file:{folder}/events
spark.local.dir {folder}/scratch
"""


def traces(secret: str) -> list[bytes]:
    """The secret, and how it looks within base64, which depends on where it begins."""
    found = [secret.encode()]
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret.encode())
        found.append(text[4 if before else 0 :].rstrip(b"=")[:-2])
    return found


def files_with(wanted: Iterable[bytes], folder: Path) -> list[str]:
    """The files below ``folder`` that contain one of ``wanted``."""
    wanted, found = list(wanted), []
    for path in sorted(folder.rglob("*")):
        try:
            content = path.read_bytes()
        except OSError:  # a folder, a socket, or gone meanwhile
            continue
        if any(each in content for each in wanted):
            found.append(str(path.relative_to(folder)))
    return found


def run(*arguments: str) -> str:
    """The output of a command, which must succeed."""
    command = [sys.executable, "-m", "replayfilter", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_the_least_permissions_suffice_and_the_password_shows_nowhere(
    secure: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_topic(secure.bootstrap, "secured", 2)
    outputs = [f"{name}.{route}" for route in ROUTES]
    Cluster(secure.bootstrap).create(dict.fromkeys(outputs, 2))
    secure.allow(service_permissions(name, [name], outputs))
    path, port, now_ms = tmp_path / "service.toml", free_port(), int(time.time() * 1000)
    path.write_text(
        CONFIG.format(
            name=name, folder=tmp_path, address=secure.address("scram"), module=MODULE, port=port,
            authority=secure.authority.path,
        )
    )  # fmt: skip
    for folder in ("events", "scratch", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(SPARK_DEFAULTS.format(folder=tmp_path))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    sent = [json.dumps({"id": number % 30, "ts": now_ms}).encode() for number in range(40)] + [b"no json"]

    def publish() -> None:
        with StampingProducer({"bootstrap.servers": secure.bootstrap}, name, 7) as producer:
            for offset, value in enumerate(sent):
                producer.produce(0, offset, value)

    def delivered() -> dict[str, int]:
        return {route: len(read_all(secure.bootstrap, f"{name}.{route}")) for route in ROUTES}

    publish()
    publish()  # replays, except for the error: what was not accepted may be written again
    shown = {"check": run("check", str(path))}
    with ServiceProcess(path) as service:
        service.await_change(lambda: sum(delivered().values()) == 82, 1.0)
        url = f"http://127.0.0.1:{port}"
        shown |= {page: httpx.get(f"{url}{page}").text for page in ("/", "/page.js", "/metrics", "/status")}
        shown["top"] = run("top", "--once", str(path))
        shown["ps"] = subprocess.check_output(["ps", "-eww", "-o", "args"], text=True)
        assert str(path) in shown["ps"]
        while_running = files_with(traces(SECRET), tmp_path)
        service.process.send_signal(signal.SIGTERM)
        assert service.end(60) == 0, service.tail()
    assert delivered() == {"unique": 30, "duplicate": 10, "expired": 0, "error": 2, "replay": 40}

    # Other commands need more: to read the outputs, and for a redrive a group of its own.
    secure.allow([Permission("topic", topic, "READ") for topic in outputs])
    secure.allow([Permission("topic", name, "WRITE")])
    secure.allow([Permission("group", f"{name}.redrive.*", "READ")])
    secure.allow([Permission("transactional_id", f"{name}.redrive.*", "WRITE")])
    shown["verify"] = run("verify", str(path))
    assert "Every input record is in exactly one output." in shown["verify"]
    shown["redrive"] = run("redrive", str(path), "--execute")
    assert "2 records read, 2 written" in shown["redrive"]

    wanted = traces(SECRET)
    assert [what for what, text in shown.items() if any(trace in text.encode() for trace in wanted)] == []
    assert list((tmp_path / "events").iterdir()), "Spark wrote no event log"
    assert while_running == []
    assert files_with(wanted, tmp_path) == []


def test_the_search_finds_a_secret(tmp_path: Path) -> None:
    for number in range(3):
        content = b"x" * number + SECRET.encode() + b"and more"
        (tmp_path / f"{number}").write_bytes(b"{" + base64.b64encode(content) + b"}")
    (tmp_path / "plain").write_text(f"password={SECRET}")
    (tmp_path / "other").write_text("nothing")
    assert files_with(traces(SECRET), tmp_path) == ["0", "1", "2", "plain"]
