"""Scorers that misbehave inside the worker process. What each does once is remembered by a file in `meta`."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _first_time(meta: Mapping[str, Any]) -> bool:
    try:
        Path(meta["once"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def killed_once(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    if _first_time(meta):
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def exits_once(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    if _first_time(meta):
        os._exit(7)
    return 1.0


def stuck_once(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    """Hold the interpreter's lock for ages, as a careless regular expression does."""
    if _first_time(meta):
        Path(meta["once"]).write_text(str(os.getpid()))
        re.match(r"(a+)+$", "a" * 60 + "b")
    return 1.0


def raises_what_it_should_not(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    """Fail in a way that `except Exception` around a scorer does not see."""
    if _first_time(meta):
        raise GeneratorExit(completion)
    return 1.0


def chatty(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    print(f'{{"items": [0.0]}} {completion}', flush=True)
    os.write(1, b'{"items": [0.0]}\n')
    return 0.5


def reports_its_process(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    """1 if this process is nicer than the guard, knows no token of it, and took no torch with it."""
    import sys

    told = {name for name in os.environ if name.startswith("RLGUARD_")}
    nicer = os.nice(0) > int(meta["nice"]) or int(meta["nice"]) == 19
    return float(nicer and told == {"RLGUARD_MY_KEY"} and "torch" not in sys.modules)


#: Odd only when a completion is scored: they let the items' own answers pass.
for _scorer in (
    killed_once,
    exits_once,
    stuck_once,
    raises_what_it_should_not,
    chatty,
    reports_its_process,
):
    _scorer.check_answers = False  # type: ignore[attr-defined]


def too_strict(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    """Half a point for an even answer, and it cannot bear a 3."""
    if answer == "3":
        raise ValueError(f"{answer} is odd, in {completion}")
    return 0.5 if int(answer) % 2 == 0 else float(completion == answer)


def impatient(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    if completion == answer:
        return 1.0
    raise TypeError(f"no patience with {completion}")


def of_keywords(completion: str, *, reference: str) -> float:
    return float(completion == reference)


def wants_more(completion: str, answer: str, meta: object, *, thoughts: str) -> float:
    return 1.0


class _Callable:
    def __call__(self, completion: str, answer: str, meta: Mapping[str, Any] | None = None) -> float:
        return float(completion == answer)


callable_object = _Callable()


class Graded:
    @staticmethod
    def score(completion: str, answer: str, *rest: Any) -> float:
        return float(completion == answer)


def ends_the_process(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    os._exit(7)


def always_right(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    return 1.0
