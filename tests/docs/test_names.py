"""A name means one thing in the whole tree: public classes, type aliases and functions of modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("rlguard", "guard_service", "trainer_image", "tools")
#: Names that stand in several modules and mean one thing in all of them.
SAME = {
    "main": "where a program starts",
    "outputs": "what a generator writes, in each of `tools/`",
    "check": "the commands `rlguard check` and `rlguard split check`, as users type them",
    "find_obstacles": "what a pod template may not have, of each of the two placements of a guard",
    "Json": "an object as JSON, in the guard and in the operator, of which neither may import the other",
}


def defined(module: ast.Module) -> Iterator[str]:
    """Public names that a module defines. A name in mixed case that is bound to a value is a type alias."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        is_value = isinstance(node, ast.Assign | ast.AnnAssign)
        for name in names:
            if not name.startswith("_") and not (is_value and (name.isupper() or name.islower())):
                yield name


def places(root: Path) -> dict[str, list[str]]:
    """Where each is defined. What is private or in a function is seen there only."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for name in defined(ast.parse(path.read_text("utf-8"))):
                found[name].append(str(path.relative_to(root)))
    return found


def test_no_name_has_two_meanings() -> None:
    known = places(ROOT)
    assert len(known) > 1000, "the packages were looked for in the wrong place"
    assert {name: where for name, where in known.items() if len(where) > 1 and name not in SAME} == {}


def test_every_exception_is_one() -> None:
    known = places(ROOT)
    assert [name for name in SAME if len(known[name]) < 2] == []
