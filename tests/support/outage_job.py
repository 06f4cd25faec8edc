"""A Spark job that is started again until it ends well: ``outage_job BOOTSTRAP FOLDER SOURCE TARGET SINK``.

SINK is ``stock``, for ``stamp`` and Spark's Kafka sink, or ``lanes``, for ``write_stamped``. With the
stock sink each record takes 50 ms, and the producer's batches hold as few of these short records as of usual
ones.
"""

from __future__ import annotations

import os
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from replayfilter import pid_for_topic
from replayfilter.jvm.jars import connector_jars
from replayfilter.spark import stamp, write_stamped

STOCK_TIMEOUT_MS = 15_000
LANES_TIMEOUT_MS = 5_000
_SLOW = "reflect('java.lang.Thread', 'sleep', 50L) = 'null'"  # true, after 50 ms


def main() -> None:
    """Run the job to its end."""
    bootstrap, folder, source, target, sink = sys.argv[1:6]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.unsupportedOperationCheck": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    read = spark.readStream.format("kafka").options(**options).load()
    pid = pid_for_topic(bootstrap, source, "outage")
    if sink == "stock":
        writer = stamp(read.where(_SLOW), pid, 2).writeStream.format("kafka").options(
            **{"kafka.bootstrap.servers": bootstrap, "topic": target, "kafka.request.timeout.ms": "5000",
               "kafka.delivery.timeout.ms": str(STOCK_TIMEOUT_MS), "kafka.batch.size": "1000"}
        )  # fmt: skip
    else:
        writer = write_stamped(read, pid, 2, bootstrap=bootstrap, topic=target, job="outage", lanes=2,
                               options={"delivery.timeout.ms": str(LANES_TIMEOUT_MS)})  # fmt: skip
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    while True:
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            print("failed:", str(error)[-500:], flush=True)
        else:
            break
    spark.stop()


if __name__ == "__main__":
    main()
