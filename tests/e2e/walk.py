"""The README's walk on kind: its commands as printed, in a reader's shell, and what it shows of them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from guard_operator.api.status import Phase
from tests.docs.blocks import blocks

from . import timeouts
from .kube import ROOT, Cluster, CommandError

README = ROOT / "README.md"


@dataclass(frozen=True)
class Step:
    """A command, and the lines that the README shows after it."""

    command: str
    shown: tuple[str, ...]


def takes(cluster: Cluster, first: str, last: str | None = None, *, fails: bool = False) -> None:
    """Run the steps from the one with `first` in its command to the one with `last`, in one shell.

    All that is shown must have been said, but for numbers; which rule fires, and with which words, is the
    run's own. `fails`: the last command is one that is refused.
    """
    steps = _from_to(first, last or first)
    done = _in_a_shell(cluster, "\n".join(step.command for step in steps))
    if (done.returncode != 0) is not fails:
        raise CommandError(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    said = _masked(done.stdout + done.stderr)
    shown = [line for step in steps for line in step.shown if not line.lstrip().startswith("Warning")]
    missing = [line for line in shown if _masked(line) not in said]
    assert not missing, f"the README shows what was not said: {missing}\nin {done.stdout}{done.stderr}"


@contextmanager
def watches(cluster: Cluster, command: str, into: Path) -> Iterator[None]:
    """Run a step with `-w` beside the others; in the end its columns and phases are those that are shown."""
    (step,) = _from_to(command, command)
    with (
        into.open("w") as file,
        subprocess.Popen(
            ["bash", "-c", f"exec {step.command}"], cwd=ROOT, env=_environment(cluster), stdout=file
        ) as watch,
    ):
        try:
            yield
        finally:
            watch.terminate()
    rows = into.read_text().splitlines()
    assert rows[0].split() == step.shown[0].split(), "the columns"
    assert _phases(rows[1:]) == _phases(step.shown[1:]), rows
    assert rows[-1].split()[-2] == "True", "FIRED"


def deletes_all(cluster: Cluster) -> None:
    """The command of its last paragraph."""
    command = re.search(r"`(kubectl delete -k [^`]+)`", README.read_text())
    assert command is not None
    done = _in_a_shell(cluster, command[1], within=timeouts.NAMESPACE_DELETE)
    assert done.returncode == 0, done


def _from_to(first: str, last: str) -> list[Step]:
    steps = list(_steps())
    start, end = (next(i for i, one in enumerate(steps) if what in one.command) for what in (first, last))
    return steps[start : end + 1]


def _steps() -> Iterator[Step]:
    for block in blocks(README):
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, *shown = part.splitlines()
                yield Step(command, tuple(line for line in shown if line.strip() not in {"", "..."}))


def _phases(rows: tuple[str, ...] | list[str]) -> list[str]:
    """Which phases were shown, one after the other; a row has none before an operator has seen the job."""
    return [phase for phase, _ in groupby(word for row in rows for word in row.split() if word in set(Phase))]


def _environment(cluster: Cluster) -> dict[str, str]:
    """After the `export` lines of `make kind-up`."""
    folders = [str(Path(cluster.programs[name]).parent) for name in ("kubectl", "helm")]
    path = os.pathsep.join([*folders, os.environ["PATH"]])
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}


def _in_a_shell(
    cluster: Cluster, script: str, within: float = timeouts.INSTALL
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=_environment(cluster),
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


def _masked(text: str) -> str:
    """Without what differs from run to run: digests, UIDs, numbers, ages, and how wide a column is."""
    return " ".join(re.sub(r"[0-9a-f]{8,64}|(?:\d[\d.]*[smh]?)+", "#", text).split())
