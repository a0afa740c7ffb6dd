"""The trainer's table before the first step, row by row: no guard, no training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from guard_client.client import VerdictView
from guard_core.codes import Code
from guard_core.preflight import CheckLevel, CheckRow, as_text
from guard_core.wire import Sampling
from trainer_image.preflight import Outset, trainer_rows

OK, WARN, UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.UNKNOWN


def verdict(**more: Any) -> VerdictView:
    return VerdictView.model_validate({"fire": False, "stop": False, **more})


TRAINED = {"model": SimpleNamespace(), "trainer": SimpleNamespace()}
ADAPTED = TRAINED | {"model": SimpleNamespace(_hf_peft_config_loaded=True)}
NO_BASELINE = [{"code": Code.NO_BASELINE.value}]
TEN = {"long_rounds": 10, "short_rounds": 10}


def row_of(
    name: str, answer: VerdictView | None = None, step: int = 0, of: dict[str, Any] | None = None, **args: Any
) -> CheckRow:
    """One row of a run with these arguments; `of`: what else is known of it."""
    given = SimpleNamespace(**{"output_dir": "/c/out", "save_strategy": "steps", **args})
    state = SimpleNamespace(global_step=step, max_steps=100, save_steps=10, num_train_epochs=2)
    rows = trainer_rows(Outset(given, state, verdict=answer, **(of or {})))
    return next(row for row in rows if row.name == name)


@pytest.mark.parametrize(
    ("row", "level", "words"),
    [
        (row_of("steps"), UNKNOWN, "without a `reward` in its logs nothing can be judged"),
        (row_of("checkpoints folder"), UNKNOWN, "not answered"),
        (row_of("checkpoints folder", verdict()), UNKNOWN, "does not say"),
        (row_of("checkpoints folder", verdict(checkpoint_root="/c")), OK, "/c/out is below the guard's /c"),
        (row_of("checkpoint layout", verdict()), UNKNOWN, "the trainer is not known"),
        (row_of("checkpoint layout", of=TRAINED), OK, "whole weights in safetensors"),
        (row_of("checkpoint layout", verdict(), of=ADAPTED), UNKNOWN, "does not say whether"),
        (
            row_of("checkpoint layout", verdict(adapters="applied"), of=ADAPTED),
            OK,
            "an adapter of the guard's base model",
        ),
        (row_of("tokenizer"), UNKNOWN, "rlguard check --model"),
        (row_of("evaluations"), UNKNOWN, "not answered"),
        (row_of("evaluations", verdict()), UNKNOWN, "rlguard check does"),
        (row_of("evaluations", verdict(needed=TEN), save_strategy="best"), UNKNOWN, "set save_strategy"),
        (row_of("evaluations", verdict(needed=TEN)), OK, "10 checkpoints; 10 are needed"),
        (
            row_of("evaluations", verdict(needed=TEN), save_strategy="epoch"),
            WARN,
            "with save_strategy='steps', set save_steps to 10 or less",
        ),
        (row_of("evaluations", verdict(needed=TEN), step=90), WARN, "you will get 1 evaluations"),
        (row_of("evaluations", verdict(needed=TEN, attempt=0), step=90), OK, "10 checkpoints"),
        (row_of("sampling"), UNKNOWN, "set temperature and max_new_tokens"),
        (row_of("sampling", of={"sampling": ValueError("too hot")}), WARN, "(too hot), so it is not told"),
        (row_of("sampling", of={"sampling": Sampling(temperature=0.7)}), OK, "temperature 0.7"),
        (row_of("save_total_limit"), OK, "every checkpoint stays"),
        (row_of("save_total_limit", save_total_limit=0), OK, "every checkpoint stays"),
        (
            row_of("save_total_limit", of={"max_lag": 2, "keep_best": True}, save_total_limit=3),
            OK,
            "more than 1 are unscored",
        ),
        (row_of("save_total_limit", of={"max_lag": None}, save_total_limit=3), WARN, "max_lag=2"),
        (row_of("save_total_limit", of={"keep_best": True}, save_total_limit=1), WARN, "raise it"),
        (row_of("starting policy"), UNKNOWN, "not answered"),
        (row_of("starting policy", verdict(), step=7), OK, "has its baseline"),
        (
            row_of("starting policy", verdict(conditions=NO_BASELINE), of=TRAINED),
            OK,
            "saved for the guard before the first step",
        ),
        (row_of("starting policy", verdict(conditions=NO_BASELINE)), WARN, "it cannot be saved"),
        (
            row_of("starting policy", verdict(conditions=NO_BASELINE), step=7, of=TRAINED),
            WARN,
            "at step 7: the first checkpoint will be the baseline",
        ),
        (
            row_of("starting policy", verdict(conditions=NO_BASELINE, attempt=0, baseline_passes=3)),
            UNKNOWN,
            "3 passes so far",
        ),
    ],
)
def test_a_row_says_how_it_is_and_what_to_do(row: CheckRow, level: CheckLevel, words: str) -> None:
    assert row.level == level and words in row.says


def test_what_is_not_known_of_a_trainer_is_no_warning() -> None:
    rows = trainer_rows(Outset(SimpleNamespace(), SimpleNamespace(global_step=0)))
    assert {row.level for row in rows} <= {OK, UNKNOWN}


def test_the_table_keeps_its_columns_and_breaks_no_word() -> None:
    long = "a/path/without/a/place/to/break/it" * 5
    text = as_text(
        [CheckRow("one", OK, "short"), CheckRow("another", UNKNOWN, f"some words and {long} and more")], 60
    )
    lines = text.splitlines()
    assert lines[0] == "one      ok           short"
    assert lines[1].startswith("another  not checked  some words and")
    assert all(line.startswith(" " * 22) for line in lines[2:]) and long in text
