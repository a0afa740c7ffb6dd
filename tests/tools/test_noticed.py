"""Which rows of a table of mutants are tested: those that `make mutants` has not seen fail, as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import Mutant, Rule, survivors

TESTS = "from package.rule import limit\n\ndef test_it():\n    assert limit(5) == 3\n"


@pytest.fixture
def mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mutant:
    """A row of a package of its own, whose test notices it."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/rule.py").write_text("def limit(n):\n    return min(n, 3)\n")
    (tmp_path / "test_rule.py").write_text(TESTS)
    return Rule("package", "rule.py", tmp_path / "test_rule.py"), "min(n, 3)", "n"


def tried(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str = "") -> int:
    """How many rows were tested, of a table of one; none of them survives."""
    monkeypatch.setenv("RLGUARD_MUTANTS", wanted)
    room = tmp_path / f"room-{sum(1 for _ in tmp_path.iterdir())}"
    assert survivors([mutant], room, str(tmp_path / "test_mutants.py")) == ""
    return sum(1 for each in room.glob("[0-9]*"))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "TESTERS", 1)
    monkeypatch.setattr(mutants, "PRELOADED", ("coverage", "pytest"))


def test_only_make_mutants_writes_down_what_was_noticed(mutant, tmp_path, monkeypatch) -> None:
    assert tried(mutant, tmp_path, monkeypatch) == 1
    assert tried(mutant, tmp_path, monkeypatch) == 1
    assert tried(mutant, tmp_path, monkeypatch, wanted="due") == 1
    assert tried(mutant, tmp_path, monkeypatch) == 0
    assert tried(mutant, tmp_path, monkeypatch, wanted="due") == 0
    assert tried(mutant, tmp_path, monkeypatch) == 0
    assert tried(mutant, tmp_path, monkeypatch, wanted="all") == 1


@pytest.mark.parametrize("changed", ["package/rule.py", "test_rule.py"])
def test_a_row_is_tested_again_when_its_rule_or_its_tests_change(
    mutant, tmp_path, monkeypatch, changed: str
) -> None:
    tried(mutant, tmp_path, monkeypatch, wanted="due")
    path = tmp_path / changed
    path.write_text(path.read_text() + "\n# changed\n")
    assert tried(mutant, tmp_path, monkeypatch) == 1


def test_a_row_that_was_edited_is_tested(mutant, tmp_path, monkeypatch) -> None:
    tried(mutant, tmp_path, monkeypatch, wanted="due")
    rule, old, _ = mutant
    assert tried((rule, old, "max(n, 3)"), tmp_path, monkeypatch) == 1


def test_of_many_that_are_due_some_are_tested_and_all_by_make_mutants(mutant, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(mutants, "MOST_DUE", 2)
    rule, old, _ = mutant
    rows = [(rule, old, f"max(n, {other})") for other in range(4, 8)]
    for wanted, tested in (("", 2), ("", 2), ("due", 4), ("", 0)):
        monkeypatch.setenv("RLGUARD_MUTANTS", wanted)
        room = tmp_path / f"room-{sum(1 for _ in tmp_path.iterdir())}"
        assert survivors(rows, room, str(tmp_path / "test_mutants.py")) == ""
        assert sum(1 for each in room.glob("[0-9]*")) == tested


def test_what_survives_is_told_and_not_written_down(mutant, tmp_path, monkeypatch) -> None:
    rule, old, _ = mutant
    same = (rule, old, "min(3, n)")
    monkeypatch.setenv("RLGUARD_MUTANTS", "all")
    table = tmp_path / "test_mutants.py"
    assert survivors([same], tmp_path / "room", str(table)) == "rule.py: min(n, 3) -> min(3, n)"
    assert table.with_suffix(".noticed").read_text() == ""
