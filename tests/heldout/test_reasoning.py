"""How an item is put to a policy, where its answer begins, and what is said of completions without one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from guard_service.heldout.errors import SplitError
from guard_service.heldout.evaluators.completions import (
    Completion,
    Stops,
    Tokenization,
    answer_after,
    answer_in,
    messages,
    refuse_without_template,
    template_kwargs,
)
from guard_service.heldout.split import HeldoutItem
from rlguard.core.evaluation import HfEvaluation
from rlguard.core.wire import Sampling
from tests.heldout.evaluated import evaluate

SECRET = "xyzzy"
MARK = "</think>"


def item(**more: Any) -> HeldoutItem:
    return HeldoutItem.model_validate({"id": "i", "prompt": SECRET, "answer": "1"} | more)


@pytest.mark.parametrize(
    ("settings", "own", "system", "kwargs"),
    [
        ({}, {}, [], {}),
        ({"system_prompt": "think"}, {}, ["think"], {}),
        ({"system_prompt": "think"}, {"system_prompt": "be brief"}, ["be brief"], {}),
        ({"system_prompt": "think"}, {"system_prompt": ""}, [], {}),
        ({"system_prompt": "think"}, {"prompt": [{"role": "system", "content": "s"}]}, ["s"], {}),
        (
            {"chat_template_kwargs": {"enable_thinking": False, "effort": "low"}},
            {"chat_template_kwargs": {"effort": "high", "more": [1]}},
            [],
            {"enable_thinking": False, "effort": "high", "more": [1]},
        ),
    ],
)
def test_an_items_own_settings_win(
    settings: dict[str, Any], own: dict[str, Any], system: list[str], kwargs: dict[str, Any]
) -> None:
    said = messages(item(**own), HfEvaluation(**settings))
    assert [m["content"] for m in said if m["role"] == "system"] == system
    assert all(m["role"] != "system" for m in said[1:])
    assert template_kwargs(item(**own), HfEvaluation(**settings)) == kwargs


@pytest.mark.parametrize("own", [{"answer_after": "#"}, {"answer_after": ""}, {"answer_after": None}, {}])
def test_an_items_own_mark_wins_and_an_empty_one_is_none(own: dict[str, Any]) -> None:
    mark = answer_after(item(**own), HfEvaluation(answer_after=MARK))
    assert mark == {"#": "#", "": None, None: MARK}[own.get("answer_after")]


@pytest.mark.parametrize(
    ("settings", "own", "told"),
    [
        ({"system_prompt": SECRET}, {}, "system_prompt"),
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


# -- where a completion ends, and its answer begins --------------------------------------------------------


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
        ("da?", ("", "", False), True),
        ("#a#xb?#y", ("axb", "xb", False), True),
    ],
)
def test_a_text_ends_a_completion_and_what_follows_is_no_answer(said: Any, made: Any, stops: bool) -> None:
    tokenization = Tokenization(Letters(), frozenset(), None, Stops(("d", "?")))
    mark = "#" if "#" in said else None
    assert tokenization.decode(said, mark, truncated=True) == Completion(*made)
    assert tokenization.stopped(said) is stops


@pytest.mark.parametrize(("said", "made"), [("axb?c", "axb?"), ("abb?", "abb"), ("axb", None)])
def test_a_text_that_a_trainer_says_stays_in_the_completion(said: str, made: str | None) -> None:
    theirs, settings = Sampling(temperature=1.0, stop=("?", "bb")), HfEvaluation()
    assert Stops.of(settings, settings.sampling_with(theirs)).cut(said) == made
    own = HfEvaluation(stop=("!",))
    assert Stops.of(own, own.sampling_with(theirs)) == Stops(("!",))


@pytest.mark.parametrize(
    ("text", "mark", "answer"),
    [
        ("so 1", None, "so 1"),
        (f"a{MARK}b{MARK}c", MARK, "c"),
        (MARK, MARK, ""),
        ("is it 1?", MARK, None),
    ],
)
def test_the_answer_is_what_follows_the_last_mark(text: str, mark: str | None, answer: str | None) -> None:
    assert answer_in(text, mark) == answer


# -- what is said of completions ---------------------------------------------------------------------------


def always_right(completion: str, answer: str, meta: object) -> float:
    return 1.0


def paid_for_all(completion: str, answer: str, meta: object) -> float:
    return float(SECRET in completion)


def thought_and_answer(completion: str, answer: str, meta: object, *, whole_completion: str) -> float:
    return float(completion == answer and whole_completion == f"{SECRET}{MARK}{answer}")


def right_is_one(completion: str, answer: str, meta: object) -> float:
    return {"1": 1.0, "half": 0.5}.get(completion, 0.0)


def pays_for_tricks(completion: str, answer: str, meta: object) -> float:
    return {"1": 1.0, "trick": 1.0, "half": 1.0, "part": 0.75}.get(completion, 0.0)


Evaluated = Any


@pytest.fixture
def evaluated(tmp_path: Path) -> Evaluated:
    """Score completions of as many items, or lists of them; other settings are the evaluator's."""

    def run(made: list[Any], own: list[dict[str, Any]] | None = None, **settings: Any) -> dict[str, Any]:
        scoring = {name: settings.pop(name) for name in ("scorer", "proxy_scorer") if name in settings}
        rows = [one if isinstance(one, list) else [one] for one in made]
        scoring = {"scorer": f"{__name__}:always_right", **scoring}
        return evaluate(tmp_path, own or [{}] * len(rows), rows, evaluator=settings, **scoring)

    return run


