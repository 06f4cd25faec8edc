"""A schema registry for tests: the REST paths that clients use, on a real socket, and ways to fail.

A Protobuf schema is kept as its FileDescriptorProto, as Confluent's Python serializer registers it. Without
``format=serialized`` it is given as text, so a reader that forgets the format can't use it.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from google.protobuf.descriptor_pb2 import FileDescriptorProto

_TEXT = 'syntax = "proto3";'

Reference = Mapping[str, object]

FAST_RETRIES = {"retries.wait.ms": "1", "retries.max.wait.ms": "5", "timeout": "5"}  # of the registry client


def guid_of(id_: int) -> UUID:
    """The GUID of the schema with this id."""
    return uuid5(NAMESPACE_OID, str(id_))


def _in_format(serialized: bool, schema: dict[str, Any]) -> dict[str, Any]:
    is_text = schema.get("schemaType") == "PROTOBUF" and not serialized
    return schema | {"schema": _TEXT} if is_text else schema


class RegistryServer:
    """Serves /schemas/ids/ID, /schemas/guids/GUID and /subjects/SUBJECT/versions/VERSION as Confluent's does.

    A schema is registered by POST to /subjects/SUBJECT/versions and found by POST to /subjects/SUBJECT.

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
        """Register a schema, as JSON, under an id, its GUID, and the subject ``s<id>``, version 1."""
        self.add_text(id_, json.dumps(schema), references, **more)

    def add_text(self, id_: int, text: str, references: tuple[Reference, ...] = (), **more: Any) -> None:
        """Register a schema that is no JSON, as :meth:`add` does."""
        self.schemas[id_] = {"schema": text, **more}
        if references:
            self.schemas[id_]["references"] = list(references)
        self.subjects[f"s{id_}", 1] = {"subject": f"s{id_}", "version": 1, "id": id_} | self.schemas[id_]

    def add_protobuf(
        self, id_: int, file: FileDescriptorProto, references: tuple[Reference, ...] = ()
    ) -> None:
        """Register a .proto file, as :meth:`add` does."""
        text = base64.b64encode(file.SerializeToString()).decode()
        self.add_text(id_, text, references, schemaType="PROTOBUF")

    def respond(
        self, path: str, authorization: str | None, body: dict[str, Any] | None = None
    ) -> tuple[int, object] | None:
        """Status and JSON body of the response to a request, POST if it has a body. None: never respond."""
        self.requests.append(path)
        if self.fail_with:
            status = self.fail_with.pop(0)
            if not status:
                self._ending.wait()
                return None
            return status, {"error_code": status * 100 + 1, "message": "made to fail"}
        if self.users and authorization not in self._accepted():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        where, _, query = path.partition("?")
        given = partial(_in_format, "format=serialized" in query.split("&"))
        match where.strip("/").split("/"):
            case ["subjects", subject, *more] if body is not None:
                return self._register(subject, body, new=more == ["versions"])
            case ["schemas", "ids", id_] if int(id_) in self.schemas:
                if self.late.get(int(id_), 0) > 0:
                    self.late[int(id_)] -= 1
                else:
                    return 200, given(self.schemas[int(id_)])
            case ["subjects", subject, "versions", version] if (subject, int(version)) in self.subjects:
                return 200, given(self.subjects[subject, int(version)])
            case ["schemas", "guids", guid] if guid in map(str, map(guid_of, self.schemas)):
                own = next(id_ for id_ in self.schemas if str(guid_of(id_)) == guid)
                return 200, given(self.schemas[own] | {"guid": guid})
            case ["schemas", "ids" | "guids", _] | ["subjects", *_]:
                pass
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _register(self, subject: str, body: dict[str, Any], new: bool) -> tuple[int, object]:
        """A schema of a subject, which gets it if it is ``new`` and hasn't got it yet."""
        schema = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
        for (name, _), found in self.subjects.items():
            if name == subject and schema.items() <= found.items():
                return 200, found
        if not new:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        known = (id_ for id_, found in self.schemas.items() if found == schema)
        id_ = next(known, max(self.schemas, default=0) + 1)
        version = 1 + sum(name == subject for name, _ in self.subjects)
        self.schemas[id_] = schema
        found = {"subject": subject, "version": version, "id": id_, "guid": str(guid_of(id_))} | schema
        self.subjects[subject, version] = found
        return 200, found

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

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._respond(json.loads(self.rfile.read(length)))

    def do_GET(self) -> None:
        self._respond(None)

    def _respond(self, body: dict[str, Any] | None) -> None:
        response = self.registry.respond(self.path, self.headers["Authorization"], body)
        if response is None:
            self.close_connection = True
            return
        status, answer = response
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
