"""A file sink that kills itself: ``file_sink_process BOOTSTRAP TOPIC FOLDER RECORDS STEP``.

It writes Parquet files of up to 100 records, and ends with SIGKILL before step number STEP, counted over all
files. Without so many steps it ends by itself, once it has read all of the topic's RECORDS.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message

from replayfilter import FileSink

STEPS_PER_FILE = 5  # before and within write, before the file is forced to the disk, renamed, and the rename


class Killer:
    """Counts steps, and kills the process before one of them."""

    def __init__(self, step: int) -> None:
        self._left = step

    def step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def before(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a step before it."""

        def call(*arguments: Any) -> Any:
            self.step()
            return act(*arguments)

        return call


def main() -> None:
    """Write files until killed."""
    bootstrap, topic, folder, records, step = sys.argv[1:]
    killer = Killer(int(step))
    os.fsync, os.rename = killer.before(os.fsync), killer.before(os.rename)

    def write(path: Path, records: Sequence[Message]) -> None:
        killer.step()
        path.write_bytes(b"PAR1 half a file")
        killer.step()
        pq.write_table(pa.table({"value": [message.value() for message in records]}), path)

    left = int(records) - sum(pq.read_metadata(path).num_rows for path in Path(folder).glob("*.parquet"))
    with FileSink({"bootstrap.servers": bootstrap}, [topic], folder, write, max_records=100) as sink:
        while left > sum(len(waiting.messages) for waiting in sink._waiting.values()):
            left -= sum(pq.read_metadata(path).num_rows for path in sink.step(0.2))


if __name__ == "__main__":
    main()
