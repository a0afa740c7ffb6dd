"""The picture of a replay: the run, and where each detector fired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlguard.cli.errors import CliError
from rlguard.cli.plot import Curves, save_plot
from rlguard.cli.replay.outcomes import DetectorOutcome
from rlguard.cli.replay.run import Run
from rlguard.core.policy import Policy


def save_outcomes(path: Path, run: Run, policy: Policy, outcomes: Sequence[DetectorOutcome]) -> None:
    """Draw the run and write it to `path`; its suffix says the format.

    Raises:
        CliError: the file cannot be written.
    """
    offsets = _offsets(run)
    at = np.lexsort((run.step, run.attempt))
    xs = [offsets[a] + s for a, s in zip(run.attempt[at].tolist(), run.step[at].tolist(), strict=True)]
    kl = np.where(run.armed_kl()[at], run.kl[at], np.nan)
    fires: dict[float, list[str]] = {}
    for one in outcomes:
        if one.attempt is not None and one.step is not None:
            fires.setdefault(offsets[one.attempt] + one.step, []).append(one.detector)
    fired = sum(one.fired for one in outcomes)
    curves = Curves(
        rewards=list(zip(xs, run.reward[at].tolist(), strict=True)),
        scores=sorted((offsets[e.attempt] + e.step, e.score) for e in run.evaluations),
        kls=[(x, y) for x, y in zip(xs, kl.tolist(), strict=True) if not np.isnan(y)],
        kl_limit=policy.kl.hard_stop,
        marks=[(x, f"fired at {x:,}: {', '.join(names)}") for x, names in sorted(fires.items())],
        starts=list(offsets.values())[1:],
        title=f"{Path(run.source).name}: {fired or 'none'} of {len(outcomes)} detectors fired",
    )
    try:
        save_plot(curves, path, path.suffix[1:].lower())
    except OSError as error:
        raise CliError(f"--plot {path}: cannot be written: {error.strerror}.") from None


def _offsets(run: Run) -> dict[int, int]:
    """What is added to the steps of each attempt, so that attempts follow one another."""
    ends: dict[int, int] = {}
    for attempt, step in zip(run.attempt.tolist(), run.step.tolist(), strict=True):
        ends[attempt] = max(step, ends.get(attempt, 0))
    for one in run.evaluations:
        ends[one.attempt] = max(one.step, ends.get(one.attempt, 0))
    offsets, total = {}, 0
    for attempt in sorted(ends):
        offsets[attempt], total = total, total + ends[attempt]
    return offsets
