"""Break the code that decides with mutmut, and write the share of broken programs that its tests notice.

    python -m tests.mutation [NAME...]

Without a NAME: all of `TARGETS`. Each has a copy of the tree in build/mutation, where `mutmut results` and
`mutmut show ID` say what was not noticed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence" / "mutation.md"
WORK = ROOT / "build" / "mutation"
#: What is broken, and the tests that should notice; paths, patterns and folders, separated by spaces.
TARGETS = {
    "HeldOutGuard": ("rlguard/core/heldout_guard.py", "tests/core/test_heldout_guard.py"),
    "judge": ("rlguard/core/judge.py", "tests/core tests/detection/test_judge_calibrated.py"),
    "detectors": ("rlguard/core/detectors/*.py", "tests/detection"),
    "decide": ("rlguard/operator/reconcile/decide.py", "tests/operator/unit/test_decide.py"),
    "isolation": ("rlguard/operator/reconcile/isolation.py", "tests/operator/unit/test_isolation.py"),
    "redaction": ("rlguard/core/trainer_view.py", "tests/core tests/service/test_invariant8.py"),
}


def measure(source: str, tests: str) -> tuple[int, int]:
    """How many mutants there are, and how many of them the tests notice."""
    work = WORK / source.removesuffix(".py").removesuffix("/*").replace("/", ".")
    shutil.rmtree(work, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / name)
    package = source.partition("/")[0]
    others = [path.name for path in work.iterdir() if path.name not in (package, "tests")]
    settings = {
        "source_paths": [package],
        "only_mutate": [source],
        "also_copy": others,
        "pytest_add_cli_args_test_selection": tests.split(),
    }
    lines = [f"{key}=\n    " + "\n    ".join(values) for key, values in settings.items()]
    (work / "setup.cfg").write_text("[mutmut]\n" + "\n".join(lines) + "\n")
    mutmut = Path(sys.executable).with_name("mutmut")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([mutmut, "run"], cwd=work, env=environment, check=True)
    subprocess.run([mutmut, "export-cicd-stats"], cwd=work, stdout=subprocess.DEVNULL, check=True)
    counts = json.loads((work / "mutants" / "mutmut-cicd-stats.json").read_text())
    return counts["total"], counts["killed"] + counts["timeout"] + counts["segfault"]


def write(name: str, total: int, noticed: int) -> None:
    """Write the row of `name` into the page."""
    score = f"{100 * noticed / max(total, 1):.0f} %"
    row = f"| {name} | `{TARGETS[name][0]}` | {total} | {noticed} | {score} | {datetime.now(UTC).date()} |"
    text, found = re.subn(rf"^\| {name} \|.*$", row, PAGE.read_text(), flags=re.MULTILINE)
    assert found == 1, f"{PAGE} has {found} rows called {name}"
    PAGE.write_text(text)


def main(names: list[str]) -> int:
    """Measure each of `names`, or all."""
    if unknown := set(names) - TARGETS.keys():
        print(f"mutation: no row is called {', '.join(unknown)}: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    for name in names or TARGETS:
        write(name, *measure(*TARGETS[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
