"""Policies that think first: how they are asked, where their answer begins, and what has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from guard_core.evaluation import CheckpointEvaluation
from guard_core.wire import EvaluationSampling, Sampling, SamplingSource
from guard_service.heldout import child
from guard_service.heldout.asking import Stops, answer_in
from guard_service.heldout.config import HeldoutSettings, OpenAIEvaluatorSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators import Completion, Completions
from guard_service.heldout.evaluators.codec import Codec
from guard_service.heldout.evaluators.openai import OpenAIEvaluator
from guard_service.heldout.making import make_split
from guard_service.heldout.scorers import load_scorer
from guard_service.heldout.split import HeldoutItem, HeldoutSplit
from guard_service.heldout.worker import EvaluationRequest
from tests.heldout.faulty_endpoint import Endpoint, Reply, endpoint

SECRET = "xyzzy"
MARK = "</think>"
REQUEST = EvaluationRequest(attempt=0, step=1, path=Path("/checkpoints/checkpoint-1"))
SAMPLING = EvaluationSampling(temperature=0.0, max_new_tokens=8, samples=1, source=SamplingSource.SETTINGS)


def item(**more: Any) -> HeldoutItem:
    return HeldoutItem.model_validate({"id": "i", "prompt": SECRET, "answer": "1"} | more)


def says(content: Any, end: Any = "stop", **message: Any) -> Reply:
    choice = {"message": {"content": content} | message, "text": content, "finish_reason": end}
    return Reply(body={"choices": [choice]})


def evaluator(url: str = "http://127.0.0.1:1/v1", **settings: Any) -> OpenAIEvaluator:
    config = {"base_url": url, "model": "m", "retries": 0, **settings}
    return OpenAIEvaluator(OpenAIEvaluatorSettings.model_validate(config))


def ask(reply: Reply, one: HeldoutItem | None = None, **settings: Any) -> tuple[Completion, Endpoint]:
    with endpoint(lambda body, n: reply) as server:
        done = evaluator(server.url, **settings).complete([one or item()], REQUEST)
    return done.made[0][0], server


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
def test_settings_reach_the_server_and_an_items_own_win(
    settings: dict[str, Any], own: dict[str, Any], system: list[str], kwargs: dict[str, Any] | None
) -> None:
    _, server = ask(says("1"), item(**own), **settings)
    ((_, _, body),) = server.asked
    assert [m["content"] for m in body["messages"] if m["role"] == "system"] == system
    assert all(m["role"] != "system" for m in body["messages"][1:])
    assert body.get("chat_template_kwargs") == kwargs


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
        evaluator(chat=False, **settings).check([item(id="j", system_prompt=""), item(**own)][-1:])
    assert SECRET not in str(refused.value)
    evaluator(**settings).check([item(**own)])
    evaluator(chat=False, system_prompt="think").check([item(system_prompt="")])
    evaluator(chat=False, answer_after=MARK).check([item(answer_after="#")])


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
    codec = Codec(Letters(), frozenset(), None, Stops(("d", "?")))
    mark = "#" if "#" in said else None
    assert codec.decode(said, mark, truncated=True) == Completion(*made)
    assert codec.stops(said) is stops


@pytest.mark.parametrize(("said", "made"), [("axb?c", "axb?"), ("abb?", "abb"), ("?bb", "?"), ("axb", None)])
def test_a_text_that_a_trainer_says_stays_in_the_completion(said: str, made: str | None) -> None:
    assert Stops(("?", "bb"), kept=True).cut(said) == made
    theirs, settings = Sampling(temperature=1.0, stop=("?", "bb")), CheckpointEvaluation()
    assert Stops.of(settings, settings.sampling_with(theirs)) == Stops(("?", "bb"), kept=True)
    own = CheckpointEvaluation(stop=("!",))
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
    made, _ = ask(says(text), answer_after=mark)
    assert made == Completion(text, answer, truncated=False)


@pytest.mark.parametrize("own", [{"answer_after": "#"}, {"answer_after": ""}, {"answer_after": None}, {}])
def test_an_items_own_mark_wins_and_an_empty_one_is_none(own: dict[str, Any]) -> None:
    made, _ = ask(says(f"a{MARK}b#c"), item(**own), answer_after=MARK)
    assert made.answer == {"#": "c", "": f"a{MARK}b#c", None: "b#c"}[own.get("answer_after")]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize(
    ("content", "end", "expected"),
    [
        ("1", "stop", Completion(f"{SECRET}{MARK}1", "1", truncated=False)),
        (f"a{MARK}b", "stop", Completion(f"a{MARK}b", "b", truncated=False)),
        ("", "stop", Completion(f"{SECRET}{MARK}", None, truncated=False)),
        (None, "stop", Completion(SECRET, None, truncated=False)),
        (None, "length", Completion(SECRET, None, truncated=True)),
    ],
)
def test_a_server_may_take_the_thought_out_itself(
    name: str, content: Any, end: str, expected: Completion
) -> None:
    assert ask(says(content, end, **{name: SECRET}), answer_after=MARK)[0] == expected


@pytest.mark.parametrize(
    ("reply", "settings"),
    [
        (says(None), {"answer_after": MARK}),
        (says(None, "tool_calls", reasoning=SECRET), {"answer_after": MARK}),
        (says(None, None, reasoning=SECRET), {"answer_after": MARK}),
        (says(None, reasoning=[SECRET]), {"answer_after": MARK}),
        (says(None, reasoning=SECRET), {}),
    ],
)
def test_no_text_for_another_reason_is_an_error_still(reply: Reply, settings: dict[str, Any]) -> None:
    with pytest.raises(EvaluationError, match="responded to item 'i' without a text") as failed:
        ask(reply, **settings)
    assert SECRET not in str(failed.value)


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
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """Run the evaluation process's own code on these completions of as many items, or lists of them."""

    def run(
        made: list[Completion] | list[list[Completion]],
        own: list[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> Any:
        rows = [
            {"id": f"i{n}", "prompt": f"{n}+1=", "answer": "1"} | (own[n] if own else {})
            for n in range(len(made))
        ]
        (tmp_path / "s").write_text("".join(json.dumps(row) + "\n" for row in rows))
        scoring = {name: settings.pop(name) for name in ("scorer", "proxy_scorer") if name in settings}
        config = {"split": tmp_path / "s", "scorer": f"{__name__}:always_right", **scoring}
        config["evaluator"] = {
            "kind": "openai",
            "base_url": "http://127.0.0.1:1/v1",
            "model": "m",
            **settings,
        }
        evaluation = child.HeldoutEvaluation(HeldoutSettings.model_validate(config), tmp_path, first=True)

        class Made:
            def complete(self, items: Any, request: EvaluationRequest) -> Completions:
                return Completions([one if isinstance(one, list) else [one] for one in made], SAMPLING)

        monkeypatch.setattr(evaluation, "_evaluator", Made())
        return evaluation.run(REQUEST)

    return run


WHOLE = Completion("1", "1", truncated=False)
CUT = Completion("1", "1", truncated=True)
NOTHING = Completion("1", None, truncated=False)
UNTOLD = Completion("1", "1", truncated=None)


def test_what_is_cut_off_or_has_no_answer_is_wrong_whatever_a_scorer_would_say(evaluated: Evaluated) -> None:
    cut_without_text = Completion("", None, truncated=True)
    told = evaluated([WHOLE, CUT, NOTHING, cut_without_text], answer_after=MARK)
    assert told["items"] == [1.0, 0.0, 0.0, 0.0]
    assert (told["truncated"], told["unanswered"], told["unscored"]) == (0.5, 0.5, 0.75)


def test_what_there_is_of_one_that_was_cut_off_can_be_scored(evaluated: Evaluated) -> None:
    told = evaluated([WHOLE, CUT, Completion("", None, truncated=True)], score_truncated=True)
    assert told["items"] == [1.0, 1.0, 0.0]
    assert (told["truncated"], told["unscored"]) == (2 / 3, 1 / 3)


def test_an_unknown_end_is_no_end_at_the_limit(evaluated: Evaluated) -> None:
    told = evaluated([UNTOLD, CUT])
    assert told["items"] == [1.0, 0.0] and told["truncated"] is told["unanswered"] is None
    assert told["unscored"] == 0.5


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


def test_what_an_item_asks_with_its_own_system_message_is_its_prompt(tmp_path: Path) -> None:
    rows = [
        {"id": f"i{n}", "prompt": "1+2=", "answer": "3", "system_prompt": system}
        for n, system in enumerate(("add", "subtract", ""))
    ]
    (tmp_path / "s").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(HeldoutSplit.load(tmp_path / "s")) == 3
    assert rows[0]["prompt"] in repr(HeldoutSplit.load(tmp_path / "s").items[0].conversation)
    (tmp_path / "s").write_text("".join(json.dumps(row | {"system_prompt": None}) + "\n" for row in rows))
    with pytest.raises(SplitError, match="the same prompt"):
        HeldoutSplit.load(tmp_path / "s")


def test_a_split_that_is_made_keeps_what_a_row_says(tmp_path: Path) -> None:
    own = {"system_prompt": "", "answer_after": "#", "chat_template_kwargs": {"enable_thinking": False}}
    source = write(tmp_path / "all", **own, level=2)
    write(tmp_path / "more", **own)
    with source.open("a") as file:
        file.writelines(json.dumps({"prompt": f"{n}+9=", "answer": "0"}) + "\n" for n in range(20))
    salt = next(s for s in map(str, range(99)) if _is_held(tmp_path, source, s))
    (held,) = [i for i in HeldoutSplit.load(tmp_path / f"held-{salt}").items if i.id == "a"]
    assert {name: getattr(held, name) for name in own} == own and held.meta == {"level": 2}


def _is_held(folder: Path, source: Path, salt: str) -> bool:
    make_split(source, folder / f"train-{salt}", folder / f"held-{salt}", fraction=0.5, salt=salt)
    return any(i.id == "a" for i in HeldoutSplit.load(folder / f"held-{salt}").items)
