"""The plot of a report, in SVG: `plot.svg`, and what a page shows to readers that run no script."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rlguard.cli.plot import Curves, save_plot
from rlguard.core.wire import Verdict


def draw(history: Sequence[Mapping[str, Any]], verdict: Verdict | None, each: str = "step") -> str:
    """The run as SVG.

    Args:
        history: lines of history.jsonl; the newest attempt is drawn.
        each: what a line of it is, a step or a round.
    """
    attempt = max((line["attempt"] for line in history), default=0)
    lines = [line for line in history if line["attempt"] == attempt and line["step"] > 0]
    marks = []
    if verdict is not None and verdict.latch_step is not None and verdict.latch_attempt == attempt:
        marks = [(verdict.latch_step, f"{'fire' if verdict.fire else 'halt'} at step {verdict.latch_step}")]
    text = io.StringIO()
    curves = Curves(
        rewards=[(line["step"], line["reward"]) for line in lines if line["reward"] is not None],
        scores=[(line["step"], line["heldout"]) for line in lines if "heldout" in line],
        kls=[
            (line["step"], line["kl"])
            for line in lines
            if line["kl"] is not None and line["kl_kind"] == "ref_token_mean"
        ],
        each=each,
        kl_limit=None if verdict is None else verdict.kl_hard_stop,
        marks=marks,
    )
    save_plot(curves, text, "svg")
    return text.getvalue()[text.getvalue().index("<svg") :]
