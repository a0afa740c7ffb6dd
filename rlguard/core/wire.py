"""What travels between trainer, guard and operator. Every model refuses unknown fields.

Invariant 8: nothing here carries a per-item held-out score, prompt or answer. `Evaluation`, which does,
is in `rlguard.core.rounds` and never leaves the guard. The prompts of a `Rollout` are of the training data.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rlguard.core.codes import Code, Level

Finite = Annotated[float, Field(allow_inf_nan=False)]
#: What a trainer measured. The bound keeps every sum and difference of folded values finite.
Measured = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
MAX_ATTEMPT, MAX_STEP = 2**31, 2**53
Attempt = Annotated[int, Field(ge=0, lt=MAX_ATTEMPT, description="Start of the trainer, 0 for the first.")]
Step = Annotated[int, Field(ge=0, lt=MAX_STEP, description="Optimizer step (`global_step` of the trainer).")]


class Wire(BaseModel):
    """Base of the wire models: frozen, closed, strict about types (no "1" for 1, no true for 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class KlKind(StrEnum):
    """What the trainer's `kl` is. Only `ref_token_mean` can be held against a threshold in nats/token."""

    REF_TOKEN_MEAN = "ref_token_mean"
    REF_SEQ_SUM = "ref_seq_sum"
    BEHAVIOUR = "behaviour"
    NOT_FINITE = "not_finite"
    ABSENT = "absent"


#: Characters of a prompt and of a completion in a rollout; who reports it shortens them, and says so.
MAX_ROLLOUT_TEXT = 2_000
#: Rollouts that are kept of one step.
MAX_ROLLOUTS = 4

RolloutText = Annotated[str, Field(max_length=MAX_ROLLOUT_TEXT)]


class Rollout(Wire):
    """A training prompt, what the policy wrote, and what the training's reward paid for it."""

    prompt: RolloutText = Field(description="The prompt, of the training data; a long one is shortened.")
    completion: RolloutText = Field(description="What the policy wrote; a long one is shortened.")
    reward: Measured = Field(description="Its reward, reward units.")


Rollouts = Annotated[tuple[Rollout, ...], Field(strict=False, min_length=1, max_length=MAX_ROLLOUTS)]


#: Further figures of one step, and of a run.
MAX_FIGURES = 16
#: Characters of the name of such a figure.
MAX_FIGURE_NAME = 100

ShownFigures = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=MAX_FIGURE_NAME)], Measured],
    Field(min_length=1, max_length=MAX_FIGURES),
]


class StepReport(Wire):
    """One training step, as the trainer saw it."""

    attempt: Attempt
    step: Step
    reward: Measured | None = Field(
        description="Mean in-loop reward of the step, reward units; null where it is NaN or infinite."
    )
    kl: Annotated[Measured, Field(ge=0)] | None = Field(
        None, description="KL, nats; `kl_kind` says which KL it is."
    )
    kl_kind: Annotated[KlKind, Field(strict=False)] = Field(
        KlKind.ABSENT,
        validate_default=True,
        description="What `kl` is. Only `ref_token_mean` can be held against a threshold in nats/token.",
    )
    entropy: Measured | None = Field(None, description="Mean policy entropy, nats/token.")
    reward_std: Annotated[Measured, Field(ge=0)] | None = Field(
        None, description="Std of the reward, reward units."
    )

    @field_validator("kl_kind")
    @classmethod
    def _kind_of_kl_is_known(cls, kind: KlKind, info: ValidationInfo) -> KlKind:
        if info.data.get("kl") is not None and kind in (KlKind.ABSENT, KlKind.NOT_FINITE):
            raise ValueError(f"kl is given but kl_kind is '{kind}': say which KL it is")
        return kind


