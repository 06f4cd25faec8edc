"""Fuzzes each target with atheris: ``python -m tests.fuzz SECONDS [TARGET]``.

An input that makes a target raise, crash, hang for ten seconds or use 2 GB is kept in ``cases/<target>``,
and a test runs it from then on. The exit code is 1 if there was such an input.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = Path(__file__).with_name("cases")
SEEDS = Path(__file__).with_name("seeds")


def main() -> int:
    from tests.fuzz.targets import TARGETS

    seconds, names = int(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    failed = []
    for name in names:
        known = sorted((CASES / name).glob("*"))
        with tempfile.TemporaryDirectory() as corpus:
            for folder in (CASES, SEEDS):
                if (folder / name).is_dir():
                    shutil.copytree(folder / name, corpus, dirs_exist_ok=True)
            (CASES / name).mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.one", name, corpus, f"-artifact_prefix={CASES / name}/",
                 f"-max_total_time={max(1, seconds // len(names))}", "-timeout=10", "-rss_limit_mb=2048",
                 "-max_len=2000", "-print_final_stats=1", "-verbosity=0"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            )  # fmt: skip
        found = sorted(set((CASES / name).glob("*")) - set(known))
        runs = [line.split()[-1] for line in done.stdout.splitlines() if "number_of_executed_units" in line]
        print(f"{name}: {runs[0] if runs else '?'} inputs, {len(found)} new findings", flush=True)
        if done.returncode or found:
            failed.append(name)
            print(done.stdout[-3000:], *found, sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
