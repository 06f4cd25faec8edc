"""The jars of the Kafka broker: locked, verified, and cached for each user.

The lock file, `jars.lock`, has the SHA-256 of each jar. The first call fetches exactly these jars with Ivy,
which comes with PySpark, into a folder of the user's cache; later calls only check that they are there. The
folder is `$REPLAYFILTER_JARS` if that is set, so that a container image can contain the jars; otherwise it is
`replayfilter/jars` in `$XDG_CACHE_HOME` or `~/.cache`.

Other sets are fetched only when they are asked for: `s3a`, with which Spark keeps a checkpoint on S3, and
those of tests and benchmarks: Spark's Kafka connector, for Spark jobs of users, Kafka's tools, and
servers of HDFS and S3.

    python -m replayfilter.jvm.jars           fetch the broker's now
    python -m replayfilter.jvm.jars s3a       fetch those of a checkpoint on S3 now
    python -m replayfilter.jvm.jars --lock    resolve the versions in ./pyproject.toml and rewrite the lock
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from replayfilter.errors import MissingDependency
from replayfilter.jvm.java import java

LOCK = Path(__file__).with_name("jars.lock")

_WITHOUT_PYSPARK = {"kafka", "s3proxy"}  # sets with all that they need
_WITH_BROKER = {
    "tools"
}  # sets that are used together with the broker's, and of which only the roots are needed
# The whole AWS SDK is 560 MB: the roots name the parts of it that are needed. Code for certain machines is in
# several jars of one module, and is not needed.
_LEFT_OUT = """
<exclude org="software.amazon.awssdk" module="bundle"/>
<exclude org="io.netty" module="netty-(.+-native-.+|tcnative-boringssl-.+)" matcher="regexp"/>
"""

# Fetches exactly the jars that are named: no POM is read, so no dependency is added that is not in the lock.
_NO_POMS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class Module(NamedTuple):
    """The Maven coordinates of a jar."""

    organisation: str
    name: str
    version: str

    @classmethod
    def parse(cls, coordinates: str) -> Module:
        """Parse `organisation:name:version`."""
        organisation, name, version = coordinates.split(":")
        return cls(organisation, name, version)

    @property
    def file(self) -> str:
        """The jar's file name."""
        return f"{self.name}-{self.version}.jar"

    def __str__(self) -> str:
        return ":".join(self)


def kafka_jars() -> list[Path]:
    """The broker's class path, fetched if needed. Raises MissingDependency if a jar can't be fetched."""
    return locked_jars("kafka")


def connector_jars() -> list[Path]:
    """The jars for `spark.jars` that let PySpark read Kafka without this package, fetched if needed.

    PySpark's own jars are not among them. Raises MissingDependency if a jar can't be fetched.
    """
    return locked_jars("connector")


def s3a_jars() -> list[Path]:
    """The jars for `spark.jars` that let Spark read and write `s3a:`; none if PySpark has them already.

    A service fetches nothing when it starts: raises MissingDependency unless they have been fetched before.
    """
    if any(_pyspark_jars().glob("hadoop-aws-*.jar")):
        return []
    jars, missing = _locked("s3a")
    if missing:
        raise MissingDependency(
            f"a checkpoint on s3a: needs {len(missing)} jars that {_cache()} does not have: fetch them once "
            "with `python -m replayfilter.jvm.jars s3a`, 10 MB, on this machine or where its image is built"
        )
    return jars


def locked_jars(kind: str) -> list[Path]:
    """The jars of a set in the lock, fetched if needed. Raises MissingDependency if one can't be fetched."""
    jars, missing = _locked(kind)
    if missing:
        _fetch(missing, jars[0].parent)
    return jars


def _locked(kind: str) -> tuple[list[Path], dict[Module, str]]:
    """The files of a set in the lock, and the SHA-256 of those that are missing."""
    locked = tomllib.loads(LOCK.read_text("utf-8"))[kind]
    hashes = {Module.parse(coordinates): sha256 for coordinates, sha256 in locked["sha256"].items()}
    folder = _cache() / f"{kind}-{Module.parse(locked['roots'][0]).version}"
    missing = {module: sha256 for module, sha256 in hashes.items() if not (folder / module.file).is_file()}
    return [folder / module.file for module in hashes], missing


def _cache() -> Path:
    if given := os.environ.get("REPLAYFILTER_JARS"):
        return Path(given).absolute()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "replayfilter", "jars").absolute()


