"""What the log of a past run has for `rlguard.core.symptoms`, and which column it would take to look."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlguard.cli.replay.run import KINDS, Floats, Run
from rlguard.core.frameworks import FIGURES, bare
from rlguard.core.guard_log import MAX_NAME, lineage
from rlguard.core.symptoms import Examined, Logged, Unseen, examine
from rlguard.core.terminal import plain

#: Columns to name to who has none of a figure that has no names in `FIGURES`.
_COLUMNS: Mapping[str, str] = {
    "components": "two columns such as `rewards/NAME/mean`",
    "kl": "a token-mean KL, or --map kl=COLUMN",
    "entropy": "--map entropy=COLUMN",
}


def symptoms_of(run: Run) -> Examined:
    """What is seen in a run, of all attempts as the trainer went on from them."""
    return examine(_logged(run))


def column_for(unseen: Unseen) -> str:
    """Which column would be needed to look for it; "" where none would help."""
    if unseen.needs in FIGURES:
        return f"`{FIGURES[unseen.needs][0]}`, or --map {unseen.needs}=COLUMN"
    return _COLUMNS.get(unseen.needs, "")


def _logged(run: Run) -> Logged:
    order = lineage(run.attempt, run.step)
    found: dict[str, Floats] = {"reward": run.reward, "entropy": run.entropy}
    found["kl"] = np.where(run.armed_kl(), run.kl, np.nan)
    found |= {figure: run.figures[c] for figure, c in run.columns.figures.items()}
    components: dict[str, Floats] = {}
    for column in run.columns.components:
        components.setdefault(plain(bare(column), MAX_NAME), run.figures[column][order])
    because = {}
    if not run.armed_kl().any() and not np.isnan(run.kl).all():
        kinds = sorted({KINDS[k].value for k in run.kl_kind[~np.isnan(run.kl)]})
        because["kl"] = f"the KL is {', '.join(kinds)}"
    known = {name: values[order] for name, values in found.items() if not np.isnan(values).all()}
    return Logged(run.step[order], known, components, because)
