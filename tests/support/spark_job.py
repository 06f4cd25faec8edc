"""A user's Spark job with the library: ``spark_job BOOTSTRAP FOLDER SOURCE TARGET WHERE``.

It stamps SOURCE into TARGET twice with the stock sink. The second time has no checkpoint, so it writes only
replays. After each time it filters TARGET in small batches into FOLDER/rows, as JSON. Into TARGET-exact it
writes twice with ``write_stamped``, the second time again without a checkpoint, half of the records. At the
end it routes TARGET into FOLDER/routed, as JSON.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from replayfilter import pid_for_topic
from replayfilter.jvm.jars import connector_jars
from replayfilter.spark import filter_replays, route, stamp, write_stamped
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "guides" / "stamp-from-spark.md"


def main() -> None:
    """Run the job."""
    bootstrap, folder, source, target, how = sys.argv[1:6]
    where: Any = how
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.unsupportedOperationCheck": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def read(topic: str, most: int = 700) -> DataFrame:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        return spark.readStream.format("kafka").options(**options).load()

    def run(writer: Any, checkpoint: str) -> None:
        writer.option("checkpointLocation", f"{folder}/{checkpoint}").trigger(availableNow=True).start(
        ).awaitTermination()  # fmt: skip

    def filter_once() -> None:
        passed = filter_replays(read(target), where)
        assert passed.schema == read(target).schema
        run(passed.writeStream.format("json").option("path", f"{folder}/rows"), "filter")

    # The example of docs/guides/stamp-from-spark.md, as it is written there.
    blocks = re.findall(r"```python\n# way: spark\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    code = blocks[0].replace("localhost:9092", bootstrap).replace('"orders.raw"', repr(source))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    names = {"spark": spark, "options": options, "f": functions, "folder": f"{folder}/example"}
    exec(code.replace('"orders"', repr(f"{target}-example")), names)

    pids = {source: pid_for_topic(bootstrap, source, "spark-job")}
    for attempt in ("first", "again"):
        stamped = stamp(read(source), pids, 3, where)
        run(stamped.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target).option("includeHeaders", "true"), attempt)  # fmt: skip
        filter_once()
        half = read(source).where("CAST(CAST(value AS STRING) AS INT) % 8 < 4")
        writer = write_stamped(
            half, pids, 3, bootstrap=bootstrap, topic=f"{target}-exact", job="half", where=where, lanes=3
        )
        run(writer, f"exact-{attempt}")
    routed = route(read(target, 4_000), "value", clock="none", stamp=where, shards=2).select(
        "value", "route", "first"
    )
    run(routed.writeStream.format("json").option("path", f"{folder}/routed"), "route")
    spark.stop()


if __name__ == "__main__":
    main()
