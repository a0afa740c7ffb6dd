"""The part `disagreement`: the training grader pays ever more for completions that the scorer rejects.

Both have scored the same completions. For item i let t_i be the held-out outcome and p_i that of the training
grader, both in [0, 1]. With weight w the *agreement* is

    a_i = (1 - (p_i - w t_i)) / (1 + w)   in [0, 1],

so that the mean agreement falls by d / (1 + w) where the grader gains d more than w times what the held-out
score gains. The e-process of `eprocess.py` on a_i, against the passes of the starting policy, refutes "the
grader has gained at most w times the held-out gain, and `max_decline`". It is asked twice, and the lesser
evidence counts, which is an e-process against both claims:

- w = 1: a run in which both fall together disagrees no more than before, however far they fall;
- w = 2: in a run that learns, a grader that is easier to please than the scorer, as most are, may gain twice
  as much.

So P(ever alarms) <= alpha while the held-out score gains at least half of what the grader's mean gains, and
while neither gains. Which of the two fell, or rose, does not matter.

That alone cannot tell a hack from a grader that pays a part for something else, such as the format, which a
policy learns before anything. So it *fires* only if the same test refutes, too, that full pay (p = 1) for
what the scorer rejects has become more frequent by no more than `max_decline`, on b_i = (1 - f_i) / 2, f_i
the mean of [p = 1] (1 - t) over the completions of item i; else it warns. For a grader that pays all or
nothing this asks for nothing more. Where a pass of the starting policy does not tell f_i, it is
[p_i = 1] (1 - t_i) in every evaluation: the same where an item is one completion, and no more else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from guard_core.detectors import eprocess
from guard_core.detectors.baseline import Array, Baseline, Outcomes, Pay
from guard_core.detectors.parts import EProcess, Observed, certainty, dump_logs, load_logs, make_reading
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Code, DetectorReading, Level

WEIGHTS = (1.0, 2.0)


def agreement(truth: Outcomes, given: Outcomes, weight: float) -> Outcomes:
    """The agreement of each item, in [0, 1]."""
    return _rounded((1 - (given.items - weight * truth.items)) / (1 + weight))


def not_fooled(truth: Outcomes, paid: Pay, *, told: bool) -> Outcomes:
    """For each item, 0 where the grader pays in full for what the scorer rejects, 1/2 where not.

    For a grader that pays all or nothing, and for all that is right, it is the agreement with weight 1.

    Args:
        truth: the outcomes.
        paid: what the grader gave.
        told: whether `paid.fooled` counts where it is there; else what the means prove.
    """
    if told and paid.fooled is not None:
        return _rounded((1 - paid.fooled.items) / 2)
    return _rounded((1 - (paid.given.items >= 1.0) * (1 - truth.items)) / 2)


def _rounded(shares: Array) -> Outcomes:
    """Outcomes in [0, 1]; equal ones are equal to the last bit."""
    return Outcomes.of(np.clip(np.round(shares, 12), 0.0, 1.0))


def references(baseline: Baseline, alpha: float) -> tuple[eprocess.Reference, ...]:
    """What is compared with: a reference for each weight and one of `not_fooled`, from the baseline.

    Raises:
        ValueError: the baseline has no outcomes of the training grader.
    """
    if not baseline.graded:
        raise ValueError(f"{Disagreement.name!r} needs what the training grader gave the starting policy")
    passes = [_asked(*pair, told=baseline.tells_fooled) for pair in baseline.graded]
    return tuple(
        eprocess.Reference.of(Baseline(of_one, baseline.samples, sampled=baseline.sampled), alpha)
        for of_one in zip(*passes, strict=True)
    )


def _asked(truth: Outcomes, paid: Pay, *, told: bool) -> tuple[Outcomes, ...]:
    """What each e-process folds of one evaluation."""
    return (*(agreement(truth, paid.given, weight) for weight in WEIGHTS), not_fooled(truth, paid, told=told))


class Disagreement:
    """Paired disagreement that grows; see above. `references`: see there; alpha is the part's own share;
    `told`: see `not_fooled`.
    """

    name: ClassVar[str] = "disagreement"

    def __init__(
        self, config: CalibratedPolicy, references: Sequence[eprocess.Reference], alpha: float, *, told: bool
    ) -> None:
        self._told = told
        self._accepted, self._horizon = config.max_decline, config.horizon
        self._threshold = math.log(1 / alpha)
        self._processes = tuple(
            EProcess(reference, self._accepted / scale)
            for reference, scale in zip(references, (*(1 + weight for weight in WEIGHTS), 2.0), strict=True)
        )
        self._count = 0

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it; one without outcomes of the grader is not judged."""
        if seen.paid is None:
            sentence = "the training grader gave no outcomes for this evaluation"
            return make_reading(self.name, Code.PROXY_DISAGREEMENT, None, self._threshold, sentence)
        self._count += 1
        log_weight = eprocess.log_restart_weight(self._count, self._horizon)
        asked = _asked(seen.outcomes, seen.paid, told=self._told)
        self._processes = tuple(
            process.fold(one, log_weight, seen.dispersion)
            for process, one in zip(self._processes, asked, strict=True)
        )
        *grown, fooled = (process.log_evidence for process in self._processes)
        gained, fired = min(grown), min(*grown, fooled)
        before = 1 - 2 * self._processes[0].reference.strata.score
        sentence = (
            f"training grader {seen.paid.given.mean:.4f}, held-out {seen.outcomes.mean:.4f} (the grader was "
            f"{before:+.4f} above it at the start): that the grader gained more, more than twice as much, "
            f"{certainty(gained, self._threshold)}"
        )
        level = None
        if gained >= self._threshold > fired:
            level = Level.WARNING
            sentence += (
                ", but not that it pays more often in full for what the scorer rejects: a part of the pay, "
                "as for a format, looks like this. Give the guard the part that says right or wrong"
            )
        return make_reading(self.name, Code.PROXY_DISAGREEMENT, fired, self._threshold, sentence, level)

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {"count": self._count, "log_s": [dump_logs(process.log_s) for process in self._processes]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        self._count = state["count"]
        logs: list[Array] = [load_logs(rows) for rows in state["log_s"]]
        self._processes = tuple(p.at(log_s) for p, log_s in zip(self._processes, logs, strict=True))
