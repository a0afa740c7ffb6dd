"""Runs tests against a source file with one edit: a mutant breaks one rule, and its own tests must notice.

Each mutant is tested in a process of its own, on a copy of its package. One that survives means that a rule
could be broken without any test failing. The processes are forks of one that has read what others have made
(numpy, pydantic, ...) and nothing of ours: most tests of a rule take less time than these imports.

First the tests run on the source as it is, the last one first. All must pass: one that needs another before
it would fail in any order but its own, and every mutant with it. It is noted which of them come by which line
and how long each takes. A mutant is then given to those that come by its lines first, the quickest
ahead, for the first that fails is enough. All others follow, so that the order decides nothing but the time.

`make mutants` writes down which were noticed, beside each table, by digests of the rule, its tests and the
edit. What is not written there is due: what is new, and what is of a rule or of tests that have changed.
`make mutants` tests all that are due, `make mutants ROWS=all` every one. Elsewhere, of a table in which more
than `MOST_DUE` are due, so many are tested, as their digests fall, which any change deals anew.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[1]
#: Of others, and imported by most tests or by what they test.
PRELOADED = (
    "coverage",
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
#: Rows of one table that `make test` tests: a large change keeps CI's limit.
MOST_DUE = 5
Row = TypeVar("Row")
#: Tests that run together: package, file of tests, what lies beside.
Group = tuple[str, Path, tuple[Path, ...]]


class Rule(NamedTuple):
    """A source file of a package, and the file of tests beside which its rules stand.

    `beside` are further files of tests, which run too, and the files that they read.
    """

    package: str
    source: str
    tests: Path
    beside: tuple[Path, ...] = ()

    @property
    def path(self) -> str:
        """Its source, from the root."""
        return f"{self.package}/{self.source}"

    @property
    def group(self) -> Group:
        """Its tests, which others may have, too."""
        return self.package, self.tests, self.beside


#: Whose rule, what stands there, and what the mutant has instead.
Mutant = tuple[Rule, str, str]


class Noticed:
    """The rows of a table of mutants, by their digests, that `make mutants` saw fail a test.

    Args:
        table: the file of the table; the digests lie beside it.
    """

    def __init__(self, table: str) -> None:
        self._file = Path(table).with_suffix(".noticed")
        #: Which rows are wanted: "all", all that are "due", or some of those, of which nothing is written.
        self._wanted = os.environ.get("RLGUARD_MUTANTS", "")
        known = self._file.read_text().split() if self._file.exists() and self._wanted != "all" else ()
        self._known = set[str](known)

    def due(self, rows: Mapping[str, Row]) -> dict[str, Row]:
        """Those of these rows, by their digests, that are to be tested here."""
        due = sorted(rows.keys() - self._known)
        return {digest: rows[digest] for digest in (due if self._wanted else due[:MOST_DUE])}

    def write(self, digests: Iterable[str]) -> None:
        """In `make mutants`, keep these and forget all others."""
        if self._wanted:
            self._file.write_text("".join(f"{digest}\n" for digest in sorted(set(digests))))


def digest_of(files: Iterable[Path], *words: str) -> str:
    """Of a row: what it names, and what stands in the files that it names."""
    parts = (*words, *(file.read_text() for file in files))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _digest(mutant: Mutant) -> str:
    rule, old, new = mutant
    return digest_of((ROOT / rule.path, rule.tests, *rule.beside), rule.path, rule.tests.name, old, new)


class Trace(NamedTuple):
    """What tests did on the sources as they are.

    `lines`: by source, the tests that came by each line, whose number is text.
    `seconds`: how long each test took.
    """

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    def order(self, source: str, old: str) -> list[str]:
        """All tests, those first that come by the statement around `old`, the quickest ahead."""
        first, last = _statement(source, old)
        near = {test for n in range(first, last + 1) for test in self.lines[source].get(str(n), ())}
        return sorted(self.seconds, key=lambda test: (test not in near, self.seconds[test]))


def _statement(source: str, old: str) -> tuple[int, int]:
    """First and last line of the smallest statement of a source that `old` is in."""
    text = (ROOT / source).read_text()
    before = text.index(old) + len(old) - len(old.lstrip())
    first = text.count("\n", 0, before) + 1
    last = first + old.strip().count("\n")
    around = [(a, b) for a, b in _statements(source, text) if a <= first and last <= b]
    return min(around, key=lambda lines: lines[1] - lines[0], default=(first, last))


@cache
def _statements(source: str, text: str) -> list[tuple[int, int]]:
    """First and last line of each statement, of those of Python."""
    tree = ast.walk(ast.parse(text)) if source.endswith(".py") else ()
    return [(node.lineno, node.end_lineno or node.lineno) for node in tree if isinstance(node, ast.stmt)]


class Tester(NamedTuple):
    """A process that tests one room after the other; see `serve`."""

    process: subprocess.Popen[str]

    def trace(self, group: Group, sources: Sequence[str], room: Path) -> Trace:
        """What the tests do, in the empty directory `room`. All of them must pass."""
        names = self._furnish(group, room)
        assert self._run(room, names, trace=sources) == 0, (room / "log").read_text()
        return Trace(**json.loads((room / "trace.json").read_text()))

    def passes(self, mutant: Mutant, order: Sequence[str], room: Path) -> bool:
        """Whether the rule's tests, in this order, pass with the mutant, in the empty directory `room`."""
        rule, old, new = mutant
        names = self._furnish(rule.group, room)
        path = room / rule.path
        path.write_text(path.read_text().replace(old, new))
        code = self._run(room, names, order=order)
        assert code in (0, 1), (room / "log").read_text()
        return code == 0

    def _furnish(self, group: Group, room: Path) -> list[str]:
        package, tests, beside = group
        shutil.copytree(ROOT / package, room / package, ignore=shutil.ignore_patterns("*.pyc"))
        for file in (tests, *beside):
            shutil.copy(file, room)
        return [file.name for file in (tests, *beside) if file.name.startswith("test_")]

    def _run(
        self, room: Path, names: Sequence[str], trace: Sequence[str] = (), order: Sequence[str] = ()
    ) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([str(room), names, trace, order]), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@contextmanager
