"""What is kept of a run for people to see: a few rollouts, and further figures for plots. Pure.

Rollouts show what the policy has learnt to write. Figures are what a trainer logs beside its reward: the
reward's components, how long completions are, how many are cut off. Nothing is judged by either.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.thinning import thinned
from rlguard.core.wire import MAX_FIGURES, FiguresReport, Moment, MomentRollouts, RolloutsReport, Verdict

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


#: Steps that are kept of a run: as many as a plot has room for.
MAX_POINTS = 500

Points = tuple[FiguresReport, ...]


def kept_figures(reports: Iterable[FiguresReport]) -> Points:
    """At most `MAX_POINTS` steps with at most `MAX_FIGURES` names over all, in the order of (attempt, step).

    Of one step the first report counts, and of many names those that came first. Of too many steps
    the first of every two stays, of every four, and so on until they fit; the newest always stays.
    """
    by_step: dict[CheckpointKey, FiguresReport] = {}
    names: dict[str, None] = {}
    for report in reports:
        if by_step.setdefault(CheckpointKey.of(report), report) is report:
            names |= dict.fromkeys(report.figures)
    known = frozenset(list(names)[:MAX_FIGURES])
    ordered = [named for key in sorted(by_step) if (named := _only(by_step[key], known)) is not None]
    places = [CheckpointKey.of(report) for report in ordered]
    return tuple(ordered[i] for i in thinned(places, MAX_POINTS, {len(ordered) - 1}))


def _only(report: FiguresReport, known: frozenset[str]) -> FiguresReport | None:
    if report.figures.keys() <= known:
        return report
    figures = {name: value for name, value in report.figures.items() if name in known}
    return report.model_copy(update={"figures": figures}) if figures else None
