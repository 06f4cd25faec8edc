"""A collector for tests: takes spans by OTLP over HTTP, as protobuf, on a real socket."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """Keeps what arrives at ``url``: the ``spans``, and the names of the ``services`` that sent them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        handler = type("Handler", (_Handler,), {"receiver": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The value of OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def attributes(self) -> list[dict[str, Any]]:
        """The attributes of each span."""
        return [_plain(*span.attributes) for span in self.spans]

    def accept(self, body: bytes) -> None:
        """Keep the spans of a request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services.add(_plain(*resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    receiver: OtlpReceiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
        if known:
            self.receiver.accept(body)
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _plain(*pairs: KeyValue) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in pairs}
