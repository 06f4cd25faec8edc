"""The command line: exit codes, messages and where they go, and signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replayfilter
from replayfilter.errors import CheckpointDamaged, CheckpointError, ConfigError, ServiceReplaced
from replayfilter.service.cli import run_commands
from replayfilter.service.cli.main import app
from replayfilter.service.runtime.checkpoint import LOCK, LOCK_SECONDS, locked
from tests.support.configs import EXAMPLE

NO_BROKER = "127.0.0.1:1"  # nothing listens there

runner = CliRunner()


def config_in(folder: Path, **changes: str) -> Path:
    """The example with its checkpoint in ``folder`` and no broker; ``changes`` replace other texts."""
    text = EXAMPLE.read_text().replace("checkpoint/orders", str(folder / "checkpoint"))
    text = text.replace("localhost:9092", NO_BROKER)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "orders.toml"
    path.write_text(text)
    return path


def test_check_of_a_valid_config() -> None:
    result = runner.invoke(app, ["check", str(EXAMPLE)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{EXAMPLE}: no errors found\n"


def test_check_prints_each_error_on_a_line_of_stderr(tmp_path: Path) -> None:
    path = config_in(tmp_path, event_id="", period="perod")
    result = runner.invoke(app, ["check", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    heads = [line.split(":")[0] for line in result.stderr.splitlines()]
    assert heads == ["dedup.key.0", "dedup.period", 'dedup.perod = "1h"']


def test_check_and_run_warn_of_an_old_name(tmp_path: Path) -> None:
    warning = (
        "warning: dedup.remember_origin is now dedup.remember_first; "
        "the old name goes away in the next version"
    )
    path = config_in(tmp_path, **{'unit = "ms"': 'unit = "ms"\nremember_origin = true'})
    checked = runner.invoke(app, ["check", str(path)])
    assert (checked.exit_code, checked.stderr) == (0, f"{warning}\n")
    started = runner.invoke(app, ["run", "--log-format", "text", str(path)])
    assert started.exit_code == 1, "there is no broker"
    assert warning in started.stderr.splitlines()


def test_redrive_and_explain_report_wrong_options_before_they_connect(tmp_path: Path) -> None:
    path = str(config_in(tmp_path))
    result = runner.invoke(app, ["redrive", path, "--reason", "jason", "--since", "yesterday"])
    assert (result.exit_code, result.stdout) == (2, "")
    starts = ["--reason jason: there is no such reason; use one of", "--since yesterday: not a time"]
    assert all(map(str.startswith, result.stderr.splitlines(), starts))
    result = runner.invoke(app, ["explain", path, "--record", "orders"])
    assert (result.exit_code, result.stderr) == (
        2,
        "--record orders: write TOPIC/PARTITION/OFFSET, such as orders/3/41\n",
    )


def test_a_wrong_config_stops_every_command_before_it_does_anything(tmp_path: Path) -> None:
    path = config_in(tmp_path, period="perod")
    for command in ("run", "topics", "check"):
        result = runner.invoke(app, [command, str(path)])
        assert result.exit_code == 2, command
        assert "did you mean dedup.period?" in result.stderr
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["check"],
        ["run", "x.toml", "--onc"],
        ["broker", "--port", "99999"],
        ["check", "missing.toml"],
    ],
)
def test_the_exit_code_for_wrong_usage_is_2(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr
    assert "Traceback" not in result.output


def test_the_broker_listens_where_the_examples_look_for_it() -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # by another process
            taken.bind(("127.0.0.1", 9092))
            taken.listen()
        result = runner.invoke(app, ["broker"])
    assert result.exit_code == 1
    assert "Port 9092 is in use" in result.stderr


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"replayfilter {replayfilter.__version__}\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(["it is wrong"]), 2),
        (CheckpointError("it is in use"), 1),
        (ServiceReplaced("another has started"), 4),
        (CheckpointDamaged("a file is cut"), 5),
    ],
)
def test_what_ends_a_command_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(run_commands, "load", fail)
    result = runner.invoke(app, ["check", "x"])
    assert (result.exit_code, result.stderr) == (code, f"{error}\n")


def test_an_unexpected_error_is_one_line_without_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(run_commands, "load", fail)
    plain = runner.invoke(app, ["check", "x"])
    assert plain.exit_code == 1
    assert plain.stderr.count("\n") == 1
    assert "RuntimeError: first line" in plain.stderr
    debug = runner.invoke(app, ["--debug", "check", "x"])
    assert debug.exit_code == 1
    assert "Traceback" in debug.stderr
    assert "second line" in debug.stderr


def test_the_exit_code_of_demo_is_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from replayfilter.demo import walkthrough as demo

    for verdict, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(demo, "run_demo", lambda records, console, verdict=verdict: verdict)
        assert runner.invoke(app, ["demo"]).exit_code == code


def test_check_is_fast_because_it_imports_no_spark() -> None:
    code = """
    import sys
    from replayfilter.service.cli.main import app
    app(["check", sys.argv[1]], standalone_mode=False)
    print(*sys.modules)
    """
    modules = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), EXAMPLE],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    assert "replayfilter.service.config.checks" in modules
    heavy = {"pyspark", "pandas", "pyarrow", "confluent_kafka", "uvicorn"} & set(modules)
    assert not heavy


def test_all_errors_outside_the_config_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("a file where a folder should be")
    started = time.monotonic()
    result = runner.invoke(app, ["run", str(config_in(tmp_path))])
    assert result.exit_code == 1
    checkpoint, broker = result.stderr.splitlines()
    assert "can't be written" in checkpoint
    assert NO_BROKER in broker
    assert "correct kafka.bootstrap" in broker
    assert time.monotonic() - started < 60


def test_a_checkpoint_that_another_process_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayfilter.service.runtime.checkpoint.locked", partial(locked, timeout=0.2))
    config = config_in(tmp_path)
    holder = hold_lock(tmp_path / "checkpoint")
    try:
        result = runner.invoke(app, ["run", str(config)])
    finally:
        holder.kill()
        holder.wait()
    assert result.exit_code == 1
    assert f"in use by process {holder.pid}" in result.stderr
    with locked(tmp_path / "checkpoint", 0):  # kill -9 has released it
        pass


def test_the_lock_waits_for_a_process_that_is_about_to_end(tmp_path: Path) -> None:
    holder = hold_lock(tmp_path)
    threading.Timer(0.4, holder.kill).start()
    started = time.monotonic()
    with locked(tmp_path) as descriptor:
        assert 0.3 < time.monotonic() - started < LOCK_SECONDS
        assert Path(f"/proc/self/fd/{descriptor}").resolve() == (tmp_path / LOCK).resolve()
    holder.wait()


def hold_lock(folder: Path) -> subprocess.Popen[str]:
    code = """
    import sys, time, pathlib
    from replayfilter.service.runtime.checkpoint import locked
    with locked(pathlib.Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(60)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), folder], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


# ---- signals -----------------------------------------------------------------------------------------

# A query whose batch takes a given time. Like the real one, it ends only after its batch.
FAKE = """
import sys, threading, time
from replayfilter.service.monitor.status import Status
from replayfilter.service.runtime.supervision import StopSignals, Supervisor

class Query:
    restart_requested = False
    last_response_at = time.time()
    def __init__(self):
        self.stopping = threading.Event()
    def start(self, once):
        print("batch begins", flush=True)
    def await_end(self):
        self.stopping.wait(60)
        time.sleep(float(sys.argv[1]))
        print("batch done", flush=True)
    def stop_after_batch(self):
        self.stopping.set()

with StopSignals() as signals:
    Supervisor(Query(), signals, Status("s", 1, {}, 0), print).run(once=False)
print("ended", flush=True)
"""


def start_fake(batch_seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", FAKE, str(batch_seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "batch begins\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_the_batch_finish(number: int) -> None:
    process = start_fake(0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "batch done\nended\n")
    assert "stopping after the current batch" in err


def test_a_second_signal_does_not_wait() -> None:
    process = start_fake(60)
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    assert "again to stop now" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    process.communicate()
