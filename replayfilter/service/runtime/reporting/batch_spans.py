"""A span for each finished batch, sent to a collector by OpenTelemetry.

Spans are made from what Spark reports of a batch after its end, so tasks cost the same with and without them.
The parts of a batch are attributes and not spans of their own, because Spark reports how long they took, but
not when they began.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from replayfilter.service.monitor.batch import STEPS, Batch

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
STOP_SECONDS = 5.0  # how long the end of the service waits for a collector that doesn't answer
_REMEDY = f"check {' or '.join(ENDPOINTS)}, and the collector. The service itself is not affected"
_NS = 1_000_000_000

Warn = Callable[[str], None]


def batch_spans(service: str, warn: Warn) -> BatchSpans | None:
    """What sends the spans of a service; None if OpenTelemetry's variables name no endpoint, or turn it off.

    ``warn`` is called if they name one and OpenTelemetry is not installed, and while the collector fails.
    """
    endpoint = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if endpoint is None or off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    try:
        return BatchSpans(service, warn)
    except ModuleNotFoundError:
        warn(
            f"warning: {endpoint} is set, but OpenTelemetry is not installed, so no spans are sent: "
            'pip install "replayfilter[tracing]", or unset the variable'
        )
        return None


class BatchSpans:
    """Sends spans in a thread of its own, by OpenTelemetry's environment variables.

    As a context manager it sends what is left at the end, for at most :data:`STOP_SECONDS`.
    """

    def __init__(self, service: str, warn: Warn) -> None:
        # Imported here: it takes a third of a second, and few services need it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._service, self._warn = service, warn
        self._log = _ExporterLog(warn)
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        self._exporter = OTLPSpanExporter()
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("replayfilter")

    def send(self, batch: Batch) -> None:
        """Send the span of a finished batch, soon. Never waits."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        attributes: dict[str, str | int | float] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "batch",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": self._service,
            "messaging.batch.message_count": batch.records,
            "replayfilter.batch": batch.number,
        }
        attributes |= {f"replayfilter.records.{route}": count for route, count in batch.routes.items()}
        steps = (step for step in STEPS if step != "total")
        attributes |= {f"replayfilter.seconds.{step}": batch.seconds[step] for step in steps}
        attributes |= {f"replayfilter.work.{stage}": seconds for stage, seconds in batch.work.items()}
        if batch.watermark is not None:
            attributes["replayfilter.watermark"] = batch.watermark
        span = self._tracer.start_span(
            "batch", Context(), SpanKind.CONSUMER, attributes, start_time=int(batch.began * _NS)
        )
        span.end(int((batch.began + batch.seconds["total"]) * _NS))

    def __enter__(self) -> Self:
        self._log.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        # The SDK would wait for up to 30 seconds. Kubernetes kills a container that takes that long to end.
        give_up = threading.Timer(STOP_SECONDS, self._give_up)
        give_up.start()
        self._provider.shutdown()
        give_up.cancel()
        give_up.join()
        self._log.stop()

    def _give_up(self) -> None:
        self._warn(f"warning: OpenTelemetry: the last spans are lost; {_REMEDY}")
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _ExporterLog(logging.Handler):
    """Reports the errors of the exporter, each once. Otherwise each failed request prints several lines."""

    def __init__(self, warn: Warn) -> None:
        super().__init__(logging.ERROR)
        self._warn, self._reported = warn, set[str]()
        self._logger = logging.getLogger("opentelemetry")

    def start(self) -> None:
        self._logger.addHandler(self)
        self._logger.propagate = False

    def stop(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._reported:
            self._reported.add(text)
            self._warn(f"warning: OpenTelemetry: {text.rstrip('.')}; {_REMEDY}")
