"""`make kind-up` on a fresh machine names first what is missing, and builds nothing twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"docker.io", "iptables", "debootstrap", "runc", "jq", "gcc"}
#: `go build` of one package; of the package "broken" it fails while the file `broken` is there.
GO = """#!/bin/bash
if [[ $1 == env ]]; then echo go1.99; exit; fi
echo "${!#}" >>built
[[ ${!#} != */broken || ! -e broken ]] || exit 1
while [[ $1 != -o ]]; do shift; done
echo "${!#}" >"$2"
"""


@pytest.fixture
def only(tmp_path: Path) -> Path:
    """A folder for PATH with what every Debian has, and nothing that a cluster needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (
        "awk",
        "bash",
        "cat",
        "dirname",
        "env",
        "id",
        "mkdir",
        "mv",
        "python3",
        "sed",
        "sort",
        "timeout",
    ):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def test_everything_that_is_missing_is_named_at_once(only: Path, tmp_path: Path) -> None:
    environment = {"PATH": str(only), "HOME": str(tmp_path), "CACHE": str(tmp_path / "cache")}
    command = [ROOT / "tests/e2e/cluster/up.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "stage" not in done.stderr and not (tmp_path / "cache").exists()
    advice = next(line for line in done.stderr.splitlines() if "apt-get install" in line)
    assert set(advice.split()) >= PACKAGES
    assert "docker-daemon.sh start" in done.stderr


def test_what_was_built_before_a_failure_is_kept(only: Path, tmp_path: Path) -> None:
    (only / "go").write_text(GO)
    (only / "go").chmod(0o755)
    for name in ("nice", "flock"):
        (only / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "modules" / "tools").mkdir(parents=True)
    broken = tmp_path / "modules/tools/broken"
    broken.touch()
    script = f"""set -euo pipefail; NAME=test; source {ROOT}/tests/go/modules.sh; MODULES={tmp_path}/modules
        make_all() {{ build tools "" "$1/" x/first x/broken x/last; }}
        one_at_a_time test; once "$CACHE/tools" make_all"""
    environment = {**os.environ, "PATH": str(only), "CACHE": str(tmp_path / "cache")}

    def run() -> int:
        return subprocess.run(["bash", "-c", script], env=environment, timeout=60, check=False).returncode

    assert run() == 1 and not (tmp_path / "cache/tools").exists()
    broken.unlink()
    assert run() == 0
    assert sorted(path.name for path in (tmp_path / "cache/tools").iterdir()) == ["broken", "first", "last"]
    assert (broken.parent / "built").read_text().split() == ["x/first", "x/broken", "x/broken", "x/last"]
