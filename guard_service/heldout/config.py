"""Settings of held-out evaluation: which split, which scorer, which evaluator.

Only shapes and bounds are checked here. Whether the files exist and the scorers import is found out by
`EvaluationWorker.start`, in the process that uses them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Sampling(_Section):
    """What both evaluators share."""

    max_new_tokens: int = Field(256, ge=1, le=1_000_000, description="Upper bound of a completion, tokens.")
    temperature: float = Field(
        0.0, ge=0, le=10, allow_inf_nan=False, description="Sampling temperature; 0 decodes greedily."
    )
    samples: int = Field(
        1, ge=1, le=1_000, description="Completions per item; the item's outcome is their mean score."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the sampling; a baseline pass adds its index.")
    timeout_seconds: float = Field(
        1800.0, gt=0, allow_inf_nan=False, description="Limit of one evaluation, seconds."
    )

    @model_validator(mode="after")
    def _greedy_needs_one_sample(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} with temperature=0 scores one completion {self.samples} times: "
                "set a temperature above 0, or samples to 1"
            )
        return self


class CheckpointEvaluatorSettings(_Sampling):
    """Load each checkpoint from disk and generate here (needs the extra `eval-hf`)."""

    kind: Literal["checkpoint"] = "checkpoint"
    batch_size: int = Field(32, ge=1, le=65_536, description="Completions generated at once.")
    chat: bool = Field(
        False,
        description="Wrap a string prompt as one user message and apply the chat template. Prompts that are "
        "lists of messages always go through it.",
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = Field(
        "auto", description="auto: cuda if there is one, else cpu."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 on a cuda device that has it, else float32."
    )


class OpenAIEvaluatorSettings(_Sampling):
    """Ask an OpenAI-compatible server that serves the policy. The prompts go to that server."""

    kind: Literal["openai"] = "openai"
    base_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = Field(
        description="Up to and with the version, e.g. http://127.0.0.1:8000/v1."
    )
    model: Annotated[str, Field(min_length=1)] = Field(
        description="Model name; may contain {step}, {attempt} and {checkpoint} (the directory's name)."
    )
    api_key_file: Path | None = Field(None, description="File that holds the API key.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")
    concurrency: int = Field(8, ge=1, le=1_000, description="Requests under way at once.")
    request_timeout_seconds: float = Field(
        120.0, gt=0, allow_inf_nan=False, description="Limit of one request, seconds."
    )
    retries: int = Field(
        5, ge=0, le=100, description="Further tries of a request after 408, 429, 5xx or a time-out."
    )
    chat: bool = Field(
        True,
        description="Send a string prompt to /chat/completions as one user message; false: to /completions.",
    )

    @model_validator(mode="after")
    def _model_name_and_key(self) -> Self:
        try:
            self.model_name(attempt=0, step=0, checkpoint="")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ValueError(
                f"model={self.model!r}: only {{step}}, {{attempt}} and {{checkpoint}} may stand in braces"
            ) from error
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("give api_key_file or api_key_env, not both")
        return self

    def model_name(self, *, attempt: int, step: int, checkpoint: str) -> str:
        """The model to ask for at this checkpoint."""
        return self.model.format(attempt=attempt, step=step, checkpoint=checkpoint)


EvaluatorSettings = Annotated[
    CheckpointEvaluatorSettings | OpenAIEvaluatorSettings, Field(discriminator="kind")
]


class HeldoutSettings(_Section):
    """The held-out evaluation of one run."""

    split: Path = Field(description="Held-out split, JSONL with id, prompt, answer, optional scorer, meta.")
    train_prompts: Path | None = Field(
        None,
        description="Training prompts, JSONL with prompt and optional id. If given, the guard refuses to "
        "start on a split that is not disjoint from them.",
    )
    scorer: Annotated[str, Field(min_length=1)] = Field(
        "exact",
        description="Scorer of items that name none: exact, numeric, regex, math, module:function, or an "
        "entry point of rlguard.scorers.",
    )
    evaluator: EvaluatorSettings = Field(default_factory=CheckpointEvaluatorSettings)
