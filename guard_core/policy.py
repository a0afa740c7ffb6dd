"""Policy: every threshold of a guarded run, in one frozen, validated value.

It is what `policy.yaml` holds for `rlguard run` and what `spec.guard.policy` holds on a cluster.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from guard_core.heldout_guard import HeldOutGuard
from guard_core.step_monitor import StepMonitor

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HeldOutGuardPolicy(_Section):
    """Thresholds of the `HeldOutGuard` rule."""

    kl_hard_stop: Finite = Field(
        0.08, gt=0, description="KL to the reference that stops the run, nats/token."
    )
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
        """A fresh guard with these thresholds."""
        return HeldOutGuard(**self.model_dump())


class AlphaShares(_Section):
    """How `alpha` is split between the parts of the calibrated detector. The shares sum to at most 1."""

    guaranteed: Finite = Field(0.4, gt=0, le=1, description="Share of the e-process against the baseline.")
    fast: Finite = Field(0.4, gt=0, le=1, description="Share of the risk-adjusted charts.")
    peak: Finite = Field(0.1, gt=0, le=1, description="Share of the decline from a plateau.")
    gap: Finite = Field(0.1, gt=0, le=1, description="Share of the gap between proxy and held-out gain.")

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.guaranteed + self.fast + self.peak + self.gap
        if total > 1 + 1e-9:
            raise ValueError(f"alpha_shares sum to {total:g}; they must not exceed 1")
        return self


class CalibratedPolicy(_Section):
    """Settings of the calibrated detector (`guard_core.detectors`). Scores are fractions of 1."""

    alpha: Finite = Field(0.05, gt=0, lt=0.5, description="Wanted probability of a false stop in `horizon`.")
    horizon: int = Field(100, ge=1, description="Evaluations that `alpha` is for.")
    alpha_shares: AlphaShares = Field(default_factory=AlphaShares)
    tolerance: Finite = Field(
        0.01, ge=0, lt=1, description="Decline of the held-out mean below the baseline that is accepted."
    )
    peak_tolerance: Finite = Field(
        0.02, ge=0, lt=1, description="Decline of the held-out mean below a plateau that is accepted."
    )
    baseline_passes: int = Field(16, ge=1, le=256, description="Passes of the starting policy (R).")
    samples: int = Field(1, ge=1, description="Independent samples behind each outcome (k).")
    design_drop: Finite = Field(
        0.045,
        gt=0,
        lt=1,
        description="Drop below the baseline that the fast detector is tuned to, beside one twice as large.",
    )
    plateau_drop: Finite = Field(
        0.045,
        gt=0,
        lt=1,
        description="Drop below a plateau that the fast detector is tuned to, beside one twice as large.",
    )
    lag: int = Field(
        8,
        ge=1,
        le=64,
        description="Levels reached in a run are averaged over 2 and 4 times as many evaluations.",
    )
    gap_gain: Finite = Field(
        0.02, gt=0, lt=1, description="Held-out gain that a risen in-loop reward has to show."
    )
    bootstrap_runs: int = Field(2000, ge=100, description="Simulated null runs behind the fast threshold.")
    seed: int = Field(0, ge=0, description="Seed of that simulation.")


class SilentPolicy(_Section):
    """What to do when the trainer reports no step."""

    after_seconds: Finite = Field(1800.0, gt=0, description="Seconds without a step before `silent` holds.")
    policy: Literal["warn", "stop"] = Field(
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
    policy: Literal["warn", "stop"] = Field(
        "warn", description="Whether `stale` only warns or stops the run."
    )


class EvaluationFailingPolicy(_Section):
    """What to do when evaluations fail."""

    after_failures: int = Field(3, ge=1, description="Failures in a row before `evaluation_failing` holds.")
    policy: Literal["warn", "stop"] = Field("warn", description="Whether it only warns or stops the run.")


class Policy(_Section):
    """All thresholds of one run. Unknown keys are refused; a changed policy is a new run."""

    detector: Literal["heldout_guard", "calibrated", "both"] = Field(
        "heldout_guard",
        description="What may fire on evaluations; with `both` the calibrated detector gets alpha/2.",
    )
    heldout_guard: HeldOutGuardPolicy = Field(default_factory=HeldOutGuardPolicy)
    calibrated: CalibratedPolicy = Field(default_factory=CalibratedPolicy)
    silent: SilentPolicy = Field(default_factory=SilentPolicy)
    stale: StalePolicy = Field(default_factory=StalePolicy)
    evaluation_failing: EvaluationFailingPolicy = Field(default_factory=EvaluationFailingPolicy)

    def calibrated_share(self) -> CalibratedPolicy:
        """Settings of the calibrated detector beside HeldOutGuard: half of alpha, the rest is for that rule.

        HeldOutGuard holds its half only with thresholds that `rlguard calibrate` chose for it.
        """
        return self.calibrated.model_copy(update={"alpha": self.calibrated.alpha / 2})

    def build_step_monitor(self) -> StepMonitor:
        """The per-step KL watch; it shares its threshold and EMA with `heldout_guard`."""
        return StepMonitor(
            kl_hard_stop=self.heldout_guard.kl_hard_stop, ema_alpha=self.heldout_guard.ema_alpha
        )
