"""`status`: what was observed of a job, and what the operator does about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from rlguard.operator.api.models import StatusModel, Timestamp

Text = Annotated[str, Field(max_length=4096)]


class Latched(StatusModel):
    """Why the guard says that the run must stop. Written once."""

    code: str = Field(max_length=63, description="The rule or condition, as in the guard's verdict.")
    reason: Text = Field(description="A sentence with the numbers.")
    attempt: int = Field(description="Attempt in which it happened.")
    step: int = Field(description="Training step at which it happened.")
    at: Timestamp = Field(description="When the guard latched it, or first said so here.")


class EndedStatus(StatusModel):
    """The trainer said that it had finished its training."""

    attempt: int = Field(description="Attempt that finished.")
    step: int = Field(description="Its last training step.")


class SamplingStatus(StatusModel):
    """How the completions of an evaluation were sampled."""

    temperature: float = Field(description="Temperature; 0 is greedy.")
    top_p: float | None = Field(None, description="Nucleus, where there is one.")
    top_k: int | None = Field(None, description="The likeliest tokens, where they are limited.")
    min_p: float | None = Field(None, description="Least share of the likeliest token's probability.")
    repetition_penalty: float | None = Field(None, description="Penalty of repetitions, where there is one.")
    max_new_tokens: int = Field(description="Longest completion, tokens.")
    stop: list[str] | None = Field(None, max_length=16, description="Texts that end a completion.")
    samples: int = Field(description="Completions of each item.")
    source: str = Field(max_length=63, description="trainer, settings or default: who says so.")


class EvaluationStatus(StatusModel):
    """One held-out evaluation: means only, never per-item scores."""

    attempt: int = Field(description="Attempt of the checkpoint.")
    step: int = Field(description="Step of the checkpoint.")
    score: float = Field(description="Mean score over the held-out split, in [0, 1].")
    items: int = Field(description="How many held-out items were scored.")
    truncated: float | None = Field(
        None, description="Share of completions that were cut off at the length limit, in [0, 1]."
    )
    unanswered: float | None = Field(
        None,
        description="Share of completions without an answer, of those whose answer begins after a mark, in "
        "[0, 1].",
    )
    timed_out: float | None = Field(
        None,
        description="Share of completions that count as wrong because a scorer, or the training grader, did "
        "not end within its limit, in [0, 1].",
    )
    proxy_score: float | None = Field(
        None, description="Mean score of the same completions by the training grader."
    )
    path: str = Field(max_length=4096, description="Directory of the checkpoint.")
    sha256: str | None = Field(None, max_length=64, description="Digest of the scored weights.")
    sampling: SamplingStatus | None = Field(None, description="How the completions were sampled.")


class GuardStatus(StatusModel):
    """What the guard says, as the operator read it when something of it had changed."""

    read_at: Timestamp | None = Field(None, description="When this was read.")
    level: str | None = Field(None, max_length=63, description="healthy, unknown, warning or fired.")
    code: str | None = Field(None, max_length=63, description="The most severe condition's code.")
    reason: Text | None = Field(None, description="The most severe condition in words.")
    advice: list[Annotated[str, Field(max_length=63)]] | None = Field(
        None,
        max_length=32,
        description="Codes of what is only advice, such as port_taken; nothing acts on them.",
    )
    advice_reason: Text | None = Field(None, description="The advice in words: a sentence for each code.")
    fire: Latched | None = Field(
        None, description="The latch. Once set, the API server refuses to change or remove it."
    )
    halt: Latched | None = Field(
        None,
        description="The latch that is not a fire: a condition whose action is Stop held. "
        "It stays beside a later fire.",
    )
    ended: EndedStatus | None = Field(
        None, description="Set when the trainer said that it had finished, and has reported nothing since."
    )
    attempt: int | None = Field(None, description="Newest attempt seen.")
    step: int | None = Field(None, description="Newest training step seen.")
    steps: int | None = Field(None, description="Steps acknowledged over all attempts.")
    rounds: int | None = Field(None, description="Evaluation rounds folded.")
    announced: int | None = Field(None, description="Checkpoints that were announced.")
    evaluated: int | None = Field(None, description="Of these, evaluated on the held-out split.")
    failed: int | None = Field(None, description="Of these, given up because their evaluation failed.")
    skipped: int | None = Field(None, description="Of these, gone before their turn, or passed over.")
    refused: int | None = Field(
        None,
        description="Beside these, refused when they were announced, and not taken later.",
    )
    waiting: int | None = Field(
        None,
        description="Evaluations that are yet to be made: the other checkpoints, and a wanted second pass.",
    )
    steps_since_evaluation: int | None = Field(
        None,
        description="Steps after the last evaluated checkpoint: those that were reported, and those that the "
        "trainer says at its end it made beyond them.",
    )
    longest_round: int | None = Field(
        None, description="Most steps that belonged to one evaluated checkpoint: as many may follow the last."
    )
    in_loop_ema: float | None = Field(None, description="EMA of the in-loop reward, reward units.")
    heldout_ema: float | None = Field(None, description="EMA of the held-out score.")
    kl_ema: float | None = Field(None, description="EMA of the KL to the reference, nats/token.")
    proxy_real_gap: float | None = Field(None, description="The Hacking Gap, reward units.")
    last_evaluation: EvaluationStatus | None = Field(None, description="The newest evaluation.")
    last_evaluation_time: Timestamp | None = Field(None, description="When it finished.")
    best_checkpoint: EvaluationStatus | None = Field(
        None, description="Highest held-out score so far: the last good checkpoint."
    )


class WorkloadRef(StatusModel):
    """The workload that was created for this job, or to which it is attached."""

    api_version: str = Field(max_length=253, description="Its API version.")
    kind: str = Field(max_length=63, description="Its kind.")
    name: str = Field(max_length=253, description="Its name.")
    uid: str = Field(max_length=63, description="Its UID; a namesake with another UID is not ours.")


class PodRef(StatusModel):
    """A pod that was seen."""

    name: str = Field(max_length=253, description="Its name.")
    uid: str = Field(max_length=63, description="Its UID, by which it is deleted.")


#: More pods are not noted of one run.
MAX_NOTED_PODS = 1024


class StopStatus(StatusModel):
    """The teardown."""

    requested_at: Timestamp = Field(
        description="When the workload was first told to go; of one that is recreated, when that was seen."
    )
    pods: list[PodRef] = Field(
        default_factory=list,
        max_length=MAX_NOTED_PODS,
        description="Pods of the run that were seen and are not gone yet, whoever changed their labels or "
        "owners since.",
    )
    stopped_at: Timestamp | None = Field(
        None, description="When Stopped first became True. It stays, even if a pod comes back."
    )


class ConditionStatus(StatusModel):
    """A standard Kubernetes condition."""

    type: str = Field(max_length=63, description="See the table of condition types.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(max_length=63, description="See the table of reasons.")
    message: str = Field("", max_length=32768, description="A sentence for people.")
    observed_generation: int | None = Field(None, description="The generation it was computed from.")
    last_transition_time: Timestamp = Field(
        description="When `status` last changed, or a queue let a run go that waits on."
    )


class Phase(StrEnum):
    """A summary of the conditions for people and printer columns; programs read the conditions."""

    PENDING = "Pending"
    REFUSED = "Refused"
    SUSPENDED = "Suspended"
    STARTING = "Starting"
    RUNNING = "Running"
    JUDGING = "Judging"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"


class Status(StatusModel):
    """What was observed."""

    observed_generation: int | None = Field(None, description="Generation that the operator last acted on.")
    phase: Phase | None = Field(None, description="A summary of the conditions.")
    conditions: list[ConditionStatus] = Field(
        default_factory=list,
        max_length=32,
        description="One meaning each.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    guard: GuardStatus | None = Field(None, description="What the guard says.")
    workload_ref: WorkloadRef | None = Field(
        None, description="The workload that was created, or to which the job is attached."
    )
    stop: StopStatus | None = Field(None, description="The teardown, once there is one.")
    evidence: str | None = Field(
        None, max_length=253, description="ConfigMap with the evidence of a run that is over or is stopped."
    )
