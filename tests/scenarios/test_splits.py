"""Scenario 12: a held-out split that overlaps, is empty, or cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios import interface
from tests.scenarios.given import Given, Stage

pytestmark = pytest.mark.timeout(interface.TEST)

ITEMS = [{"id": str(i), "prompt": f"What is {i} plus {i * i}?", "answer": str(i + i * i)} for i in range(8)]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def overlapping(folder: Path) -> Path:
    write(folder / "train.jsonl", [{"prompt": ITEMS[3]["prompt"]}])
    return write(folder / "heldout.jsonl", ITEMS)


def empty(folder: Path) -> Path:
    return write(folder / "heldout.jsonl", [])


def broken(folder: Path) -> Path:
    path = folder / "heldout.jsonl"
    path.write_text('{"id": "1", "prompt": "What')
    return path


def binary(folder: Path) -> Path:
    path = folder / "heldout.jsonl"
    path.write_bytes(bytes(range(256)))
    return path


def missing(folder: Path) -> Path:
    return folder / "heldout.jsonl"


def without_answers(folder: Path) -> Path:
    return write(folder / "heldout.jsonl", [{"id": "1", "prompt": "What is 1 plus 1?"}])


@pytest.mark.parametrize("make", [overlapping, empty, broken, binary, missing, without_answers])
def test_it_is_refused_before_the_first_step(
    given: Given, stage: Stage, make: Callable[[Path], Path]
) -> None:
    """One line names the file and its first bad lines; no item is quoted, and no trainer starts."""
    given.a_heldout_split(make(stage.folder)).a_trainer()
    train = stage.folder / "train.jsonl"
    if train.exists():
        given.options("--train-prompts", str(train))
    given.when().the_run_ends().then().exit_code(interface.REFUSED)
    errors = [line for line in stage.printed("run").splitlines() if "heldout.jsonl" in line]
    assert len(errors) == 1, stage.printed("run")
    assert len(stage.printed("run").splitlines()) <= 4
    assert "Traceback" not in stage.printed("run")
    assert "What is" not in stage.printed("run")
    assert not stage.started_file.exists()


def test_the_same_split_without_the_overlap_is_taken(given: Given, stage: Stage) -> None:
    split = overlapping(stage.folder)
    write(stage.folder / "train.jsonl", [{"prompt": "How far is the moon from here?"}])
    given.a_heldout_split(split).options("--train-prompts", str(stage.folder / "train.jsonl"))
    given.a_trainer().when().the_run_ends().then().the_training_was_complete()
