"""What only the guard responds with; what trainer and operator read is in `guard_core.wire`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from guard_core.policy import Policy


class HistoryStep(BaseModel):
    """One step of a thinned history."""

    attempt: int = Field(description="Start of the trainer, 0 for the first.")
    step: int = Field(description="Optimizer step.")
    reward: float | None = Field(
        description="Mean in-loop reward of the step, reward units; null where it is NaN or infinite."
    )
    kl: float | None = Field(None, description="KL, nats; `kl_kind` says which KL it is.")
    kl_kind: str = Field(description="What `kl` is; see `KlKind`.")
    entropy: float | None = Field(None, description="Mean policy entropy, nats/token.")
    reward_std: float | None = Field(None, description="Std of the reward, reward units.")


class HistoryEvaluation(BaseModel):
    """One evaluation of a thinned history, with what the held-out rule made of it."""

    attempt: int = Field(description="Start of the trainer that wrote the checkpoint.")
    step: int = Field(description="Optimizer step of the checkpoint.")
    score: float = Field(description="Mean score over the held-out split, in [0, 1].")
    items: int = Field(description="How many held-out items were scored.")
    truncated: float | None = Field(None, description="Share of completions that were cut off.")
    unanswered: float | None = Field(
        None, description="Share without an answer, of the completions whose answer begins after a mark."
    )
    timed_out: float | None = Field(
        None, description="Share that counts as wrong because its scorer reached its limit."
    )
    proxy_score: float | None = Field(
        None, description="Mean score of the same completions by the training grader."
    )
    seconds: float | None = Field(None, description="Wall time of all of it, seconds.")
    parts: dict[str, float] = Field(
        {},
        description="Wall time of its parts, seconds: stage (copy and hash), load, generate, score.",
    )
    path: str = Field(description="The checkpoint directory that was scored.")
    sha256: str | None = Field(None, description="Digest of the scored weights.")
    rounds: int = Field(description="Evaluation rounds folded so far.")
    in_loop_ema: float | None = Field(None, description="EMA of the in-loop reward after this round.")
    heldout_ema: float | None = Field(None, description="EMA of the held-out score after this round.")
    proxy_real_gap: float | None = Field(None, description="The Hacking Gap after this round, reward units.")
    kl_ema: float | None = Field(None, description="EMA of the KL to the reference, nats/token.")
    reward: float | None = Field(None, description="Mean in-loop reward of this round, reward units.")
    evidence: dict[str, tuple[float, float]] = Field(
        {}, description="Statistic and threshold of each calibrated detector after this round, nats."
    )


class History(BaseModel):
    """The history, thinned for a plot."""

    steps: list[HistoryStep] = Field(description="At most `max_points`, evenly spread, first and last kept.")
    evaluations: list[HistoryEvaluation] = Field(description="All of them, in the order they finished.")
    total_steps: int = Field(description="How many steps there are before thinning.")


class RunInfo(BaseModel):
    """Which run this is."""

    name: str = Field(description="Its name, for people.")
    version: str = Field(description="Version of the guard.")
    policy: Policy = Field(description="Every threshold that it is judged by.")


class Adopted(BaseModel):
    """Response to `PUT /v1/state`."""

    adopted: bool = Field(description="False if the guard knew of a run already: nothing was changed.")


class Health(BaseModel):
    """The process responds."""

    status: str = Field(description="`ok` or `ready`.")
