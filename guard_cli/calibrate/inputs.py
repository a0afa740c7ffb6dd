"""What `rlguard calibrate` is given: passes of the starting policy, from a file or from a guard's history."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from guard_cli.errors import CliError
from guard_cli.logs.readers import read_log
from guard_cli.logs.table import Table
from guard_cli.replay.fold import rounds
from guard_cli.replay.outcomes import baseline_of
from guard_cli.replay.run import Run, load_run
from guard_core.detectors import Baseline
from guard_core.wording import nearest

#: Fewer rounds say too little about how noisy the in-loop reward is.
LEAST_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Given:
    """The baseline, and the standard error of a round's mean in-loop reward if the history tells it."""

    baseline: Baseline
    reward_noise: float | None


def read_baseline(path: Path, samples: int) -> Given:
    """Read passes of the starting policy.

    Args:
        path: JSONL with one pass a line, `{"items": [...]}`; or a guard's history, its state directory, or a
            report of `rlguard run`.
        samples: independent samples behind each outcome.

    Raises:
        CliError: there are no passes in it, or they are not what they should be.
    """
    table = read_log(path, {"items", "step"})
    if "items" not in table.objects:
        like = nearest("items", table.names)
        raise CliError(
            f"{path}: there are no per-item outcomes in it"
            + (f": did you write {like} for items? " if like else ". ")
            + 'A baseline is JSONL with one pass of the starting policy a line, {"items": [0, 1, ...]}, or '
            "the history of a guard."
        )
    run = None if _only_passes(table) else load_run(table, str(path), {})
    passes = load_run(_as_baseline(table), str(path), {}).baseline if run is None else baseline_of(run)
    if not passes:
        raise CliError(
            f"{path}: it is a history without a baseline: no line has step 0 and only `items`. Evaluate the "
            "starting policy first; 16 passes are a good number."
        )
    return Given(Baseline.from_passes(passes, samples), _reward_noise(run) if run is not None else None)


def _only_passes(table: Table) -> bool:
    """Whether this is a file of passes: nothing in it but items, and perhaps the step 0."""
    return not any((numbers > 0).any() for name, numbers in table.numbers.items() if name != "pass_index")


def _as_baseline(table: Table) -> Table:
    """The same table with step 0 in every row and an empty reward, which makes every row a baseline pass."""
    import numpy as np

    zeros, empty = np.zeros(len(table)), np.full(len(table), np.nan)
    numbers = {**table.numbers, "step": zeros, "reward": empty}
    return Table(table.format, ("step", "reward", "items"), numbers, table.objects, table.line, table.note)


def _reward_noise(run: Run) -> float | None:
    """Von Neumann: half the mean squared successive difference is the variance, whatever slow trend."""
    rewards = [r.in_loop for r in rounds(run) if r.in_loop is not None]
    if len(rewards) < LEAST_ROUNDS:
        return None
    steps = [b - a for a, b in pairwise(rewards)]
    return math.sqrt(math.fsum(step * step for step in steps) / (2 * len(steps)))
