"""A TCP proxy whose network can be cut, slow, or lossy: its connections stop, crawl, or are reset."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

CHUNK_BYTES = 16_384
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST and drops what was not sent


class HostileProxy:
    """Passes bytes between its own ``port`` and ``target`` on 127.0.0.1.

    ``delay_s``: how long each chunk of at most 16 KiB is held back, in each direction. While the network is
    :meth:`cut`, connections stay open, new ones are accepted, and nothing passes: a client sees no error.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self.delay_s = 0.0
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: set[socket.socket] = set()
        self._lock, self._ended = threading.Lock(), False
        self._listener = socket.create_server(("127.0.0.1", port))

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self._passes.clear()

    def restore(self) -> None:
        """Let everything pass again, at full speed, with what was held back meanwhile."""
        self.delay_s = 0.0
        self._passes.set()

    def reset_connections(self) -> None:
        """Reset all connections; bytes on their way are lost."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _reset(each)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone doesn't wake up accept()
        self._listener.close()
        self.restore()
        self.reset_connections()

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            for source, sink in ((client, server), (server, client)):
                with contextlib.suppress(OSError):  # the client may have gone again
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass what ``source`` sends to ``sink`` until either is closed, then reset both."""
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._passes.wait()
                sink.sendall(chunk)
        with self._lock:
            self._sockets -= {source, sink}
        for each in (source, sink):
            _reset(each)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)  # wakes up the thread that reads from it
    connection.close()
