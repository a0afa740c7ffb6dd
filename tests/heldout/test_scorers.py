"""Scorers: the built-in ones on cases, loading by name, and that a failed scorer is never a score of 0."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from guard_service.heldout import scorers
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.scorers import SplitScorers, exact, load_scorer, numeric, regex
from guard_service.heldout.split import HeldoutItem, HeldoutSplit

SECRET = "xyzzy"


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("12", "12", 1),
        (" 12\n", "12", 1),
        ("12 13", "12", 0),
        ("a  b", "a b", 1),
        ("A", "a", 0),
        ("", "1", 0),
    ],
)
def test_exact(completion: str, answer: str, score: float) -> None:
    assert exact(completion, answer, {}) == score


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        ("so 5 + 7 is 12.", "12", 1),
        ("12, 13", "12", 0),
        ("1,234.50", "1234.5", 1),
        ("#### 7\nnot 8", "7", 1),
        (r"thus \boxed{\,7 } and 8", "7", 1),
        ("50%", "50", 1),
        ("1/4", "0.25", 1),
        ("1/3", "0.3333333", 1),
        ("0.3334", "1/3", 0),
        ("x=-3", "-3", 1),
        ("10-3", "-3", 0),
        ("\u22123", "-3", 1),
        ("$18", "#### 18", 1),
        ("1e3", "1000", 1),
        ("1000000.5", "1000000", 1),
        ("1/0", "0", 0),
        ("none", "1", 0),
        ("9" * 6000, "1", 0),
    ],
)
def test_numeric(completion: str, answer: str, score: float) -> None:
    assert numeric(completion, answer, {}) == score


@pytest.mark.parametrize(
    ("completion", "answer", "score"), [("the 12", r"\b12$", 1), (" 12 ", "^12$", 1), ("112", r"\b12$", 0)]
)
def test_regex(completion: str, answer: str, score: float) -> None:
    assert regex(completion, answer, {}) == score


def test_math_runs_in_a_process_of_its_own() -> None:
    code = (
        "from guard_service.heldout.scorers import load_scorer as l; m = l('math');"
        r"assert m('so \$\\frac{1}{2}\$', '0.5', {}) == 1.0 and m('\$2x\$', '3x', {}) == 0.0"
    ).replace(r"\$", "$")
    subprocess.run([sys.executable, "-c", code], check=True)


def split_of(tmp_path: Path, **item: Any) -> HeldoutSplit:
    path = tmp_path / "split.jsonl"
    path.write_text(json.dumps({"id": "item-1", "prompt": SECRET, "answer": SECRET, **item}))
    return HeldoutSplit.load(path)


def score(scorers: SplitScorers, item: HeldoutItem, completion: str) -> float:
    (scored,) = scorers.score_all([(item, completion, completion)])
    return scored.score


def constant(value: Any) -> Any:
    def score(completion: str, answer: str, meta: Mapping[str, Any]) -> Any:
        return value

    return score


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Score one item by a scorer that returns the given value."""

    def run(value: Any) -> float:
        monkeypatch.setitem(scorers.BUILT_IN, "here", constant(value))  # type: ignore[arg-type]
        split = split_of(tmp_path)
        return score(SplitScorers(split, "here"), split.items[0], "completion")

    return run


@pytest.mark.parametrize("value", [0, 1, 0.25, True, numpy.float32(0.5)])
def test_takes_numbers_from_0_to_1(scored: Any, value: Any) -> None:
    assert scored(value) == float(value) and isinstance(scored(value), float)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1.5, "a number outside"),
        (-0.1, "a number outside"),
        (float("nan"), "NaN"),
        (None, "a NoneType"),
        ("1", "a str"),
        ([1.0], "a list"),
    ],
)
def test_refuses_any_other_score_naming_scorer_and_item(scored: Any, value: Any, told: str) -> None:
    with pytest.raises(EvaluationError, match=f"scorer 'here' returned {told}.* for item 'item-1'"):
        scored(value)


def test_a_scorer_that_raises_is_an_error_and_quotes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = split_of(tmp_path, scorer="tests.heldout.odd_scorers:impatient")
    with pytest.raises(EvaluationError) as caught:
        score(SplitScorers(split, "exact"), split.items[0], f"{SECRET}?")
    assert "scorer 'tests.heldout.odd_scorers:impatient' raised TypeError on item 'item-1'" in str(
        caught.value
    )
    assert SECRET not in str(caught.value)
    assert SECRET in capsys.readouterr().err  # the worker's own log has the rest


@pytest.mark.parametrize(
    ("scorer", "told"),
    [("numeric", "the answer holds no number"), ("regex", "the answer is not a regular expression")],
)
def test_an_answer_that_cannot_be_compared_with_is_told_at_start(
    tmp_path: Path, scorer: str, told: str
) -> None:
    with pytest.raises(SplitError) as caught:
        SplitScorers(split_of(tmp_path, answer=f"({SECRET}"), scorer)
    assert str(caught.value) == f"item 'item-1' cannot be scored by {scorer!r}: {told}"


