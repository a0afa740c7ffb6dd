"""Settings of held-out evaluation: which split, which scorer, which evaluator.

What is not a file or a key of this machine is said in `guard_core.evaluation`. Only shapes and bounds are
checked here. Whether the files exist and the scorers import is found out by `EvaluationWorker.start`, in the
process that uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from guard_core.evaluation import (
    CheckpointEvaluation,
    LocalEvaluation,
    OpenAIEvaluation,
    Scoring,
    VllmEvaluation,
)
from guard_core.loopback import is_loopback


class CheckpointEvaluatorSettings(CheckpointEvaluation):
    """Load each checkpoint from disk and generate here (needs the extra `eval-hf`)."""

    kind: Literal["checkpoint"] = "checkpoint"


class VllmEvaluatorSettings(VllmEvaluation):
    """Load each checkpoint from disk and generate with vLLM (needs the package `vllm`)."""

    kind: Literal["vllm"] = "vllm"


class OpenAIEvaluatorSettings(OpenAIEvaluation):
    """Ask an OpenAI-compatible server that serves the policy. The prompts go to that server."""

    kind: Literal["openai"] = "openai"
    api_key_file: Path | None = Field(None, description="File that holds the API key.")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key.")
    load_checkpoints: bool = Field(
        False,
        description="Load each checkpoint into the server before it is asked. It must be a vLLM on this "
        "machine, at a loopback address, started with VLLM_SERVER_DEV_MODE=1, and be used by nobody else. "
        "Needs the extra `eval-hf`.",
    )

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("give api_key_file or api_key_env, not both")
        return self

    @model_validator(mode="after")
    def _only_this_machine_is_told_what_to_load(self) -> Self:
        host = urlsplit(self.base_url).hostname or ""
        if self.load_checkpoints and not is_loopback(host):
            raise ValueError(
                f"load_checkpoints with a server at {host}, which is not a loopback address: what loads "
                "weights there runs any code that it is sent. Ask a server of this machine, or use the "
                "evaluator vllm"
            )
        return self


EvaluatorSettings = Annotated[
    CheckpointEvaluatorSettings | VllmEvaluatorSettings | OpenAIEvaluatorSettings,
    Field(discriminator="kind"),
]


class HeldoutSettings(Scoring):
    """The held-out evaluation of one run."""

    split: Path = Field(
        description="Held-out split, JSONL with id, prompt, answer, optional scorer, group, system_prompt, "
        "chat_template_kwargs, answer_after, meta."
    )
    train_prompts: Path | None = Field(
        None,
        description="Training prompts, JSONL with prompt and optional id. If given, the guard refuses to "
        "start on a split that is not disjoint from them.",
    )
    evaluator: EvaluatorSettings = Field(default_factory=CheckpointEvaluatorSettings)

    def measure(self) -> dict[str, Any]:
        """What decides a score, beside the split: evaluations of one run must agree in it to be compared.

        How fast, where and in which batches they are made is left out; so is a limit of scorers that gives no
        score. What came with a later release counts where it is set, so that a store of before goes on.
        """
        decisive = {"kind", "model", "chat", "max_new_tokens", "max_new_tokens_ceiling", "temperature"}
        decisive |= {"top_p", "top_k", "samples", "seed"}
        decisive |= {"chat_template_kwargs", "system_prompt", "answer_after", "score_truncated"}
        decisive |= {name for name in ("min_p", "stop") if getattr(self.evaluator, name)}
        scoring = {"scorer", "proxy_scorer"}
        if self.on_scorer_timeout == "wrong":
            scoring |= {"scorer_timeout_seconds", "on_scorer_timeout"}
        scorers = self.model_dump(mode="json", include=scoring)
        return scorers | {"evaluator": self.evaluator.model_dump(mode="json", include=decisive)}

    @property
    def base_model(self) -> Path | None:
        """The base model to which adapters are applied; None without one."""
        given = getattr(self.evaluator, "base_model", None)
        return None if given is None else self.split.parent / given

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the guard copies and hashes checkpoints; else a server has them from elsewhere."""
        evaluator = self.evaluator
        return isinstance(evaluator, LocalEvaluation) or evaluator.load_checkpoints

    @field_validator("evaluator", mode="before")
    @classmethod
    def _of_the_usual_kind(cls, value: Any) -> Any:
        """One field of the evaluator may be set, without its kind."""
        return {"kind": "checkpoint", **value} if isinstance(value, Mapping) else value
