"""Folds a past run as the live guard would have seen it: steps, then each evaluation after its step.

There is no second implementation of a rule here: `guard_core.judge.Judge` gets the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from math import isnan
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from guard_cli.replay.run import KINDS, Run
from guard_core.judge import MAX_PENDING, Evaluation, Judge
from guard_core.policy import Policy
from guard_core.wire import KlKind


class Step(NamedTuple):
    """One row of a run, as `Judge.fold_step` reads it."""

    attempt: int
    step: int
    reward: float
    kl: float | None
    kl_kind: KlKind


class Round(NamedTuple):
    """What a detector is given with one evaluation; `in_loop` and `kl` are None where no step had any."""

    evaluation: Evaluation
    in_loop: float | None
    kl: float | None


def fold(
    run: Run, policy: Policy, after_evaluation: Callable[[Evaluation, Judge], None] | None = None
) -> Judge:
    """A judge that has seen the whole run.

    Args:
        run: the past run.
        policy: the thresholds.
        after_evaluation: called after each folded evaluation.
    """
    judge = Judge(_for_baseline(policy, len(run.baseline)))
    for i, items in enumerate(run.baseline):
        judge.fold_evaluation(Evaluation(0, 0, "", items, None, i))
    seen = 0
    steps = _steps(run)
    for evaluation, end in zip(run.evaluations, _ends(run), strict=True):
        _fold_steps(judge, steps, end - seen)
        seen = end
        if evaluation.pass_index == 0:
            judge.fold_checkpoint()
        judge.fold_evaluation(evaluation)
        if after_evaluation is not None:
            after_evaluation(evaluation, judge)
    _fold_steps(judge, steps, len(run.step) - seen)
    return judge


@lru_cache(maxsize=1)  # each detector asks for those of the same run
def rounds(run: Run) -> tuple[Round, ...]:
    """The evaluations, each with the mean reward and the median KL of the steps since the last one."""
    found = []
    seen = 0
    armed = run.armed_kl() & (np.maximum.accumulate(np.nan_to_num(run.kl)) > 0)
    for evaluation, end in zip(run.evaluations, _ends(run), strict=True):
        window = np.arange(seen, end)[run.attempt[seen:end] == evaluation.attempt][-MAX_PENDING:]
        rewards = run.reward[window].tolist()
        kls = run.kl[window[armed[window]]].tolist()
        found.append(Round(evaluation, fmean(rewards) if rewards else None, median(kls) if kls else None))
        seen = end
    return tuple(found)


def _for_baseline(policy: Policy, passes: int) -> Policy:
    """The policy with room for every baseline pass that the log has."""
    if passes <= policy.calibrated.baseline_passes:
        return policy
    calibrated = policy.calibrated.model_copy(update={"baseline_passes": passes})
    return policy.model_copy(update={"calibrated": calibrated})


def _fold_steps(judge: Judge, steps: Iterator[Step], count: int) -> None:
    for step in islice(steps, count):
        judge.fold_step(step)


def _steps(run: Run) -> Iterator[Step]:
    kls = [None if isnan(kl) else kl for kl in run.kl.tolist()]
    kinds = [KINDS[k] for k in run.kl_kind.tolist()]
    return map(Step, run.attempt.tolist(), run.step.tolist(), run.reward.tolist(), kls, kinds)


def _ends(run: Run) -> list[int]:
    """For each evaluation how many steps come before it: those up to its own, of its attempt or earlier."""
    ends = []
    for evaluation in run.evaluations:
        first = int(np.searchsorted(run.attempt, evaluation.attempt, side="left"))
        last = int(np.searchsorted(run.attempt, evaluation.attempt, side="right"))
        ends.append(first + int(np.searchsorted(run.step[first:last], evaluation.step, side="right")))
    return ends
