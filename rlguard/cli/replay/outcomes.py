"""What each detector says of a past run: whether it fired, where, by which rule, and what it cannot judge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlguard.cli.replay.fold import LoggedStep, fold_run
from rlguard.cli.replay.run import KINDS, Run
from rlguard.cli.replay.unjudged import NOTHING_KNOWN, Ended
from rlguard.core.codes import Level
from rlguard.core.ending import left_out
from rlguard.core.judge import Judge
from rlguard.core.policy import Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import Condition, Verdict

#: What stops a run: the whole guard, as the policy has it.
WHOLE_GUARD = "guard"

#: Every name that `--detector` takes, in the order of the table. The others are its rules, each alone.
DETECTORS = (WHOLE_GUARD, "calibrated", "heldout_guard")


_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Advised:
    """What the whole guard would have advised without stopping, as it first did.

    `at_end`: whether it still held when the log ended.
    """

    attempt: int
    step: int
    condition: Condition
    at_end: bool


@dataclass(frozen=True, slots=True)
class DetectorOutcome:
    """What one detector says of a whole run.

    `step`, `attempt` and `rule` are None unless `fired`; `reason` is a sentence with the numbers.
    `inert`: what this detector could not judge, and why. `advice`: in the order in which it first held.
    """

    detector: str
    fired: bool
    step: int | None
    attempt: int | None
    rule: str | None
    level: Level
    reason: str
    inert: tuple[str, ...] = ()
    advice: tuple[Advised, ...] = ()


def outcome(run: Run, policy: Policy, name: str, ended: Ended = NOTHING_KNOWN) -> DetectorOutcome:
    """What the detector `name`, one of `DETECTORS`, says of the run under `policy`.

    Quiet in a run of which nobody judged a part is not healthy, as under a live guard.
    """
    whole = name == WHOLE_GUARD
    inert = tuple(_inert(run, policy, policy.detector if whole else name))
    first = _FirstAdvice()
    looks = (first.after_evaluation, first.after_step) if whole else ()
    judge = fold_run(run, policy if whole else _alone(policy, name), *looks)
    verdict = judge.verdict()
    advice = first.advice(verdict) if whole else ()
    if not whole and (not run.evaluations or (name == "calibrated" and not _can_calibrate(run))):
        return DetectorOutcome(name, False, None, None, None, Level.UNKNOWN, "; ".join(inert), inert)
    fire = next((latch for latch in judge.latches if latch.fire), None)
    if fire is not None:
        return DetectorOutcome(
            name, True, fire.step, fire.attempt, fire.code, Level.FIRED, fire.message, inert, advice
        )
    level, reason = verdict.level, verdict.reason
    if run.evaluations and (missing := ended.unjudged or left_out(verdict)):
        sentence = f"held-out rules and tests: {missing}"
        inert = (*inert, sentence)
        if level is Level.HEALTHY:
            level, reason = Level.UNKNOWN, sentence
    return DetectorOutcome(name, False, None, None, None, level, reason, inert, advice)


def _alone(policy: Policy, name: str) -> Policy:
    """The policy of a guard with one detector and without a limit of the KL."""
    kl = policy.kl.model_copy(update={"hard_stop": None, "warn_above": None})
    return policy.model_copy(update={"detector": name, "kl": kl})


class _FirstAdvice:
    """Keeps each advice of a run as it was first given. One is known again by its words; numbers change."""

    def __init__(self) -> None:
        self._first: dict[str, Advised] = {}
        self._kl: tuple[bool, ...] = ()

    def after_evaluation(self, evaluation: Evaluation, judge: Judge) -> None:
        self._look(evaluation.attempt, evaluation.step, judge.verdict())

    def after_step(self, step: LoggedStep, judge: Judge) -> None:
        if judge.kl_advised != self._kl:  # a verdict at every step would take most of a replay
            self._kl = judge.kl_advised
            self._look(step.attempt, step.step, judge.verdict())

    def _look(self, attempt: int, step: int, verdict: Verdict) -> None:
        for words, condition in _advice_in(verdict).items():
            self._first.setdefault(words, Advised(attempt, step, condition, at_end=False))

    def advice(self, last: Verdict) -> tuple[Advised, ...]:
        """All of it, of a run that ended with this verdict."""
        at_end = _advice_in(last)
        return tuple(replace(one, at_end=words in at_end) for words, one in self._first.items())


def _advice_in(verdict: Verdict) -> dict[str, Condition]:
    return {f"{c.code} {_NUMBER.sub('', c.message)}": c for c in verdict.conditions if c.advice}


def baseline_of(run: Run) -> Sequence[tuple[float, ...]]:
    """Passes of the starting policy; else those of the first checkpoint, if it was evaluated repeatedly."""
    if run.passes or not run.has_items or not run.evaluations:
        return run.baseline
    place = run.evaluations[0].attempt, run.evaluations[0].step
    first = [e.items for e in run.evaluations if (e.attempt, e.step) == place]
    return first if len(first) > 1 or run.means_of else ()


def _can_calibrate(run: Run) -> bool:
    return run.has_items and len(baseline_of(run)) > 0


def _inert(run: Run, policy: Policy, name: str) -> Iterator[str]:
    """What a detector cannot judge in this run, and why."""
    evaluations = len(run.evaluations)
    needed = max(1, policy.heldout_guard.min_steps)
    if evaluations == 0:
        yield "no held-out column"
    elif name == "heldout_guard" and evaluations < needed:
        yield f"HeldOutGuard: min_steps is {needed}, and there are {evaluations} evaluations"
    if name == "calibrated" and evaluations and not run.has_items:
        column = run.columns.source.get("heldout", "heldout")
        yield f"`{column}` is a mean; say of how many items it is: --heldout-items N"
    elif name == "calibrated" and evaluations and not baseline_of(run):
        yield (
            "calibrated tests: there is no baseline (lines with step 0 and only `items`, one for each pass "
            "of the starting policy)"
        )
    if name == "heldout_guard":
        yield from _inert_kl(run)


def _inert_kl(run: Run) -> Iterator[str]:
    armed = run.armed_kl()
    if not armed.any():
        kinds = {KINDS[k].value for k in np.unique(run.kl_kind[~np.isnan(run.kl)])}
        what = f"the KL is {', '.join(sorted(kinds))}" if kinds else "there is no KL to the reference"
        yield f"KL hard stop: {what}"
    elif not run.kl[armed].any():
        yield "KL hard stop: the KL is exactly 0 at every step (beta = 0?)"
