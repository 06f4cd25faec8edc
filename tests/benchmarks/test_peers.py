"""Every system of the comparison, started for real: its output has each order exactly once.

`make test-peers` runs this, because it takes minutes and needs what `make peers` builds.
"""

from __future__ import annotations

import pytest

from benchmarks.comparison import ARRIVAL_LIMIT_S, measure
from benchmarks.orders import Backlog
from benchmarks.systems import PYTHON, SYSTEMS
from replayfilter.devbroker import DevBroker

RECORDS = 100_000
TESTED = [
    name for name in SYSTEMS if name != "flink-10s"
]  # its checkpoint is longer than so few records take

pytestmark = [
    pytest.mark.spark,
    pytest.mark.peers,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the peers: `make peers` builds them"),
]


@pytest.fixture(scope="module")
def backlog() -> Backlog:
    return Backlog(RECORDS, 4)


@pytest.mark.parametrize("name", TESTED)
def test_every_order_is_written_once(name: str, backlog: Backlog, broker: DevBroker) -> None:
    found = measure(broker, name, SYSTEMS[name], backlog, RECORDS // 8, [0, 2_000], 3, start=False)
    assert found.error == ""
    assert found.records_per_s > 0
    assert found.memory_mb > 100
    assert found.state_bytes_per_key > 5 or name == "copy"
    idle, busy = found.live
    assert idle.p50 is None
    assert busy.p50 is not None
    assert busy.p99 is not None
    assert 0 < busy.p50 <= busy.p99 < ARRIVAL_LIMIT_S * 1_000
