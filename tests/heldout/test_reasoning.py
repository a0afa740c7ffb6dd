"""Policies that think first: how they are asked, where their answer begins, and what has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from guard_service.heldout.prompts import (
    Stops,
    answer_after,
    answer_in,
    messages,
    refuse_without_template,
    template_kwargs,
)

from guard_core.evaluation import HfEvaluation
from guard_core.wire import Sampling
from guard_service.heldout.errors import SplitError
from guard_service.heldout.evaluators.completions import Completion
from guard_service.heldout.evaluators.tokenization import Tokenization
from guard_service.heldout.scorers import load_scorer
from guard_service.heldout.split import HeldoutItem, HeldoutSplit
from tests.heldout.evaluated import evaluate

SECRET = "xyzzy"
MARK = "</think>"


def item(**more: Any) -> HeldoutItem:
    return HeldoutItem.model_validate({"id": "i", "prompt": SECRET, "answer": "1"} | more)


# -- how a policy is asked -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "own", "system", "kwargs"),
    [
        ({}, {}, [], None),
        ({"system_prompt": "think"}, {}, ["think"], None),
        ({"system_prompt": "think"}, {"system_prompt": "be brief"}, ["be brief"], None),
        ({"system_prompt": "think"}, {"system_prompt": ""}, [], None),
        ({"system_prompt": "think"}, {"prompt": [{"role": "system", "content": "s"}]}, ["s"], None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {}, [], {"enable_thinking": False}),
        ({"chat_template_kwargs": {}}, {}, [], None),
        (
            {"chat_template_kwargs": {"enable_thinking": False, "effort": "low"}},
            {"chat_template_kwargs": {"effort": "high", "more": [1]}},
            [],
            {"enable_thinking": False, "effort": "high", "more": [1]},
        ),
    ],
)
def test_an_items_own_settings_win(
    settings: dict[str, Any], own: dict[str, Any], system: list[str], kwargs: dict[str, Any] | None
) -> None:
    said = messages(item(**own), HfEvaluation(**settings))
    assert [m["content"] for m in said if m["role"] == "system"] == system
    assert all(m["role"] != "system" for m in said[1:])
    assert template_kwargs(item(**own), HfEvaluation(**settings)) == (kwargs or {})


@pytest.mark.parametrize(
    ("settings", "own", "told"),
    [
        ({"system_prompt": SECRET}, {}, "system_prompt"),
        ({}, {"system_prompt": SECRET}, "system_prompt"),
        ({"chat_template_kwargs": {"a": SECRET}}, {}, "chat_template_kwargs"),
        ({}, {"chat_template_kwargs": {"a": SECRET}}, "chat_template_kwargs"),
    ],
)
def test_what_only_a_chat_template_reads_is_refused_without_one(
    settings: dict[str, Any], own: dict[str, Any], told: str
) -> None:
    with pytest.raises(SplitError, match=f"item 'i' is a text .* {told} needs a chat") as refused:
        refuse_without_template([item(**own)], HfEvaluation(**settings), chat=False)
    assert SECRET not in str(refused.value)
    refuse_without_template([item(**own)], HfEvaluation(**settings), chat=True)
    refuse_without_template([item(system_prompt="")], HfEvaluation(system_prompt="think"), chat=False)


# -- where the answer begins ---------------------------------------------------------------------------------


class Letters:
    """A tokenizer whose tokens are letters; `#` is a special one."""

    added_tokens_decoder: ClassVar = {0: SimpleNamespace(content="#", special=True)}

    def decode(self, tokens: str, *, skip_special_tokens: bool) -> str:
        return tokens.replace("#", "") if skip_special_tokens else tokens


@pytest.mark.parametrize(
    ("said", "made", "stops"),
    [
        ("ac", ("ac", "ac", True), False),
        ("axb?cd", ("axb", "axb", False), True),
        ("a?d", ("a", "a", False), True),
        ("da?", ("", "", False), True),
        ("#a#xb?#y", ("axb", "xb", False), True),
    ],
)
def test_a_text_ends_a_completion_and_what_follows_is_no_answer(said: Any, made: Any, stops: bool) -> None:
    tokenization = Tokenization(Letters(), frozenset(), None, Stops(("d", "?")))
    mark = "#" if "#" in said else None
    assert tokenization.decode(said, mark, truncated=True) == Completion(*made)
    assert tokenization.stopped(said) is stops


@pytest.mark.parametrize(("said", "made"), [("axb?c", "axb?"), ("abb?", "abb"), ("?bb", "?"), ("axb", None)])
def test_a_text_that_a_trainer_says_stays_in_the_completion(said: str, made: str | None) -> None:
    assert Stops(("?", "bb"), kept=True).cut(said) == made
    theirs, settings = Sampling(temperature=1.0, stop=("?", "bb")), HfEvaluation()
    assert Stops.of(settings, settings.sampling_with(theirs)) == Stops(("?", "bb"), kept=True)
    own = HfEvaluation(stop=("!",))
    assert Stops.of(own, own.sampling_with(theirs)) == Stops(("!",))


@pytest.mark.parametrize(
    ("text", "mark", "answer"),
    [
        ("so 1", None, "so 1"),
        (f"is it 2? {MARK} 1", MARK, " 1"),
        (f"a{MARK}b{MARK}c", MARK, "c"),
        (MARK, MARK, ""),
        ("is it 1?", MARK, None),
        ("", MARK, None),
        ("", None, ""),
    ],
)
def test_the_answer_is_what_follows_the_last_mark(text: str, mark: str | None, answer: str | None) -> None:
    assert answer_in(text, mark) == answer


@pytest.mark.parametrize("own", [{"answer_after": "#"}, {"answer_after": ""}, {"answer_after": None}, {}])
def test_an_items_own_mark_wins_and_an_empty_one_is_none(own: dict[str, Any]) -> None:
    mark = answer_after(item(**own), HfEvaluation(answer_after=MARK))
    assert mark == {"#": "#", "": None, None: MARK}[own.get("answer_after")]


# -- what has no answer is wrong -----------------------------------------------------------------------------


def always_right(completion: str, answer: str, meta: object) -> float:
    return 1.0


def paid_for_all(completion: str, answer: str, meta: object) -> float:
    return float(SECRET in completion)


def thought_and_answer(completion: str, answer: str, meta: object, *, whole_completion: str) -> float:
    return float(completion == answer and whole_completion == f"{SECRET}{MARK}{answer}")


def any_name(completion: str, answer: str, meta: object, **more: str) -> float:
    return float(not more)


Evaluated = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluated(tmp_path: Path) -> Evaluated:
    """Score completions of as many items, or lists of them; other settings are the evaluator's."""

    def run(made: list[Any], own: list[dict[str, Any]] | None = None, **settings: Any) -> Any:
        scoring = {name: settings.pop(name) for name in ("scorer", "proxy_scorer") if name in settings}
        rows = [one if isinstance(one, list) else [one] for one in made]
        scoring = {"scorer": f"{__name__}:always_right", **scoring}
        return evaluate(tmp_path, own or [{}] * len(rows), rows, evaluator=settings, **scoring)

    return run