def _fetch(hashes: dict[Module, str], folder: Path) -> None:
    """Fetch the jars into the folder, after checking their checksums.

    Each jar is moved into the folder in one step, so two processes may do this at once: both have the same
    bytes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder)
    except OSError as error:
        raise MissingDependency(
            f"{len(hashes)} jars must be fetched, but {folder} can't be written ({error.strerror}): "
            "make it writable, or set REPLAYFILTER_JARS to another folder."
        ) from error
    with scratch:
        print(f"replayfilter: fetching {len(hashes)} jars into {folder} (once)", file=sys.stderr, flush=True)
        got = _ivy(hashes, Path(scratch.name), settings=_NO_POMS)
        for module, sha256 in hashes.items():
            verify(got[module], sha256)
        for module in hashes:
            got[module].replace(folder / module.file)


def verify(jar: Path, sha256: str) -> None:
    """Raise MissingDependency unless the file's SHA-256 is the given one (in hex)."""
    if (found := _sha256(jar)) != sha256:
        raise MissingDependency(
            f"{jar.name} was fetched with SHA-256 {found}, but {LOCK.name} says {sha256}: "
            "the repository or a proxy serves a different file; find out why before using it."
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _ivy(modules: Iterable[Module], scratch: Path, settings: str | None) -> dict[Module, Path]:
    """Download the modules with Ivy; without ``settings``, also everything that they depend on.

    Raises MissingDependency if the third attempt fails.
    """
    dependencies = "".join(
        f"<dependency org={quoteattr(m.organisation)} name={quoteattr(m.name)} rev={quoteattr(m.version)} "
        'conf="default-&gt;default"/>'
        for m in modules
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="replayfilter" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}{_LEFT_OUT}</dependencies></ivy-module>"
    )
    command: list[str | Path] = [
        java(),
        "-cp",
        _ivy_jar(),
        "org.apache.ivy.Main",
        "-warn",
        "-ivy",
        scratch / "ivy.xml",
    ]
    if settings is not None:
        (scratch / "settings.xml").write_text(settings)
        command += ["-settings", scratch / "settings.xml"]
    jars = scratch / "jars"
    command += ["-cache", scratch / "cache", "-confs", "default"]
    command += ["-retrieve", f"{jars}/[organisation]/[module]/[revision]/[artifact].[ext]"]
    for _ in range(3):  # the scratch cache keeps what a failed attempt has fetched
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if ended.returncode == 0:
            return {Module(*jar.relative_to(jars).parts[:3]): jar for jar in sorted(jars.rglob("*.jar"))}
    raise MissingDependency(
        "The jars could not be fetched: allow access to the Maven repository, or set REPLAYFILTER_JARS to a "
        f"folder that has them. Ivy said:\n{(ended.stdout + ended.stderr)[-2000:]}"
    )


def _pyspark_jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingDependency(
            "Jars are fetched with Ivy, which comes with PySpark, and PySpark is not installed: "
            'pip install "replayfilter[spark]".'
        )
    return Path(spec.origin).with_name("jars")


def _ivy_jar() -> Path:
    return next(_pyspark_jars().glob("ivy-*.jar"))


def lock(pyproject: Path) -> None:
    """Resolve the jars in `[tool.replayfilter.jars]` and everything they depend on, and write the lock.

    Of the sets that are used together with PySpark's own jars, what PySpark has already is left out; of
    those that are used together with the broker's, all dependencies.
    """
    roots = tomllib.loads(pyproject.read_text("utf-8"))["tool"]["replayfilter"]["jars"]
    shipped = {jar.name.rpartition("-")[0] for jar in _pyspark_jars().glob("*.jar")}
    written_by = "`python -m replayfilter.jvm.jars --lock`"
    lines = [f"# Written by {written_by} from [tool.replayfilter.jars] in pyproject.toml."]
    for kind, coordinates in roots.items():
        with tempfile.TemporaryDirectory() as scratch:
            settings = _NO_POMS if kind in _WITH_BROKER else None
            got = _ivy([Module.parse(root) for root in coordinates], Path(scratch), settings)
            left_out = set() if kind in _WITHOUT_PYSPARK else shipped
            hashes = {module: _sha256(jar) for module, jar in got.items() if module.name not in left_out}
        lines += ["", f"[{kind}]", "roots = [", *(f'    "{root}",' for root in coordinates), "]"]
        lines += ["", f"[{kind}.sha256]", *(f'"{module}" = "{sha256}"' for module, sha256 in hashes.items())]
    LOCK.write_text("\n".join(lines) + "\n", "utf-8")


def main(arguments: list[str]) -> int:
    """Fetch a set of jars, the broker's if none is named, or rewrite the lock. Returns the exit code."""
    if arguments not in ([], ["s3a"], ["--lock"]):
        print("usage: python -m replayfilter.jvm.jars [s3a | --lock]", file=sys.stderr)
        return 2
    try:
        if arguments == ["--lock"]:
            lock(Path("pyproject.toml"))
        for jar in locked_jars("s3a" if arguments == ["s3a"] else "kafka"):
            print(jar)
    except MissingDependency as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
