"""The compact state of a run: what a new guard with an empty log begins from. Pure.

It holds means and variances over items, and no outcome of an item (invariant 8). Steps since the last
evaluation are not in it: their trainer has died with its pod. Latches travel beside it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from rlguard.core.attempts import EvaluationSeries
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.detectors.run import CompactDetector
from rlguard.core.policy import Policy
from rlguard.core.steps import AttemptStarts, KlGate, KlMemory, StepCount
from rlguard.core.unscored import Unscored
from rlguard.core.wire import CheckpointReport, EvaluationSummary, FailureKind, KlKind, Sampling


@dataclass(slots=True)
class RunNotes:
    """What a judge counted and noted of a run, beside its detectors.

    Fields:
        steps: that were reported.
        announced, evaluated, failed, skipped: checkpoints; `skipped_in_a_row`: of the newest ones.
        gone: checkpoints that were deleted before they could be announced.
        refused: checkpoints that were not taken.
        failures: evaluations that failed in a row; `last_failure`: why the newest did, `failure`: of which
            kind the newest evaluation is.
        sampling: what the first checkpoint said; `other_sampling`: the newest checkpoint that says another.
        waits: whether the trainer waits for the guard, by its newest checkpoint.
        short_baseline: passes of the baseline, if one that was wanted could not be made.
        unconfirmed: whether the fresh pass that an alarm waited for could not be made.
        last_kl: kind and value of the newest step; `kl_lost`: steps in a row without one that counts.
        reward_lost: steps in a row without a finite reward.
        last, best: the newest and the best evaluation; `best_since`: since the trainer started from scratch.
        lost: why nobody knows what was folded before; "" if nothing is lost.
    """

    steps: int = 0
    announced: int = 0
    evaluated: int = 0
    failed: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    gone: int = 0
    refused: frozenset[CheckpointKey] = frozenset()
    failures: int = 0
    last_failure: str = ""
    failure: FailureKind | None = None
    sampling: Sampling | None = None
    other_sampling: CheckpointReport | None = None
    waits: bool | None = None
    short_baseline: int | None = None
    unconfirmed: bool = False
    last_kl: tuple[KlKind, float | None] | None = None
    kl_lost: int = 0
    reward_lost: int = 0
    count: StepCount = field(default_factory=StepCount)
    starts: AttemptStarts = field(default_factory=AttemptStarts)
    series: EvaluationSeries = field(default_factory=EvaluationSeries)
    unscored: Unscored = field(default_factory=Unscored)
    last: EvaluationSummary | None = None
    best: EvaluationSummary | None = None
    best_since: EvaluationSummary | None = None
    lost: str = ""


class CompactState(BaseModel):
    """What is known of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: `policy_digest` of the policy that the run is judged by.
    policy: str
    notes: RunNotes = Field(default_factory=RunNotes)
    kl_gate: KlGate = KlGate()
    kl: KlMemory = KlMemory()
    #: `HeldOutGuard.to_state`.
    guard: dict[str, object] | None = None
    detector: CompactDetector | None = None

    @classmethod
    def unknown(cls, policy: Policy, why: str) -> Self:
        """Of a run of which nothing is known but that there was one."""
        return cls(policy=policy_digest(policy), notes=RunNotes(lost=why))


def policy_digest(policy: Policy) -> str:
    """Tell policies apart in a few characters."""
    return hashlib.sha256(policy.model_dump_json().encode()).hexdigest()[:16]
