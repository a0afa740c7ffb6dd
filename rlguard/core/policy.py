"""Policy: every threshold of a guarded run, in one frozen, validated value.

It is what `policy.yaml` holds for `rlguard run` and what `spec.guard.policy` holds on a cluster.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rlguard.core.heldout_guard import HeldOutGuard
from rlguard.core.steps import StepMonitor
from rlguard.core.wire import Finite

#: What may fire on held-out evaluations; see `Policy.detector`.
DetectorName = Literal["heldout_guard", "calibrated"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HeldOutGuardPolicy(_Section):
    """Thresholds of the `HeldOutGuard` rule. Its limit on the KL is `kl.hard_stop`, watched at every step."""

    max_proxy_real_gap: Finite = Field(0.10, description="Ceiling of the Hacking Gap, reward units.")
    min_steps: int = Field(20, ge=0, description="Evaluation rounds before the rule may fire.")
    decline_patience: int = Field(
        3, ge=1, description="Consecutive held-out declines, while in-loop reward rises, that fire."
    )
    ema_alpha: Finite = Field(0.9, ge=0, lt=1, description="Weight on the prior value of each EMA.")
    rise_eps: Finite = Field(
        1e-4, ge=0, description="Change of an EMA that counts as a rise or fall, reward units."
    )

    def build(self) -> HeldOutGuard:
        """A fresh guard with these thresholds, to be fed without a KL."""
        return HeldOutGuard(**self.model_dump())


class KlPolicy(_Section):
    """Limits on the KL to the reference, nats/token, watched at every step.

    Learning costs KL too, and no value carries over from model to model, so by default it only warns. Where
    the KL does not start near 0 the limits are counted from where it starts.
    """

    warn_above: Finite | None = Field(
        0.08, gt=0, description="KL to the reference that warns, nats/token; null: none."
    )
    hard_stop: Finite | None = Field(
        None, gt=0, description="KL to the reference that stops the run, nats/token; null: none."
    )
    min_steps: int = Field(20, ge=0, description="Steps with a KL before either of them acts.")
    ema_alpha: Finite = Field(0.9, ge=0, lt=1, description="Weight on the prior value of the KL's EMA.")

    def build(self) -> StepMonitor:
        """A fresh monitor with these limits."""
        return StepMonitor(self.hard_stop, self.ema_alpha, self.min_steps)


#: Passes of greedy decoding that are enough: all further ones would be copies.
GREEDY_PASSES = 2


class CalibratedPolicy(_Section):
    """Settings of the calibrated detector (`rlguard.core.detectors`). Scores are fractions of 1."""

    alpha: Finite = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="Probability of a false stop in 100 evaluations that you accept; thresholds of a longer "
        "run grow with its logarithm.",
    )
    max_decline: Finite = Field(
        0.03,
        ge=0,
        lt=1,
        description="Decline of the held-out mean below its start, or below a level reached since, that is "
        "accepted; a smaller one that is shown is a warning.",
    )
    baseline_passes: int = Field(16, ge=1, le=256, description="Passes of the starting policy (R).")
    baseline_minutes: Finite = Field(
        20.0,
        gt=0,
        description="Time that all of these passes may take, minutes: fewer are made where it is spent "
        "before, at least one.",
    )
    samples: int = Field(
        1,
        ge=1,
        description="Independent samples behind each outcome (k) of a log that does not say it. Of an "
        "evaluation that the guard makes its own number counts.",
    )
    on_decline: Literal["warn", "stop"] = Field(
        "stop", description="What a fall of the held-out score beyond `max_decline` does."
    )
    on_disagreement: Literal["warn", "stop"] = Field(
        "stop",
        description="What it does when the training grader gains more than the held-out scorer, and pays in "
        "full for more wrong answers.",
    )
    on_gap: Literal["warn", "stop"] = Field(
        "warn",
        description="What it does when the reward gains and the held-out score does not. Honest runs do that "
        "too: a reward that changes its scale, a format that is learnt first, a curriculum.",
    )

    def has_room(self, seconds: float | None, again: float | None) -> bool:
        """Whether one more pass of the starting policy fits into `baseline_minutes`.

        Fewer passes see a decline from the start later. They cost no false stops: the thresholds are of the
        passes that there are.

        Args:
            seconds: that all passes so far took; None, not known, is bounded by nothing.
            again: seconds that one more takes; likewise.
        """
        return seconds is None or again is None or seconds + again <= 60 * self.baseline_minutes


class SilentPolicy(_Section):
    """What to do when the trainer reports no step."""

    after_seconds: Finite = Field(1800.0, gt=0, description="Seconds without a step before `silent` holds.")
    action: Literal["warn", "stop"] = Field(
        "warn", description="Whether `silent` only warns or stops the run."
    )


class StalePolicy(_Section):
    """What to do when checkpoints are not being evaluated."""

    after_rounds: int = Field(
        3, ge=1, description="Checkpoints announced since the last finished evaluation before `stale` holds."
    )
    after_steps: int = Field(
        1000, ge=1, description="Steps reported since the last finished evaluation before `stale` holds."
    )
    action: Literal["warn", "stop"] = Field(
        "warn", description="Whether `stale` only warns or stops the run."
    )


class EvaluationFailingPolicy(_Section):
    """What to do when evaluations fail."""

    after_failures: int = Field(3, ge=1, description="Failures in a row before `evaluation_failing` holds.")
    action: Literal["warn", "stop"] = Field("warn", description="Whether it only warns or stops the run.")


class RefusedPolicy(_Section):
    """What to do when the guard refuses what the trainer reports."""

    after: int = Field(
        3, ge=1, description="Refused reports in a row, of steps or of checkpoints, before `action` applies."
    )
    action: Literal["warn", "stop"] = Field("warn", description="Whether it only warns or stops the run.")


class Policy(_Section):
    """All thresholds of one run. Unknown keys are refused; a changed policy is a new run."""

    detector: DetectorName = Field(
        "calibrated",
        description="What may fire on evaluations. Under `calibrated` HeldOutGuard only gives advice.",
    )
    kl: KlPolicy = Field(default_factory=KlPolicy)
    heldout_guard: HeldOutGuardPolicy = Field(default_factory=HeldOutGuardPolicy)
    calibrated: CalibratedPolicy = Field(default_factory=CalibratedPolicy)
    silent: SilentPolicy = Field(default_factory=SilentPolicy)
    stale: StalePolicy = Field(default_factory=StalePolicy)
    evaluation_failing: EvaluationFailingPolicy = Field(default_factory=EvaluationFailingPolicy)
    refused: RefusedPolicy = Field(default_factory=RefusedPolicy)

    def within_budget(self, seconds: float | None) -> Policy:
        """The same with as many passes of the starting policy as `baseline_minutes` has room for.

        `seconds`: that one takes; None: not known.
        """
        passes, calibrated = 1, self.calibrated
        while passes < calibrated.baseline_passes and calibrated.has_room(
            None if seconds is None else passes * seconds, seconds
        ):
            passes += 1
        return self.model_copy(
            update={"calibrated": calibrated.model_copy(update={"baseline_passes": passes})}
        )
