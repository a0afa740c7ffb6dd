"""The exit codes that a command declares, and its help shows, are those that its code ends with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from guard_cli.commands import COMMANDS

#: They have a table of their own, and pass the trainer's code on.
OF_A_RUN = ("run", "demo")
COMMON = {0, 2}
#: Whose errors a command ends with.
PACKAGES = ("guard_cli", "guard_follow")
ERRORS = ("CliError", "InputError")
NOT_FOLLOWED = {"guard_cli.errors", "guard_follow.errors", *(command.module for command in COMMANDS.values())}


def imported(module: str, seen: set[str]) -> set[str]:
    """The modules of `PACKAGES` that a module uses, and those that these use; no other command."""
    seen.add(module)
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGES):
            for name in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)):
                if name not in {*seen, *NOT_FOLLOWED} and is_module(name):
                    imported(name, seen)
    return seen


@cache
def is_module(name: str) -> bool:
    package = name.rpartition(".")[0]
    return bool(package) and hasattr(import_module(package), "__path__") and find_spec(name) is not None


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(Path(str(import_module(module).__file__)).read_text("utf-8"))


def ends_with(module: str) -> Iterator[int]:
    """What a module gives to an error or `typer.Exit`, and the exit codes that it names."""
    names = vars(import_module(module))
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Attribute | ast.IfExp):
            given: list[ast.expr] = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ERRORS:
            given = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Exit":
            given = node.args
        else:
            continue
        for one in (part for value in given for part in ast.walk(value)):
            if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "ExitCode":
                yield int(getattr(names["ExitCode"], one.attr))
            elif not isinstance(node, ast.Return) and isinstance(one, ast.Constant | ast.Name):
                value = one.value if isinstance(one, ast.Constant) else names.get(one.id)
                if type(value) is int:
                    yield value


def declared(name: str) -> set[int]:
    return set(import_module(COMMANDS[name].module).EXIT_CODES)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OF_A_RUN])
def test_a_command_declares_every_code_that_it_ends_with(name: str) -> None:
    modules = imported(COMMANDS[name].module, set())
    found = {code for module in modules for code in ends_with(module)}
    assert found | COMMON == declared(name)


def test_codes_are_found_where_they_are_given() -> None:
    assert set(ends_with("guard_cli.follow")) >= {0, 3, 4}
    assert set(ends_with("guard_cli.split")) >= {0, 1}
    assert 1 in set(ends_with("guard_cli.cluster"))
    assert "guard_cli.cluster" in imported("guard_cli.status", set())
