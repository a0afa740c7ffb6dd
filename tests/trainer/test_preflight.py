"""The trainer's table before the first step, row by row: no guard, no training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from guard_client.client import VerdictView
from guard_core.preflight import CheckLevel, Row, as_text
from guard_core.wire import Code, Sampling
from trainer_image.preflight import trainer_rows

OK, WARN, UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.UNKNOWN


def verdict(**more: Any) -> VerdictView:
    return VerdictView.model_validate({"fire": False, "stop": False, **more})


def row_of(
    name: str,
    verdict: VerdictView | None = None,
    sampling: Sampling | ValueError | None = None,
    max_lag: int | None = None,
    step: int = 0,
    **args: Any,
) -> Row:
    """One row of a trainer with these arguments, none of which is needed."""
    given = SimpleNamespace(output_dir="/c/out", **args)
    rows = trainer_rows(given, SimpleNamespace(global_step=step), None, verdict, sampling, max_lag)
    return next(row for row in rows if row.name == name)


@pytest.mark.parametrize(
    ("row", "level", "words"),
    [
        (row_of("checkpoints folder"), UNKNOWN, "not answered"),
        (row_of("checkpoints folder", verdict()), UNKNOWN, "does not say"),
        (row_of("checkpoints folder", verdict(checkpoint_root="/c")), OK, "/c/out is below the guard's /c"),
        (row_of("checkpoint layout", verdict(adapters="applied")), OK, "adapters of the guard's base model"),
        (row_of("evaluations"), UNKNOWN, "not answered"),
        (row_of("evaluations", verdict(), save_strategy="no"), UNKNOWN, "is not known"),
        (row_of("sampling"), UNKNOWN, "set temperature and max_new_tokens"),
        (row_of("sampling", sampling=ValueError("too hot")), WARN, "(too hot), so it is not told"),
        (row_of("sampling", sampling=Sampling(temperature=0.7)), OK, "temperature 0.7"),
        (row_of("save_total_limit"), OK, "every checkpoint stays"),
        (row_of("save_total_limit", max_lag=3, save_total_limit=3), OK, "training waits"),
        (row_of("save_total_limit", max_lag=4, save_total_limit=3), UNKNOWN, "max_lag=3"),
        (row_of("starting policy"), UNKNOWN, "not answered"),
        (row_of("starting policy", verdict(), step=7), OK, "has its baseline"),
    ],
)
def test_a_row_says_how_it_is_and_what_to_do(row: Row, level: CheckLevel, words: str) -> None:
    assert row.level == level and words in row.says


def test_a_baseline_that_was_missed_is_a_warning() -> None:
    wants = verdict(conditions=[{"code": Code.NO_BASELINE.value}])
    assert row_of("starting policy", wants).level == OK
    row = row_of("starting policy", wants, step=7)
    assert row.level == WARN and "at step 7: the first checkpoint will be the baseline" in row.says


def test_the_table_keeps_its_columns_and_breaks_no_word() -> None:
    long = "a/path/without/a/place/to/break/it" * 5
    text = as_text([Row("one", OK, "short"), Row("another", UNKNOWN, f"some words and {long} and more")], 60)
    lines = text.splitlines()
    assert lines[0] == "one      ok           short"
    assert lines[1].startswith("another  not checked  some words and")
    assert all(line.startswith(" " * 22) for line in lines[2:]) and long in text
