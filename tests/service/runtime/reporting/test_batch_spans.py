"""Spans as a collector gets them: real OTLP over HTTP."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from replayfilter.service.runtime.reporting import batch_spans as batch_spans_module
from replayfilter.service.runtime.reporting.batch_spans import batch_spans
from tests.support.batches import batch
from tests.support.otlp_receiver import OtlpReceiver

NS = 1_000_000_000


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as running:
        yield running


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACES_EXPORTER", "SDK_DISABLED", "SERVICE_NAME", "EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)


def test_each_batch_is_a_span(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    warnings: list[str] = []
    spans = batch_spans("orders", warnings.append)
    assert spans is not None
    with spans:
        spans.send(batch(7, 100.0, unique=3, replay=2, route_us=250_000, watermark_us=90_500_000))
        spans.send(batch(8, 105.0, error=1))
    assert warnings == []
    assert receiver.services == {"orders"}
    first, second = receiver.spans
    assert (first.name, first.start_time_unix_nano, first.end_time_unix_nano) == ("batch", 98 * NS, 100 * NS)
    assert first.trace_id != second.trace_id
    assert not first.parent_span_id
    assert receiver.attributes()[0] == {
        "messaging.system": "kafka",
        "messaging.operation.name": "batch",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "orders",
        "messaging.batch.message_count": 5,
        "replayfilter.batch": 7,
        "replayfilter.records.unique": 3,
        "replayfilter.records.duplicate": 0,
        "replayfilter.records.expired": 0,
        "replayfilter.records.error": 0,
        "replayfilter.records.replay": 2,
        "replayfilter.seconds.offsets": 0.0,
        "replayfilter.seconds.planning": 0.0,
        "replayfilter.seconds.log": 0.15,
        "replayfilter.seconds.run": 1.5,
        "replayfilter.work.decode": 0.0,
        "replayfilter.work.route": 0.25,
        "replayfilter.work.deliver": 0.0,
        "replayfilter.watermark": 90.5,
    }
    assert "replayfilter.watermark" not in receiver.attributes()[1], "it is not known"


def test_opentelemetrys_own_variables_name_the_service(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/v1/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "filter")
    spans = batch_spans("orders", pytest.fail)
    assert spans is not None
    with spans:
        spans.send(batch(0, 100.0))
    assert receiver.services == {"filter"}


@pytest.mark.parametrize(
    "variables", [{}, {"OTEL_SDK_DISABLED": "True"}, {"OTEL_TRACES_EXPORTER": "none"}], ids=str
)
def test_nothing_is_sent_without_an_exporter(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    if variables:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert batch_spans("orders", pytest.fail) is None


@pytest.mark.parametrize(
    "package", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"]
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    warnings: list[str] = []
    assert batch_spans("orders", warnings.append) is None
    (warning,) = warnings
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in warning
    assert "replayfilter[tracing]" in warning


def test_a_collector_that_is_down_is_reported_and_does_not_hold_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch_spans_module, "STOP_SECONDS", 0.1)
    warnings: list[str] = []
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        spans = batch_spans("orders", warnings.append)
        assert spans is not None
        with spans:
            for number in range(1_500):  # three requests
                spans.send(batch(number, 100.0))
    assert len(warnings) == len(set(warnings)) > 0
    assert "the last spans are lost" in warnings[-1]
    assert "check OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT" in warnings[0]
    assert capsys.readouterr() == ("", "")
