"""Records that turn out larger than estimated: the query restarts in place, with smaller batches."""

from __future__ import annotations

import threading
import time
from itertools import accumulate
from pathlib import Path

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from replayfilter.core.routing import Route
from replayfilter.devbroker import DevBroker
from replayfilter.service.monitor.batch import read_batch
from replayfilter.service.monitor.status import Status
from replayfilter.service.runtime.supervision import StopSignals, Supervisor
from replayfilter.spark.query import Progress, Service
from tests.support.pipelines import Pipeline, order, record
from tests.support.service_process import wait_for

pytestmark = pytest.mark.spark

SMALL, LARGE = 600, 700  # records; as many large ones follow after the restart


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_batches_shrink_when_records_grow(broker: DevBroker, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    pipeline = Pipeline(
        broker.bootstrap, tmp_path, "growing", stamp="none", batch_records=1_000, batch_bytes=1_000_000
    )
    status, sizes = Status("growing", 120.0, {}, time.time()), list[int]()
    queries: list[StreamingQuery] = []

    def on_batch(progress: Progress) -> None:
        status.add_batch(read_batch(progress, time.time()))
        sizes.append(read_batch(progress, 0).records)
        queries.append(service.query)
        if sum(sizes) == SMALL:
            publish_large(SMALL)
        elif sum(sizes) == SMALL + LARGE:
            threading.Thread(target=publish_after_restart, daemon=True).start()
        elif sum(sizes) == SMALL + 2 * LARGE:
            signals.stop_requested = True

    def publish_large(first: int) -> None:
        numbers = range(first, first + LARGE)
        pipeline.publish(record(order(n, now, pad="x" * 10_000), partition=n % 2) for n in numbers)

    def publish_after_restart() -> None:
        wait_for(lambda: service.query is not queries[0], 60, "the query was not restarted")
        publish_large(SMALL + LARGE)

    pipeline.publish(record(order(n, now), partition=n % 2) for n in range(SMALL))
    service = Service(pipeline.settings, [on_batch])
    with StopSignals() as signals:
        guard = threading.Timer(200, lambda: setattr(signals, "stop_requested", True))
        guard.start()
        Supervisor(service, signals, status, lambda text, cause=None: pytest.fail(text)).run(once=False)
        guard.cancel()
    assert sum(sizes) == SMALL + 2 * LARGE, sizes
    after = list(accumulate(sizes)).index(SMALL + LARGE) + 1
    assert max(sizes[after:]) <= 120, f"{sizes}: 100 of the large records are 1 MB"
    assert status.retries == 0
    values = pipeline.values(Route.UNIQUE)
    assert len(values) == len(set(values)) == SMALL + 2 * LARGE
