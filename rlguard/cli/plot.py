"""One picture of a run: reward against held-out score above, the KL to the reference below."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from rlguard.cli.colours import HELDOUT, IN_LOOP, KL, LIMIT, MUTED

PlotPoints = Sequence[tuple[float, float]]

SMOOTHED_OVER = 8  # steps, or rounds
MARKERS_UP_TO = 200  # evaluations; more than that and the markers hide the line
MOST_POINTS = 4000  # more than a picture has columns only make it slow
MOST_ROOM = 2.0  # a limit further above the KL than this is not drawn


@dataclass(frozen=True, slots=True)
class Curves:
    """What is drawn. Points are (x, y); `each`: what a point of the reward is; `kl_limit`: nats/token.

    `marks`: where something fired, and its label. `starts`: where another attempt of the trainer begins.
    """

    rewards: PlotPoints
    scores: PlotPoints
    kls: PlotPoints
    each: str = "step"
    kl_limit: float | None = None
    marks: Sequence[tuple[float, str]] = ()
    starts: Sequence[float] = ()
    title: str = ""


def save_plot(curves: Curves, to: Path | IO[str], format_: str) -> None:
    """Draw the curves and write the picture.

    Raises:
        OSError: it cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlguard", "font.family": "sans-serif"}):
        figure, (top, bottom) = plt.subplots(
            2, 1, sharex=True, figsize=(9, 5.6), height_ratios=[3, 1.2], layout="constrained"
        )
        try:
            _draw_scores(top, curves)
            _draw_kl(bottom, curves)
            for x in curves.starts:
                top.axvline(x, color=MUTED, linewidth=0.8, linestyle=":")
            for x, label in curves.marks:
                top.axvline(x, color=LIMIT, linewidth=1.5, label=label)
                bottom.axvline(x, color=LIMIT, linewidth=1.5)
            top.legend(frameon=False, loc="best")
            top.set_title(curves.title, fontsize=10)
            bottom.set_xlabel("optimizer step" + (" (all attempts in a row)" if curves.starts else ""))
            figure.savefig(to, format=format_, dpi=130, metadata={"Date": None} if format_ == "svg" else None)
        finally:
            plt.close(figure)


def _draw_scores(axes: Any, curves: Curves) -> None:
    axes.plot(*_columns(curves.rewards), color=IN_LOOP, linewidth=0.8, alpha=0.4)
    label = f"in-loop reward (mean of {SMOOTHED_OVER} {curves.each}s)"
    axes.plot(*_columns(_trailing_mean(curves.rewards)), color=IN_LOOP, linewidth=2, label=label)
    marker = "o" if len(curves.scores) <= MARKERS_UP_TO else ""
    name = "held-out score" if curves.scores else "no held-out score: hacking cannot be judged"
    axes.plot(*_columns(curves.scores), color=HELDOUT, linewidth=2, marker=marker, ms=3, label=name)
    axes.set_ylabel("reward, score")
    axes.grid(alpha=0.25)


def _draw_kl(axes: Any, curves: Curves) -> None:
    axes.plot(*_columns(curves.kls), color=KL, linewidth=1)
    if not curves.kls:
        axes.text(0.5, 0.5, "no KL to the reference was reported", transform=axes.transAxes, ha="center")
    elif curves.kl_limit is not None and curves.kl_limit <= MOST_ROOM * max(kl for _, kl in curves.kls):
        axes.axhline(curves.kl_limit, color=LIMIT, linestyle="--", linewidth=1)
    axes.set_ylabel("KL, nats/token")
    axes.grid(alpha=0.25)


def _trailing_mean(points: PlotPoints) -> list[tuple[float, float]]:
    """Each value as the mean of itself and up to `SMOOTHED_OVER - 1` before it."""
    recent: deque[float] = deque(maxlen=SMOOTHED_OVER)
    smoothed = []
    for x, y in points:
        recent.append(y)
        smoothed.append((x, fmean(recent)))
    return smoothed


def _columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The x and the y of at most about `MOST_POINTS` points, evenly chosen."""
    found = list(points)
    thinned = found[:: max(1, len(found) // MOST_POINTS)]
    return [x for x, _ in thinned], [y for _, y in thinned]
