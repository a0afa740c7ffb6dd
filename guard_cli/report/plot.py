"""The run as one plot, in SVG: `plot.svg`, and what a report shows to readers that run no script."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from guard_cli.colours import HELDOUT, IN_LOOP, KL, LIMIT
from guard_core.wire import Verdict

SMOOTHED_OVER = 8  # steps, or rounds
MARKERS_UP_TO = 200  # evaluations; more than that and the markers hide the line


def draw(history: Sequence[Mapping[str, Any]], verdict: Verdict | None, each: str = "step") -> str:
    """The run as SVG: in-loop reward against held-out score above, KL to the reference below.

    Args:
        history: lines of history.jsonl; the newest attempt is drawn.
        each: what a line of it is, a step or a round.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    attempt = max((line["attempt"] for line in history), default=0)
    lines = [line for line in history if line["attempt"] == attempt and line["step"] > 0]
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlguard", "font.family": "sans-serif"}):
        figure, (top, bottom) = plt.subplots(
            2, 1, sharex=True, figsize=(9, 5.6), height_ratios=[3, 1.2], layout="constrained"
        )
        _draw_scores(top, lines, each)
        _draw_kl(bottom, lines, verdict)
        if verdict is not None and verdict.latch_step is not None and verdict.latch_attempt == attempt:
            label = ("fire" if verdict.fire else "halt") + f" at step {verdict.latch_step}"
            top.axvline(verdict.latch_step, color=LIMIT, linewidth=1.5, label=label)
            bottom.axvline(verdict.latch_step, color=LIMIT, linewidth=1.5)
        top.legend(frameon=False, loc="best")
        bottom.set_xlabel("optimizer step")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _draw_scores(axes: Any, lines: Sequence[Mapping[str, Any]], each: str) -> None:
    rewards = [(line["step"], line["reward"]) for line in lines if line["reward"] is not None]
    scores = [(line["step"], line["heldout"]) for line in lines if "heldout" in line]
    axes.plot(*_columns(rewards), color=IN_LOOP, linewidth=0.8, alpha=0.4)
    label = f"in-loop reward (mean of {SMOOTHED_OVER} {each}s)"
    axes.plot(*_columns(_trailing_mean(rewards)), color=IN_LOOP, linewidth=2, label=label)
    marker = "o" if len(scores) <= MARKERS_UP_TO else ""
    axes.plot(*_columns(scores), color=HELDOUT, linewidth=2, marker=marker, ms=3, label="held-out score")
    axes.set_ylabel("score")
    axes.grid(alpha=0.25)


def _draw_kl(axes: Any, lines: Sequence[Mapping[str, Any]], verdict: Verdict | None) -> None:
    kls = [
        (line["step"], line["kl"])
        for line in lines
        if line["kl"] is not None and line["kl_kind"] == "ref_token_mean"
    ]
    axes.plot(*_columns(kls), color=KL, linewidth=1)
    if not kls:
        axes.text(0.5, 0.5, "no KL to the reference was reported", transform=axes.transAxes, ha="center")
    elif verdict is not None and verdict.kl_hard_stop is not None:
        top = max(kl for _, kl in kls)
        if verdict.kl_hard_stop <= 2 * top:  # a threshold far above would flatten the curve
            axes.axhline(verdict.kl_hard_stop, color=LIMIT, linestyle="--", linewidth=1)
    axes.set_ylabel("KL, nats/token")
    axes.grid(alpha=0.25)


def _trailing_mean(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each value as the mean of itself and up to `SMOOTHED_OVER - 1` before it."""
    recent: deque[float] = deque(maxlen=SMOOTHED_OVER)
    smoothed = []
    for x, y in points:
        recent.append(y)
        smoothed.append((x, fmean(recent)))
    return smoothed


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
