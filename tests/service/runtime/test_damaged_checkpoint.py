"""A file of the checkpoint that is cut short, changed or gone ends the service at once and is named."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from replayfilter.core.routing import Route
from replayfilter.devbroker import DevBroker
from replayfilter.errors import CheckpointDamaged
from replayfilter.service.monitor.status import Phase, Status
from replayfilter.service.runtime.supervision import StopSignals, Supervisor
from replayfilter.spark.checkpoint_damage import cut_files
from replayfilter.spark.query import Service
from tests.support.pipelines import Pipeline, order, record

RECORDS = 20


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def remove(file: Path) -> None:
    file.unlink()


def cut_without_checksums(file: Path) -> None:
    file.with_name(f".{file.name}.crc").unlink()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@dataclass(frozen=True)
class Damage:
    """What is done to one file, which ``pattern`` finds below Spark's checkpoint."""

    pattern: str
    change: Callable[[Path], None]


# How each of them shows itself is in docs/internals.md.
DAMAGES = (
    Damage("state/0/0/*.zip", flip),
    Damage("state/0/0/*.zip", empty),
    Damage("state/0/0/SSTs/*.sst", remove),
    Damage("state/0/0/SSTs/*.sst", cut_without_checksums),
    Damage("state/0/1/2_*.changelog", flip),
    Damage("state/0/1/2_*.changelog", empty),
    Damage("state/0/1/2_*.changelog", remove),
    Damage("state/0/_metadata/v2/[0-9]*", empty),
    Damage("commits/1", empty),
    Damage("offsets/1", flip),
)


def end_of(service: Service) -> str:
    """What ends the service; a first retry ends it, too."""

    def refuse_retry(text: str, cause: BaseException | None = None) -> None:
        raise RuntimeError(f"it is tried again: {text}")

    status = Status("damaged", 120.0, {}, time.time())
    with StopSignals() as signals:
        try:
            Supervisor(service, signals, status, refuse_retry).run(once=True)
        except CheckpointDamaged as error:
            assert status.phase is Phase.FAILED
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_damaged_file_ends_the_service_at_once_and_is_named(broker: DevBroker, tmp_path: Path) -> None:
    now = int(time.time() * 1000)
    pipeline = Pipeline(broker.bootstrap, tmp_path, "damaged", stamp="none")

    def publish(first: int) -> None:
        pipeline.publish(record(order(n, now), partition=n % 2) for n in range(first, first + RECORDS))

    for batch in range(2):
        publish(batch * RECORDS)
        pipeline.run_once()
    publish(2 * RECORDS)
    spark, whole = Path(pipeline.settings.checkpoint), tmp_path / "whole"
    shutil.copytree(spark, whole)
    snapshots = list(spark.glob("state/0/0/*.zip"))
    assert snapshots, "a damaged one must be read at the next start"
    wrong = {}
    for damage in DAMAGES:
        shutil.rmtree(spark)
        shutil.copytree(whole, spark)
        file = max(spark.glob(damage.pattern))
        damage.change(file)
        end = end_of(pipeline.service())
        if not (end.startswith("a file of the checkpoint is damaged (") and str(file) in end):
            wrong[f"{damage.change.__name__} {damage.pattern}"] = end
        assert len(pipeline.values(Route.UNIQUE)) == 2 * RECORDS, f"something was delivered: {damage}"
    assert wrong == {}
    shutil.rmtree(spark)
    shutil.copytree(whole, spark)
    assert cut_files(spark) == []
    pipeline.run_once()
    values = pipeline.values(Route.UNIQUE)
    assert len(values) == len(set(values)) == 3 * RECORDS
    assert not pipeline.values(Route.DUPLICATE)


def test_only_files_that_a_finished_batch_names_count_as_cut(tmp_path: Path) -> None:
    shard = tmp_path / "state" / "0" / "0"
    shard.mkdir(parents=True)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "4").write_text('v2\n{"stateUniqueIds":{"0":[["a"]]}}')
    for id_ in ("a", "b"):
        (shard / f"5_{id_}.changelog").write_bytes(bytes(600))
        (shard / f".5_{id_}.changelog.crc").write_bytes(b"crc\0" + (512).to_bytes(4) + bytes(8))
    assert cut_files(tmp_path) == []
    for id_ in ("a", "b"):
        (shard / f"5_{id_}.changelog").write_bytes(bytes(512))
    assert cut_files(tmp_path) == [shard / "5_a.changelog"]
    (shard / ".5_a.changelog.crc").unlink()
    assert cut_files(tmp_path) == [], "nothing says how long it was"
