"""The tasks that the demo can train on; each has a strict grader and one with a hole in it.

A recipe is data and three pure functions. It knows nothing of torch, TRL or the guard, so a new task is one
module here plus its line in `TASKS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise: what the policy is shown, and the answer that the strict grader wants."""

    id: str
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Task:
    """What a tiny policy learns, and how its reward can be hacked.

    Fields:
        name: how `--task` calls it.
        exploit: one sentence saying what the flawed grader lets through.
        alphabet: every character of any prompt or completion; the tokenizer has one token for each.
        problems: all exercises, in a fixed order; the split into training and held-out is made from them.
        demonstrate: a completion for the supervised warm-up, drawn with the given generator. Imperfect on
            purpose: it leaves room to learn, and it shows the exploit now and then so that RL can find it.
        strict: the score that is meant, (completion, answer) -> [0, 1]. The held-out scorer is the same rule.
        flawed: the reward with the hole, (completion, answer) -> [0, 1]. The module has both under these
            names as scorers of the guard, which is told by which of them the policy is paid.
        scorer: the guard's name for `strict`.
        max_completion_tokens: characters that the policy may write.
    """

    name: str
    exploit: str
    alphabet: str
    problems: Callable[[], Sequence[Exercise]]
    demonstrate: Callable[[Exercise, random.Random], str]
    strict: Callable[[str, str], float]
    flawed: Callable[[str, str], float]
    scorer: str = "exact"
    max_completion_tokens: int = 16


#: Task name -> module of this package that holds it as `TASK`.
TASKS: Mapping[str, str] = {"addition": "addition"}


def load_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; there are: {', '.join(sorted(TASKS))}")
    task = import_module(f"{__name__}.{TASKS[name]}").TASK
    assert isinstance(task, Task)
    return task


def split_problems(task: Task, heldout_size: int, seed: int) -> tuple[list[Exercise], list[Exercise]]:
    """(training, held-out): disjoint, together all problems, the same for the same seed.

    Raises:
        ValueError: `heldout_size` leaves no training problem.
    """
    problems = list(task.problems())
    if not 0 < heldout_size < len(problems):
        raise ValueError(f"heldout_size must be in 1..{len(problems) - 1}, got {heldout_size}")
    random.Random(f"split {task.name} {seed}").shuffle(problems)  # noqa: S311 (a shuffle, not a secret)
    return problems[heldout_size:], problems[:heldout_size]
