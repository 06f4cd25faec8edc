"""A real Kafka broker of one node for development, demos and tests.

    with DevBroker() as broker:
        Producer({"bootstrap.servers": broker.bootstrap})

It listens only on 127.0.0.1, uses little memory, and ends with the process that started it, however that
process ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from replayfilter.errors import BrokerError
from replayfilter.jvm.jars import kafka_jars
from replayfilter.jvm.java import java

START_SECONDS = 60.0
_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true")

# One node is both controller and broker. Internal topics have one replica and few partitions: the default of
# 50 costs seconds at each start. The controller accepts a killed broker again only after its old session has
# timed out, so the timeout is shorter than the default of 9 s. Nothing is deleted because of its age: demos
# and tests write event times of years ago, which Kafka would delete half a minute after the start. Everything
# else that a client can notice has Kafka's default, so that what works here works on a real cluster.
_SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}/log
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=4194304
"""

_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
# At every start, Kafka's own clients try to connect before the broker listens.
logger.client.name = org.apache.kafka.clients.NetworkClient
logger.client.level = error
"""

# Reads its input until the parent ends, however that happens; then kills the broker and removes its folder.
_WATCHDOG = (
    'cat >/dev/null; kill -9 "$1"; while kill -0 "$1"; do sleep 0.05; done; [ -z "$2" ] || rm -rf "$2"'
)


class DevBroker:
    """A Kafka broker on the given port or a free one, with its data in the given folder or a temporary one.

    Entering the context starts it, and leaving stops it. Raises BrokerError if it doesn't start, and
    MissingDependency if Java or the jars are missing.

    With `data` the topics are kept: a later DevBroker on the same folder has them. A temporary folder is
    removed when the broker stops.

    To test failures, `kill()` kills it while it works, and `restart()` starts it again on the same port and
    data.
    """

    def __init__(self, port: int = 0, data: Path | None = None) -> None:
        self._port, self._controller = port or free_port(), free_port()
        self._cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._temporary = data is None
        self.folder = (
            data or Path(tempfile.gettempdir(), f"replayfilter-broker-{uuid.uuid4().hex}")
        ).absolute()
        self._java: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id of the running broker; None if it isn't running."""
        return self._java.pid if self._java else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    def properties(self) -> str:
        """Return the content of server.properties."""
        return _SERVER.format(port=self._port, controller=self._controller, data=self.folder)

    def java_options(self) -> list[str]:
        """Return options for the broker's Java: those in KAFKA_OPTS, as in Kafka's own scripts."""
        return os.environ.get("KAFKA_OPTS", "").split()

    def start(self) -> None:
        """Format the data folder if it is new, start Kafka, and return as soon as it answers a client."""
        if self._java is not None:
            return
        command, jars = str(java()), ":".join(map(str, kafka_jars()))
        if not _is_free(self._port):
            raise BrokerError(
                f"Port {self._port} is in use on 127.0.0.1: stop the process that uses it, or choose "
                "another port (--port)."
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        server, logging = self.folder / "server.properties", self.folder / "log4j2.properties"
        server.write_text(self.properties())
        logging.write_text(_LOGGING)
        options = [*_JVM, *self.java_options(), f"-Dlog4j2.configurationFile={logging.as_uri()}"]
        kafka = [command, *options, "-cp", jars]
        try:
            if not (self.folder / "log" / "meta.properties").exists():
                self._format(kafka, server)
            with self._log.open("ab") as log:
                self._java = subprocess.Popen(
                    [*kafka, "kafka.Kafka", server],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in a terminal goes only to us; we then stop the broker
                )
            self._watchdog = _start_watchdog(self._java.pid, remove=self.folder if self._temporary else None)
            self._await()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the broker: cleanly if its data are kept, at once if they are temporary."""
        if self._java is not None and not self._temporary:
            self._java.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._java.wait(20)
        self.kill()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the broker with SIGKILL; its data are kept for `restart`."""
        watchdog, process, self._watchdog, self._java = self._watchdog, self._java, None, None
        if watchdog is not None:  # first, because a process id may be used again once the broker has ended
            watchdog.kill()
            watchdog.communicate()
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Kill the broker if it runs, and start it again on the same port and data."""
        self.kill()
        self.start()

    def wait(self) -> int:
        """Block until the broker ends by itself, and return its exit code."""
        if self._java is None:
            raise BrokerError("The broker is not running: start it before waiting for its end.")
        return self._java.wait()

    @property
    def _log(self) -> Path:
        return self.folder / "broker.log"

    def _format(self, kafka: list[str], server: Path) -> None:
        # With "=", since an id may begin with "-".
        cluster = f"--cluster-id={self._cluster_id}"
        arguments = ["kafka.tools.StorageTool", "format", cluster, "--config", str(server)]
        ended = subprocess.run(
            kafka + arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if ended.returncode:
            raise BrokerError(
                f"Kafka can't use {server.parent} for its data:\n{(ended.stdout + ended.stderr)[-2000:]}"
            )

    def _await(self) -> None:
        """Return as soon as a client gets metadata that names the broker: then it accepts writes, too."""
        assert self._java is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._java.poll() is not None:
                raise self._start_error(f"ended with code {self._java.returncode} while starting")
            if _listens(self._port) and _answers(self.bootstrap):
                return
            time.sleep(0.05)
        raise self._start_error(f"didn't answer within {START_SECONDS:.0f} seconds")

    def _start_error(self, what: str) -> BrokerError:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        tail = "\n".join([line for line in lines if not line.startswith("\t")][-12:])  # no stack frames
        return BrokerError(f"The development broker on {self.bootstrap} {what}; its log ends with:\n{tail}")


def _start_watchdog(pid: int, remove: Path | None) -> subprocess.Popen[bytes]:
    """Start a process that kills the broker (and removes its folder) when ours has ended.

    Unlike PR_SET_PDEATHSIG this doesn't depend on the thread that started the broker, nor on Linux.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(pid), str(remove or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    """A free port below those that systems assign to clients (from 32768 on Linux, from 49152 on macOS).

    Any client could get such a port while the broker is down, even one that tries to connect to the broker.
    """
    while not _is_free(port := random.SystemRandom().randrange(12000, 32000)):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # the connections of a dead broker may linger
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(bootstrap: str) -> bool:
    client = AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0})
    try:
        return bool(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return False
