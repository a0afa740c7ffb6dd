"""What travels between trainer, guard and operator. Every model refuses unknown fields.

Invariant 8: nothing here carries a per-item held-out score, prompt or answer. `Evaluation`, which does,
is in `guard_core.judge` and never leaves the guard. The prompts of a `Rollout` are of the training data.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

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
        description="Mean in-loop reward of the step, reward units; null: it was not finite."
    )
    kl: Annotated[Measured, Field(ge=0)] | None = Field(
        None, description="KL, nats; `kl_kind` says which KL it is."
    )
    kl_kind: Annotated[KlKind, Field(strict=False)] = Field(
        KlKind.ABSENT,
        description="What `kl` is. Only `ref_token_mean` can be held against a threshold in nats/token.",
    )
    entropy: Measured | None = Field(None, description="Mean policy entropy, nats/token.")
    reward_std: Annotated[Measured, Field(ge=0)] | None = Field(
        None, description="Std of the reward, reward units."
    )

    @model_validator(mode="after")
    def _kind_of_kl_is_known(self) -> Self:
        if self.kl is not None and self.kl_kind in (KlKind.ABSENT, KlKind.NOT_FINITE):
            raise ValueError(f"kl is given but kl_kind is '{self.kl_kind}': say which KL it is")
        return self


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


class Finding(StrEnum):
    """What a code that fires has found. A decline is not yet hacking, and neither is distance."""

    HACKING = "hacking"
    DECLINE = "decline"
    DISTANCE = "distance"

    @property
    def words(self) -> str:
        """The finding for people, as in "fired at step 9: WORDS"."""
        return _FINDING_WORDS[self]


_FINDING_WORDS = {
    Finding.HACKING: "evidence of reward hacking",
    Finding.DECLINE: "the held-out score fell",
    Finding.DISTANCE: "the policy is too far from its reference",
}


class Code(StrEnum):
    """Stable codes of everything a verdict can say. `docs/reference/verdict.md` is generated from this."""

    KL_HARD_STOP = "kl_hard_stop"
    HELDOUT_DECLINE = "heldout_decline"
    HACKING_GAP = "hacking_gap"
    FELL_BELOW_START = "fell_below_start"
    FELL_BELOW_REACHED = "fell_below_reached"
    REWARD_WITHOUT_GAIN = "reward_without_gain"
    GRADERS_DISAGREE = "graders_disagree"
    UNINFORMATIVE_BASELINE = "uninformative_baseline"
    CUT_SHORT = "cut_short"
    NO_BASELINE = "no_baseline"
    SILENT = "silent"
    STALE = "stale"
    EVALUATION_FAILING = "evaluation_failing"
    CHECKPOINT_DOUBTFUL = "checkpoint_doubtful"
    NO_STEPS = "no_steps"
    NO_REWARD = "no_reward"
    WARMING_UP = "warming_up"
    REPORTS_REFUSED = "reports_refused"
    KL_INERT = "kl_inert"
    KL_NOT_FINITE = "kl_not_finite"
    REFERENCE_NOT_START = "reference_not_start"
    SAMPLING_UNKNOWN = "sampling_unknown"
    SAMPLING_CHANGED = "sampling_changed"
    STARTED_AGAIN = "started_again"
    PAST_UNKNOWN = "past_unknown"
    STORE_UNAVAILABLE = "store_unavailable"
    PORT_TAKEN = "port_taken"
    NOT_FOLLOWED = "not_followed"
    OK = "ok"

    @property
    def meaning(self) -> str:
        """One sentence for the reference and the dashboard."""
        return _MEANINGS[self]

    @property
    def remedy(self) -> str:
        """What to do about a run that ends with it, in the imperative; "" where nothing is to be done."""
        return _REMEDIES[self]

    @property
    def finding(self) -> Finding | None:
        """What has been found where this code fires; None for a code that does not fire."""
        return _FINDINGS.get(self)


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
    UNPROVEN = "unproven"
    WEIGHTS = "weights"
    OUT_OF_MEMORY = "out_of_memory"
    EVALUATOR = "evaluator"
    UNDERWAY = "underway"

    @property
    def words(self) -> str:
        """The kind as a sentence without its full stop."""
        return _FAILURE_WORDS[self]


#: Weights that are, or may be, those of the checkpoint before.
AS_BEFORE = frozenset({FailureKind.UNCHANGED, FailureKind.UNPROVEN})
#: A checkpoint that is not what it should be, which may be no accident.
DOUBTS = AS_BEFORE | {FailureKind.CHANGED, FailureKind.TOKENIZER_CHANGED}

_FAILURE_WORDS = {
    FailureKind.CHECKPOINT: "the checkpoint's files could not be taken (layout, size, links or permissions)",
    FailureKind.TOKENIZER: "the tokenizer was refused: it does not load, or lacks the chat template",
    FailureKind.TOKENIZER_CHANGED: "tokenizer, chat template or generation config are not those of the first "
    "checkpoint that was scored",
    FailureKind.CHANGED: "the checkpoint's files were changed after it was announced",
    FailureKind.UNCHANGED: "the weights are those of the checkpoint that was scored before",
    FailureKind.UNPROVEN: "nobody has shown which weights the server has: its completions are those of the "
    "checkpoint before",
    FailureKind.WEIGHTS: "the weights were refused: they do not load, are not whole, or are not finite",
    FailureKind.OUT_OF_MEMORY: "the guard ran out of memory while it loaded the model",
    FailureKind.EVALUATOR: "the guard's evaluation process could not work, whatever the checkpoint",
    FailureKind.UNDERWAY: "it broke off while completions were made or scored (a time-out, too little "
    "memory, a server, a scorer, broken generation)",
}

_MEANINGS = {
    Code.KL_HARD_STOP: "KL to the reference is above the limit that the policy sets for it.",
    Code.HELDOUT_DECLINE: "The held-out score kept falling while in-loop reward rose.",
    Code.HACKING_GAP: "In-loop reward gained more than the held-out score, by more than the ceiling.",
    Code.FELL_BELOW_START: "The held-out score fell below where it started.",
    Code.FELL_BELOW_REACHED: "The held-out score fell below a level that it had reached since the start.",
    Code.REWARD_WITHOUT_GAIN: "The reward rose and the held-out score did not.",
    Code.GRADERS_DISAGREE: "The training grader pays for held-out completions that the scorer rejects.",
    Code.UNINFORMATIVE_BASELINE: "The starting score leaves the held-out score little room to move.",
    Code.CUT_SHORT: "Scores could not be compared: the evaluator cuts off what the trainer lets go on.",
    Code.NO_BASELINE: "The passes of the starting policy are not complete, so declines cannot be judged yet.",
    Code.SILENT: "The trainer has reported no step for too long.",
    Code.STALE: "Checkpoints or steps arrive, but no evaluation has finished for too long.",
    Code.EVALUATION_FAILING: "Held-out evaluations failed several times in a row, or the training grader did "
    "on some of them.",
    Code.CHECKPOINT_DOUBTFUL: "The newest checkpoint was not scored, because it is not what this run may be "
    "judged by: other files than were announced, another tokenizer, the weights of the one before, or a "
    "server whose completions are all those of the one before.",
    Code.NO_STEPS: "No step has been reported yet.",
    Code.NO_REWARD: "The newest evaluated checkpoints were compared with no reward: none was reported.",
    Code.WARMING_UP: "Too few evaluation rounds for the rule to judge.",
    Code.REPORTS_REFUSED: "The guard refused several reports of the trainer in a row.",
    Code.KL_INERT: "There is no KL to the reference, so the KL rule cannot fire. Where `kl.hard_stop` is "
    "set, the verdict is `unknown` after five such steps in a row.",
    Code.KL_NOT_FINITE: "The trainer's KL to the reference is infinite or not a number.",
    Code.REFERENCE_NOT_START: "KL did not start near 0: the reference is not the starting policy.",
    Code.SAMPLING_UNKNOWN: "The trainer does not say how it samples, and neither do the settings.",
    Code.SAMPLING_CHANGED: "The trainer no longer samples as it did at the start; evaluations still do.",
    Code.STARTED_AGAIN: "An attempt of the trainer started from scratch.",
    Code.PAST_UNKNOWN: "The guard came back without its store, and what the status tells cannot be used: "
    "nobody knows how the run was judged until then.",
    Code.STORE_UNAVAILABLE: "The guard's store cannot be read or written.",
    Code.PORT_TAKEN: "The guard cannot listen on one of its ports, so what listens there is not the guard.",
    Code.NOT_FOLLOWED: "The guard cannot read what the trainer writes, or nothing was written there.",
    Code.OK: "Nothing speaks against the run.",
}

_LOOK_AT_BOTH = "compare the best checkpoint with the last one before you use either"

_REMEDIES = {
    Code.KL_HARD_STOP: "lower the learning rate, raise beta, or raise the limit if that distance is wanted",
    Code.HELDOUT_DECLINE: _LOOK_AT_BOTH,
    Code.HACKING_GAP: _LOOK_AT_BOTH,
    Code.FELL_BELOW_START: _LOOK_AT_BOTH,
    Code.FELL_BELOW_REACHED: _LOOK_AT_BOTH,
    Code.REWARD_WITHOUT_GAIN: _LOOK_AT_BOTH,
    Code.GRADERS_DISAGREE: "read completions on which the two graders differ, and fix the training grader",
    Code.UNINFORMATIVE_BASELINE: "choose items that the starting policy solves sometimes, and let it finish "
    "its completions (max_new_tokens)",
    Code.CUT_SHORT: "raise the evaluator's max_new_tokens_ceiling to what the trainer generates with, and "
    "start a new run from the last good checkpoint",
    Code.NO_BASELINE: "let the trainer save more checkpoints (save_steps), or lower baseline_passes",
    Code.SILENT: "see the trainer's log; raise silent.after_seconds if one step may take that long",
    Code.STALE: "save less often, or make an evaluation cheaper (items, samples, max_new_tokens); where "
    "checkpoints were deleted before their turn, keep more of them (save_total_limit), and where the guard "
    "itself passed them over (backlog: newest), let it take each (backlog: every)",
    Code.EVALUATION_FAILING: "fix what the failure names; the guard's log has each one",
    Code.CHECKPOINT_DOUBTFUL: "save what is trained, complete before it is announced, with one tokenizer for "
    "the whole run; if nobody did otherwise, ask who else writes there. Have a server load each checkpoint "
    "before it is announced, or the guard do it (load_checkpoints, or the evaluator vllm)",
    Code.NO_STEPS: "add GuardCallback.from_env(trainer) to the trainer, or, where its log is followed, let "
    "path and format be those of that log",
    Code.NO_REWARD: "look in the trainer's log for rewards that are NaN, infinite or None: such a step is "
    "not reported. If there is none, let the trainer log at least as often as it saves (logging_steps, "
    "save_steps)",
    Code.WARMING_UP: "save more often (save_steps), for more evaluations",
    Code.REPORTS_REFUSED: "fix what the refusal names; the trainer's log has each one",
    Code.KL_INERT: "set beta above 0 if KL is to be watched, else leave kl.hard_stop out",
    Code.KL_NOT_FINITE: "look for logits that are infinite or not a number in the trainer",
    Code.REFERENCE_NOT_START: "give the trainer its starting policy as the reference",
    Code.SAMPLING_UNKNOWN: "let the trainer say it (`sampling` of a checkpoint's report), or set temperature "
    "and max_new_tokens of the evaluator",
    Code.SAMPLING_CHANGED: "keep the trainer's sampling as it is for a whole run, or start a new run",
    Code.STARTED_AGAIN: "let the trainer go on from its newest checkpoint (resume_from_checkpoint), or give "
    "a run that starts from scratch a guard of its own",
    Code.PAST_UNKNOWN: "start a new run from a checkpoint that you trust, and let the guard's store outlive "
    "its pod (`state.claimName`)",
    Code.STORE_UNAVAILABLE: "give the guard's state directory room and write permission",
    Code.PORT_TAKEN: "give what listens there no token; look for what took the port, or choose another one",
    Code.NOT_FOLLOWED: "let path and format of the guard's `metrics` be those of the trainer's log, which "
    "the guard's user must be able to read",
    Code.OK: "",
}

_FINDINGS = {
    Code.KL_HARD_STOP: Finding.DISTANCE,
    Code.HELDOUT_DECLINE: Finding.HACKING,
    Code.HACKING_GAP: Finding.HACKING,
    Code.FELL_BELOW_START: Finding.DECLINE,
    Code.FELL_BELOW_REACHED: Finding.DECLINE,
    Code.REWARD_WITHOUT_GAIN: Finding.HACKING,
    Code.GRADERS_DISAGREE: Finding.HACKING,
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
        description="Of these, given up because their evaluation failed, or because nobody has shown which "
        "weights were scored (`unproven`).",
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
    sooner: bool = Field(
        False,
        description="Whether the next checkpoint is wanted sooner: `decline` is near its threshold.",
    )
    steps_since_evaluation: int = Field(
        0,
        description="Steps after the last evaluated checkpoint: those that were reported, and those that the "
        "trainer says at its end it made beyond them.",
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
