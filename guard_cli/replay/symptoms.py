"""What the log of a past run has for `guard_core.symptoms`, and which column it would take to look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from guard_cli.logs.readers import table_of
from guard_cli.logs.table import Floats
from guard_cli.replay.attempts import Ints
from guard_cli.replay.run import KINDS, Run, load_run
from guard_core.frameworks import FIGURES, bare, figure_of
from guard_core.symptoms import Examined, Logged, Unseen, examine
from guard_core.terminal import plain
from guard_core.wire import FiguresReport
from guard_follow.errors import InputError

#: What is read of a line of a guard's history.
HISTORY = ("attempt", "step", "reward", "kl", "kl_kind", "entropy")

#: Columns to name to who has none of a figure that has no names in `FIGURES`.
_COLUMNS: Mapping[str, str] = {
    "components": "two columns such as `rewards/NAME/mean`",
    "kl": "a token-mean KL, or --map kl=COLUMN",
    "entropy": "--map entropy=COLUMN",
}


def symptoms_of(run: Run) -> Examined:
    """What is seen in a run, of all attempts as the trainer went on from them."""
    return examine(_logged(run))


def symptoms_of_history(
    lines: Iterable[Mapping[str, Any]], figures: Iterable[FiguresReport]
) -> Examined | None:
    """What is seen in a guard's own history and the figures beside it; None if nothing can be read of it.

    Args:
        lines: of `history.jsonl`.
        figures: those that are kept, whose names the trainer chose.
    """
    rows = [{name: line.get(name) for name in HISTORY} for line in lines]
    for report in figures:
        known = {name: value for name, value in report.figures.items() if figure_of(name)}
        rows.append({"attempt": report.attempt, "step": report.step, **known})
    try:
        return symptoms_of(load_run(table_of("history", rows, "line"), "the history", {}))
    except InputError:
        return None


def column_for(unseen: Unseen) -> str:
    """Which column would be needed to look for it; "" where none would help."""
    if unseen.needs in FIGURES:
        return f"`{FIGURES[unseen.needs][0]}`, or --map {unseen.needs}=COLUMN"
    return _COLUMNS.get(unseen.needs, "")


def _logged(run: Run) -> Logged:
    order = _lineage(run.attempt, run.step)
    found: dict[str, Floats] = {"reward": run.reward, "entropy": run.entropy}
    found["kl"] = np.where(run.armed_kl(), run.kl, np.nan)
    found |= {figure: run.figures[c] for figure, c in run.columns.figures.items()}
    components: dict[str, Floats] = {}
    for column in run.columns.components:
        components.setdefault(plain(bare(column), 100), run.figures[column][order])
    because = {}
    if not run.armed_kl().any() and not np.isnan(run.kl).all():
        kinds = sorted({KINDS[k].value for k in run.kl_kind[~np.isnan(run.kl)]})
        because["kl"] = f"the KL is {', '.join(kinds)}"
    known = {name: values[order] for name, values in found.items() if not np.isnan(values).all()}
    return Logged(run.step[order], known, components, because)


def _lineage(attempt: Ints, step: Ints) -> Ints:
    """Which steps led to the last policy, in their order: what a later attempt took back did not."""
    order = np.lexsort((step, attempt))
    from_here_on = np.minimum.accumulate(step[order][::-1])[::-1]
    later = np.append(from_here_on[1:], np.iinfo(np.int64).max)
    return order[step[order] < later]
