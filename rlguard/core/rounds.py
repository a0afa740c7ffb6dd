"""What a round is: an evaluation, the steps since the one before, and what is made of them. Pure.

This is the only place that says it. The judge hands the `Round` out, the store keeps it with its evaluation,
and history, status and replay read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from rlguard.core.wire import EvaluationSampling, EvaluationSummary

#: Steps of a round from which on they tell the noise of its mean reward.
MIN_STEPS = 4

#: What is known of an evaluation beside its outcomes, and what it is called in a guard's own history. The
#: last two are of its sampling.
TOLD = {
    "truncated": "heldout_truncated",
    "unanswered": "heldout_unanswered",
    "unscored": "heldout_unscored",
    "timed_out": "heldout_timed_out",
    "temperature": "heldout_temperature",
    "max_new_tokens": "heldout_max_new_tokens",
}

#: The part of an evaluation in which an engine is started, or weights are loaded.
LOAD = "load"

#: The longest completion of the trainer, as its first checkpoint says, tokens.
TRAINER_LIMIT = "trainer_max_new_tokens"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished held-out evaluation with its per-item outcomes. It never leaves the guard (invariant 8).

    `pass_index`: 0 for a checkpoint's first evaluation; later ones, which `Judge.wanted_pass` asks for, are
    passes of the baseline or the confirmation of an alarm, with fresh randomness.

    `items`: outcome of each held-out item in the split's order, each in [0, 1], shape (n_items,); items that
    succeed or fail together are one item here, with their mean.

    `truncated`: share of the completions that were cut off at the length limit; None where it is not known.

    `proxy_items`: what the training grader gives the same completions, as `items`; None without one, () where
    it failed.

    `fooled_items`: of each item the share of its completions that the training grader pays in full, each as
    far as it is wrong: the mean of [p = 1] (1 - t), as `items`. None where that is not known, or an item is
    one completion.

    `mean_only`: `items` is a mean alone, on any scale, from a log without outcomes. HeldOutGuard takes it;
    the calibrated detector would take it for the outcome of one item, so it is not given it.

    `sampling`: how the completions were sampled; None where that is not known, as in a log.

    `unanswered`: share without an answer, of the completions whose answer begins after a mark; None where
    none does, or it is not known.

    `unscored`: share of the completions that count as wrong and were given to no scorer, because they were
    cut off or have no answer; None where that is not known.

    `timed_out`: share of the completions that count as wrong because a scorer, or the training grader, did
    not end within its limit; None where there is no limit.

    `completions`, `seconds`: how many were made, and how long all of it took; None where that is not known.
    `parts`: how much of that each part took, seconds by its name; empty where that is not known.
    """

    attempt: int
    step: int
    path: str
    items: tuple[float, ...]
    sha256: str | None = None
    pass_index: int = 0
    truncated: float | None = None
    proxy_items: tuple[float, ...] | None = None
    mean_only: bool = False
    sampling: EvaluationSampling | None = None
    unanswered: float | None = None
    unscored: float | None = None
    timed_out: float | None = None
    completions: int | None = None
    seconds: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    fooled_items: tuple[float, ...] | None = None

    @property
    def score(self) -> float:
        """Mean outcome, in [0, 1]."""
        return fmean(self.items)

    @property
    def seconds_again(self) -> float | None:
        """Seconds that a further pass takes, by this one: the first may have started process and engine,
        which are there then. Where weights are loaded for each, it takes so much longer.
        """
        if self.pass_index > 0 or not self.parts:
            return self.seconds
        return sum(seconds for part, seconds in self.parts.items() if part != LOAD)

    def summary(self) -> EvaluationSummary:
        """The evaluation without its items."""
        return EvaluationSummary(
            attempt=self.attempt,
            step=self.step,
            score=self.score,
            items=len(self.items),
            truncated=self.truncated,
            unanswered=self.unanswered,
            timed_out=self.timed_out,
            proxy_score=fmean(self.proxy_items) if self.proxy_items else None,
            path=self.path,
            sha256=self.sha256,
            sampling=self.sampling,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that belong to one evaluation: `reward` is their mean, reward units; `kl` the median of their
    KL to the reference, nats/token (one k3 spike would own a mean). None where no step had any.
    `reward_error`: see `standard_error`. `steps`: how many they are.
    """

    reward: float | None
    kl: float | None
    reward_error: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class Round:
    """One evaluation as the judge folded it: its window, and what HeldOutGuard's averages were after it.

    `reward`, `kl`: see `Window`; `rounds`: rounds so far; the EMAs and the gap are in reward units, `kl_ema`
    in nats/token. None where nothing was known. `evidence`: statistic and threshold of each calibrated
    detector after it, nats, where it could judge.
    """

    reward: float | None
    kl: float | None
    rounds: int
    in_loop_ema: float | None
    heldout_ema: float | None
    proxy_real_gap: float | None
    kl_ema: float | None
    evidence: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def standard_error(rewards: Sequence[float]) -> float | None:
    """Standard error of the mean of successive rewards, whatever slow trend there is; None for fewer than 4.

    Half the mean squared successive difference is the variance of one (von Neumann, 1941).
    """
    if len(rewards) < MIN_STEPS:
        return None
    squares = math.fsum((after - before) ** 2 for before, after in pairwise(rewards))
    return math.sqrt(squares / (2 * (len(rewards) - 1) * len(rewards)))
