"""What each detector says of a past run: whether it fired, where, by which rule, and what it cannot judge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from guard_cli.replay.fold import LoggedStep, fold_run
from guard_cli.replay.run import KINDS, Run
from guard_cli.replay.unjudged import NOTHING_TOLD, Ended, unjudged
from guard_core.codes import Level
from guard_core.judge import Judge
from guard_core.policy import Policy
from guard_core.rounds import Evaluation
from guard_core.wire import Condition, Verdict

#: What stops a run: the whole guard, as the policy has it.
WHOLE_GUARD = "guard"

#: Every name that `--detector` takes, in the order of the table. The others are its rules, each alone.
DETECTORS = (WHOLE_GUARD, "calibrated", "heldout_guard")


#: Policies' detectors that need outcomes of items, or means of a known number of them.
RULES_OF_ITEMS = ("calibrated", "both")

_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Advised:
    """What the whole guard would have told without stopping for it, as it was told first.

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


def outcome(run: Run, policy: Policy, name: str, ended: Ended = NOTHING_TOLD) -> DetectorOutcome:
    """What the detector `name`, one of `DETECTORS`, says of the run under `policy`.

    Quiet in a run of which nobody judged a part is not healthy, as under a live guard.
    """
    found = _outcome(run, policy, name)
    if found.fired or not (missing := unjudged(run, ended)):
        return found
    sentence = f"held-out rules and tests: {missing}"
    found = replace(found, inert=(*found.inert, sentence))
    return found if found.level is not Level.HEALTHY else replace(found, level=Level.UNKNOWN, reason=sentence)


def _outcome(run: Run, policy: Policy, name: str) -> DetectorOutcome:
    """The same, of what was judged: by the whole guard, or by a guard with this detector alone."""
    inert = tuple(_inert(run, policy, policy.detector if name == WHOLE_GUARD else name))
    advice = _Advice()
    looks = (advice.after_evaluation, advice.after_step) if name == WHOLE_GUARD else ()
    judge = fold_run(run, _alone(policy, name), *looks)
    verdict = judge.verdict()
    told = advice.told(verdict) if name == WHOLE_GUARD else ()
    if name != WHOLE_GUARD and (not run.evaluations or (name == "calibrated" and not _can_calibrate(run))):
        return DetectorOutcome(name, False, None, None, None, Level.UNKNOWN, "; ".join(inert), inert)
    fire = next((latch for latch in judge.latches if latch.fire), None)
    if fire is None:
        return DetectorOutcome(name, False, None, None, None, verdict.level, verdict.reason, inert, told)
    return DetectorOutcome(
        name, True, fire.step, fire.attempt, fire.code, Level.FIRED, fire.message, inert, told
    )


def _alone(policy: Policy, name: str) -> Policy:
    """The policy of a guard with one detector and without a limit of the KL; the whole one stays as it is."""
    if name == WHOLE_GUARD:
        return policy
    kl = policy.kl.model_copy(update={"hard_stop": None, "warn_above": None})
    return policy.model_copy(update={"detector": name, "kl": kl})


class _Advice:
    """Gathers each advice of a run where it first holds. One is known again by its words; numbers change."""

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

    def told(self, last: Verdict) -> tuple[Advised, ...]:
        """All of it, of a run that ended with this verdict."""
        at_end = _advice_in(last)
        return tuple(replace(said, at_end=words in at_end) for words, said in self._first.items())


def _advice_in(verdict: Verdict) -> dict[str, Condition]:
    return {f"{c.code} {_NUMBER.sub('', c.message)}": c for c in verdict.conditions if c.advice}


def baseline_of(run: Run) -> Sequence[tuple[float, ...]]:
    """Passes of the starting policy; else those of the first checkpoint, if it was evaluated repeatedly."""
    return [one.items for one in _starting(run)]


def _starting(run: Run) -> Sequence[Evaluation]:
    """The evaluations that `baseline_of` has the items of."""
    if run.passes or not run.has_items or not run.evaluations:
        return run.passes
    first = [e for e in run.evaluations if _same_checkpoint(e, run.evaluations[0])]
    return first if len(first) > 1 or run.means_of else ()


def _same_checkpoint(a: Evaluation, b: Evaluation) -> bool:
    return (a.attempt, a.step) == (b.attempt, b.step)


def _can_calibrate(run: Run) -> bool:
    return run.has_items and len(baseline_of(run)) > 0


def _inert(run: Run, policy: Policy, name: str) -> Iterator[str]:
    """What a detector cannot judge in this run, and why."""
    evaluations = len(run.evaluations)
    needed = max(1, policy.heldout_guard.min_steps)
    if evaluations == 0:
        yield "there is no held-out series"
    elif name in ("heldout_guard", "both") and evaluations < needed:
        yield f"HeldOutGuard: min_steps is {needed}, and there are {evaluations} evaluations"
    if name in RULES_OF_ITEMS and evaluations and not run.has_items:
        column = run.columns.source.get("heldout", "heldout")
        yield f"`{column}` is a mean; say of how many items it is: --heldout-items N"
    elif name in RULES_OF_ITEMS and not baseline_of(run):
        yield (
            "calibrated tests: there is no baseline (lines with step 0 and only `items`, one for each pass "
            "of the starting policy)"
        )
    if name in ("heldout_guard", "both"):
        yield from _inert_kl(run)


def _inert_kl(run: Run) -> Iterator[str]:
    armed = run.armed_kl()
    if not armed.any():
        kinds = {KINDS[k].value for k in np.unique(run.kl_kind[~np.isnan(run.kl)])}
        what = f"the KL is {', '.join(sorted(kinds))}" if kinds else "there is no KL to the reference"
        yield f"KL hard stop: {what}"
    elif not run.kl[armed].any():
        yield "KL hard stop: the KL is exactly 0 at every step (beta = 0?)"
