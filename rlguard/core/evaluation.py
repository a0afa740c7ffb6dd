"""How held-out evaluation is set up, typed once: for the guard's settings, the CRD and the command line.

What differs by nature is added where it belongs: paths, and files or variables that hold a key, in
`guard_service.heldout.config`; volumes and Secrets in `rlguard.operator.api.guard`. Patterns are written so
that pydantic and an API server understand the same by them. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rlguard.core.wire import EvaluationSampling, Finite, Sampling, SamplingSource, StopTexts

#: Tokens of a completion where neither the settings nor the trainer say it.
DEFAULT_NEW_TOKENS = 256

MAX_KWARGS_BYTES = 16_384
MAX_KWARGS_DEPTH = 16
MAX_SYSTEM_PROMPT = 65_536  # characters
MAX_MARK = 256  # characters
#: What `apply_chat_template` takes for itself: a template's own variables have other names.
RESERVED_KWARGS = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations"}
    | {"documents", "self"}
    | {"max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"}
    | {"sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools", "truncation"}
)


#: Settings that may be changed in the trainer's distribution, one by one.
_OF_THE_DISTRIBUTION = ("top_p", "top_k", "min_p")


def _of_a_template(kwargs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Variables that a chat template can be given; the message quotes nothing of them."""
    if kwargs is None:
        return None
    for name in kwargs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name):
            raise ValueError("a name in it is no variable's: letters, digits and _, at most 63")
        if name in RESERVED_KWARGS:
            raise ValueError(f"{name} is not the template's: the guard sets it, or does without")
    try:
        size = len(json.dumps(kwargs, allow_nan=False, ensure_ascii=False).encode())
        depth = _depth(kwargs)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("the values must be JSON: texts, finite numbers, true, false, null") from None
    if size > MAX_KWARGS_BYTES or depth > MAX_KWARGS_DEPTH:
        raise ValueError(f"more than {MAX_KWARGS_BYTES} bytes of JSON, or than {MAX_KWARGS_DEPTH} levels")
    return kwargs


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


ChatTemplateKwargs = Annotated[dict[str, Any] | None, AfterValidator(_of_a_template)]
"""What a chat template is given beside the messages, such as {"enable_thinking": false}."""


