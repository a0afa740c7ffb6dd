"""A guard's own history, and the figures beside it, as a log that is looked at for symptoms. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.frameworks import FIGURES, bare, figure_of
from rlguard.core.symptoms import Examined, Logged, examine
from rlguard.core.terminal import plain
from rlguard.core.wire import FiguresReport, KlKind

#: Characters of a component's name that a sentence has room for.
MAX_NAME = 100


def symptoms_of_history(
    lines: Iterable[Mapping[str, Any]], figures: Iterable[FiguresReport]
) -> Examined | None:
    """What is seen in a guard's own history and the figures beside it; None if there is no step in it.

    Args:
        lines: of the history, one for each step; what has no reward is no step.
        figures: those that are kept, whose names the trainer chose. They may be of other steps.
    """
    steps = {CheckpointKey(o["attempt"], o["step"]): o for o in lines if o.get("reward") is not None}
    if not steps:
        return None
    reports = {CheckpointKey.of(report): report.figures for report in figures}
    places = sorted({*steps, *reports})
    attempt, step = np.array(places, dtype=np.int64).T

    def of_steps(name: str) -> NDArray[np.float64]:
        return np.array([steps.get(place, {}).get(name) for place in places], dtype=np.float64)

    def of_figures(name: str) -> NDArray[np.float64]:
        return np.array([reports.get(place, {}).get(name) for place in places], dtype=np.float64)

    order = lineage(attempt, step)
    kinds = [str(steps[place]["kl_kind"]) if place in steps else "" for place in places]
    kl, armed = of_steps("kl"), np.array([kind == KlKind.REF_TOKEN_MEAN for kind in kinds])
    found = {"reward": of_steps("reward"), "entropy": of_steps("entropy"), "kl": np.where(armed, kl, np.nan)}
    components: dict[str, NDArray[np.float64]] = {}
    names = sorted({name for values in reports.values() for name in values})
    whole = any(bare(name) == "reward/overall" for name in names)  # as EasyR1 calls what is made of them
    for name in names:
        figure = figure_of(name)
        if figure in FIGURES:
            found.setdefault(figure, of_figures(name))
        elif figure and (whole or not bare(name).startswith("reward/")):
            components.setdefault(plain(bare(name), MAX_NAME), of_figures(name)[order])
    because = {}
    if np.isnan(found["kl"]).all() and not np.isnan(kl).all():
        others = sorted({kind for kind, value in zip(kinds, kl, strict=True) if not np.isnan(value)})
        because["kl"] = f"the KL is {', '.join(others)}"
    known = {name: values[order] for name, values in found.items() if not np.isnan(values).all()}
    return examine(Logged(step[order], known, components, because))


def lineage(attempt: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which steps led to the last policy, in their order: what a later attempt took back did not."""
    order = np.lexsort((step, attempt))
    from_here_on = np.minimum.accumulate(step[order][::-1])[::-1]
    later = np.append(from_here_on[1:], np.iinfo(np.int64).max)
    return order[step[order] < later]
