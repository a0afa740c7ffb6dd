"""The package `rlguard`: what it shows, what it loads, and that pages and samples use it.

A process of its own says what was loaded; a finder that refuses a package stands for one that is not there.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rlguard

ROOT = Path(__file__).resolve().parents[2]
TRAINER_NAMES = ["GuardCallback", "GuardedGRPOTrainer"]
INNER = r"(?:rlguard\.(?:core|client|follow|operator|cli)|guard_core|guard_service|trainer_image)"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a statement loads, but for those that an empty program loads."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    process = python(code)
    assert process.returncode == 0, process.stderr
    return {name.partition(".")[0] for name in process.stdout.split()}


def without(package: str, statement: str, code: int = 1) -> str:
    """The last line that a program says which lacks a package."""
    absent = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if (name + '.').startswith({package + '.'!r}):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        f"sys.meta_path.insert(0, Absent())\n{statement}"
    )
    process = python(absent)
    assert process.returncode == code, process.stdout + process.stderr
    said = process.stderr.splitlines()
    if code != 1:
        assert len(said) == 1, process.stderr
    return said[-1]


# -- what it shows ---------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_type_checkers_see_it_in_the_same_place() -> None:
    tree = ast.parse(Path(rlguard.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(rlguard.__all__) == dir(rlguard)
    for name, home in seen.items():
        assert getattr(rlguard, name) is getattr(importlib.import_module(str(home)), name)
    assert (Path(rlguard.__file__).parent / "py.typed").exists()


def test_the_class_is_still_where_it_was_first() -> None:
    import guard_core

    assert guard_core.HeldOutGuard is rlguard.HeldOutGuard
    assert guard_core.CollapseStopError is rlguard.CollapseStopError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("GuardCalback", "did you mean GuardCallback?"),
        ("Trainer1", "it has CheckpointReport, Code,"),
    ],
)
def test_a_wrong_name_says_which_there_are(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}; {said}")):
        getattr(rlguard, name)


# -- what it loads ---------------------------------------------------------------------------------------


def test_importing_it_loads_nothing() -> None:
    heavy = {"torch", "transformers", "trl", "pydantic", "fastapi", "httpx", "numpy", "yaml", "rlguard.core"}
    loaded = loaded_by("import rlguard")
    assert "rlguard" in loaded and not loaded & heavy


def test_no_name_but_those_of_the_trainer_needs_an_extra() -> None:
    names = ", ".join(set(rlguard.__all__) - set(TRAINER_NAMES))
    extras = {"torch", "transformers", "trl", "fastapi", "httpx", "uvicorn", "numpy", "yaml", "typer"}
    assert not loaded_by(f"from rlguard import {names}") & (extras | {"kubernetes"})


@pytest.mark.parametrize(("name", "package"), zip(TRAINER_NAMES, ["transformers", "torch"], strict=True))
def test_a_missing_extra_is_one_sentence_with_the_line_to_run(name: str, package: str) -> None:
    said = without(package, f"from rlguard import {name}")
    assert re.fullmatch(
        rf'ImportError: rlguard\.{name} needs the package {package}\S*: pip install "rlguard\[trainer\]"',
        said,
    )


def test_a_bug_of_our_own_is_not_called_a_missing_extra() -> None:
    assert "pip install" not in without("rlguard.client", "from rlguard import Guard")


def command(*words: str) -> str:
    return f"from rlguard.cli.main import main; main({list(words)!r})"


#: A command line, a package that is not there, and the extra that brings it.
COMMAND_LINES = [
    (["demo"], "uvicorn", "local"),
    (["run", "--heldout", "HELDOUT", "--", "true"], "fastapi", "cli"),
    (["run", "--heldout", "HELDOUT", "--", "true"], "peft", "eval-hf"),
    (["follow", "--metrics", "x.jsonl"], "typer", "cli"),
    (["serve", "--state-dir", "STATE", "--checkpoints", ".", "--heldout", "HELDOUT"], "uvicorn", "cli"),
    (
        ["serve", "--state-dir", "STATE", "--checkpoints", ".", "--heldout", "HELDOUT"],
        "transformers",
        "eval-hf",
    ),
    (["split", "make", "x.jsonl", "--train", "a", "--heldout", "b"], "typer", "cli"),
    (["check", "--heldout", "HELDOUT"], "rich", "cli"),
    (["replay", "x.jsonl"], "yaml", "cli"),
    (["wrap", "-f", "x", "--heldout", "claim:h/x", "--checkpoints", "c"], "kubernetes", "operator"),
    (["status", "job"], "kubernetes", "operator"),
    (["report", "job"], "matplotlib", "cli"),
    (["resume", "job"], "kubernetes", "operator"),
    (["resume", "HELDOUT"], "kubernetes", "operator"),
    (["--version"], "typer", "cli"),
]


@pytest.mark.parametrize(
    ("words", "package", "extra"), COMMAND_LINES, ids=lambda v: " ".join(v) if v else None
)
def test_a_command_that_lacks_an_extra_says_so_before_any_work(
    tmp_path: Path, words: list[str], package: str, extra: str
) -> None:
    heldout = tmp_path / "heldout.jsonl"
    heldout.write_text('{"id": "a", "prompt": "1+1=", "answer": "2"}\n')
    places = {"HELDOUT": str(heldout), "STATE": str(tmp_path / "state")}
    words = [places.get(word, word) for word in words]
    said = without(package, f"import os; os.chdir({str(tmp_path)!r})\n" + command(*words), code=2)
    assert said.endswith(f'needs the package {package}: pip install "rlguard[{extra}]"')
    name = "rlguard" if not words or words[0].startswith("-") else f"rlguard {words[0]}"
    for_what = (
        " needs",
        ": the evaluator 'hf' needs",
        ": a job on a cluster needs",
        ": checking a job as the",
    )
    assert said.startswith(tuple(f"{name}{what}" for what in for_what))
    assert not ("cluster" in said and str(heldout) in words), "a file is on none"
    assert {path.name for path in tmp_path.iterdir()} <= {"heldout.jsonl", "state"}, "nothing was begun"


def test_every_command_has_such_a_row() -> None:
    from rlguard.cli.commands import COMMANDS

    assert COMMANDS.keys() - {words[0] for words, *_ in COMMAND_LINES if words} == set()


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("rlguard.train", "trl", "trainer"),
        ("guard_service", "uvicorn", "guard"),
        ("rlguard.operator", "kubernetes", "operator"),
    ],
)
def test_a_process_that_lacks_its_extra_says_so(module: str, package: str, extra: str) -> None:
    start = "import runpy, sys; sys.argv[1:] = ['--guard-image', 'guard:1']\n"
    said = without(package, f"{start}runpy.run_module({module!r}, run_name='__main__')", code=2)
    name = module if module == "rlguard.train" else f"python -m {module}"
    assert said == f'{name} needs the package {package}: pip install "rlguard[{extra}]"'


def test_the_table_of_extras_is_that_of_the_project() -> None:
    """Every requirement of an extra is looked for, by the name that it is imported by."""
    from rlguard.core.extras import EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    imported = {"math-verify": "math_verify", "prometheus-client": "prometheus_client", "pyyaml": "yaml"}
    imported |= {"pydantic-settings": "pydantic_settings", "ruamel-yaml": "ruamel.yaml"}

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for requirement in extras[extra]:
            name = re.split(r"[^\w.-]", requirement)[0]
            if name == "rlguard":
                found |= set().union(*map(packages, re.search(r"\[(.*)\]", requirement)[1].split(",")))
            elif "sys_platform" not in requirement:
                found.add(imported.get(name, name))
        return found

    assert {extra: set(names) for extra, names in EXTRAS.items()} == {
        extra: packages(extra) for extra in extras
    }


# -- where it is used ------------------------------------------------------------------------------------


def test_the_wheel_has_it_and_the_command(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True
    )
    [wheel] = tmp_path.glob("rlguard-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entry_points).decode()
    assert "\nrlguard = rlguard.cli.main:main" in commands
    assert "\nkubectl-rlguard = rlguard.cli.main:kubectl" in commands
    assert {"rlguard/__init__.py", "rlguard/py.typed", "rlguard/train.py", "rlguard/client/guard.py"} <= names


SHOWN = sorted(
    path
    for pattern in ("docs/**/*.md", "README.md", "charts/**/*.md", "k8s/samples/**/*", "k8s/overlays/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
)


def test_no_page_and_no_sample_tells_anybody_to_import_from_the_rooms() -> None:
    """The demo's sample starts the demo's own trainer."""
    pattern = rf"from {INNER}[\w.]* import|import {INNER}[\w.]*|-m,? trainer_image[\w.]*|{INNER}[\w.]*:\w+"
    for path in SHOWN:
        used = re.findall(pattern, path.read_text("utf-8"))
        own = [line for line in used if path.parent.name == "cpu-demo" and "trainer_image.demo" in line]
        assert [line for line in used if line not in own] == [], path


def test_every_name_that_a_page_imports_from_the_face_is_there() -> None:
    for path in SHOWN:
        for module, names in re.findall(r"from (rlguard[\w.]*) import ([\w, ]+)", path.read_text("utf-8")):
            for name in names.split(","):
                assert hasattr(importlib.import_module(module), name.strip()), (path, name)