def tester(preloaded: Sequence[str]) -> Iterator[Tester]:
    """A tester for the length of a `with`, which has read these modules, too."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # -P: the folder of this file is no place to import from.
    command = [sys.executable, "-P", __file__, *PRELOADED, *preloaded]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        yield Tester(process)


def survivors(mutants: Sequence[Mutant], directory: Path, table: str, preloaded: Sequence[str] = ()) -> str:
    """The mutants that no test noticed, a line each. Without a mutant the tests must pass.

    `table`: the file of these mutants; those that are written down beside it are not tested. `preloaded`:
    modules of others that most of these tests import.
    """
    for rule, old, _ in mutants:
        assert (ROOT / rule.path).read_text().count(old) == 1, (
            f"the mutant {old!r} no longer fits {rule.source}: edit this list with the rule"
        )
    noticed, rows = Noticed(table), {_digest(mutant): mutant for mutant in mutants}
    alive = _alive(list(noticed.due(rows).values()), directory, preloaded)
    noticed.write(digest for digest, mutant in rows.items() if mutant not in alive)
    return "\n".join(f"{rule.source}: {old} -> {new}" for rule, old, new in alive)


def _alive(mutants: Sequence[Mutant], directory: Path, preloaded: Sequence[str]) -> list[Mutant]:
    """Those that no test notices."""
    groups: dict[Group, set[str]] = {}
    for rule, _, _ in mutants:
        groups.setdefault(rule.group, set()).add(rule.path)
    if not groups:
        return []
    with ExitStack() as stack:
        idle: SimpleQueue[Tester] = SimpleQueue()
        for _ in range(TESTERS):
            idle.put(stack.enter_context(tester(preloaded)))

        def trace(number: int, group: Group) -> Trace:
            with _taken(idle) as one:
                return one.trace(group, sorted(groups[group]), directory / f"trace-{number}")

        def survives(number: int, mutant: Mutant, order: Sequence[str]) -> bool:
            with _taken(idle) as one:
                return one.passes(mutant, order, directory / str(number))

        with ThreadPoolExecutor(TESTERS) as pool:
            traces = dict(zip(groups, pool.map(trace, range(len(groups)), groups), strict=True))
            # In one thread: two that parse at once can end each other (CPython 3.11, `ast.parse`).
            orders = [traces[rule.group].order(rule.path, old) for rule, old, _ in mutants]
            alive = pool.map(survives, range(len(mutants)), mutants, orders)
            return [mutant for mutant, lives in zip(mutants, alive, strict=True) if lives]


@contextmanager
def _taken(idle: SimpleQueue[Tester]) -> Iterator[Tester]:
    one = idle.get()
    try:
        yield one
    finally:
        idle.put(one)


# -- the tester's own process ----------------------------------------------------------------------------


def serve() -> None:
    """Read what is to be tested, and how, from each line of stdin; write the exit code of pytest."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    from hypothesis import settings

    settings.load_profile("ci")  # the same examples each time, and however long one takes
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(test(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def test(room: str, names: Sequence[str], trace: Sequence[str], order: Sequence[str]) -> int:
    """The exit code of pytest in the room, whose packages are found before the installed ones."""
    import pytest

    os.chdir(room)
    os.environ["PYTHONPATH"] = room
    sys.path.insert(0, room)
    log = os.open("log", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    plugin = Tracer(trace) if trace else Sorter(order)
    plain = ("-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "--rootdir", room)
    code = pytest.main([*plain, *names], plugins=[plugin])
    sys.stdout.flush()  # the process ends at once
    return code


class Sorter:
    """Runs tests in a given order, and those that it does not name at last."""

    def __init__(self, order: Sequence[str]) -> None:
        self._rank = {test: rank for rank, test in enumerate(order)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Called by pytest."""
        items.sort(key=lambda item: self._rank.get(item.nodeid, len(self._rank)))


class Tracer:
    """Writes down a `Trace` of these sources."""

    def __init__(self, sources: Sequence[str]) -> None:
        import coverage

        self._sources, self._seconds = sources, dict[str, float]()
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[os.path.abspath(source) for source in sources]
        )
        self._coverage.start()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Called by pytest."""
        items.reverse()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Called by pytest before a test."""
        self._coverage.switch_context(nodeid)
        self._seconds[nodeid] = -time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Called by pytest after it."""
        self._seconds[nodeid] += time.perf_counter()

    def pytest_sessionfinish(self) -> None:
        """Called by pytest at the end."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {source: data.contexts_by_lineno(os.path.abspath(source)) for source in self._sources}
        Path("trace.json").write_text(json.dumps({"lines": lines, "seconds": self._seconds}))


if __name__ == "__main__":
    serve()
