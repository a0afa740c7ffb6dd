"""Runs tests against a source file with one edit: a mutant breaks one rule, and its own tests must notice.

Each mutant is tested in a process of its own, on a copy of its package. One that survives means that a rule
could be broken without any test failing. The processes are forks of one that has read what others have made
(numpy, pydantic, ...) and nothing of ours: most tests of a rule take less time than these imports.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Of others, and imported by most tests or by what they test.
PRELOADED = (
    "hypothesis.strategies",
    "httpx",
    "kubernetes.client",
    "numpy",
    "pydantic",
    "pytest",
    "sqlite3",
    "yaml",
)
#: Mutants are tested two at a time.
TESTERS = 2


class Rule(NamedTuple):
    """A source file of a package, and the file of tests beside which its rules stand.

    `beside` are further files of tests, which run too, and the files that they read.
    """

    package: str
    source: str
    tests: Path
    beside: tuple[Path, ...] = ()


#: Whose rule, what stands there, and what the mutant has instead.
Mutant = tuple[Rule, str, str]


class Tester(NamedTuple):
    """A process that tests one room after the other; see `serve`."""

    process: subprocess.Popen[str]

    def passes(self, rule: Rule, room: Path, old: str = "", new: str = "") -> bool:
        """Whether the rule's tests pass with `old` replaced in its source, in the empty directory `room`."""
        shutil.copytree(ROOT / rule.package, room / rule.package, ignore=shutil.ignore_patterns("*.pyc"))
        path = room / rule.package / rule.source
        text = path.read_text()
        assert not old or text.count(old) == 1, (
            f"the mutant {old!r} no longer fits {rule.source}: edit this list with the rule"
        )
        path.write_text(text.replace(old, new) if old else text)
        files = (rule.tests, *rule.beside)
        for file in files:
            shutil.copy(file, room)
        code = self._run(room, [file.name for file in files if file.name.startswith("test_")])
        assert code in (0, 1), (room / "log").read_text()
        return code == 0

    def _run(self, room: Path, files: Sequence[str]) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([str(room), files]), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@contextmanager
def tester() -> Iterator[Tester]:
    """A tester for the length of a `with`."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-P", __file__]  # -P: the folder of this file is no place to import from
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        yield Tester(process)


def passes(rule: Rule, room: Path) -> bool:
    """Whether the rule's tests pass as they are, in the empty directory `room`. If not, prints why."""
    with tester() as one:
        good = one.passes(rule, room)
    if not good:
        print((room / "log").read_text())
    return good


def survivors(mutants: Sequence[Mutant], directory: Path) -> str:
    """The mutants that no test noticed, a line each."""
    with ExitStack() as stack:
        idle: SimpleQueue[Tester] = SimpleQueue()
        for _ in range(TESTERS):
            idle.put(stack.enter_context(tester()))

        def survives(number: int) -> bool:
            one = idle.get()
            try:
                rule, old, new = mutants[number]
                return one.passes(rule, directory / str(number), old, new)
            finally:
                idle.put(one)

        with ThreadPoolExecutor(TESTERS) as pool:
            alive = pool.map(survives, range(len(mutants)))
            return "\n".join(
                f"{rule.source}: {old} -> {new}"
                for (rule, old, new), a in zip(mutants, alive, strict=True)
                if a
            )


# -- the tester's own process ----------------------------------------------------------------------------


def serve() -> None:
    """Read a room and its files of tests from each line of stdin; write the exit code of pytest in it."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        room, files = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(test(room, files))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def test(room: str, files: Sequence[str]) -> int:
    """The exit code of pytest in the room, whose packages are found before the installed ones."""
    import pytest

    os.chdir(room)
    os.environ["PYTHONPATH"] = room
    sys.path.insert(0, room)
    log = os.open("log", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--rootdir", room, *files])


if __name__ == "__main__":
    serve()
