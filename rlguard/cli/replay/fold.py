"""Folds a past run as the live guard saw it; of another's log, each evaluation right after its step.

There is no second implementation of a rule here: `rlguard.core.judge.Judge` gets the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import isnan
from typing import NamedTuple

from rlguard.cli.replay.run import KINDS, Run
from rlguard.core.judge import Judge
from rlguard.core.policy import Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import CheckpointReport, KlKind


class LoggedStep(NamedTuple):
    """One row of a run, as `Judge.fold_steps` reads it."""

    attempt: int
    step: int
    reward: float
    kl: float | None
    kl_kind: KlKind


def fold_run(
    run: Run,
    policy: Policy,
    after_evaluation: Callable[[Evaluation, Judge], None] | None = None,
    after_step: Callable[[LoggedStep, Judge], None] | None = None,
) -> Judge:
    """A judge that has seen the whole run.

    Args:
        run: the past run.
        policy: the thresholds.
        after_evaluation, after_step: called after each folded evaluation, and after each folded step.
    """
    judge = Judge(as_logged(policy, run))
    for one in run.passes[:1]:
        judge.fold_checkpoint(_announced(run, one))
    for one in run.passes:
        judge.fold_evaluation(one)
    seen = 0
    steps = _steps(run)
    for evaluation, end in zip(run.evaluations, run.ends, strict=True):
        _fold_steps(judge, steps, end - seen, after_step)
        seen = end
        if evaluation.pass_index == 0:
            judge.fold_checkpoint(_announced(run, evaluation))
        judge.fold_evaluation(evaluation)
        if after_evaluation is not None:
            after_evaluation(evaluation, judge)
    _fold_steps(judge, steps, len(run.step) - seen, after_step)
    return judge


def _announced(run: Run, evaluation: Evaluation) -> CheckpointReport | None:
    """The announcement of its checkpoint, where a log says how the trainer samples."""
    if run.trainer is None:
        return None
    return CheckpointReport(attempt=evaluation.attempt, step=evaluation.step, path="/", sampling=run.trainer)


def as_logged(policy: Policy, run: Run) -> Policy:
    """The policy with room for the baseline passes that the log has, and with the samples that it tells."""
    calibrated = policy.calibrated
    passes, samples = max(len(run.baseline), calibrated.baseline_passes), run.samples or calibrated.samples
    if (passes, samples) == (calibrated.baseline_passes, calibrated.samples):
        return policy
    calibrated = calibrated.model_copy(update={"baseline_passes": passes, "samples": samples})
    return policy.model_copy(update={"calibrated": calibrated})


def _fold_steps(
    judge: Judge, steps: Iterator[LoggedStep], count: int, after: Callable[[LoggedStep, Judge], None] | None
) -> None:
    for step in islice(steps, count):
        judge.fold_steps((step,))
        if after is not None:
            after(step, judge)


def _steps(run: Run) -> Iterator[LoggedStep]:
    kls = [None if isnan(kl) else kl for kl in run.kl.tolist()]
    kinds = [KINDS[k] for k in run.kl_kind.tolist()]
    return map(LoggedStep, run.attempt.tolist(), run.step.tolist(), run.reward.tolist(), kls, kinds)
