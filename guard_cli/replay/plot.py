"""The picture of a replay: reward against held-out score, the KL, and where each detector fired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guard_cli.colours import HELDOUT, IN_LOOP, KL, LIMIT, MUTED
from guard_cli.errors import CliError
from guard_cli.replay.outcomes import DetectorOutcome, baseline_of
from guard_cli.replay.run import Run
from guard_core.checkpoint_key import CheckpointKey
from guard_core.policy import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: More points than a picture has columns only make it slow.
MOST_POINTS = 4000

#: First fire to last, red to pale.
FIRES = ("#8e141b", LIMIT, "#dd4b4f", "#ee7a77", "#f6a7a2", "#fbd0cc")

#: A hard stop further above the KL than this is named, not drawn.
MOST_ROOM = 3.0


def save_outcomes(path: Path, run: Run, policy: Policy, outcomes: Sequence[DetectorOutcome]) -> None:
    """Draw the run and write it to `path`; its suffix says the format.

    Raises:
        CliError: matplotlib is missing, or the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise CliError("--plot needs matplotlib: pip install 'rlguard[cli]'.") from None
    has_kl = bool(run.armed_kl().any())
    figure, axes = plt.subplots(
        2 if has_kl else 1,
        1,
        figsize=(9, 6 if has_kl else 4),
        sharex=True,
        squeeze=False,
        height_ratios=[2, 1] if has_kl else [1],
        layout="constrained",
    )
    x_of = _Positions(run)
    _draw_reward(axes[0, 0], run, x_of)
    if has_kl:
        _draw_kl(axes[1, 0], run, x_of, policy)
    for axis in axes[:, 0]:
        for at in x_of.starts:
            axis.axvline(at, color=MUTED, linewidth=0.8, linestyle=":")
        _mark_fires(axis, outcomes, x_of)
    axes[0, 0].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    axes[-1, 0].set_xlabel("step" if not x_of.starts else "step (all attempts in a row)")
    axes[0, 0].set_title(f"{Path(run.source).name}: {_headline(outcomes)}", fontsize=10)
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise CliError(f"--plot {path}: cannot be written: {error.strerror}.") from None
    finally:
        plt.close(figure)


class _Positions:
    """Where a step stands on the x axis: attempts follow one another without overlap."""

    def __init__(self, run: Run) -> None:
        attempts = sorted({*np.unique(run.attempt).tolist(), *(e.attempt for e in run.evaluations)})
        self.offset: dict[int, int] = {}
        self.starts: list[int] = []
        end = 0
        for i, attempt in enumerate(attempts):
            of_it = run.step[run.attempt == attempt]
            steps = [int(of_it.min()), int(of_it.max())] if len(of_it) else []
            steps += [e.step for e in run.evaluations if e.attempt == attempt]
            self.offset[attempt] = 0 if i == 0 else end + 1 - min(steps)
            end = self.offset[attempt] + max(steps)
            if i:
                self.starts.append(self.offset[attempt] + min(steps))

    def __call__(self, attempt: int, step: int) -> int:
        return self.offset[attempt] + step


def _step_x(run: Run) -> tuple[Any, Any]:
    """Which steps are drawn (evenly thinned, by attempt and step), and where."""
    drawn = np.unique(np.linspace(0, len(run.step) - 1, min(len(run.step), MOST_POINTS)).astype(np.int64))
    kept = np.lexsort((run.step, run.attempt))[drawn]
    return kept, run.step[kept]


def _draw_reward(axis: Axes, run: Run, x_of: _Positions) -> None:
    if len(run.step):
        kept, steps = _step_x(run)
        offsets = np.array([x_of.offset[a] for a in run.attempt[kept].tolist()])
        faint = 0.35 if run.evaluations else 0.9
        axis.plot(
            steps + offsets, run.reward[kept], color=IN_LOOP, alpha=faint, linewidth=1, label="in-loop reward"
        )
    if run.evaluations:
        points = sorted((x_of(e.attempt, e.step), e.score) for e in run.evaluations)
        axis.plot(*zip(*points, strict=True), color=HELDOUT, marker=".", label="held-out score")
        if baseline := baseline_of(run):
            mean = float(np.mean(baseline))
            axis.axhline(mean, color=HELDOUT, linestyle=":", linewidth=1.2, label="held-out baseline")
    else:
        axis.text(
            0.02, 0.05, "no held-out series: hacking cannot be judged", transform=axis.transAxes, color=LIMIT
        )
    axis.set_ylabel("reward, score")
    axis.grid(alpha=0.25)


def _draw_kl(axis: Axes, run: Run, x_of: _Positions, policy: Policy) -> None:
    kept, steps = _step_x(run)
    offsets = np.array([x_of.offset[a] for a in run.attempt[kept].tolist()])
    kl = np.where(run.armed_kl()[kept], run.kl[kept], np.nan)
    axis.plot(steps + offsets, kl, color=KL, linewidth=1)
    top = float(np.nanquantile(kl, 0.99)) * 1.2  # a single k3 spike must not own the axis
    if policy.kl.hard_stop is not None:
        _draw_limit(axis, policy.kl.hard_stop, "hard stop", top)
    elif policy.kl.warn_above is not None:
        _draw_limit(axis, policy.kl.warn_above, "advice", top)
    elif top > 0.0:
        axis.set_ylim(0, top)
    axis.set_ylabel("KL to reference\n(nats/token)")
    axis.grid(alpha=0.25)


def _draw_limit(axis: Axes, limit: float, name: str, top: float) -> None:
    """A limit as a line, or in words where a line would flatten the curve, whose top is `top`."""
    axis.axhline(limit, color=LIMIT, linestyle="--", linewidth=1)
    near = top == 0.0 or limit <= MOST_ROOM * top
    axis.set_ylim(0, max(limit * 1.3, top) if near else top)
    text = f"{name} " if near else f"{name} at {limit:g} nats/token "
    height = limit if near else top * 0.9
    where = axis.get_yaxis_transform()
    axis.text(0.995, height, text, color=LIMIT, fontsize=8, va="bottom", ha="right", transform=where)


def _mark_fires(axis: Axes, outcomes: Sequence[DetectorOutcome], x_of: _Positions) -> None:
    """One line for each step at which something fired, in order, each with all that fired there."""
    fires: dict[CheckpointKey, list[str]] = {}
    for outcome in outcomes:
        if outcome.attempt is not None and outcome.step is not None:
            fires.setdefault(CheckpointKey(outcome.attempt, outcome.step), []).append(outcome.detector)
    for i, (at, detectors) in enumerate(sorted(fires.items())):
        label = f"fired at {at.step:,}:\n" + "\n".join(f"  {name}" for name in detectors)
        axis.axvline(x_of(*at), color=FIRES[i % len(FIRES)], linestyle="--", linewidth=1.3, label=label)


def _headline(outcomes: Sequence[DetectorOutcome]) -> str:
    fired = [o for o in outcomes if o.fired]
    if not fired:
        return "no detector fired"
    return f"{len(fired)} of {len(outcomes)} detectors fired"
