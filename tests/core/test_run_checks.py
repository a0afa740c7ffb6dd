"""The checks of any run, row by row: each level that one has, and that it says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlguard.core.preflight import CheckLevel
from rlguard.core.run_checks import Folder, Needed, RunFacts, Saves, reason_to_refuse, run_rows

OK, WARN, REFUSE, UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.REFUSE, CheckLevel.UNKNOWN
KL, ROTATION, TIME = "KL to the reference", "save_total_limit", "evaluation time"
ROOT = Path("/c")
GOOD = RunFacts(
    beta=0.04,
    kl_counts=True,
    folder=Folder(ROOT / "out", ROOT, inside=True),
    layout="",
    tokenizer="",
    saves=Saves(10, 200, 20),
    needed=Needed(8),
    kept=3,
    max_lag=1,
    evaluation_seconds=10.0,
    step_seconds=2.0,
)


def test_a_good_run_is_ok_and_nothing_that_is_not_known_is() -> None:
    levels = {row.name: row.level for row in run_rows(GOOD)}
    assert levels.pop("sampling") == UNKNOWN and set(levels.values()) == {OK}
    assert {row.level for row in run_rows(RunFacts(ask={KL: "give --beta"}))} == {UNKNOWN}
    assert reason_to_refuse(run_rows(GOOD)) is None


@pytest.mark.parametrize(
    ("name", "facts", "level", "words"),
    [
        (KL, {"beta": 0.0, "kl_counts": False}, WARN, "a beta of 0.001 would show it"),
        (KL, {"beta": 0.0, "kl_counts": False, "kl_limit": 0.5}, REFUSE, "kl.hard_stop (0.5), and the run"),
        (KL, {"beta": 0.0, "kl_counts": False, "kl_limit": 0.5}, REFUSE, "set beta above 0, or leave"),
        (KL, {"beta": None, "kl_counts": False, "kl_limit": 0.5}, REFUSE, "judged: leave kl.hard_stop out"),
        ("checkpoints folder", {"folder": Folder(ROOT, Path("/d"), inside=False)}, REFUSE, "root /d"),
        ("checkpoints folder", {"folder": Folder(ROOT, ROOT, True, "it is a file")}, REFUSE, "is a file"),
        ("checkpoints folder", {"folder": Folder(ROOT, None, inside=True)}, UNKNOWN, ""),
        ("checkpoint layout", {"layout": "it holds a pickle"}, REFUSE, "it holds a pickle"),
        ("checkpoint layout", {"adapter": True}, OK, "an adapter of the guard's base model"),
        ("tokenizer", {"tokenizer": "no tokenizer"}, REFUSE, "no tokenizer"),
        ("evaluations", {"saves": Saves(never="none is saved")}, REFUSE, "none is saved"),
        ("evaluations", {"saves": Saves(500, 200, 1)}, REFUSE, "save_steps 500 is more than max_steps 200"),
        ("evaluations", {"saves": Saves(100, 200, 2)}, WARN, "you will get 2 evaluations; 8 are needed"),
        ("evaluations", {"needed": Needed(None)}, WARN, "no number of evaluations"),
        ("evaluations", {"needed": None}, UNKNOWN, ""),
        (ROTATION, {"kept": 0}, OK, "every checkpoint stays"),
        (ROTATION, {"kept": 3, "max_lag": 5}, OK, "training waits while more than 2 are unscored"),
        (ROTATION, {"kept": 3, "max_lag": None}, WARN, "training does not wait"),
        (ROTATION, {"kept": -1}, WARN, "raise it"),
        (TIME, {"evaluation_seconds": 20.0}, OK, "saves every 20 s"),
        (TIME, {"evaluation_seconds": 31.0}, WARN, "training waits for the guard"),
        (TIME, {"evaluation_seconds": 31.0}, WARN, "set save_steps to 16 or more"),
        (TIME, {"step_seconds": None}, UNKNOWN, "takes 10 s; give --save-steps and --step-seconds"),
    ],
)
def test_a_row_says_how_it_is_and_what_to_do(
    name: str, facts: dict[str, Any], level: CheckLevel, words: str
) -> None:
    rows = run_rows(replace(GOOD, **facts))
    [row] = [row for row in rows if row.name == name]
    assert row.level == level and words in row.says
    assert (reason_to_refuse(rows) == row.says) == (level == REFUSE)


@pytest.mark.parametrize(("steps", "needed", "most"), [(50, None, 25), (50, 1, 25), (51, 1, 25), (50, 5, 10)])
def test_the_value_that_is_named_leaves_a_checkpoint_before_the_end(
    steps: int, needed: int | None, most: int
) -> None:
    said = reason_to_refuse(run_rows(replace(GOOD, saves=Saves(100, steps, 1), needed=Needed(needed))))
    assert said is not None and f"set save_steps to {most} or less" in said and most < steps
