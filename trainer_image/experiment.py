"""What the guard says, where an experiment is looked at: W&B, trackio, TensorBoard, MLflow.

The figures go to whatever the Trainer logs to, through its own event, and stand there beside the reward.
They are what a trainer is told (`guard_core.trainer_view`): the released held-out scores and what is made of
these. The statistics of the detectors are made of single items and stay in the guard.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guard_client.client import VerdictView
from guard_client.log import log
from guard_client.stopping import Stop
from guard_core.codes import Level

PREFIX = "rlguard/"


def verdict_figures(stop: Stop | None, verdict: VerdictView | None) -> dict[str, float]:
    """The figures by their names in a log. What is not known has none: a 0 would be a value.

    A guard that is lost has no verdict now; then only the stop and the level `unknown` are told.
    """
    lost = stop is not None and stop.lost
    known: dict[str, float | None] = {
        "level": Level.UNKNOWN.severity if lost else None if verdict is None else _severity(verdict.level),
        "stop": float(stop is not None),
    }
    if verdict is not None and not lost:
        newest = verdict.last_evaluation
        known |= {
            "heldout_score": None if newest is None else newest.score,
            "heldout_step": None if newest is None else newest.step,
            "heldout_ema": verdict.heldout_ema,
            "gap": verdict.proxy_real_gap,
            "gap_ceiling": verdict.max_proxy_real_gap,
        }
    return {PREFIX + name: float(value) for name, value in known.items() if value is not None}


def _severity(level: str | None) -> int | None:
    """0 for healthy up to 3 for fired; None for a level of a newer guard."""
    return Level(level).severity if level in list(Level) else None


def are_ours(logs: Mapping[str, Any]) -> bool:
    """Whether these logs are the guard's figures, and not the trainer's."""
    return any(name.startswith(PREFIX) for name in logs)


@dataclass(frozen=True, slots=True)
class News:
    """What rank 0 tells the others.

    Why training must stop, new figures, the best checkpoint, if any, and whether one is wanted sooner.
    """

    stop: Stop | None
    figures: Mapping[str, float]
    best: str = ""
    sooner: bool = False


@dataclass
class Experiment:
    """What a training is told of its guard's verdicts, and where their figures go.

    Nothing here may end it: a failure is one warning.
    """

    _newest: dict[str, float] = field(default_factory=dict)
    _sooner: bool = False
    _failed: bool = False

    def news(
        self, stop: Stop | None, verdict: VerdictView | None, saved: int, may_save: bool = False
    ) -> News | None:
        """What is to be told; None if nothing has changed.

        Args:
            stop: why training must stop.
            verdict: the newest.
            saved: step of the newest checkpoint.
            may_save: whether this rank lets a checkpoint be saved sooner. It is only once that one has been
                scored and nothing waits.
        """
        figures = verdict_figures(stop, verdict)
        new = figures if figures != self._newest else {}
        self._newest = figures
        best = "" if verdict is None or verdict.best_evaluation is None else verdict.best_evaluation.path
        scored = None if verdict is None else verdict.last_evaluation
        wanted = may_save and verdict is not None and verdict.sooner and verdict.waiting == 0
        sooner = wanted and scored is not None and scored.step == saved
        changed, self._sooner = sooner != self._sooner, sooner
        return News(stop, new, best, sooner) if stop is not None or new or changed else None

    def log(self, trainer: Any, figures: Mapping[str, float]) -> None:
        """Give the figures to everything that this trainer logs to; all ranks do, as they do with its own."""
        handler = getattr(trainer, "callback_handler", None)
        if not figures or handler is None:
            return
        try:
            # A copy of `control`: the event takes `should_log` back, and the trainer is yet to log.
            handler.on_log(trainer.args, trainer.state, copy.copy(trainer.control), dict(figures))
        except Exception as error:  # whatever a logger raises: the run is worth more than its picture
            if not self._failed:
                self._failed = True
                log.warning("the guard's figures (%s*) could not be logged: %r", PREFIX, error)
