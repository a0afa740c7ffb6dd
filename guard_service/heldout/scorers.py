"""Scorers: how right a completion is, in [0, 1], given the item's answer.

A scorer is a function `score(completion: str, answer: str, meta: Mapping[str, Any]) -> float`. Where the
answer begins after a mark (`answer_after`), its `completion` is what follows the mark; one that has a
parameter `whole_completion` gets by that name all that was written. The training grader gets all of it as
its `completion`, as it does in training. A scorer is named by one of the built-in names below, or as
`module:function`, also of a grader as TRL, verl and OpenRLHF call it (`graders`). They are imported and
called in the evaluation process only, and in those that it starts (`pool`): there, where scorers have a
limit, all are called that may not end, and async ones always.

At start each item's own answer is scored as if it were the completion, and must score 1
(`SplitScorers.check_answers`). A scorer for which that makes no sense, because an answer is no completion,
says so by its attribute `check_answers = False`; `regex` does.

A scorer that fails gives no score: 0 would be evidence against the policy. Its error names scorer and item;
what it said may quote a completion and goes to the worker's own log. One that reaches its limit has failed,
too, unless the settings say that such a completion is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

from guard_service.heldout.errors import EvaluationError, GraderError, SplitError, one_line
from guard_service.heldout.graders import call, grader_style, parameters_of, pay_of
from guard_service.heldout.pool import Limits, ScoreRequest, ScoreResult, Take, score_in_processes
from guard_service.heldout.split import HeldoutItem, HeldoutSplit
from rlguard.core.wording import nearest, quoted

Scorer = Callable[..., Any]
#: An item, what a scorer is asked about, and the completion in which it stands.
Answered = tuple[HeldoutItem, str, str]

WHOLE = "whole_completion"  # a parameter that a scorer may have
MAX_LISTED = 5
MOST_TRIED = 64  # items of which a grader is tried at the start
MAX_NAME = 64  # of an exception, characters
MAX_LATE = 0.5  # share; above it nothing is said of the policy
ROUNDING = 1e-9
NUMERIC_TOLERANCE = Fraction(1, 10**6)  # relative; absolute below 1

_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d{1,3})?(?:/\d+)?"
)
_MARKED = re.compile(r"####\s*([^\n]+)|\\boxed\s*\{([^{}]*)\}")


def exact(completion: str, answer: str, meta: Mapping[str, Any]) -> float:  # noqa: ARG001  # the scorers' shape
    """1 if the completion is the answer up to white space around and between words."""
    return float(completion.split() == answer.split())


def numeric(completion: str, answer: str, meta: Mapping[str, Any]) -> float:  # noqa: ARG001  # the scorers' shape
    r"""1 if the final number of the completion is the answer's.

    The final number is the last one after `####` or in `\boxed{}` if there is such a mark, else the last one.
    Thousands separators and fractions are read, units such as % and $ are not; equal means within 1e-6
    (relative above 1).

    Raises:
        ValueError: the answer holds no number.
    """
    expected = final_number(answer)
    if expected is None:
        raise ValueError("the answer holds no number")
    found = final_number(completion)
    if found is None:
        return 0.0
    return float(abs(found - expected) <= NUMERIC_TOLERANCE * max(Fraction(1), abs(expected)))


def regex(completion: str, answer: str, meta: Mapping[str, Any]) -> float:  # noqa: ARG001  # the scorers' shape
    """1 if the answer, a Python regular expression, is found in the stripped completion (`re.search`).

    Raises:
        ValueError: the answer is not a regular expression.
    """
    try:
        return float(re.search(answer, completion.strip()) is not None)
    except re.error as error:
        raise ValueError("the answer is not a regular expression") from error


regex.check_answers = False  # type: ignore[attr-defined]  # an answer is a pattern, and need not match itself


def math_verify(completion: str, answer: str, meta: Mapping[str, Any]) -> float:  # noqa: ARG001
    """1 if math-verify finds completion and answer equal (LaTeX or expressions); needs the extra `math`.

    Its time-outs use SIGALRM, which works in the main thread only: that of the worker process, or of one of
    the pool. They do not end what hangs in C, such as a power of huge numbers.
    """
    from math_verify import parse, verify

    return float(verify(parse(answer), parse(completion)))


BUILT_IN: Mapping[str, Scorer] = {"exact": exact, "numeric": numeric, "regex": regex, "math": math_verify}
#: One event loop for all calls of async scorers, which may share clients that belong to it.
_RUNNER = asyncio.Runner()
#: These end soon, whatever a completion is. A pattern may backtrack for ever.
_ALWAYS_END = (exact, numeric)


def final_number(text: str) -> Fraction | None:
    """The last number in the text, or in its last `####` or boxed part; None if there is none."""
    marked = _MARKED.findall(text)
    if marked:
        text = "".join(marked[-1])
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    number = numbers[-1].replace(",", "").replace("\u2212", "-")
    try:
        over, _, under = number.partition("/")
        return Fraction(over) / Fraction(under or 1)
    except (ValueError, ZeroDivisionError):
        return None


def load_scorer(name: str) -> Scorer:
    """Find a scorer by name.

    Raises:
        SplitError: there is none of that name, it does not import, or it cannot be called as a scorer is.
    """
    if name in BUILT_IN:
        if name == "math" and find_spec("math_verify") is None:
            raise SplitError("scorer 'math' needs the package math-verify: pip install 'rlguard[math]'")
        return BUILT_IN[name]
    module, colon, function = name.partition(":")
    if not colon:
        known = sorted(BUILT_IN)
        near = nearest(name, known)
        raise SplitError(
            f"scorer {quoted(name)} is unknown: {f'did you mean {near}? Use' if near else 'use'} one of "
            f"{', '.join(known)}, or module:function"
        )
    try:
        scorer = importlib.import_module(module)
        for part in function.split("."):
            scorer = getattr(scorer, part)
    except Exception as error:
        traceback.print_exc()
        raise SplitError(
            f"scorer {name!r} does not import: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not callable(scorer):
        raise SplitError(f"scorer {name!r} is a {type(scorer).__name__}, not a function")
    _check_signature(name, scorer)
    return scorer


def _check_signature(name: str, scorer: Scorer) -> None:
    if grader_style(scorer):
        return
    with contextlib.suppress(ValueError):  # a function of C may have none: its first call will tell
        signature = inspect.signature(scorer)
        try:
            signature.bind("", "", {}, **({WHOLE: ""} if _takes_whole(scorer) else {}))
        except TypeError as error:
            raise SplitError(
                f"scorer {name!r} cannot be called as score(completion, answer, meta): {error}; it takes "
                f"{signature}"
            ) from None


def _takes_whole(scorer: Scorer) -> bool:
    """Whether it has a parameter for the whole completion."""
    return WHOLE in parameters_of(scorer)


def _is_async(scorer: Scorer) -> bool:
    """Also of an object whose class has such a `__call__`."""
    return any(map(inspect.iscoroutinefunction, (scorer, getattr(type(scorer), "__call__", None))))  # noqa: B004  # which it is


def _valid(value: Any) -> ScoreResult:
    """Take what a scorer returned for its score if it is one."""
    if not isinstance(value, Real):
        got = f"a {type(value).__name__}"
    elif not 0 <= (number := float(value)) <= 1:  # NaN too
        got = "NaN" if math.isnan(number) else "a number outside [0, 1]"
    else:
        return ScoreResult(number)
    return ScoreResult(None, f"returned {got} for", "it must be in [0, 1]")


def _raised(error: BaseException) -> ScoreResult:
    traceback.print_exc()
    name = type(error).__name__  # which what is scored may have chosen
    known = name if name.isidentifier() and len(name) <= MAX_NAME else "an exception"
    return ScoreResult(None, f"raised {known} on", "fix it, or the item")


@contextmanager
def _no_copies() -> Iterator[None]:
    """End a copy of this process that is forked meanwhile: it would go on, and answer in our place."""
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            os._exit(1)


_Asked = tuple["NamedScorer", ScoreRequest]


class NamedScorer(NamedTuple):
    """A scorer by its name, and what is looked up of it once: what it takes, and whether it is async."""

    name: str
    function: Scorer
    takes_whole: bool
    is_async: bool

    @classmethod
    def of(cls, name: str) -> Self:
        """Raises `SplitError` as `load_scorer` does."""
        function = load_scorer(name)
        return cls(name, function, _takes_whole(function), _is_async(function))

    @property
    def code(self) -> str | None:
        """Digest of the file that it is written in; None for one of ours, and where there is no file.

        What that file imports is not in it.
        """
        if self.name in BUILT_IN:
            return None
        module = getattr(self.function, "__module__", None) or type(self.function).__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        try:
            return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError:
            return None

    def asked(self, item: HeldoutItem, completion: str, whole: str) -> _Asked:
        """It, and a request for the score of a completion that stands in `whole`."""
        prompt = item.prompt if isinstance(item.prompt, str) else item.conversation
        return self, ScoreRequest(self.name, item.id, completion, whole, item.answers, item.meta, prompt)

    def score(self, request: ScoreRequest) -> ScoreResult:
        """Call it, here and now, for each accepted answer until one is right."""
        best = ScoreResult(0.0)
        for answer in request.answers:
            result = self._score(request, answer)
            if result.score is None or result.score >= 1 - ROUNDING:
                return result
            best = max(best, result, key=lambda one: one.score or 0.0)
        return best

    def _score(self, asked: ScoreRequest, answer: str) -> ScoreResult:
        with _no_copies():
            try:
                if grader_style(self.function):
                    value = call(self.function, asked.prompt, asked.completion, answer, asked.meta)
                    return _valid(pay_of(_RUNNER.run(value) if self.is_async else value))
                more = {WHOLE: asked.whole} if self.takes_whole else {}
                value = self.function(asked.completion, answer, asked.meta, **more)
                return _valid(_RUNNER.run(value) if self.is_async else value)
            except (Exception, asyncio.CancelledError) as error:
                return _raised(error)

    def runs_here(self, limits: Limits) -> bool:
        """Whether it is called in this process."""
        return not self.is_async and (limits.seconds is None or self.function in _ALWAYS_END)


class Graded(NamedTuple):
    """The score of a completion, in [0, 1]. `late`: it is 0 because the scorer reached its limit."""

    score: float
    late: bool = False


_NO_LIMIT = Limits()


def _ask_all(asked: Sequence[_Asked], limits: Limits, take: Take) -> None:
    """Ask each scorer, here or in processes of their own; `take` gets the results as they come."""
    elsewhere: list[tuple[int, ScoreRequest]] = []
    for place, (scorer, request) in enumerate(asked):
        if scorer.runs_here(limits):
            take(place, scorer.score(request))
        else:
            elsewhere.append((place, request))
    if elsewhere:
        score_in_processes(elsewhere, limits, take)


def _score_all(asked: Sequence[_Asked], limits: Limits) -> list[Graded]:
    """The score of each.

    Raises:
        EvaluationError: a scorer failed, which ends the others; or too many are late, where that is wrong.
    """
    scored = [Graded(0.0)] * len(asked)
    late = 0

    def take(place: int, result: ScoreResult) -> None:
        nonlocal late
        if result.score is not None:
            scored[place] = Graded(result.score)
            return
        if not (result.late and limits.late_is_wrong):
            raise EvaluationError(result.message(asked[place][1]))
        scored[place], late = Graded(0.0, late=True), late + 1
        if late > MAX_LATE * len(asked):
            raise EvaluationError(
                f"more than half of {len(asked)} completions took their scorer longer than "
                f"scorer_timeout_seconds={limits.seconds:g}, which says more of the scorer than of the "
                "policy: see whether it, or what it asks, responds at all, or raise the limit"
            )

    _ask_all(asked, limits, take)
    return scored


class SplitScorers:
    """The scorers of one split, each loaded once."""

    def __init__(self, split: HeldoutSplit, default: str, limits: Limits = _NO_LIMIT) -> None:
        """Load every scorer that the split names.

        Raises:
            SplitError: one of them cannot be loaded, or an answer is none that `numeric` or `regex` can
                compare with; names the first such item.
        """
        self._items = split.items
        self._default = default
        self._limits = limits
        self._scorers: dict[str, NamedScorer] = {}
        for item in split.items:
            name = item.scorer or default
            if name not in self._scorers:
                try:
                    self._scorers[name] = NamedScorer.of(name)
                except SplitError as error:
                    if item.scorer is None:
                        raise
                    raise SplitError(f"item {item.id!r}: {error}") from error
            if name in BUILT_IN and "answer" not in item.model_fields_set:
                raise SplitError(
                    f"{split.path}: item {item.id!r} has no answer, which scorer {name!r} compares with: "
                    "only a scorer of your own needs none (--scorer module:function)"
                )
            if self._scorers[name].function in (numeric, regex):
                self._check_answer(item, name)

    @property
    def code(self) -> dict[str, str]:
        """Digests of the files of those that are not ours, by name."""
        return {name: code for name, one in self._scorers.items() if (code := one.code) is not None}

    def _check_answer(self, item: HeldoutItem, name: str) -> None:
        try:
            for answer in item.answers:
                self._scorers[name].function("", answer, item.meta)
        except ValueError as error:
            raise SplitError(f"item {item.id!r} cannot be scored by {name!r}: {error}") from error

    def check_answers(self) -> int:
        """Find out whether a perfect policy could score 1: each item's own answer must.

        Items without an answer are left out, and scorers with `check_answers = False`.

        Returns:
            How many answers were tried.

        Raises:
            SplitError: some do not, or their scorer fails on them; says how many, and a few ids. Or one
                reached its limit.
        """
        asked = [
            scorer.asked(item, item.answer, item.answer)
            for item in self._items
            if item.answer and getattr((scorer := self._scorer(item)).function, "check_answers", True)
        ]
        wrong = set[int]()
        failed: dict[int, str] = {}

        def take(place: int, result: ScoreResult) -> None:
            request = asked[place][1]
            if result.late:
                raise SplitError(
                    f"scorer {request.scorer!r} took longer than "
                    f"scorer_timeout_seconds={self._limits.seconds:g} on item {request.item!r}, with its own "
                    "answer as completion: raise scorer_timeout_seconds"
                )
            if result.score is None:  # for the worker's own log
                failed[place] = result.message(request)
                print(failed[place], file=sys.stderr)
            if (result.score or 0.0) <= 1 - ROUNDING:
                wrong.add(place)

        try:
            _ask_all(asked, self._limits, take)
        except EvaluationError as error:
            raise SplitError(str(error)) from error
        if wrong:
            ids = [asked[place][1].item for place in sorted(wrong)]
            listed = ", ".join(ids[:MAX_LISTED]) + (", …" if len(ids) > MAX_LISTED else "")
            hint = ""
            if failed:  # the scorer's own words may quote an item, and stay in the log
                hint = f"; the scorer failed on {len(failed)} of them, first: {failed[min(failed)]}"
            raise SplitError(
                f"{len(ids)} of {len(asked)} items do not score 1 with their own answer as completion "
                f"(ids: {listed}): fix these answers or their scorer, or leave the items out; if answers "
                f"are not meant to be completions, set check_answers = False on the scorer's function{hint}"
            )
        return len(asked)

    def _scorer(self, item: HeldoutItem) -> NamedScorer:
        return self._scorers[item.scorer or self._default]

    def score_all(self, answered: Sequence[Answered]) -> list[Graded]:
        """How right each is.

        Raises:
            EvaluationError: a scorer raised, returned something else, ended its process or took too long.
        """
        return _score_all([self._scorer(one[0]).asked(*one) for one in answered], self._limits)


def _differ(one: HeldoutItem, other: HeldoutItem) -> bool:
    """Whether the answer of another item is wrong for this one, as far as texts say it."""
    return other.answer.casefold() not in {answer.casefold() for answer in one.answers}


class ProxyScoring:
    """The training grader, for every item: it is what the policy is paid by, so no item has another."""

    def __init__(self, name: str, limits: Limits = _NO_LIMIT) -> None:
        """Load it.

        Raises:
            SplitError: it cannot be loaded.
        """
        self._limits = limits
        try:
            self._scorer = NamedScorer.of(name)
        except SplitError as error:
            raise GraderError(f"proxy_scorer: {error}") from error

    @property
    def code(self) -> dict[str, str]:
        """As of `SplitScorers`."""
        return {} if (code := self._scorer.code) is None else {self._scorer.name: code}

    def check_pay(self, items: Sequence[HeldoutItem]) -> tuple[float, float | None] | None:
        """What it pays on average for right answers, and for those of other items; None: not tried.

        Raises:
            SplitError: it failed, or pays nothing for right answers. One that wants more than an answer says
                so by `check_answers = False`.
        """
        known = [item for item in items if item.answer][:MOST_TRIED]
        if not known or not getattr(self._scorer.function, "check_answers", True):
            return None
        try:
            right = self.score_all([(item, item.answer) for item in known])
        except EvaluationError as error:
            raise GraderError(f"proxy_scorer: {error}") from error
        pay = fmean(graded.score for graded in right)
        if pay <= ROUNDING:
            raise GraderError(
                f"proxy_scorer {self._scorer.name!r} pays 0 for the own answers of {len(known)} items: does "
                "it want more than an answer (then set check_answers = False on the function), or columns "
                "that the items lack under meta?"
            )
        pairs = zip(known, [*known[1:], known[0]], strict=True)
        asked = [(item, other.answer) for item, other in pairs if _differ(item, other)]
        with contextlib.suppress(EvaluationError):
            return pay, fmean(graded.score for graded in self.score_all(asked)) if asked else None
        return pay, None

    def score_all(self, made: Sequence[tuple[HeldoutItem, str]]) -> list[Graded]:
        """What it pays for each completion, in [0, 1]. Raises as `SplitScorers.score_all` does."""
        return _score_all([self._scorer.asked(item, text, text) for item, text in made], self._limits)
