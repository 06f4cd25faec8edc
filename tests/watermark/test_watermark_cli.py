"""``replayfilter watermark``: errors in a config, waiting, exit codes."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replayfilter.service.cli.main import app
from tests.support.server_process import ServerProcess, write_config

runner = CliRunner()
STAGES = '[stages.web]\nroster = ["a", "b", "c"]\ncompleteness = "0.6"'


def test_waiting_returns_when_the_hour_is_complete(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        timer = threading.Timer(0.7, server.report, ["web", {"a": 3_600_000_000, "b": 4_000_000_000}])
        timer.start()
        arguments = ["watermark", "wait", "web", "1970-01-01T01:00:00Z", "--server", server.url]
        result = runner.invoke(app, [*arguments, "--timeout", "30s"])
        timer.join()
        assert (result.exit_code, result.stdout) == (0, "web: complete to 1970-01-01T01:00:00Z\n")
        result = runner.invoke(app, [*arguments, "--timeout", "0s"])
        assert result.exit_code == 0, "the hour is complete already"


def test_a_timeout_exits_with_3_and_lists_the_missing_origins(tmp_path: Path) -> None:
    with ServerProcess(write_config(tmp_path, STAGES)) as server:
        server.report("web", {"a": 3_600_000_000})
        environment = {"REPLAYFILTER_WATERMARK_SERVER": server.url}
        arguments = ["watermark", "wait", "web", "3600000000", "--timeout", "500ms"]
        result = runner.invoke(app, arguments, env=environment)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "1 of these 2 origins must still arrive: b, c" in result.stderr
        assert "complete only to unknown" in result.stderr


def test_show_says_how_far_a_stage_and_an_origin_are(tmp_path: Path) -> None:
    stages = STAGES + '\n[stages.bare]\n[stages.next]\nupstream = ["web"]\n'
    with ServerProcess(write_config(tmp_path, stages)) as server:
        server.report("web", {"a": 3_600_000_000, "b": 3_602_500_000})
        server.http.post("/v1/stages/web/roster", json={"add": ["d/e?"], "idle": ["d/e?"]})
        slowest = {"lagging": 30, "may_lag": 10, "slowest": {"x": 5_000_000}, "front": 9_000_000}
        server.report("bare", low=6_000_000, laggards=slowest)

        def show(*arguments: str) -> list[str]:
            result = runner.invoke(app, ["watermark", "show", *arguments, "--server", server.url])
            assert result.exit_code == 0, result.output
            return result.stdout.splitlines()

        (before,) = show("next")
        assert before == "next: complete to unknown, waiting: no report yet"
        result = runner.invoke(
            app, ["watermark", "wait", "next", "3600000000", "--timeout", "0s", "--server", server.url]
        )
        assert result.exit_code == 3
        assert "next: complete only to unknown, waiting" in result.stderr
        assert "no report yet" in result.stderr
        assert show("web") == ["web: complete to 1970-01-01T01:00:00Z, held back by origins: c, a"]
        _, a, c, idle = show("web", "--origin", "a", "--origin", "c", "--origin", "d/e?")
        assert a.startswith("a: at 1970-01-01T01:00:00Z, 2.5 s behind the largest time, there since 20")
        assert (c, idle) == (
            "c: has not reported",
            "d/e?: has not reported; idle, so nothing waits for it",
        )
        bare, x = show("bare", "--origin", "x")
        assert bare == "bare: complete to 1970-01-01T00:00:06Z, held back by origins: x and 29 more"
        assert x.startswith("x: at 1970-01-01T00:00:05Z, 4.0 s behind")
        for stage, name, remedy in (("web", "z", "add it to the roster"), ("bare", "y", "has no roster")):
            arguments = ["watermark", "show", stage, "--origin", name, "--server", server.url]
            result = runner.invoke(app, arguments)
            assert (result.exit_code, result.stdout) == (1, "")
            assert f"no such origin (query name: {name}); " in result.stderr
            assert remedy in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["wait", "web", "noon"], 2, "ISO 8601"),
        (["wait", "web", "0", "--timeout", "soon"], 2, "duration"),
        (
            ["wait", "web", "0", "--timeout", "300ms", "--server", "http://127.0.0.1:1"],
            1,
            "no watermark server",
        ),
        (["serve", "missing.toml"], 2, "no such file"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, message: str) -> None:
    result = runner.invoke(app, ["watermark", *arguments])
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_all_errors_of_a_config_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    stages = """
[stages.a]
upstream = ["b", "z"]
roster = "hosts.txt"
[stages.b]
roster = ["x", ""]
"""
    path = write_config(tmp_path, stages, host="0.0.0.0")
    result = runner.invoke(app, ["watermark", "serve", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    heads = ("server.host", "stages.a.roster: ", "stages.b.roster = ", 'stages: stage "a" reads "z"')
    assert len(lines) == len(heads)
    assert all(line.startswith(head) for line, head in zip(lines, heads, strict=True)), lines
    path.write_text('[server]\nprt = 1\nlease = "1"\n[stages.a]\ncompleteness = "99.9"\nrooster = []')
    errors = runner.invoke(app, ["watermark", "serve", str(path)]).stderr.splitlines()
    assert len(errors) == 4
    assert any("did you mean server.port?" in error for error in errors)
    assert any("a stage has upstream, roster, completeness" in error for error in errors)
    path.write_text(
        '[server]\ntoken = "${NO_SUCH_VARIABLE}"\n[stages.a]\nupstream = ["b"]\n[stages.b]\nupstream = ["a"]'
    )
    token, cycle = runner.invoke(app, ["watermark", "serve", str(path)]).stderr.splitlines()
    assert "NO_SUCH_VARIABLE" in token
    assert "in a cycle: " in cycle
    path.write_text('[apps.default.stages.a]\n[apps."e u".stages.a]\nupstream = ["b"]\n[apps.us]\n')
    errors = runner.invoke(app, ["watermark", "serve", str(path)]).stderr.splitlines()
    heads = (
        "apps.default: ", 'apps."e u": not an', 'apps.e u.stages: stage "a" reads "b"',
        "apps.us.stages: missing; declare",
    )  # fmt: skip
    assert len(errors) == len(heads)
    assert all(line.startswith(head) for line, head in zip(errors, heads, strict=True)), errors
    path.write_text("[apps.eu]\nweb = 1\n[apps.us.stages.a]\nrooster = []")
    one, two = runner.invoke(app, ["watermark", "serve", str(path)]).stderr.splitlines()
    assert one.endswith("an application has stages, such as [apps.eu.stages.web]")
    assert "apps.us.stages.a.rooster = []: no such key; a stage has upstream" in two
    path.write_text("[server]\nport = 0\n")
    assert "stages: missing" in runner.invoke(app, ["watermark", "serve", str(path)]).stderr


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = write_config(tmp_path, STAGES, port=taken.getsockname()[1])
        result = runner.invoke(app, ["watermark", "serve", str(path)])
    assert result.exit_code == 1
    assert "can't listen there" in result.stderr


def test_a_store_in_kafka_needs_a_cluster_and_options_that_can_be_used(tmp_path: Path) -> None:
    def errors_of(text: str, store: str = "kafka:watermark") -> list[str]:
        path = write_config(tmp_path, text + STAGES, store=store)
        result = runner.invoke(app, ["watermark", "serve", str(path)])
        assert result.exit_code == 2
        return result.stderr.splitlines()

    (missing,) = errors_of("")
    assert missing.startswith('server.store = "kafka:watermark": its cluster is missing')
    (missing,) = errors_of("[kafka]\n")
    assert missing.startswith("kafka.bootstrap: missing")
    (name,) = errors_of('[kafka]\nbootstrap = "localhost:9092"\n', "kafka:a topic")
    assert "not a topic name" in name
    (unused,) = errors_of('[kafka]\nbootstrap = "localhost:9092"\n', "watermark.db")
    assert unused.startswith("[kafka]: server.store = ")
    options = """[kafka]
bootstrap = "localhost:9092"
options = {acks = "1", "transaction.timeout.ms" = "5", "sasl.password" = "${NO_SUCH_VARIABLE}"}
"""
    heads = sorted(line.split(" ")[0].rstrip(":") for line in errors_of(options))
    assert heads == [
        "kafka.options.acks",
        "kafka.options.sasl.password",
        "kafka.options.transaction.timeout.ms",
    ]