WHOLE = Completion("1", "1", truncated=False)
CUT = Completion("1", "1", truncated=True)
NOTHING = Completion("1", None, truncated=False)


def test_what_is_cut_off_or_has_no_answer_is_wrong_whatever_a_scorer_would_say(evaluated: Evaluated) -> None:
    cut_without_text = Completion("", None, truncated=True)
    told = evaluated([WHOLE, CUT, NOTHING, cut_without_text], answer_after=MARK)
    assert told["items"] == [1.0, 0.0, 0.0, 0.0]
    assert (told["truncated"], told["unanswered"], told["unscored"]) == (0.5, 0.5, 0.75)


def test_what_there_is_of_one_that_was_cut_off_can_be_scored(evaluated: Evaluated) -> None:
    told = evaluated([WHOLE, CUT, Completion("", None, truncated=True)], score_truncated=True)
    assert told["items"] == [1.0, 1.0, 0.0]
    assert (told["truncated"], told["unscored"]) == (2 / 3, 1 / 3)


def test_the_share_without_an_answer_is_of_the_items_with_a_mark(evaluated: Evaluated) -> None:
    own: list[dict[str, Any]] = [{"answer_after": "#"}, {}, {"answer_after": "#"}, {}]
    cut_without_text = Completion("", None, truncated=True)
    assert evaluated([WHOLE, WHOLE, NOTHING, cut_without_text], own)["unanswered"] == 0.5
    own = [{"answer_after": ""}, {}, {}, {}]
    assert evaluated([WHOLE, WHOLE, WHOLE, NOTHING], own, answer_after=MARK)["unanswered"] == 1 / 3


