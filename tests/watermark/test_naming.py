"""Rosters from naming services: real HTTP on this machine, and names that need no DNS server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from replayfilter.watermark.naming import ask
from tests.support.server_process import ServerProcess, write_config


class NamesServer(ThreadingHTTPServer):
    """Answers every GET with ``status`` and ``body``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body = 200, b""
        self.url = f"http://127.0.0.1:{self.server_port}/names"


class _Handler(BaseHTTPRequestHandler):
    server: NamesServer

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def names() -> Iterator[NamesServer]:
    with NamesServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ENDPOINTS = {
    "kind": "Endpoints",
    "subsets": [
        {
            "addresses": [
                {"ip": "10.0.0.1", "targetRef": {"kind": "Pod", "name": "web-0"}},
                {"ip": "10.0.0.2"},
            ],
            "notReadyAddresses": [{"ip": "10.0.0.3", "hostname": "web-2"}],
        }
    ],
}
SLICES = {
    "kind": "EndpointSliceList",
    "items": [
        {"endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"name": "web-0"}}]},
        {"endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": False}}]},
        {"endpoints": None},
    ],
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"# the web servers\nweb-0\n\nweb-1\nweb-0\n", ["web-0", "web-1"]),
        (b' ["web-1", "web-0"]', ["web-1", "web-0"]),
        (json.dumps(ENDPOINTS).encode(), ["web-0", "10.0.0.2", "web-2"]),
        (json.dumps(SLICES).encode(), ["web-0", "10.0.0.9"]),
    ],
)
def test_the_forms_of_an_answer(names: NamesServer, body: bytes, expected: list[str]) -> None:
    names.body = body
    assert ask(names.url) == expected


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (403, b"", "answers 403"),
        (200, b"", "names no origin"),
        (200, b"[]", "names no origin"),
        (200, b"\xff", "not UTF-8 at byte 0"),
        (200, b"[1]", "neither a JSON list of names"),
        (200, b'["a"', "neither a JSON list of names"),
        (200, b'{"kind": "Pod"}', "neither a JSON list of names"),
        (200, b'{"kind": "Endpoints", "subsets": [{"addresses": [{}]}]}', "neither a JSON list of names"),
        (200, b'{"kind": "Endpoints"}', "names no origin"),
        (200, b'{"kind": "EndpointSlice", "endpoints": [{"addresses": []}]}', "neither a JSON list of names"),
        (200, b'["a", "\\n"]', "name 2: .* is not an origin name"),
    ],
)
def test_an_answer_that_can_not_be_used_says_why(
    names: NamesServer, status: int, body: bytes, message: str
) -> None:
    names.status, names.body = status, body
    with pytest.raises(ValueError, match=message):
        ask(names.url)


def test_a_name_is_resolved_to_its_addresses() -> None:
    assert "127.0.0.1" in ask("dns:localhost")
    assert ask("dns:127.0.0.1") == ["127.0.0.1"]
    with pytest.raises(ValueError, match=r"dns:not a host: can't be resolved"):
        ask("dns:not a host")


def test_a_url_where_nobody_answers_says_so() -> None:
    for url in ("http://127.0.0.1:1/names", "http://[", "https://127.0.0.1:1"):
        with pytest.raises(ValueError, match="can't be read"):
            ask(url)


def test_the_roster_follows_a_naming_service(names: NamesServer, tmp_path: Path) -> None:
    names.body = b'["a", "b"]'
    stages = f'[stages.web]\nroster = "{names.url}"\n[stages.local]\nroster = "dns:127.0.0.1"\n'

    def wait_for(origins: int, errors: int, error: str = "") -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            state: dict[str, Any] = server.get("/v1/stages/web")
            if (state["origins"], len(state["faults"])) == (origins, errors):
                assert error in "".join(state["faults"])
                return state
            assert time.monotonic() < deadline, state
            time.sleep(0.05)

    with ServerProcess(write_config(tmp_path, stages)) as server:
        wait_for(2, 0)
        server.report("web", {"a": 10, "b": 20})
        assert server.low("web") == 10
        server.report("local", {"127.0.0.1": 5})
        assert server.low("local") == 5
        names.status = 500
        wait_for(2, 1, "answers 500; check")
        names.status, names.body = 200, b'["b"]'
        wait_for(1, 0)
        assert server.low("web") == 20, "nothing is expected of a any more"
    names.status = 500
    with ServerProcess(write_config(tmp_path, stages)) as server:
        wait_for(1, 1)
        assert server.low("web") == 20, "what the naming service said before the restart is in the store"
