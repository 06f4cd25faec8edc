"""Writes the software bill of materials of a service: `make sbom`.

CycloneDX 1.6 in JSON, from the pinned Python packages in requirements/service.txt and the broker's jars in
jars.lock, without a network. The same pins give the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)


def bill() -> dict[str, Any]:
    """The bill of materials, as CycloneDX has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    own = {"type": "application", "name": project["name"], "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [*python_packages(), *jars()],
    }


def python_packages() -> list[dict[str, Any]]:
    """The packages that a service needs, which is what the container image has."""
    pinned = _PINNED.findall((ROOT / "requirements" / "service.txt").read_text("utf-8"))
    return [_component(name, version, f"pkg:pypi/{_normal(name)}@{version}") for name, version in pinned]


def jars() -> list[dict[str, Any]]:
    """The jars of the development broker, with their checksums. Spark's own are part of pyspark."""
    locked = tomllib.loads((ROOT / "replayfilter" / "jvm" / "jars.lock").read_text("utf-8"))["kafka"]
    found = []
    for coordinates, sha256 in locked["sha256"].items():
        group, name, version = coordinates.split(":")
        component = _component(name, version, f"pkg:maven/{group}/{name}@{version}")
        found.append({**component, "group": group, "hashes": [{"alg": "SHA-256", "content": sha256}]})
    return found


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _normal(name: str) -> str:
    """The name as package URLs and PyPI write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=2) + "\n", "utf-8")