def test_scorers_get_the_answer_and_may_have_all_of_it(evaluated: Evaluated) -> None:
    made = [
        Completion(f"{SECRET}{MARK}1", "1", truncated=False),
        Completion(MARK + "1", "1", truncated=False),
    ]
    # An answer of its own is tried as the whole completion, so this one asks for no such trial.
    thought_and_answer.check_answers = False  # type: ignore[attr-defined]
    names = ("exact", f"{__name__}:thought_and_answer", f"{__name__}:any_name")
    told = [evaluated(made, answer_after=MARK, scorer=name)["items"] for name in names]
    assert told == [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]


def right_is_one(completion: str, answer: str, meta: object) -> float:
    return {"1": 1.0, "half": 0.5}.get(completion, 0.0)


def pays_for_tricks(completion: str, answer: str, meta: object) -> float:
    return {"1": 1.0, "trick": 1.0, "half": 1.0, "part": 0.75}.get(completion, 0.0)


@pytest.mark.parametrize("grouped", [False, True], ids=["samples", "a group"])
def test_each_completion_that_is_paid_in_full_and_wrong_is_told_by_itself(
    evaluated: Evaluated, grouped: bool
) -> None:
    """0.5 + 0.25 in pay could be a grader that is fooled on every other completion, or one that pays half."""
    texts = [["1", "trick"], ["trick", "half"], ["part", "part"], ["1", "1"]]
    rows = [[Completion(text, text, truncated=False) for text in item] for item in texts]
    graders = {"scorer": f"{__name__}:right_is_one", "proxy_scorer": f"{__name__}:pays_for_tricks"}
    if grouped:
        singles = [one for row in rows for one in row]
        told = evaluated(singles, [{"group": f"g{n // 2}"} for n in range(8)], **graders)
    else:
        told = evaluated(rows, **graders)
    assert told["items"] == [0.5, 0.25, 0.0, 1.0] and told["proxy_items"] == [1.0, 1.0, 0.75, 1.0]
    assert told["fooled_items"] == [0.5, 0.75, 0.0, 0.0]
    assert evaluated([row[0] for row in rows], **graders)["fooled_items"] is None, "the means say it"
    assert evaluated(rows, scorer=graders["scorer"])["fooled_items"] is None, "there is no grader"


def test_the_training_grader_gets_all_of_it_as_in_training(evaluated: Evaluated) -> None:
    thought = Completion(f"{SECRET}{MARK}1", "1", truncated=True)
    only = Completion(SECRET, None, truncated=True)
    told = evaluated([thought, only, WHOLE], answer_after=MARK, proxy_scorer=f"{__name__}:paid_for_all")
    assert told["proxy_items"] == [1.0, 1.0, 0.0] and told["items"] == [0.0, 0.0, 1.0]


def wants_more(completion: str, answer: str, meta: object, *, thoughts: str) -> float:
    return 1.0


def test_a_scorer_that_wants_what_nobody_gives_is_refused() -> None:
    load_scorer(f"{__name__}:thought_and_answer")
    with pytest.raises(SplitError, match="missing a required argument: 'thoughts'"):
        load_scorer(f"{__name__}:wants_more")


# -- a split that says it for each item ----------------------------------------------------------------------


def write(path: Path, **row: Any) -> Path:
    path.write_text(json.dumps({"id": "a", "prompt": "1+2=", "answer": "3"} | row) + "\n")
    return path


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {SECRET + " x": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [SECRET]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "\ud800"}}, ""),
        ({"answer_after": 1}, "answer_after"),
        ({"answer_after": SECRET * 99}, "answer_after"),
        ({"system_prompt": [SECRET]}, "system_prompt"),
        ({"system_prompt": SECRET, "prompt": [{"role": "system", "content": SECRET}]}, "keep one"),
    ],
)
def test_wrong_fields_of_an_item_are_refused_and_not_quoted(
    row: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(SplitError, match="line 1: ") as refused:
        HeldoutSplit.load(write(tmp_path / "s", **row))
    assert told in str(refused.value) and SECRET not in str(refused.value)
