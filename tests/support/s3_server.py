"""A real S3 server in memory, and in front of it a proxy that counts, delays and fails requests."""

from __future__ import annotations

import http.client
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from replayfilter.devbroker import free_port
from replayfilter.jvm.jars import locked_jars
from replayfilter.jvm.java import java
from tests.support.name_node import ENDS_WITH_US
from tests.support.service_process import wait_for

START_SECONDS = 60.0
BUCKET = "checkpoints"
_PROPERTIES = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=none
jclouds.provider=transient
jclouds.identity=any
jclouds.credential=any
"""


class Fault(Enum):
    """What may happen to a request."""

    BUSY = auto()  # refused with 503
    LOST = auto()  # done, but the connection ends before the answer
    HANGS = auto()  # done, but the answer comes long after the client has given up


Faults = Callable[[str, str], Fault | None]  # of a request's method and path


class S3Server:
    """A server with one bucket. Clients reach it through ``proxy``."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="replayfilter-s3-")
        self._port = free_port()
        self.proxy = Proxy(self._port)
        self.url = f"s3a://{BUCKET}"

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.proxy.server_port}"

    def requests_per_batch(self, checkpoint: str) -> float:
        """The requests for Spark's files in a checkpoint, for each batch that Spark has finished there."""
        asked = {
            (method, path): count
            for (method, path), count in self.proxy.counts.copy().items()
            if f"/{checkpoint}/spark/" in unquote(path) or f"={checkpoint}/spark/" in unquote(path)
        }
        finished = {path for method, path in asked if method == "PUT" and re.search(r"/commits/\d+$", path)}
        return sum(asked.values()) / len(finished)

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        (folder / "properties").write_text(_PROPERTIES.format(port=self._port))
        classes, log = ":".join(map(str, locked_jars("s3proxy"))), folder / "log"
        command: list[str | Path] = [java(), "-Xmx256m", "-cp", classes]
        command += ["org.gaul.s3proxy.Main", "--properties", "properties"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", ENDS_WITH_US, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
            )
        try:
            wait_for(lambda: _create(self._port, BUCKET), START_SECONDS, "S3 did not start", 0.2)
        except AssertionError as error:
            self.__exit__(None, None, None)
            raise AssertionError(f"{error}:\n{log.read_text('utf-8', 'replace')[-2000:]}") from None
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.communicate()
        self.proxy.server_close()
        self._folder.cleanup()


def _create(port: int, bucket: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("PUT", f"/{bucket}")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Proxy(ThreadingHTTPServer):
    """Passes requests on to ``port``.

    ``counts`` has the number of requests by method and path. Each request waits ``delay_s`` seconds.
    ``faults`` says what happens to a request; None: nothing. An answer that hangs comes after ``hang_s``.
    With ``ignores_conditions`` it replaces objects although the client has asked not to, as old stores do.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.port, self.delay_s, self.hang_s = port, 0.0, 5.0
        self.ignores_conditions = False
        self.counts: Counter[tuple[str, str]] = Counter()
        self.faults: Faults = lambda method, path: None
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a connection that was closed ends here, and the client tries again."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def setup(self) -> None:
        super().setup()
        self._to = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)

    def finish(self) -> None:
        self._to.close()
        super().finish()

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.counts[self.command, self.path] += 1
        time.sleep(self.server.delay_s)
        fault = self.server.faults(self.command, self.path)
        if fault is Fault.BUSY:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._to.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect" and not (self.server.ignores_conditions and name == "If-None-Match"):
                self._to.putheader(name, value)
        self._to.endheaders(body or None)
        answer = self._to.getresponse()
        content = answer.read()
        if fault is Fault.LOST:
            self.close_connection = True
            return
        if fault is Fault.HANGS:
            time.sleep(self.server.hang_s)
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        if length is not None and answer.status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815  # the server calls them

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: a test prints what it needs."""
