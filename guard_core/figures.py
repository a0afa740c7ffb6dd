"""Which further figures of a run are kept for its plots. Pure.

They are what a trainer logs beside its reward: the reward's components, how long completions are, how many
are cut off. They are no evidence: nothing is judged by them.
"""

from __future__ import annotations

from collections.abc import Iterable

from guard_core.checkpoint_key import CheckpointKey
from guard_core.thinning import thinned
from guard_core.wire import MAX_FIGURES, FiguresReport

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