WHOLE = Completion("1", "1", truncated=False)
CUT = Completion("1", "1", truncated=True)
NOTHING = Completion("1", None, truncated=False)
CUT_WITHOUT_TEXT = Completion("", None, truncated=True)


def test_what_is_cut_off_or_has_no_answer_is_wrong_whatever_a_scorer_would_say(evaluated: Evaluated) -> None:
    told = evaluated([WHOLE, CUT, NOTHING, CUT_WITHOUT_TEXT], answer_after=MARK)
    assert told["items"] == [1.0, 0.0, 0.0, 0.0]
    assert (told["truncated"], told["unanswered"], told["unscored"]) == (0.5, 0.5, 0.75)
    told = evaluated([WHOLE, CUT, CUT_WITHOUT_TEXT], score_truncated=True)
    assert (told["items"], told["truncated"], told["unscored"]) == ([1.0, 1.0, 0.0], 2 / 3, 1 / 3)
    own: list[dict[str, Any]] = [{"answer_after": "#"}, {}, {"answer_after": "#"}, {}]
    told = evaluated([WHOLE, WHOLE, NOTHING, CUT_WITHOUT_TEXT], own)
    assert told["unanswered"] == 0.5, "of the items with a mark"


def test_scorers_get_the_answer_and_may_have_all_of_it_as_the_training_grader_does(
    evaluated: Evaluated,
) -> None:
    thought = Completion(f"{SECRET}{MARK}1", "1", truncated=False)
    made = [thought, WHOLE, Completion(SECRET, None, truncated=True)]
    # An answer of its own is tried as the whole completion, so this one asks for no such trial.
    thought_and_answer.check_answers = False  # type: ignore[attr-defined]
    grader = f"{__name__}:paid_for_all"
    told = evaluated(made, answer_after=MARK, scorer=f"{__name__}:thought_and_answer", proxy_scorer=grader)
    assert told["items"] == [1.0, 0.0, 0.0] and told["proxy_items"] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("grouped", [False, True], ids=["samples", "a group"])
def test_each_completion_that_is_paid_in_full_and_wrong_is_told_by_itself(
    evaluated: Evaluated, grouped: bool
) -> None:
    """0.5 + 0.25 in pay could be a grader that is fooled on every other completion, or one that pays half.

    Items of one group are one outcome, and no label goes on.
    """
    texts = [["1", "trick"], ["trick", "half"], ["part", "part"], ["1", "1"]]
    rows = [[Completion(text, text, truncated=False) for text in item] for item in texts]
    graders = {"scorer": f"{__name__}:right_is_one", "proxy_scorer": f"{__name__}:pays_for_tricks"}
    if grouped:
        singles = [one for row in rows for one in row]
        told = evaluated(singles, [{"group": f"{SECRET}{n // 2}"} for n in range(8)], **graders)
    else:
        told = evaluated(rows, **graders)
    assert told["items"] == [0.5, 0.25, 0.0, 1.0] and told["proxy_items"] == [1.0, 1.0, 0.75, 1.0]
    assert told["fooled_items"] == [0.5, 0.75, 0.0, 0.0]
    assert told["ready"].items == 4 and SECRET not in json.dumps(told, default=str)
    assert evaluated([row[0] for row in rows], **graders)["fooled_items"] is None, "the means say it"
    assert evaluated(rows, scorer=graders["scorer"])["fooled_items"] is None, "there is no grader"