class Section(BaseModel):
    """Base of the settings: frozen, and closed to what is not one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Generation(Section):
    """What every evaluator has in common. A null is what the trainer says of its own sampling."""

    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Longest completion, tokens; null: the trainer's, up to the ceiling (256 if it does not "
        "say).",
    )
    max_new_tokens_ceiling: int = Field(
        4096,
        ge=1,
        le=1_000_000,
        description="Longest completion that a trainer may ask for, tokens: it bounds what an evaluation "
        "costs.",
    )
    temperature: Finite | None = Field(
        None,
        ge=0,
        le=10,
        description="Sampling temperature; 0 decodes greedily; null: the trainer's, with all else that it "
        "samples with (greedy if it does not say).",
    )
    top_p: Finite | None = Field(
        None,
        gt=0,
        le=1,
        description="Nucleus: the likeliest tokens with this probability; 1: all; null: the trainer's, or "
        "all beside a temperature that is set.",
    )
    top_k: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="The likeliest tokens, so many; 0: all; null: the trainer's, or all beside a temperature "
        "that is set.",
    )
    min_p: Finite | None = Field(
        None,
        ge=0,
        le=1,
        description="Tokens with at least this share of the likeliest one's probability; 0: all; null: the "
        "trainer's, or all beside a temperature that is set.",
    )
    stop: StopTexts = Field(
        (),
        description="Texts that end a completion, beside the model's own end; neither the text nor what "
        "follows it is scored, and the completion is not cut off. Empty: the trainer's, after which what "
        "follows is not scored, and the text itself is.",
    )
    samples: int = Field(
        1,
        ge=1,
        le=1_000,
        description="Completions per item; the item's outcome is their mean score. Greedy: always one.",
    )
    chat_template_kwargs: ChatTemplateKwargs = Field(
        None,
        description="Variables for the chat template, such as {enable_thinking: false}; a split may say them "
        "for each item, and the item's win, name by name.",
    )
    system_prompt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SYSTEM_PROMPT,
        description="System message before every prompt that has none of its own; goes through the chat "
        "template. A split may say it for each item.",
    )
    answer_after: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_MARK,
        description="Mark after which the answer begins, such as </think>; what comes after the last one is "
        "scored, and a completion without it is wrong. null: all of it is the answer. A split may say it for "
        "each item.",
    )
    score_truncated: bool = Field(
        False,
        description="Score what there is of a completion that was cut off at the length limit, for tasks "
        "where completions have no end of their own; false: it is wrong.",
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Seed of the sampling; each pass has a seed of its own."
    )
    timeout_seconds: Finite = Field(1800.0, gt=0, description="Limit of one evaluation, seconds.")

    @model_validator(mode="after")
    def _greedy_needs_one_sample(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} with temperature=0 scores one completion {self.samples} times: "
                "set a temperature above 0, or samples to 1"
            )
        return self

    def sampling_with(self, trainer: Sampling | None) -> EvaluationSampling:
        """How the policy is sampled when the trainer says `trainer` of its own sampling; None: nothing.

        Temperature, top_p and the rest make one distribution: beside a temperature that is set here, nothing
        of the trainer's distribution counts. Length and texts that end a completion are things of their own.
        Where temperature and length are set, nothing of the trainer's counts.
        """
        theirs = trainer if self.temperature is None else None
        distribution = {} if theirs is None else theirs.model_dump(exclude={"max_new_tokens", "stop"})
        distribution |= {
            name: own for name in _OF_THE_DISTRIBUTION if (own := getattr(self, name)) is not None
        }
        temperature = distribution.pop("temperature", self.temperature or 0.0)
        length = self.max_new_tokens
        if length is None:
            said = DEFAULT_NEW_TOKENS if trainer is None else trainer.max_new_tokens or DEFAULT_NEW_TOKENS
            length = min(said, self.max_new_tokens_ceiling)
        source = self._source(trainer)
        told = None if trainer is None or source is SamplingSource.SETTINGS else trainer.stop
        return EvaluationSampling(
            temperature=temperature,
            max_new_tokens=length,
            stop=self.stop or told,
            samples=1 if temperature == 0 else self.samples,
            source=source,
            **distribution,
        )

    def sampling_ahead(self) -> EvaluationSampling:
        """The same before a trainer has said anything: most of them sample, as often as is set here."""
        return self.sampling_with(None).model_copy(update={"samples": self.samples})

    def _source(self, trainer: Sampling | None) -> SamplingSource:
        if self.temperature is not None and self.max_new_tokens is not None:
            return SamplingSource.SETTINGS
        no_distribution = self.temperature is None and trainer is None
        no_length = self.max_new_tokens is None and (trainer is None or trainer.max_new_tokens is None)
        return SamplingSource.DEFAULT if no_distribution or no_length else SamplingSource.TRAINER


class LocalEvaluation(Generation):
    """Score a copy of each checkpoint that the guard has made and hashed."""

    base_model: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Directory of the base model, for a run that trains a LoRA adapter (PEFT): a whole model "
        "in safetensors with its tokenizer, read by the guard and not writable by the trainer: one under the "
        "checkpoint root is refused. Absolute, or relative to the directory of the split. Its last part must "
        "be the name that the adapter gives its base.",
    )
    batch_size: int = Field(32, ge=1, le=65_536, description="Completions generated at once.")
    chat: bool = Field(
        False,
        description="Wrap a string prompt as one user message and apply the chat template. Prompts that are "
        "lists of messages always go through it.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 on a cuda device that has it, else float32."
    )


class HfEvaluation(LocalEvaluation):
    """Load each checkpoint in the guard and generate there."""

    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$",
        description="auto, cpu, mps, cuda or cuda:N; auto: cuda if there is one, else cpu.",
    )


class VllmEvaluation(LocalEvaluation):
    """Generate with vLLM in the guard: one engine, into which each checkpoint's weights are loaded."""

    batch_size: int = Field(256, ge=1, le=65_536, description="Completions generated at once, at most.")
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs that share one model.")
    max_model_len: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Longest sequence, tokens of prompt and completion together; no more than the model's "
        "positions. An item that needs more fails the evaluation. null: as long as model and memory allow.",
    )
    gpu_memory_utilization: Finite = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of each GPU's memory that vLLM may take, for weights and cache; it keeps it from "
        "the first checkpoint until the guard ends.",
    )
    enforce_eager: bool = Field(
        False, description="Compile and capture nothing: slower, with a quicker start and less memory."
    )


class Scoring(Section):
    """Which checkpoints are scored, and how, and how near to training the prompts of a split may be."""

    scorer: str = Field(
        "exact",
        min_length=1,
        max_length=253,
        description="Scorer of items that name none: exact, numeric, regex, math, or module:function.",
    )
    proxy_scorer: str | None = Field(
        None,
        min_length=1,
        max_length=253,
        description="The grader that the policy is trained on, named as a scorer. It scores the same "
        "completions; where it pays for what `scorer` rejects, and ever more, the reward is being hacked.",
    )
    scorer_timeout_seconds: Finite | None = Field(
        None,
        gt=0,
        description="Limit of a scorer for one completion, seconds. With it scorers run in processes of "
        "their own, which are killed at the limit (exact and numeric always end, and need none); null: no "
        "limit, in the evaluation's own process.",
    )
    on_scorer_timeout: Literal["error", "wrong"] = Field(
        "error",
        description="What a completion is whose scorer reached the limit. error: the evaluation has failed, "
        "as with any error of a scorer; wrong: it scores 0 and is counted (`timed_out`), which is meant for "
        "scorers that run code. Where more than half of them do, the evaluation has failed all the same.",
    )
    scorer_concurrency: int = Field(
        4,
        ge=1,
        le=256,
        description="Completions that are scored at once, each in a process of its own, where there is a "
        "limit or the scorer is async.",
    )
    backlog: Literal["every", "newest"] = Field(
        "every",
        description="Which checkpoints are evaluated where the guard is behind. every: each, in its turn; "
        "newest: the newest alone, and those that wait before it are skipped and counted. The first one, "
        "with which the others are compared, is never skipped.",
    )
    near_duplicates: bool = Field(
        True,
        description="Whether a training prompt that is nearly a held-out one is refused, too; false: "
        "only the same prompt is.",
    )

    @model_validator(mode="after")
    def _only_a_limit_is_reached(self) -> Self:
        if self.on_scorer_timeout == "wrong" and self.scorer_timeout_seconds is None:
            raise ValueError(
                "on_scorer_timeout=wrong without a limit means nothing: set scorer_timeout_seconds, too"
            )
        return self
