"""What the guard says, where an experiment is looked at: W&B, trackio, TensorBoard, MLflow.

The figures go to whatever the Trainer logs to, through its own event, and stand there beside the reward.
They are what a trainer is told (`rlguard.core.trainer_view`): the released held-out scores and what is made
of these. The statistics of the detectors are made of single items and stay in the guard.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlguard.client.client import VerdictView
from rlguard.client.log import WarnOnce
from rlguard.client.stopping import Stop
from rlguard.core.codes import Level

PREFIX = "rlguard/"


class News(NamedTuple):
    """What rank 0 tells the others: why training must stop, new figures, and the best checkpoint."""

    stop: Stop | None
    figures: Mapping[str, float]
    best: str = ""


def verdict_figures(stop: Stop | None, verdict: VerdictView | None) -> dict[str, float]:
    """Figures by their names in a log. What is not known has none: a 0 would be a value.

    A guard that is lost has no verdict now; then only the stop and the level `unknown` are known.
    """
    lost = stop is not None and stop.lost
    known: dict[str, float | None] = {"stop": float(stop is not None)}
    if lost:
        known["level"] = Level.UNKNOWN.severity
    elif verdict is not None:
        newest = verdict.last_evaluation
        known |= {
            "level": Level(verdict.level).severity if verdict.level in list(Level) else None,
            "heldout_score": None if newest is None else newest.score,
            "heldout_step": None if newest is None else newest.step,
            "heldout_ema": verdict.heldout_ema,
            "gap": verdict.proxy_real_gap,
            "gap_ceiling": verdict.max_proxy_real_gap,
        }
    return {PREFIX + name: float(value) for name, value in known.items() if value is not None}


def are_ours(logs: Mapping[str, Any]) -> bool:
    """Whether these logs are the guard's figures, and not the trainer's."""
    return any(name.startswith(PREFIX) for name in logs)


def log_figures(trainer: Any, figures: Mapping[str, float], warn: WarnOnce) -> None:
    """Give the figures to everything that this trainer logs to; all ranks do, as they do with its own.

    A logger that fails ends no training: it is one warning.
    """
    handler = getattr(trainer, "callback_handler", None)
    if not figures or handler is None:
        return
    try:
        # A copy of `control`: the event takes `should_log` back, and the trainer is yet to log.
        handler.on_log(trainer.args, trainer.state, copy.copy(trainer.control), dict(figures))
    except Exception as error:
        warn("figures", f"the guard's figures ({PREFIX}*) could not be logged: {error!r}")
