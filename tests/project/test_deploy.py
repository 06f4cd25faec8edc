"""The files in deploy/: manifests, alert rules, dashboards and configs are valid and fit the programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from replayfilter.demo.feed import TOPIC
from replayfilter.demo.stream import CITIES
from replayfilter.service.config.loader import load
from replayfilter.service.monitor.metrics import LABELS, METRICS, PREFIX
from replayfilter.watermark import server_config, server_metrics
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana/dashboards/replayfilter.json"
ALERTS = DEPLOY / "prometheus/alerts.yml"
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
KUBERNETES = ("1.30", "1.37")  # the oldest and the newest version that the manifests are checked for
PARTS = {"kustomization.yaml", "driver.yaml"}  # not complete manifests


def tool(name: str, *arguments: str | Path) -> str:
    """Run a tool and return its output; skip the test if the tool is missing. AssertionError if it fails."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    ended = subprocess.run([name, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def validate(documents: list[Any]) -> None:
    for document in documents:
        for version in KUBERNETES:
            kubernetes_validate.validate(document, version, strict=True)


# ---- Kubernetes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in MANIFESTS if path.name not in PARTS], ids=lambda p: p.name)
def test_each_manifest_is_valid(path: Path) -> None:
    validate(list(yaml.safe_load_all(path.read_text())))


@pytest.mark.parametrize("overlay", ["local", "cluster"])
def test_each_overlay_is_complete(overlay: str) -> None:
    built = list(yaml.safe_load_all(tool("kubectl", "kustomize", DEPLOY / "kubernetes" / overlay)))
    validate(built)
    by_kind = {document["kind"]: document for document in built}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    names = {document["metadata"]["name"] for document in built if document["kind"] == "ConfigMap"}
    mounted = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert mounted == names
    claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
    assert claims == {by_kind["PersistentVolumeClaim"]["metadata"]["name"]}
    assert by_kind["Deployment"]["spec"]["replicas"] == 1
    assert by_kind["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_the_watermark_server_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list(yaml.safe_load_all(tool("kubectl", "kustomize", DEPLOY / "kubernetes/watermark")))
    validate(built)
    by_kind = {document["kind"]: document for document in built}
    server = by_kind["StatefulSet"]["spec"]
    assert server["replicas"] == 1, "the store is a file on a volume of its own"
    pod = server["template"]["spec"]
    mounted = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert mounted == {by_kind["ConfigMap"]["metadata"]["name"]}
    assert by_kind["Service"]["spec"]["selector"] == server["template"]["metadata"]["labels"]
    monkeypatch.setenv("WATERMARK_TOKEN", "hush")
    config = server_config.load(DEPLOY / "kubernetes/watermark/watermark.toml").server
    (container,) = pod["containers"]
    assert container["ports"][0]["containerPort"] == config.port
    folders = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "store"]
    assert [str(Path(config.store).parent)] == folders


def test_the_validation_rejects_an_unknown_field() -> None:
    deployment = yaml.safe_load((DEPLOY / "kubernetes/base/deployment.yaml").read_text())
    deployment["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate([deployment])


# ---- configs, units ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.toml")), ids=lambda path: path.stem)
def test_each_shipped_config_is_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERMARK_TOKEN", "hush")
    if path.name == "watermark.toml":
        assert server_config.load(path).stages
    else:
        assert load(path).service.name


def test_the_chain_of_the_compose_file_reports_to_stages_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WATERMARK_TOKEN", "hush")
    counted, chained = (load(DEPLOY / f"compose/orders-{name}.toml") for name in ("counted", "chained"))
    stages = server_config.load(DEPLOY / "compose/watermark.toml").stages
    assert chained.input.topics == [counted.output.unique]
    assert stages.keys() == {counted.service.name, chained.service.name}
    assert stages[chained.service.name].upstream == [counted.service.name]
    assert set(counted.watermark.roster) == set(CITIES)


def test_the_two_services_of_the_compose_file_share_only_their_input() -> None:
    local, cluster = (load(DEPLOY / f"compose/{name}.toml") for name in ("orders", "orders-cluster"))
    assert local.input == cluster.input
    assert local.dedup == cluster.dedup
    assert not set(local.output_topics().values()) & set(cluster.output_topics().values())
    assert local.service.name != cluster.service.name


def test_the_compose_file_creates_the_topics_of_every_service_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["topics"]
    for name in topics["environment"]:
        monkeypatch.setenv(name, "hush")
    found = re.search("for name in ([a-z -]+); do", topics["command"][0])
    assert found is not None
    names, existing = found[1].split(), {TOPIC}
    assert set(names) == {path.stem for path in (DEPLOY / "compose").glob("orders*.toml")}
    for name in names:
        config = load(DEPLOY / f"compose/{name}.toml")
        assert set(config.input.topics) <= existing, name
        existing |= set(config.output_topics().values())


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").iterdir()), ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    unit = path.read_text()
    # systemd-analyze checks that the program exists, which it doesn't on this machine.
    installed = tmp_path / path.name
    installed.write_text(unit.replace("/opt/replayfilter/bin/replayfilter", sys.executable))
    tool("systemd-analyze", "verify", installed)


# ---- metrics -----------------------------------------------------------------------------------------


SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SERVICE = {PREFIX + metric.name: metric.kind for metric in METRICS}
SERVER = {server_metrics.PREFIX + metric.name: metric.kind for metric in server_metrics.METRICS}
ALL_LABELS = server_metrics.LABELS | LABELS


def exposed() -> set[str]:
    """Return the names in Prometheus of the metrics of services and watermark servers."""
    return {name + suffix for name, kind in (SERVICE | SERVER).items() for suffix in SUFFIXES[kind]}


def queries() -> dict[str, str]:
    """Return every query of the dashboard and of the alerts, by panel or alert."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = {f"panel {p['title']} {t['refId']}": t["expr"] for p in panels for t in p["targets"]}
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        found |= {f"alert {rule['alert']}": rule["expr"] for rule in group["rules"]}
    return found


@pytest.mark.parametrize("location", queries())
def test_each_query_uses_only_existing_metrics_and_labels(location: str) -> None:
    query = queries()[location]
    named = set(re.findall(r"\breplayfilter_\w+", query)) - {"replayfilter"}
    assert named <= exposed()
    assert named or location in ("alert ReplayfilterDown", "alert ReplayfilterWatermarkServerDown")
    labels = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query))
    for labels_of in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", query):
        labels |= {label.strip() for label in labels_of.split(",") if label.strip()}
    assert labels <= {*ALL_LABELS, "instance", "job", "le", "optional"}
    for label, value in re.findall(r'(\w+)!?="([^"$]+)"', query):
        values = ALL_LABELS.get(label)
        assert values is None or value in values, (label, value)


def test_each_metric_is_in_the_dashboard_or_an_alert_except_those_for_analysis() -> None:
    text = " ".join(queries().values())
    missing = {name.removeprefix(PREFIX) for name in SERVICE | SERVER if name not in text}
    assert missing <= {"build_info", "phase", "runs", "frame_bytes", "forgotten_marks", "written_records"}


def test_the_alert_rules_pass_their_own_tests() -> None:
    tool("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    tool("promtool", "test", "rules", DEPLOY / "prometheus/alerts_test.yml")


def test_each_alert_has_tests() -> None:
    tested = (DEPLOY / "prometheus/alerts_test.yml").read_text()
    for location in queries():
        kind, _, name = location.partition(" ")
        assert kind != "alert" or (f"{name} fires" in tested and f"{name} is quiet" in tested), name
