"""Policy: every threshold of a guarded run, in one frozen, validated value.

It is what `policy.yaml` holds for `rlguard run` and what `spec.guard.policy` holds on a cluster.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

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

    heldout_guard: HeldOutGuardPolicy = Field(default_factory=HeldOutGuardPolicy)
    silent: SilentPolicy = Field(default_factory=SilentPolicy)
    stale: StalePolicy = Field(default_factory=StalePolicy)
    evaluation_failing: EvaluationFailingPolicy = Field(default_factory=EvaluationFailingPolicy)

    def build_step_monitor(self) -> StepMonitor:
        """The per-step KL watch; it shares its threshold and EMA with `heldout_guard`."""
        return StepMonitor(
            kl_hard_stop=self.heldout_guard.kl_hard_stop, ema_alpha=self.heldout_guard.ema_alpha
        )
