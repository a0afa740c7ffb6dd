"""Settings of held-out evaluation: which split, which scorer, which evaluator.

What is not a file or a key of this machine is said in `rlguard.core.evaluation`. Only shapes and bounds are
checked here. Whether the files exist and the scorers import is found out by `EvaluationWorker.start`, in the
process that uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rlguard.core.evaluation import (
    HfEvaluation,
    Scoring,
    VllmEvaluation,
)


class HfEvaluatorSettings(HfEvaluation):
    """Load each checkpoint from disk and generate here (needs the extra `eval-hf`)."""

    kind: Literal["hf"] = "hf"


class VllmEvaluatorSettings(VllmEvaluation):
    """Load each checkpoint from disk and generate with vLLM (needs the package `vllm`)."""

    kind: Literal["vllm"] = "vllm"


EvaluatorSettings = Annotated[HfEvaluatorSettings | VllmEvaluatorSettings, Field(discriminator="kind")]


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
    evaluator: EvaluatorSettings = Field(default_factory=HfEvaluatorSettings)

    def measure(self) -> dict[str, Any]:
        """What decides a score, beside the split: evaluations of one run must agree in it to be compared.

        How fast, where and in which batches they are made is left out; so is a limit of scorers that gives no
        score.
        """
        decisive = {"kind", "chat", "max_new_tokens", "max_new_tokens_ceiling", "temperature"}
        decisive |= {"top_p", "top_k", "min_p", "stop", "samples", "seed"}
        decisive |= {"chat_template_kwargs", "system_prompt", "answer_after", "score_truncated"}
        scoring = {"scorer", "proxy_scorer"}
        if self.on_scorer_timeout == "wrong":
            scoring |= {"scorer_timeout_seconds", "on_scorer_timeout"}
        scorers = self.model_dump(mode="json", include=scoring)
        return scorers | {"evaluator": self.evaluator.model_dump(mode="json", include=decisive)}

    @property
    def base_model(self) -> Path | None:
        """The base model to which adapters are applied; None without one."""
        given = self.evaluator.base_model
        return None if given is None else self.split.parent / given

    @field_validator("evaluator", mode="before")
    @classmethod
    def _of_the_usual_kind(cls, value: Any) -> Any:
        """One field of the evaluator may be set, without its kind."""
        return {"kind": "hf", **value} if isinstance(value, Mapping) else value