class PostedStep(StepReport):
    """A step as it is posted: with what people are shown of it. Nothing is judged by that."""

    figures: ShownFigures | None = Field(
        None, description="What else was measured, by the trainer's name, for plots."
    )
    rollouts: Rollouts | None = Field(
        None, description="The best-rewarded rollouts of the step and one of the others, for people to read."
    )

    def evidence(self) -> StepReport:
        """The step alone."""
        return StepReport.model_construct(**{name: getattr(self, name) for name in StepReport.model_fields})


def _unused(*values: float) -> AfterValidator:
    """A value that changes nothing is None, so that two ways to say the same are equal."""
    return AfterValidator(lambda value: None if value in values else value)


#: The longest text that ends a completion, characters, and how many there may be.
MAX_STOP, MAX_STOPS = 256, 16
#: Of these, what is shown to people.
_STOP_SHOWN, _STOPS_SHOWN = 40, 3
StopTexts = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=MAX_STOP)], ...],
    Field(max_length=MAX_STOPS, strict=False),
]
"""Texts that end a completion."""


class Sampling(Wire):
    """How a trainer samples its completions. None: not used; for the length: not known."""

    temperature: Annotated[Finite, Field(ge=0, le=10)] = Field(description="Temperature; 0 is greedy.")
    top_p: Annotated[Annotated[Finite, Field(gt=0, le=1)] | None, _unused(1)] = Field(
        None, description="Nucleus: the likeliest tokens with this probability; 1 is none."
    )
    top_k: Annotated[Annotated[int, Field(ge=-1, le=1_000_000)] | None, _unused(0, -1)] = Field(
        None, description="The likeliest tokens, so many; 0 or -1 is none."
    )
    min_p: Annotated[Annotated[Finite, Field(ge=0, le=1)] | None, _unused(0)] = Field(
        None, description="Tokens with at least this share of the likeliest one's probability; 0 is none."
    )
    repetition_penalty: Annotated[Annotated[Finite, Field(ge=0.1, le=10)] | None, _unused(1)] = Field(
        None, description="Divides the logits of tokens that have occurred; 1 is none."
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="Longest completion, tokens."
    )
    stop: Annotated[StopTexts | None, AfterValidator(lambda value: value or None)] = Field(
        None, description="Texts that end a completion, beside the model's own end; none of them is none."
    )

    @property
    def words(self) -> str:
        """For people: "temperature 0.7, top_p 0.9, up to 512 tokens or "END""."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        said = [f"{name} {value:g}" for name in names if (value := getattr(self, name)) is not None]
        ends = [] if self.max_new_tokens is None else [f"{self.max_new_tokens} tokens"]
        ends += self._stops_shown()
        return ", ".join([*said, *([f"up to {' or '.join(ends)}"] if ends else [])])

    def _stops_shown(self) -> list[str]:
        """The first texts that end a completion, in quotes and ASCII, and how many more there are."""
        texts = self.stop or ()
        shown = [json.dumps(_shortened(text)) for text in texts[:_STOPS_SHOWN]]
        more = len(texts) - len(shown)
        return [*shown, *([f"{more} more texts"] if more else [])]


def _shortened(text: str) -> str:
    return text if len(text) <= _STOP_SHOWN else text[: _STOP_SHOWN - 1] + "…"


class SamplingSource(StrEnum):
    """Where the sampling of an evaluation comes from."""

    TRAINER = "trainer"
    SETTINGS = "settings"
    DEFAULT = "default"

    @property
    def words(self) -> str:
        """For people."""
        return _SOURCE_WORDS[self]


_SOURCE_WORDS = {
    SamplingSource.TRAINER: "as the trainer samples, but for what the evaluator's settings say",
    SamplingSource.SETTINGS: "as the evaluator's settings say",
    SamplingSource.DEFAULT: "by default, because the trainer does not say how it samples",
}


class EvaluationSampling(Sampling):
    """How the completions of one evaluation were sampled."""

    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        description="Longest completion, tokens."
    )
    samples: int = Field(ge=1, description="Completions of each item.")
    source: Annotated[SamplingSource, Field(strict=False)] = Field(
        description="`trainer`: as the trainer says, but for what the evaluator's settings say; `settings`: "
        "temperature and length are set there; `default`: one is not, and the trainer does not say it."
    )


class CheckpointReport(Wire):
    """A checkpoint that is complete on disk and may be scored."""

    attempt: Attempt
    step: Step
    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="Directory of the checkpoint, under the guard's checkpoint root."
    )
    sampling: Sampling | None = Field(
        None, description="How the trainer samples now. What the first checkpoint says counts for the run."
    )
    waits: bool | None = Field(
        None,
        description="Whether the trainer waits for the guard; false: that is off, or its time is used up. "
        "null: not known.",
    )


class EndReport(Wire):
    """The training loop of this attempt is over; nothing of it will be reported any more."""

    attempt: Attempt
    step: Step | None = Field(
        None, description="Last step that the loop made, also where its figures were not fit to be reported."
    )
    began: Step | None = Field(
        None, description="Step after which this attempt began: 0, or that of what it was resumed from."
    )
    finished: bool = Field(
        True, description="Whether it is known to have finished by itself; false: it may have failed."
    )
    gone: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        0,
        description="Checkpoints that were deleted, as by save_total_limit, before they could be announced: "
        "they count as announced and skipped.",
    )


#: Held-out items whose outcomes one `POST /v1/evaluations` may carry.
MAX_OUTCOMES = 10_000
#: The outcome of one item, or the mean of all.
Outcome = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
ItemOutcomes = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=200)], Outcome],
    Field(min_length=1, max_length=MAX_OUTCOMES),
]


class EvaluationReport(Wire):
    """Held-out outcomes of one checkpoint, from whoever evaluated it outside of the guard."""

    step: Step
    attempt: Attempt | None = Field(
        None, description="Start of the trainer; null: the newest that announced this step."
    )
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Where the checkpoint is, for people; null: as it was announced."
    )
    pass_index: Annotated[int, Field(ge=0, lt=64)] = Field(
        0, description="0; of a further evaluation of the same checkpoint the `wanted_pass` of a response."
    )
    outcomes: ItemOutcomes | None = Field(
        None, description="Outcome of each item in [0, 1], by its id. Every evaluation has the same items."
    )
    grader_outcomes: ItemOutcomes | None = Field(
        None, description="What the training grader gives the same completions, by the same ids."
    )
    mean: Outcome | None = Field(None, description="Mean outcome, where nobody has the single ones.")
    standard_error: Annotated[Finite, Field(gt=0, le=0.5)] | None = Field(
        None, description="Standard error of `mean`, which it needs: without one nobody can tell a fall."
    )

    @model_validator(mode="after")
    def _outcomes_or_a_mean(self) -> Self:
        if (self.outcomes is None) == (self.mean is None):
            raise ValueError("give either outcomes, or mean and standard_error")
        if (self.mean is None) != (self.standard_error is None):
            raise ValueError("mean and standard_error must be given together")
        if self.grader_outcomes is not None and (
            self.outcomes is None or self.grader_outcomes.keys() != self.outcomes.keys()
        ):
            raise ValueError("grader_outcomes must be of the same items as outcomes")
        if self.mean is not None and self.pass_index > 0:
            raise ValueError("a mean is one evaluation of its checkpoint: pass_index must be 0")
        return self


#: Steps in one `POST /v1/steps`.
MAX_STEPS_PER_POST = 1_000


class RolloutsReport(Wire):
    """A few rollouts of one step, for people to read. Nothing is judged by them."""

    attempt: Attempt
    step: Step
    rollouts: Rollouts = Field(description="The best-rewarded of the step, and one of the others.")


class Moment(StrEnum):
    """For which moment of a run its rollouts are shown."""

    START = "start"
    LAST_GOOD = "last_good"
    FIRE = "fire"
    HALT = "halt"
    NEWEST = "newest"


class MomentRollouts(Wire):
    """The rollouts of one step, and what that step is in the run."""

    moments: tuple[Annotated[Moment, Field(strict=False)], ...] = Field(
        strict=False,
        description="`start`; `last_good`: the last good checkpoint; `fire` or `halt`: where it latched; "
        "`newest`, while nothing has latched.",
    )
    attempt: Attempt
    step: Step
    rollouts: Rollouts = Field(description="As they were reported.")


class FiguresReport(Wire):
    """What else a trainer measured in one step, for people to see. Nothing is judged by it."""

    attempt: Attempt
    step: Step
    figures: ShownFigures = Field(
        description="By the trainer's name, such as `rewards/format/mean` or `completions/mean_length`."
    )


class Adapters(StrEnum):
    """What a guard that loads checkpoints makes of one that is an adapter (PEFT)."""

    APPLIED = "applied"
    REFUSED = "refused"


class FailureKind(StrEnum):
    """What an evaluation failed of, as far as a trainer may know it.

    Everything that can depend on an item is one kind, `underway`: weights could else be made to answer a
    question about a held-out prompt by how they fail.
    """

    CHECKPOINT = "checkpoint"
    TOKENIZER = "tokenizer"
    TOKENIZER_CHANGED = "tokenizer_changed"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    WEIGHTS = "weights"
    OUT_OF_MEMORY = "out_of_memory"
    EVALUATOR = "evaluator"
    UNDERWAY = "underway"

    @property
    def words(self) -> str:
        """The kind as a sentence without its full stop."""
        return _FAILURE_WORDS[self]


#: A checkpoint that is not what it should be, which may be no accident.
DOUBTS = frozenset({FailureKind.UNCHANGED, FailureKind.CHANGED, FailureKind.TOKENIZER_CHANGED})

_FAILURE_WORDS = {
    FailureKind.CHECKPOINT: "the checkpoint's files could not be taken (layout, size, links or permissions)",
    FailureKind.TOKENIZER: "the tokenizer was refused: it does not load, or lacks the chat template",
    FailureKind.TOKENIZER_CHANGED: "tokenizer, chat template or generation config are not those of the first "
    "checkpoint that was scored",
    FailureKind.CHANGED: "the checkpoint's files were changed after it was announced",
    FailureKind.UNCHANGED: "the weights are those of the checkpoint that was scored before",
    FailureKind.WEIGHTS: "the weights were refused: they do not load, are not whole, or are not finite",
    FailureKind.OUT_OF_MEMORY: "the guard ran out of memory while it loaded the model",
    FailureKind.EVALUATOR: "the guard's evaluation process could not work, whatever the checkpoint",
    FailureKind.UNDERWAY: "it broke off while completions were made or scored (a time-out, too little "
    "memory, a scorer, broken generation)",
}


class EvaluationsNeeded(Wire):
    """Evaluations until every rule of the policy can judge; null: no number of them is enough.

    Four steps of a round tell how noisy their mean reward is; shorter rounds take more of them.
    """

    long_rounds: int | None = Field(description="Where a checkpoint is saved every four steps or less often.")
    short_rounds: int | None = Field(description="Where it is saved more often than that.")


class Condition(Wire):
    """One thing that holds now. `action` is set where the policy has one for it."""

    code: Annotated[Code, Field(strict=False)] = Field(description="Which condition.")
    level: Annotated[Level, Field(strict=False)] = Field(description="How severe it is.")
    message: str = Field(description="A sentence with the numbers.")
    action: Literal["warn", "stop"] | None = Field(
        None, description="What it does to the run, where the policy says so."
    )
    advice: bool = Field(
        False, description="For the reader only: it stops nothing and leaves the verdict's level as it is."
    )

    @classmethod
    def of(
        cls,
        code: Code,
        message: str,
        *,
        level: Level | None = None,
        action: Literal["warn", "stop"] | None = None,
        advice: bool = False,
    ) -> Self:
        """A condition with the level of its code, unless it has another one here; advice is a warning."""
        level = level or (Level.WARNING if advice else code.level)
        return cls(code=code, level=level, message=message, action=action, advice=advice)


class DetectorReading(Wire):
    """What one detector says after the newest evaluation. It carries no per-item outcome (invariant 8)."""

    name: str = Field(description="The question: `decline`, `disagreement` or `gap`.")
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
    truncated: Finite | None = Field(
        None, ge=0, le=1, description="Share of completions that were cut off; None where it is not known."
    )
    unanswered: Finite | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of completions without an answer (`answer_after` is not in them), of those of "
        "items that have such a mark; None where no item has one.",
    )
    timed_out: Finite | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of completions that count as wrong because a scorer, or the training grader, did "
        "not end within `scorer_timeout_seconds`; None without such a limit.",
    )
    proxy_score: Finite | None = Field(
        None, description="Mean score of the same completions by the training grader, if the guard has it."
    )
    path: str = Field(description="The checkpoint directory that was scored.")
    sha256: str | None = Field(
        None, description="Digest of the scored weights; None where weights are remote."
    )
    sampling: Annotated[EvaluationSampling, Field(strict=False)] | None = Field(
        None, description="How the completions were sampled; None where that is not recorded."
    )


class Verdict(Wire):
    """What the guard thinks of the run now. Missing numbers are null, never 0."""

    level: Annotated[Level, Field(strict=False)] = Field(
        description="The most severe condition's level; advice does not count."
    )
    code: Annotated[Code, Field(strict=False)] = Field(description="That condition's code.")
    reason: str = Field(description="That condition's message.")
    fire: bool = Field(description="A rule of the policy fired; latched. The code says what was found.")
    halt: bool = Field(
        description="No rule fired, but a condition whose action is `stop` held; latched. Never with a fire."
    )
    stop: bool = Field(description="Training must stop: a fire or a halt.")
    conditions: tuple[Condition, ...] = Field(
        (), strict=False, description="Everything that holds now, the most severe first."
    )
    detectors: tuple[DetectorReading, ...] = Field(
        (), strict=False, description="What each part of the calibrated detector says; empty without it."
    )
    latch_attempt: Attempt | None = Field(None, description="Attempt in which the fire or halt latched.")
    latch_step: Step | None = Field(None, description="Step of that attempt at which it latched.")
    latched_at: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        None,
        description="When it latched; of one that a supervisor told the guard, when the guard was told.",
    )
    ended: bool = Field(
        False, description="The trainer has said that it finished, and reported nothing since."
    )
    attempt: Attempt | None = Field(None, description="Newest attempt seen.")
    step: Step | None = Field(None, description="Newest step of that attempt.")
    steps: int = Field(0, description="Steps acknowledged over all attempts.")
    rounds: int = Field(0, description="Evaluation rounds folded.")
    announced: int = Field(0, description="Checkpoints that were announced.")
    evaluated: int = Field(
        0,
        description="Of these, evaluated on the held-out split; or judged with the one before, whose weights "
        "they have to the bit.",
    )
    failed: int = Field(
        0,
        description="Of these, given up because their evaluation failed.",
    )
    skipped: int = Field(
        0,
        description="Of these, never evaluated: gone before their turn from the disk, saved over, or with "
        "the guard's pod; or passed over for a newer one (`backlog`).",
    )
    refused: int = Field(
        0,
        description="Beside these, refused when they were announced, and not taken later.",
    )
    failure: Annotated[FailureKind, Field(strict=False)] | None = Field(
        None, description="Why the newest evaluation failed; null if it did not."
    )
    baseline_passes: int = Field(
        0, description="Passes of the starting policy that were made so far, while they are gathered."
    )
    baseline_planned: int = Field(
        0, description="Passes of the starting policy that will be made, while they are gathered."
    )
    next_pass: Literal["baseline", "confirmation"] | None = Field(
        None,
        description="A further pass that the guard makes before any other checkpoint's evaluation: of the "
        "starting policy, or of the newest checkpoint, to confirm an alarm. Training should wait for it.",
    )
    waiting: int = Field(
        0, description="Evaluations that are yet to be made: the other checkpoints, and a wanted pass."
    )
    steps_since_evaluation: int = Field(
        0,
        description="Steps after the last evaluated checkpoint, by their numbers: also those that the "
        "trainer only says at its end it made.",
    )
    longest_round: int = Field(
        0, description="Most steps that belonged to one evaluated checkpoint: as many may follow the last."
    )
    adapters: Annotated[Adapters, Field(strict=False)] | None = Field(
        None,
        description="What becomes of a checkpoint that is a LoRA adapter: `applied` to the guard's base "
        "model, or `refused` because it has none; null where the guard loads no checkpoints.",
    )
    checkpoint_root: str | None = Field(
        None, description="The directory below which every checkpoint must lie; others are refused."
    )
    needed: EvaluationsNeeded | None = Field(
        None,
        description="How many evaluations this policy takes with these items; null until the held-out split "
        "has been read.",
    )
    in_loop_ema: Finite | None = Field(None, description="EMA of the in-loop reward over the rounds.")
    heldout_ema: Finite | None = Field(None, description="EMA of the held-out score over the rounds.")
    proxy_real_gap: Finite | None = Field(None, description="The Hacking Gap, reward units.")
    max_proxy_real_gap: Finite | None = Field(None, description="Its ceiling, reward units.")
    kl_ema: Finite | None = Field(None, description="EMA of the median-of-5 KL to the reference, nats/token.")
    kl_start: Finite | None = Field(
        None, description="KL at the start, where it was not near 0; limits count from there, nats/token."
    )
    kl_warn_above: Finite | None = Field(None, description="Rise of that EMA that warns, nats/token.")
    kl_hard_stop: Finite | None = Field(None, description="Rise of that EMA that stops the run, nats/token.")
    last_evaluation: EvaluationSummary | None = Field(None, description="The newest evaluation.")
    best_evaluation: EvaluationSummary | None = Field(
        None, description="Highest held-out score so far (the later one of equals): the last good checkpoint."
    )
    best_path: str = Field("", description="Path of that checkpoint; a trainer is told it before its score.")

    @model_validator(mode="after")
    def _a_stop_is_a_fire_or_a_halt(self) -> Self:
        if self.fire and self.halt:
            raise ValueError("fire and halt are both true: a run whose rule fired has not halted")
        if self.stop != (self.fire or self.halt):
            raise ValueError(f"stop is {self.stop}, with fire {self.fire} and halt {self.halt}")
        return self


class StepsResponse(Wire):
    """Acknowledgement of `POST /v1/steps`: what it counts is on disk."""

    accepted: int = Field(description="New steps.")
    duplicates: int = Field(description="Steps that were already on disk with the same values.")
    verdict: Verdict


class EndResponse(Wire):
    """Acknowledgement of `POST /v1/end`. The step is on disk; that training has ended is only passed on."""

    verdict: Verdict


class CheckpointResponse(Wire):
    """Acknowledgement of `POST /v1/checkpoints`."""

    queued: bool = Field(description="False if this checkpoint was already known.")
    verdict: Verdict


class EvaluationResponse(Wire):
    """Acknowledgement of `POST /v1/evaluations`: what it says is on disk."""

    accepted: bool = Field(description="False if this evaluation was already known.")
    wanted_pass: int | None = Field(
        description="A further evaluation of this checkpoint, with fresh randomness and this `pass_index`, "
        "would help now: to know the start better, or to confirm an alarm. null: none would. Without it the "
        "next checkpoint decides."
    )
    verdict: Verdict
