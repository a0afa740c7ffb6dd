"""Which rollouts of a run are kept, and which are shown side by side. Pure.

They show people what the policy has learnt to write. They are no evidence: nothing is judged by them.
"""

from __future__ import annotations

from collections.abc import Iterable

from guard_core.checkpoint_key import CheckpointKey
from guard_core.wire import Moment, MomentRollouts, RolloutsReport, Verdict

#: Steps whose rollouts are kept beside those that are shown: the last good checkpoint is among them, once it
#: has been evaluated.
NEWEST = 32

RolloutSteps = tuple[RolloutsReport, ...]


def kept_rollouts(reports: Iterable[RolloutsReport], verdict: Verdict) -> RolloutSteps:
    """Those that are shown, and the newest, in the order of (attempt, step). Of one step the first counts."""
    by_step: dict[CheckpointKey, RolloutsReport] = {}
    for report in reports:
        by_step.setdefault(CheckpointKey.of(report), report)
    ordered = tuple(by_step[key] for key in sorted(by_step))
    shown = {CheckpointKey.of(report) for _, report in _moments(ordered, verdict)}
    newest = {CheckpointKey.of(report) for report in ordered[-NEWEST:]}
    return tuple(report for report in ordered if CheckpointKey.of(report) in shown | newest)


def side_by_side(steps: RolloutSteps, verdict: Verdict) -> tuple[MomentRollouts, ...]:
    """The start, the last good checkpoint, and the latch or else the newest; at most three.

    `steps` are in the order of (attempt, step). A step that is two of them is there once.
    """
    reports: dict[CheckpointKey, RolloutsReport] = {}
    moments: dict[CheckpointKey, list[Moment]] = {}
    for moment, report in _moments(steps, verdict):
        reports[CheckpointKey.of(report)] = report
        moments.setdefault(CheckpointKey.of(report), []).append(moment)
    return tuple(
        MomentRollouts(
            moments=tuple(moments[key]), attempt=key.attempt, step=key.step, rollouts=reports[key].rollouts
        )
        for key in moments
    )


def _moments(steps: RolloutSteps, verdict: Verdict) -> list[tuple[Moment, RolloutsReport]]:
    best = None if verdict.best_evaluation is None else CheckpointKey.of(verdict.best_evaluation)
    latch = None
    if verdict.latch_attempt is not None and verdict.latch_step is not None:
        latch = CheckpointKey(verdict.latch_attempt, verdict.latch_step)
    end = (Moment.FIRE if verdict.fire else Moment.HALT) if latch else Moment.NEWEST
    found = [
        (Moment.START, steps[0] if steps else None),
        (Moment.LAST_GOOD, _at(steps, best)),
        (end, _at(steps, latch) if latch else steps[-1] if steps else None),
    ]
    return [(moment, report) for moment, report in found if report is not None]


def _at(steps: RolloutSteps, key: CheckpointKey | None) -> RolloutsReport | None:
    """What the policy wrote last up to this step of this attempt; at its beginning, what it wrote first."""
    if key is None:
        return None
    attempt = [report for report in steps if report.attempt == key.attempt]
    before = [report for report in attempt if report.step <= key.step]
    found = before[-1:] or attempt[:1]
    return found[0] if found else None
