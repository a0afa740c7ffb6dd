"""The invariants are numbered once, in concepts/architecture.md, and each is held by tests that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text("utf-8")
SECTION = PAGE.split("## What must always hold")[1].split("\n## ")[0]
ROWS = [row.strip("| ").split(" | ") for row in SECTION.splitlines() if re.match(r"\| ?(\d|[A-Z])", row)]
#: Number -> the tests that hold it.
INVARIANTS = {int(row[0]): re.findall(r"`(tests/[^`]+)`", row[-1]) for row in ROWS if row[0].isdigit()}
NAMED = sorted({test for row in ROWS for test in re.findall(r"`(tests/[^`]+)`", row[-1])})
#: One of them, or several: "invariants 3 and 8", "invariants 1, 2 or 11".
MENTION = re.compile(r"\binvariants? (\d+(?:(?:, (?:and |or )?| (?:and|or|to) )\d+)*)", re.IGNORECASE)


def numbers_in(text: str) -> set[int]:
    """The numbers of all invariants that a text mentions."""
    return {int(number) for several in MENTION.findall(text) for number in re.findall(r"\d+", several)}


@cache
def functions_in(path: str) -> dict[str, list[str]]:
    """Test functions of a file and, by the name of a class, its methods."""
    found: dict[str, list[str]] = {}
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = [
                m.name for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = [node.name]
    return found


def exists(test: str) -> bool:
    """Whether `path`, `path::test` or `path::Class` is there and has a test."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return False
    functions = (
        functions_in(path).get(name, []) if name else [f for fs in functions_in(path).values() for f in fs]
    )
    return any(function.startswith("test_") for function in functions)


def mentions() -> dict[str, set[int]]:
    """Number of every invariant that is mentioned in the tree, by file."""
    listed = subprocess.run(
        ["git", "grep", "--untracked", "-nIEi", r"invariants? [0-9]+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, set[int]] = {}
    for line in listed.stdout.splitlines():
        path, _, text = line.partition(":")
        found.setdefault(path, set()).update(numbers_in(text))
    return found


def test_they_are_numbered_once_and_in_order() -> None:
    assert [int(row[0]) for row in ROWS if row[0].isdigit()] == list(range(1, 13))


def test_every_mention_of_one_resolves() -> None:
    found = mentions()
    assert len(found) > 10
    assert {
        path: unknown for path, numbers in found.items() if (unknown := numbers - INVARIANTS.keys())
    } == {}


@pytest.mark.parametrize("test", NAMED)
def test_what_is_named_exists(test: str) -> None:
    assert exists(test), f"{test} is named in docs/concepts/architecture.md and is not there"


@pytest.mark.parametrize("number", INVARIANTS)
def test_each_is_held_by_tests_that_need_no_cluster(number: int) -> None:
    held_by = [test for test in INVARIANTS[number] if not test.startswith("tests/e2e/")]
    assert held_by and all("::" in test for test in held_by), held_by
