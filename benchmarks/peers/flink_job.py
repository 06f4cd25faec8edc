"""The job of a Flink SQL user: the first row of each event, from Kafka to Kafka, exactly once.

    python flink_job.py BOOTSTRAP INPUT OUTPUT PARALLELISM CHECKPOINT_EVERY PERIOD CHECKPOINTS JARS

It needs a Python with apache-flink, which `make peers` installs into a virtual environment of its own, and
runs until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

COLUMNS = "event_id STRING, ts BIGINT, sent BIGINT, `user` INT, amount DOUBLE, note STRING"
FIELDS = "event_id, ts, sent, `user`, amount, note"


def main(
    bootstrap: str, topic: str, output: str, parallelism: str, every: str, period: str, folder: str, jars: str
) -> None:
    configuration = Configuration()
    for name, value in {
        "pipeline.jars": ";".join(jar.as_uri() for jar in Path(jars).glob("*.jar")),
        "parallelism.default": parallelism,
        "pipeline.object-reuse": "true",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": every,
        "execution.checkpointing.dir": Path(folder).as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "table.exec.state.ttl": period,
        "taskmanager.memory.managed.size": "512m",
        "taskmanager.numberOfTaskSlots": parallelism,
    }.items():
        configuration.set_string(name, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    kafka = f"'connector' = 'kafka', 'properties.bootstrap.servers' = '{bootstrap}', 'format' = 'json'"
    tables.execute_sql(
        f"CREATE TABLE orders ({COLUMNS}, arrived AS PROCTIME()) WITH ({kafka}, 'topic' = '{topic}',"
        f" 'properties.group.id' = '{output}', 'scan.startup.mode' = 'earliest-offset')"
    )
    tables.execute_sql(
        f"CREATE TABLE firsts ({COLUMNS}) WITH ({kafka}, 'topic' = '{output}',"
        " 'sink.delivery-guarantee' = 'exactly-once', 'sink.transaction-naming-strategy' = 'POOLING',"
        f" 'sink.transactional-id-prefix' = '{output}', 'properties.transaction.timeout.ms' = '600000')"
    )
    tables.execute_sql(
        f"INSERT INTO firsts SELECT {FIELDS} FROM (SELECT *, ROW_NUMBER() OVER"
        " (PARTITION BY event_id ORDER BY arrived) AS number FROM orders) WHERE number = 1"
    ).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
