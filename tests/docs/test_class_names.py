"""A name means one thing in the whole tree: no two packages have a class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "rlguard",
    "guard_core",
    "guard_client",
    "guard_service",
    "guard_operator",
    "guard_cli",
    "trainer_image",
    "tools",
)


def places(root: Path) -> dict[str, list[str]]:
    """Where each public class is defined. One that is private or in a function is seen there only."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(root)))
    return found


def test_no_class_has_the_name_of_another() -> None:
    known = places(ROOT)
    assert len(known) > 300, "the packages were looked for in the wrong place"
    assert {name: where for name, where in known.items() if len(where) > 1} == {}


def test_a_second_class_of_one_name_is_found(tmp_path: Path) -> None:
    for package in ("guard_core", "guard_cli"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text("class Step:\n    pass\n\n\nclass _Step:\n    pass\n")
    assert places(tmp_path) == {"Step": ["guard_core/module.py", "guard_cli/module.py"]}
