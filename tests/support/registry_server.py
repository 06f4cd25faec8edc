"""A schema registry for tests: the REST paths that readers use, on a real socket, and ways to fail."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

Reference = Mapping[str, object]

FAST_RETRIES = {"retries.wait.ms": "1", "retries.max.wait.ms": "5", "timeout": "5"}  # avro.options


def guid_of(id_: int) -> UUID:
    """The GUID of the schema with this id."""
    return uuid5(NAMESPACE_OID, str(id_))


class RegistryServer:
    """Serves /schemas/ids/ID, /schemas/guids/GUID and /subjects/SUBJECT/versions/VERSION as Confluent's does.

    ``fail_with``: the HTTP statuses of the next responses, in order; 0 hangs until the server is closed.
    ``users``: name -> password; empty: no password is needed. ``late``: id -> how many requests for it are
    answered with "not found" first. ``requests``: the paths of all requests so far.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.fail_with: list[int] = []
        self.users: dict[str, str] = {}
        self.late: dict[int, int] = {}
        self.requests: list[str] = []
        self._ending = threading.Event()
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The address to put into avro.registry."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, id_: int, schema: object, references: tuple[Reference, ...] = (), **more: Any) -> None:
        """Register a schema under an id, its GUID, and the subject ``s<id>``, version 1."""
        self.schemas[id_] = {"schema": json.dumps(schema), **more}
        if references:
            self.schemas[id_]["references"] = list(references)
        self.subjects[f"s{id_}", 1] = {"subject": f"s{id_}", "version": 1, "id": id_} | self.schemas[id_]

    def respond(self, path: str, authorization: str | None) -> tuple[int, object] | None:
        """Status and JSON body of the response to a request. None: never respond."""
        self.requests.append(path)
        if self.fail_with:
            status = self.fail_with.pop(0)
            if not status:
                self._ending.wait()
                return None
            return status, {"error_code": status * 100 + 1, "message": "made to fail"}
        if self.users and authorization not in self._accepted():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.split("?")[0].strip("/").split("/"):
            case ["schemas", "ids", id_] if int(id_) in self.schemas:
                if self.late.get(int(id_), 0) > 0:
                    self.late[int(id_)] -= 1
                else:
                    return 200, self.schemas[int(id_)]
            case ["subjects", subject, "versions", version] if (subject, int(version)) in self.subjects:
                return 200, self.subjects[subject, int(version)]
            case ["schemas", "guids", guid] if guid in map(str, map(guid_of, self.schemas)):
                own = next(id_ for id_ in self.schemas if str(guid_of(id_)) == guid)
                return 200, self.schemas[own] | {"guid": guid}
            case ["schemas", "ids" | "guids", _] | ["subjects", *_]:
                pass
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _accepted(self) -> set[str]:
        pairs = (f"{name}:{password}" for name, password in self.users.items())
        return {f"Basic {base64.b64encode(pair.encode()).decode()}" for pair in pairs}

    def __enter__(self) -> RegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: RegistryServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        response = self.registry.respond(self.path, self.headers["Authorization"])
        if response is None:
            self.close_connection = True
            return
        status, body = response
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
