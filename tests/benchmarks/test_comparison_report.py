"""What the comparison makes of its samples and results, without starting any system."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from rich.console import Console

from benchmarks import goals, report
from benchmarks.comparison import Delays, Live, Result, Sample, figures_of
from benchmarks.figures import RECORDS_PER_S
from benchmarks.orders import value_of
from benchmarks.report import KEPT, MADE, PAGE, Report
from benchmarks.systems import SYSTEMS, Job

OURS = Result(
    "ours", 4, 12.0, 150_000, 9.0, 1.0, 2_000, 1_500, 24.0, [Live(1_000, 400, 700, 900, 0.5, 0.1)], ""
)
STREAMS = replace(
    OURS, system="streams", start_s=None, records_per_s=90_000, live=[Live(1_000, 150, 300, 400, 0.3, 0.2)]
)
COPY = replace(OURS, system="copy", records_per_s=400_000)


def document(*runs: Result) -> dict[str, Any]:
    names = ("cores", "cpu", "memory", "system", "java", "python", "pyspark", "peers")
    return {
        "date": "2026-01-01",
        "machine": {name: name for name in names},
        "settings": {"4": {"records": 1_000_000, "batch": 100_000, "seconds": 5.0}},
        "failures": [],
        "runs": [json.loads(json.dumps(run.to_json())) for run in runs],
    }


def message_of(sent: float) -> Message:
    return Message(topic="t", value=value_of(1, 1_700_000_000_000, int(sent * 1e6)))


def test_throughput_counts_after_the_first_half() -> None:
    samples = [Sample(0, 0, 0, 0), Sample(5, 100, 10, 1), Sample(9, 600, 20, 2), Sample(14, 1_000, 50, 5),
               Sample(17, 1_000, 51, 6)]  # fmt: skip
    per_second, cpu, broker = figures_of(samples, 2_000_000)
    assert per_second == 800_000 / 5
    assert cpu == pytest.approx(30 / 0.8)
    assert broker == pytest.approx(3 / 0.8)


def test_a_last_step_that_may_have_waited_for_a_checkpoint_counts_only_if_it_is_the_only_one() -> None:
    samples = [Sample(0, 0, 0, 0), Sample(9, 500, 20, 2), Sample(11, 500, 20, 2), Sample(14, 900, 45, 4),
               Sample(24, 1_000, 50, 6)]  # fmt: skip
    per_second, cpu, broker = figures_of(samples, 2_000_000)
    assert per_second == 800_000 / 5
    assert (cpu, broker) == pytest.approx((25 / 0.8, 2 / 0.8))


def test_delays_count_from_the_producers_clock_after_the_warm_up() -> None:
    now = time.time()
    delays = Delays(now - 1)
    assert delays.percentiles() == (None, None, None)
    delays.add([message_of(now - 2), message_of(now - 0.6), message_of(now - 0.5)])
    assert delays.arrived == 3
    assert len(delays.ms) == 2
    median, _, highest = delays.percentiles()
    assert median is not None
    assert highest is not None
    assert 500 <= median <= highest


def test_an_idle_phase_has_only_cpu() -> None:
    idle = replace(OURS, live=[Live(0, None, None, None, 0.02, 0.01)])
    _, table = Report(document(idle)).tables()
    assert (table.title, table.heads[1:]) == ("Idle, 4 partitions", ["cores", "broker's cores"])


def test_a_backlog_that_appears_at_once_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="smaller batches"):
        figures_of([Sample(0, 0, 0, 0), Sample(9, 1_000, 20, 2)], 1_000)
    with pytest.raises(RuntimeError, match="smaller batches"):
        figures_of([Sample(0, 1_000, 0, 0), Sample(9, 1_000, 20, 2)], 1_000)


def test_figures_are_medians_of_the_rounds() -> None:
    runs = [replace(OURS, records_per_s=speed) for speed in (100, 900, 300)]
    assert Report(document(*runs)).figures.median("ours", 4, RECORDS_PER_S) == 300


def test_the_tables_hold_each_system_and_a_dash_for_what_was_not_measured() -> None:
    catch_up, live = Report(document(OURS, STREAMS)).tables()
    assert [row[0] for row in catch_up.rows] == ["replayfilter", "Kafka Streams, repartition"]
    assert catch_up.rows[0][1:] == ["150,000", "9.0", "1.0", "2,000", "1,500", "24.0", "12.0"]
    assert catch_up.rows[1][-1] == "–"  # noqa: RUF001  # the dash of the table
    assert live.rows[1][1:] == ["150", "300", "400", "0.30", "0.20"]


def test_where_peers_are_better_is_said_but_neither_a_copy_nor_this_service_is_a_peer() -> None:
    low = replace(OURS, system="ours-low", live=[Live(1_000, 200, 250, 500, 0.8, 0.1)])
    losses = Report(document(OURS, low, STREAMS, COPY)).losses()
    start = "1,000 records per second, 4 partitions:"
    assert losses == [
        [f"{start} median, ms", "400", "200", "Kafka Streams, repartition 150"],
        [f"{start} 99%, ms", "900", "500", "Kafka Streams, repartition 400"],
        [f"{start} cores", "0.50", "0.80", "Kafka Streams, repartition 0.30"],
    ]


def test_goals_are_ratios_of_medians_and_those_without_figures_are_left_out() -> None:
    low = replace(OURS, system="ours-low", live=[Live(1_000, 451, 700, 899, 0.8, 0.1)])
    many = replace(OURS, partitions=200, records_per_s=120_000, live=[])
    found = goals.rows(Report(document(OURS, low, STREAMS, COPY, many)).figures)
    assert [row[1:] for row in found] == [
        ["≥ 2.20", "1.67", "no"],  # Kafka Streams, repartition
        ["≥ 0.50", "0.38", "no"],  # a copy
        ["≤ 6.00", "10.00", "no"],  # CPU
        ["≥ 0.80", "0.80", "yes"],  # 200 partitions
        ["≤ 450", "451", "no"],
        ["≤ 900", "899", "yes"],
        ["≤ 0.25", "0.50", "no"],
    ]


def test_the_faster_of_two_peers_counts() -> None:
    runs = [OURS, replace(OURS, system="plain", records_per_s=50_000),
            replace(OURS, system="within", records_per_s=75_000)]  # fmt: skip
    assert goals.rows(Report(document(*runs)).figures)[0][1:] == ["≥ 2.20", "2.00", "no"]


def test_results_of_several_calls_make_one_report() -> None:
    many = replace(OURS, partitions=200)
    first, second = document(OURS, STREAMS), document(replace(OURS, records_per_s=100_000))
    third = document(many) | {"settings": {"200": {"records": 5, "batch": 1, "seconds": 2.0}}}
    made = Report(report.merged([first, second, third]))
    assert made.figures.median("ours", 4, RECORDS_PER_S) == 125_000
    assert made.figures.rounds() == (1, 2)
    assert "With 4 partitions the backlog has 1,000,000 records" in made.heading()
    assert "With 200 partitions the backlog has 5 records" in made.heading()


@pytest.mark.parametrize("changed", ["machine", "settings"])
def test_results_of_different_machines_or_settings_are_not_merged(changed: str) -> None:
    other = document(OURS)
    other[changed] = {"4": {"records": 5}, "cores": "64"}
    with pytest.raises(ValueError, match="different"):
        report.merged([document(OURS), other])


def test_a_wrong_output_is_shown_on_the_page_and_in_the_terminal() -> None:
    wrong = Report(document(replace(OURS, error="9 records of 8 orders instead of 8 of 8")))
    assert "9 records of 8 orders" in report.markdown(wrong)
    console = Console(record=True, width=160)
    report.show(console, wrong)
    assert "9 records of 8 orders" in console.export_text()


def test_a_failed_run_is_shown_with_the_first_line_of_its_reason() -> None:
    failed = {**document(OURS), "failures": ["Flink, 4 partitions: ended with code 1:\nits log"]}
    assert Report(failed).errors() == ["Flink, 4 partitions: ended with code 1:"]


def test_the_page_is_written_between_its_marks() -> None:
    made = Report(document(OURS, STREAMS))
    text = report.page(PAGE.read_text("utf-8"), made)
    assert report.page(text, made) == text
    assert text.count("\n| replayfilter |") == 3
    with pytest.raises(ValueError, match="no marks"):
        report.page("# Performance\n", made)


@pytest.mark.skipif(not KEPT.exists(), reason="no results are kept: `make bench` keeps them")
def test_the_page_shows_the_kept_results() -> None:
    found = MADE.search(text := PAGE.read_text("utf-8"))
    assert found
    assert report.page(text, Report(json.loads(KEPT.read_text()))) == text, (
        "python -m benchmarks.report --page"
    )


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_says_how_it_is_started(name: str, tmp_path: Path) -> None:
    command = SYSTEMS[name].command(Job("host:1", "run", 4, 1_000, tmp_path))
    text = " ".join(command) + "".join(file.read_text() for file in tmp_path.iterdir())
    assert "host:1" in text
    assert "run.input" in text
    assert "run.unique" in text
