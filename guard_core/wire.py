"""What travels between trainer, guard and operator. Every model refuses unknown fields.

Invariant 8: nothing here carries a per-item held-out score, prompt or answer. `Evaluation`, which does,
is in `guard_core.judge` and never leaves the guard.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Finite = Annotated[float, Field(allow_inf_nan=False)]
#: What a trainer measured. The bound keeps every sum and difference of folded values finite.
Measured = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
Attempt = Annotated[int, Field(ge=0, lt=2**31, description="Start of the trainer, 0 for the first.")]
Step = Annotated[int, Field(ge=0, lt=2**53, description="Optimizer step (`global_step` of the trainer).")]


class Wire(BaseModel):
    """Base of the wire models: frozen, closed, strict about types (no "1" for 1, no true for 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class KlKind(StrEnum):
    """What the trainer's `kl` is. Only `ref_token_mean` can be held against a threshold in nats/token."""

    REF_TOKEN_MEAN = "ref_token_mean"
    REF_SEQ_SUM = "ref_seq_sum"
    BEHAVIOUR = "behaviour"
    ABSENT = "absent"


class StepReport(Wire):
    """One training step, as the trainer saw it."""

    attempt: Attempt
    step: Step
    reward: Measured = Field(description="Mean in-loop reward of the step, reward units.")
    kl: Annotated[Measured, Field(ge=0)] | None = Field(
        None, description="KL, nats; what it is says `kl_kind`."
    )
    kl_kind: Annotated[KlKind, Field(strict=False)] = KlKind.ABSENT
    entropy: Measured | None = Field(None, description="Mean policy entropy, nats/token.")
    reward_std: Annotated[Measured, Field(ge=0)] | None = Field(
        None, description="Std of the reward, reward units."
    )

    @model_validator(mode="after")
    def _kind_of_kl_is_known(self) -> Self:
        if self.kl is not None and self.kl_kind is KlKind.ABSENT:
            raise ValueError("kl is given but kl_kind is 'absent': say which KL it is")
        return self


class CheckpointReport(Wire):
    """A checkpoint that is complete on disk and may be scored."""

    attempt: Attempt
    step: Step
    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="Directory of the checkpoint, under the guard's checkpoint root."
    )