def test_an_items_own_scorer_wins(tmp_path: Path) -> None:
    split = split_of(tmp_path, answer="^1", scorer="regex")
    assert score(SplitScorers(split, "exact"), split.items[0], "12") == 1.0


def test_loads_module_and_function() -> None:
    assert load_scorer("guard_service.heldout.scorers:exact") is exact


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("exakt", "scorer 'exakt' is unknown: did you mean exact\\? Use one of exact"),
        ("no_such_module:f", "does not import: ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:nothing", "does not import: AttributeError: module 'json' has no attribute 'nothing'"),
        ("tests.heldout.broken_scorer:f", "does not import: RuntimeError: the grader's tables are missing"),
        (
            "operator:truediv",
            r"cannot be called as score\(completion, answer, meta\): too many positional",
        ),
        ("tests.heldout.odd_scorers:of_keywords", r"arguments; it takes \(completion: 'str', \*, reference"),
        ("json:__name__", "is a str, not a function"),
        (":f", "does not import"),
    ],
)
def test_a_scorer_that_cannot_be_loaded_names_the_first_item_that_wants_it(
    tmp_path: Path, name: str, told: str
) -> None:
    with pytest.raises(SplitError, match=f"item 'item-1': .*{told}"):
        SplitScorers(split_of(tmp_path, scorer=name), "exact")


def test_a_scorer_of_the_settings_that_cannot_be_loaded_blames_no_item(tmp_path: Path) -> None:
    with pytest.raises(SplitError) as caught:
        SplitScorers(split_of(tmp_path), "tests.heldout.broken_scorer:f")
    assert str(caught.value).startswith(
        "scorer 'tests.heldout.broken_scorer:f' does not import: RuntimeError"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["keywords", "callable_object", "Graded.score"])
def test_what_can_be_called_with_three_arguments_is_a_scorer(name: str) -> None:
    assert load_scorer(f"tests.heldout.odd_scorers:{name}")("1", "1", {}) == 1.0


def test_math_without_math_verify_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorers, "find_spec", lambda name: None)
    with pytest.raises(SplitError, match=r"rlguard\[math\]"):
        load_scorer("math")


# -- the items' own answers ---------------------------------------------------------------------------------


def items_of(tmp_path: Path, *answers: str, **more: Any) -> HeldoutSplit:
    rows = ({"id": f"i{n}", "prompt": f"p{n}", "answer": a, **more} for n, a in enumerate(answers))
    (tmp_path / "items").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HeldoutSplit.load(tmp_path / "items")


@pytest.mark.parametrize(
    ("scorer", "answers"),
    [
        ("exact", ["a  b", "", "c"]),
        ("numeric", ["so 5 + 7 is 12.", "#### 1/3", "1,234.50 $"]),
        ("regex", ["^[0-9]+$"]),  # a pattern, which does not match itself
        ("tests.heldout.odd_scorers:chatty", ["a"]),  # it says that answers are none of its completions
        ("tests.heldout.odd_scorers:too_strict", ["", "5"]),  # without an answer there is nothing to score
    ],
)
def test_own_answers_that_score_1_or_need_not(tmp_path: Path, scorer: str, answers: list[str]) -> None:
    SplitScorers(items_of(tmp_path, *answers), scorer).check_answers()


def test_own_answers_that_do_not_score_1_are_counted_and_never_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = items_of(tmp_path, "5", *map(str, range(20, 32, 2)), "3")
    with pytest.raises(SplitError) as caught:
        SplitScorers(split, "tests.heldout.odd_scorers:too_strict").check_answers()
    assert str(caught.value).startswith("7 of 8 items do not score 1 with their own answer as completion")
    assert "(ids: i1, i2, i3, i4, i5, …)" in str(caught.value)
    assert "raised ValueError on item 'i7'" in capsys.readouterr().err
    assert "on 1 of them the scorer failed, first: scorer 'tests.heldout.odd_scorers:too_strict' raised " in (
        str(caught.value)
    )
    assert "raised ValueError on item 'i7': fix it, or the item" in str(caught.value)


def test_own_answers_that_are_only_wrong_name_no_failure(tmp_path: Path) -> None:
    with pytest.raises(SplitError) as caught:
        SplitScorers(items_of(tmp_path, "5", "20"), "tests.heldout.odd_scorers:too_strict").check_answers()
    assert "the scorer failed" not in str(caught.value)


def test_an_answer_that_math_verify_cannot_read_is_found(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"1 of 2 items do not score 1 .*ids: i1"):
        SplitScorers(items_of(tmp_path, "$\\frac{1}{2}$", "(no solution"), "math").check_answers()
