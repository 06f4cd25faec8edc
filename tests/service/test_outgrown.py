"""Records that become larger than reckoned with: the query starts again in place, with smaller batches."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from replayfilter.core.routing import Route
from replayfilter.devbroker import DevBroker
from replayfilter.service.batch import read_batch
from replayfilter.service.status import Status
from replayfilter.service.supervision import StopSignals, Supervisor
from replayfilter.spark.query import Progress, Service
from tests.spark.pipelines import Pipeline, order, record

pytestmark = pytest.mark.pending
SMALL, LARGE = 600, 1_500


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_batches_shrink_when_records_grow(broker: DevBroker, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    pipeline = Pipeline(
        broker.bootstrap, tmp_path, "growing", stamp="none", batch_records=1_000, batch_bytes=1_000_000
    )
    status, sizes = Status("growing", 120.0, {}, time.time()), list[int]()

    def on_batch(progress: Progress) -> None:
        status.batch(read_batch(progress, time.time()))
        sizes.append(progress["numInputRows"])
        if sum(sizes) == SMALL:
            large = (record(order(SMALL + n, now, pad="x" * 5_000), partition=n % 2) for n in range(LARGE))
            pipeline.publish(large)
        elif sum(sizes) == SMALL + LARGE:
            signals.asked = True

    pipeline.publish(record(order(n, now), partition=n % 2) for n in range(SMALL))
    service = Service(pipeline.settings, [on_batch])
    with StopSignals() as signals:
        guard = threading.Timer(200, lambda: setattr(signals, "asked", True))
        guard.start()
        Supervisor(service, signals, status, pytest.fail).run(once=False)
        guard.cancel()
    assert sum(sizes) == SMALL + LARGE, sizes
    assert max(sizes) > 600, "the first large batch went by the old reckoning"
    assert all(size <= 250 for size in sizes[-2:]), sizes
    assert status.retries == 0
    values = pipeline.values(Route.UNIQUE)
    assert len(values) == len(set(values)) == SMALL + LARGE
