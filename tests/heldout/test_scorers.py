"""Scorers: the built-in ones on cases, loading by name, and that a failed scorer is never a score of 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.scorers import SplitScorers
from guard_service.heldout.split import HeldoutSplit

SECRET = "xyzzy"
ODD = "tests.heldout.odd_scorers"


def split_of(tmp_path: Path, *answers: str, **more: Any) -> HeldoutSplit:
    rows = ({"id": f"i{n}", "prompt": f"{SECRET} {n}", "answer": a, **more} for n, a in enumerate(answers))
    (tmp_path / "split").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HeldoutSplit.load(tmp_path / "split")


def score(tmp_path: Path, default: str, completion: str, answer: str = SECRET, **item: Any) -> float:
    """By the scorer of the settings, or the item's own."""
    split = split_of(tmp_path, answer, **item)
    (scored,) = SplitScorers(split, default).score_all([(split.items[0], completion, completion)])
    return scored.score


@pytest.mark.parametrize(
    ("scorer", "completion", "answer", "right"),
    [
        ("exact", " a  b\n", "a b", 1),
        ("exact", "12 13", "12", 0),
        ("exact", "A", "a", 0),
        ("regex", "the 12", r"\b12$", 1),
        ("regex", " 12 ", "^12$", 1),
        ("regex", "112", r"\b12$", 0),
        ("numeric", "so 5 + 7 is 12.", "12", 1),
        ("numeric", "12, 13", "12", 0),
        ("numeric", "1,234.50", "1234.5", 1),
        ("numeric", "#### 7\nnot 8", "7", 1),
        ("numeric", r"thus \boxed{\,7 } and 8", "7", 1),
        ("numeric", "50%", "50", 1),
        ("numeric", "1/3", "0.3333333", 1),
        ("numeric", "0.3334", "1/3", 0),
        ("numeric", "10-3", "-3", 0),
        ("numeric", "x=\u22123", "-3", 1),
        ("numeric", "$18", "#### 18", 1),
        ("numeric", "1e3", "1000", 1),
        ("numeric", "1/0", "0", 0),
        ("numeric", "none", "1", 0),
        ("numeric", "9" * 6000, "1", 0),
        ("math", r"so $\frac{1}{2}$", "0.5", 1),
        ("math", "$2x$", "3x", 0),
        (f"{ODD}:callable_object", "1", "1", 1),
        (f"{ODD}:Graded.score", "1", "1", 1),
    ],
)
def test_what_is_right(tmp_path: Path, scorer: str, completion: str, answer: str, right: float) -> None:
    assert score(tmp_path, scorer, completion, answer) == right
    assert score(tmp_path, f"{ODD}:always_right", completion, answer, scorer=scorer) == right


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0.25", 0.25),
        ("True", 1.0),
        ("numpy.float32(0.5)", 0.5),
        ("1.5", "a number outside"),
        ("-0.1", "a number outside"),
        ("float('nan')", "NaN"),
        ("None", "a NoneType"),
        ("'1'", "a str"),
        ("[1.0]", "a list"),
    ],
)
def test_a_score_is_a_number_from_0_to_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, told: float | str
) -> None:
    name = f"own_{abs(hash(value))}"
    (tmp_path / f"{name}.py").write_text(f"import numpy\ndef f(completion, answer, meta): return {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if isinstance(told, float):
        assert score(tmp_path, f"{name}:f", "completion") == told
        return
    with pytest.raises(EvaluationError, match=f"scorer '{name}:f' returned {told}.* for item 'i0'"):
        score(tmp_path, f"{name}:f", "completion")


def test_a_scorer_that_raises_is_an_error_and_quotes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EvaluationError) as caught:
        score(tmp_path, f"{ODD}:impatient", f"{SECRET}?")
    assert f"scorer '{ODD}:impatient' raised TypeError on item 'i0'" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET in capsys.readouterr().err  # the worker's own log has the rest


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("exakt", "'exakt' is unknown: did you mean exact\\? Use one of exact"),
        ("no_such_module:f", "does not import: ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:nothing", "does not import: AttributeError: module 'json' has no attribute 'nothing'"),
        ("tests.heldout.broken_scorer:f", "does not import: RuntimeError: the grader's tables are missing"),
        ("operator:truediv", r"cannot be called as score\(completion, answer, meta\): too many positional"),
        (f"{ODD}:of_keywords", r"arguments; it takes \(completion: 'str', \*, reference"),
        (f"{ODD}:wants_more", "missing a required argument: 'thoughts'"),
        ("json:__name__", "is a str, not a function"),
        (":f", "does not import"),
    ],
)
def test_a_scorer_that_cannot_be_loaded_is_refused(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(SplitError, match=f"^scorer .*{told}") as settings:
        SplitScorers(split_of(tmp_path, "1"), name)
    assert "\n" not in str(settings.value)
    with pytest.raises(SplitError, match=f"^item 'i0': .*{told}"):
        SplitScorers(split_of(tmp_path, "1", scorer=name), "exact")


# -- the items' own answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "told"),
    [("numeric", "the answer holds no number"), ("regex", "the answer is not a regular expression")],
)
def test_an_answer_that_cannot_be_compared_with_is_told_at_start(
    tmp_path: Path, scorer: str, told: str
) -> None:
    with pytest.raises(SplitError) as caught:
        SplitScorers(split_of(tmp_path, f"({SECRET}"), scorer)
    assert str(caught.value) == f"item 'i0' cannot be scored by {scorer!r}: {told}"


@pytest.mark.parametrize(
    ("scorer", "answers"),
    [
        ("exact", ["a  b", "", "c"]),
        ("regex", ["^[0-9]+$"]),  # a pattern, which does not match itself
        (f"{ODD}:chatty", ["a"]),  # it says that answers are none of its completions
        (f"{ODD}:too_strict", ["", "5"]),  # without an answer there is nothing to score
    ],
)
def test_own_answers_that_score_1_or_need_not(tmp_path: Path, scorer: str, answers: list[str]) -> None:
    SplitScorers(split_of(tmp_path, *answers), scorer).check_answers()


def test_own_answers_that_do_not_score_1_are_counted_and_never_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = split_of(tmp_path, "5", *map(str, range(20, 32, 2)), "3")
    with pytest.raises(SplitError) as caught:
        SplitScorers(split, f"{ODD}:too_strict").check_answers()
    assert str(caught.value).startswith("7 of 8 items do not score 1 with their own answer as completion")
    assert "(ids: i1, i2, i3, i4, i5, …)" in str(caught.value)
    assert "raised ValueError on item 'i7'" in capsys.readouterr().err
    failed = (
        f"the scorer failed on 1 of them, first: scorer '{ODD}:too_strict' raised ValueError on item 'i7'"
    )
    assert failed in str(caught.value)
