"""The bill of materials names every pinned package and jar; `make sbom` writes the same bytes each time."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

from replayfilter.jvm.jars import LOCK
from tests.support.paths import ROOT

SCRIPT = ROOT / "requirements" / "sbom.py"


def test_every_pinned_package_and_every_jar_is_in_it() -> None:
    components = runpy.run_path(str(SCRIPT))["bill"]()["components"]
    named = {(each["name"], each["version"]) for each in components}
    requirements = (ROOT / "requirements" / "service.txt").read_text("utf-8").splitlines()
    pinned = [line.split()[0].partition(";")[0] for line in requirements if re.match(r"[A-Za-z0-9]", line)]
    packages = {tuple(re.sub(r"\[.*?\]", "", each).split("==")) for each in pinned}
    broker = LOCK.read_text("utf-8").partition("[kafka.sha256]\n")[2].partition("\n\n")[0]
    jars = {tuple(line.split('"')[1].split(":")[1:]) for line in broker.splitlines()}
    assert len(packages) > 40
    assert len(jars) > 40
    assert named == packages | jars
    assert len({each["bom-ref"] for each in components}) == len(components)
    purl = re.compile(r"pkg:(pypi|maven/[\w.-]+)/[\w.-]+@[\w.+-]+")
    assert all(purl.fullmatch(each["purl"]) for each in components)
    assert all(len(each["hashes"][0]["content"]) == 64 for each in components if "hashes" in each)


def test_it_is_written_without_a_network_or_a_time(tmp_path: Path) -> None:
    written = []
    for name in ("one.json", "two.json"):
        subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / name)], check=True, timeout=60)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    bill = json.loads(written[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "replayfilter"
