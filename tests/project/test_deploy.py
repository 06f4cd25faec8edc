"""What is shipped to run the service with: manifests, rules and dashboards, as far as tools can tell."""

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

from replayfilter.service.config.loader import load
from replayfilter.service.monitor.metrics import LABELS, METRICS, PREFIX
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana/dashboards/replayfilter.json"
ALERTS = DEPLOY / "prometheus/alerts.yml"
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
KUBERNETES = ("1.30", "1.37")  # the oldest and the newest that the manifests are held against
PARTS = {"kustomization.yaml", "driver.yaml"}  # no manifests of their own


def tool(name: str, *arguments: str | Path) -> str:
    """Run a tool that may not be there; what it said. AssertionError if it fails."""
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
def test_each_manifest_is_one_that_kubernetes_takes(path: Path) -> None:
    validate(list(yaml.safe_load_all(path.read_text())))


@pytest.mark.parametrize("overlay", ["local", "cluster"])
def test_each_overlay_is_complete(overlay: str) -> None:
    built = list(yaml.safe_load_all(tool("kubectl", "kustomize", DEPLOY / "kubernetes" / overlay)))
    validate(built)
    by_kind = {document["kind"]: document for document in built}
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    names = {document["metadata"]["name"] for document in built if document["kind"] == "ConfigMap"}
    asked = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert asked == names
    claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v}
    assert claims == {by_kind["PersistentVolumeClaim"]["metadata"]["name"]}
    assert by_kind["Deployment"]["spec"]["replicas"] == 1
    assert by_kind["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}


def test_the_validation_rejects_what_is_wrong() -> None:
    deployment = yaml.safe_load((DEPLOY / "kubernetes/base/deployment.yaml").read_text())
    deployment["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate([deployment])


# ---- configs, units ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.toml")), ids=lambda path: path.stem)
def test_each_shipped_config_has_no_faults(path: Path) -> None:
    assert load(path).service.name


def test_the_two_services_of_the_compose_file_share_nothing_but_the_input() -> None:
    local, cluster = (load(DEPLOY / f"compose/{name}.toml") for name in ("orders", "orders-cluster"))
    assert local.input == cluster.input
    assert local.dedup == cluster.dedup
    assert not set(local.output_topics().values()) & set(cluster.output_topics().values())
    assert local.service.name != cluster.service.name


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/replayfilter@.service").read_text()
    # It looks whether the programs are there; here they are not.
    here = tmp_path / "replayfilter@.service"
    here.write_text(unit.replace("/opt/replayfilter/bin/replayfilter", sys.executable))
    tool("systemd-analyze", "verify", here)


# ---- metrics -----------------------------------------------------------------------------------------


def exposed() -> set[str]:
    """The names under which Prometheus has the service's metrics."""
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {PREFIX + metric.name + suffix for metric in METRICS for suffix in suffixes[metric.kind]}


def queries() -> dict[str, str]:
    """Every query that is shipped, by where it stands."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = {f"panel {p['title']} {t['refId']}": t["expr"] for p in panels for t in p["targets"]}
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        found |= {f"alert {rule['alert']}": rule["expr"] for rule in group["rules"]}
    return found


@pytest.mark.parametrize("place", queries())
def test_each_query_names_only_metrics_and_labels_that_there_are(place: str) -> None:
    query = queries()[place]
    named = set(re.findall(r"\breplayfilter_\w+", query)) - {"replayfilter"}
    assert named <= exposed()
    assert named or place == "alert ReplayfilterDown"
    labels = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query))
    for labels_of in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", query):
        labels |= {label.strip() for label in labels_of.split(",") if label.strip()}
    assert labels <= {*LABELS, "instance", "job", "le", "optional"}
    for label, value in re.findall(r'(\w+)!?="([^"$]+)"', query):
        assert label not in LABELS or LABELS[label] is None or value in (LABELS[label] or ()), (label, value)


def test_each_metric_is_in_the_dashboard_or_an_alert_but_what_describes_the_service() -> None:
    text = " ".join(queries().values())
    missing = {metric.name for metric in METRICS if PREFIX + metric.name not in text}
    assert missing <= {"build_info", "phase", "runs", "frame_bytes", "forgotten_marks", "written_records"}


def test_the_alerts_fire_on_what_they_are_for_and_on_nothing_else() -> None:
    tool("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    tool("promtool", "test", "rules", DEPLOY / "prometheus/alerts_test.yml")


def test_each_alert_has_its_test() -> None:
    tested = (DEPLOY / "prometheus/alerts_test.yml").read_text()
    for place in queries():
        kind, _, name = place.partition(" ")
        assert kind != "alert" or (f"{name} fires" in tested and f"{name} is quiet" in tested), name
