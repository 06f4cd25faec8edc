"""The first questions about a group on a new cluster, which has no group coordinator yet.

Through librdkafka's admin client the question for committed offsets ended the process with a segmentation
fault in six of six tries. Each try here has its own process and its own broker.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from replayfilter.devbroker import DevBroker

TRIES = 2
GROUPS = 8  # asked for at the same time, each by its own thread
ASK = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from replayfilter.kafka.admin import Cluster

cluster = Cluster(sys.argv[1])
cluster.create({{"orders": 2}})
with ThreadPoolExecutor({GROUPS}) as threads:
    ask = lambda number: cluster.committed(f"group-{{number}}", [("orders", 0), ("orders", 1)])
    print(list(threads.map(ask, range({GROUPS}))))
"""


ALLOWED = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from replayfilter.kafka.admin import Cluster

cluster = Cluster(sys.argv[1])
with ThreadPoolExecutor({GROUPS}) as threads:
    found = list(threads.map(cluster.group_operations, map("group-{{}}".format, range({GROUPS}))))
print([each is None or "READ" in each for each in found])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "answers"), [(ASK, [{}] * GROUPS), (ALLOWED, [True] * GROUPS)], ids=["committed", "allowed"]
)
def test_the_first_questions_for_groups(code: str, answers: list[object]) -> None:
    for _ in range(TRIES):
        with DevBroker() as broker:
            asked = subprocess.run(
                [sys.executable, "-c", code, broker.bootstrap],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.strip() == str(answers)