class Level(StrEnum):
    """Verdict levels in order of severity; the worst of several wins."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FIRED = "fired"

    @property
    def severity(self) -> int:
        """0 for healthy up to 3 for fired."""
        return list(Level).index(self)


class Code(StrEnum):
    """Stable codes of everything a verdict can say. `docs/reference/verdict.md` is generated from this."""

    KL_HARD_STOP = "kl_hard_stop"
    HELDOUT_DECLINE = "heldout_decline"
    HACKING_GAP = "hacking_gap"
    GUARANTEED_DECLINE = "guaranteed_decline"
    FAST_DECLINE = "fast_decline"
    PEAK_DECLINE = "peak_decline"
    CALIBRATED_GAP = "calibrated_gap"
    NO_BASELINE = "no_baseline"
    SILENT = "silent"
    STALE = "stale"
    EVALUATION_FAILING = "evaluation_failing"
    NO_STEPS = "no_steps"
    WARMING_UP = "warming_up"
    KL_INERT = "kl_inert"
    STORE_UNAVAILABLE = "store_unavailable"
    OK = "ok"

    @property
    def meaning(self) -> str:
        """One sentence for the reference and the dashboard."""
        return _MEANINGS[self]


_MEANINGS = {
    Code.KL_HARD_STOP: "KL to the reference is above its hard stop.",
    Code.HELDOUT_DECLINE: "The held-out score kept falling while in-loop reward rose.",
    Code.HACKING_GAP: "In-loop reward gained more than the held-out score by over the ceiling.",
    Code.GUARANTEED_DECLINE: "The held-out mean is below the baseline, by a test valid at every time.",
    Code.FAST_DECLINE: "A risk-adjusted chart of the held-out items is above its threshold.",
    Code.PEAK_DECLINE: "The held-out mean fell from a level that the run had reached.",
    Code.CALIBRATED_GAP: "In-loop reward rose and the held-out score provably did not.",
    Code.NO_BASELINE: "The passes of the starting policy are not complete, so declines cannot be judged yet.",
    Code.SILENT: "The trainer has reported no step for too long.",
    Code.STALE: "Checkpoints or steps arrive, but no evaluation has finished for too long.",
    Code.EVALUATION_FAILING: "Held-out evaluations failed several times in a row.",
    Code.NO_STEPS: "No step has been reported yet.",
    Code.WARMING_UP: "Too few evaluation rounds for the rule to judge.",
    Code.KL_INERT: "There is no KL to the reference, so the KL rule cannot fire.",
    Code.STORE_UNAVAILABLE: "The guard's store cannot be read or written.",
    Code.OK: "Nothing speaks against the run.",
}


class Condition(Wire):
    """One thing that holds now. `policy` is set where the condition has one."""

    code: Annotated[Code, Field(strict=False)] = Field(description="Which condition.")
    level: Annotated[Level, Field(strict=False)] = Field(description="How severe it is.")
    message: str = Field(description="A sentence with the numbers.")
    policy: Literal["warn", "stop"] | None = Field(
        None, description="What it does, where that is configured."
    )


class DetectorReading(Wire):
    """What one detector says after the newest evaluation. It carries no per-item outcome (invariant 8)."""

    name: str = Field(description="Detector, e.g. `guaranteed`, `fast`, `peak`, `gap`.")
    level: Annotated[Level, Field(strict=False)] = Field(description="How severe it is.")
    code: Annotated[Code, Field(strict=False)] = Field(description="What it finds.")
    statistic: Finite | None = Field(None, description="Evidence, nats; None where it cannot be judged.")
    threshold: Finite | None = Field(None, description="The detector fires at this statistic, nats.")
    message: str = Field(description="A sentence with the numbers.")


class EvaluationSummary(Wire):
    """One finished held-out evaluation, without its items."""

    attempt: Attempt
    step: Step
    score: Finite = Field(description="Mean score over the held-out split, in [0, 1].")
    items: int = Field(description="How many held-out items were scored.")
    path: str = Field(description="The checkpoint directory that was scored.")
    sha256: str | None = Field(
        None, description="Digest of the scored weights; None where weights are remote."
    )


class Verdict(Wire):
    """What the guard thinks of the run now. Missing numbers are null, never 0."""

    level: Annotated[Level, Field(strict=False)] = Field(description="The most severe condition's level.")
    code: Annotated[Code, Field(strict=False)] = Field(description="The most severe condition's code.")
    reason: str = Field(description="The most severe condition's message.")
    fire: bool = Field(description="Evidence of reward hacking; latched.")
    halt: bool = Field(
        description="Training must stop: a fire, or a condition whose policy is `stop`; latched."
    )
    conditions: tuple[Condition, ...] = Field(
        (), strict=False, description="Everything that holds now, the most severe first."
    )
    detectors: tuple[DetectorReading, ...] = Field(
        (), strict=False, description="What each part of the calibrated detector says; empty without it."
    )
    latch_attempt: Attempt | None = Field(None, description="Attempt in which the fire or stop latched.")
    latch_step: Step | None = Field(None, description="Step of that attempt at which it latched.")
    attempt: Attempt | None = Field(None, description="Newest attempt seen.")
    step: Step | None = Field(None, description="Newest step of that attempt.")
    steps: int = Field(0, description="Steps acknowledged over all attempts.")
    rounds: int = Field(0, description="Evaluation rounds folded.")
    waiting: int = Field(0, description="Checkpoints that were announced and are not evaluated yet.")
    in_loop_ema: Finite | None = Field(None, description="EMA of the in-loop reward over the rounds.")
    heldout_ema: Finite | None = Field(None, description="EMA of the held-out score over the rounds.")
    proxy_real_gap: Finite | None = Field(None, description="The Hacking Gap, reward units.")
    max_proxy_real_gap: Finite | None = Field(None, description="Its ceiling, reward units.")
    kl_ema: Finite | None = Field(None, description="EMA of the median-of-5 KL to the reference, nats/token.")
    kl_hard_stop: Finite | None = Field(None, description="Its threshold, nats/token.")
    last_evaluation: EvaluationSummary | None = Field(None, description="The newest evaluation.")
    best_evaluation: EvaluationSummary | None = Field(
        None, description="Highest held-out score so far (the later one of equals): the last good checkpoint."
    )


class StepsAnswer(Wire):
    """Acknowledgement of `POST /v1/steps`: what it counts is on disk."""

    accepted: int = Field(description="New steps.")
    duplicates: int = Field(description="Steps that were already on disk with the same values.")
    verdict: Verdict


class CheckpointAnswer(Wire):
    """Acknowledgement of `POST /v1/checkpoints`."""

    queued: bool = Field(description="False if this checkpoint was already known.")
    verdict: Verdict
