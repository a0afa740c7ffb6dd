"""Evaluator of checkpoints with vLLM: one engine, into which each checkpoint's weights are loaded.

The engine lives in the evaluation process and ends with it: whatever it dies of costs one evaluation, and
nothing is left on the device. vLLM sees token ids alone. `vllm_worker` shows that it scores the weights that
were hashed; where that cannot be shown, a new process starts a new engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.config import VllmEvaluatorSettings
from guard_service.heldout.errors import EngineLostError, StartAgainError, one_line
from guard_service.heldout.evaluators.completions import CompletionJob, Tokenization
from guard_service.heldout.evaluators.evaluator import BrokenGenerationError, Evaluator
from guard_service.heldout.evaluators.loading import (
    layout,
    loading,
    not_finite,
    on_cuda,
    out_of_memory,
    precision,
    refuse_not_finite,
    tensors,
    whole_model,
)
from guard_service.heldout.evaluators.lora import merged
from guard_service.heldout.staging import Staged
from rlguard.core.extras import missing_vllm
from rlguard.core.wire import EvaluationSampling, FailureKind

if TYPE_CHECKING:
    from vllm import LLM

#: Read by vLLM when it is imported.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is in this process
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may hang
    "VLLM_PLUGINS": "",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it has no seed for each request, and is compiled with nvcc
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # The workers of one engine are in one pod: what they listen on is for no other.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
NO_DEVICE = (
    "vLLM finds no device that its build can use; that of the image guard-vllm is for CUDA. Give the guard a "
    "GPU (on a cluster by spec.guard.resources, with placement: Pod), or use the evaluator hf"
)
_AS_THE_MEMORY_ALLOWS = -1  # tokens: as long as the model's positions, if there is room
_LIMIT = "the {} tokens of vLLM's longest sequence (max_model_len, or what the memory has room for)"


class VllmEvaluator(Evaluator):
    """Keeps one engine for all checkpoints of one layout."""

    def __init__(self, settings: VllmEvaluatorSettings, scratch: Path, base: BaseModel | None = None) -> None:
        super().__init__(settings, scratch, base)
        self._own = settings
        self._engine: _Engine | None = None

    def _missing(self) -> str | None:
        return missing_vllm()

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`: importing vLLM takes tens of seconds."""
        os.environ.update(ENVIRONMENT)
        import vllm  # noqa: F401

        if self._base is not None:
            import peft  # noqa: F401

    def _load(self, staged: Staged, tokenization: Tokenization, shown: str) -> _Engine:
        """Load the weights into the engine, which is started for the first checkpoint."""
        if self._engine is not None and not self._engine.reloadable:
            raise StartAgainError(f"{shown} cannot be loaded over the weights of the checkpoint before")
        if staged.adapter is None:
            return self._engine_with(staged.path, shown, tokenization)
        assert self._base is not None, "an adapter is not staged without a base model"
        with merged(staged, self._base, precision(self._own.dtype, cuda=on_cuda()), shown) as path:
            return self._engine_with(path, shown, tokenization)

    def _engine_with(self, path: Path, shown: str, tokenization: Tokenization) -> _Engine:
        """Have the engine score the weights in this directory and no others.

        Raises:
            EvaluationError: they are not whole, not finite, or not the model's alone.
            EngineLostError: vLLM cannot load them, or would not score them all, or has no device.
            StartAgainError: only a new engine can take them.
        """
        built_for = layout(path, shown)
        with loading(shown, FailureKind.WEIGHTS):
            wrong = not_finite(tensors(path))  # here, for vLLM may keep them in another form
        refuse_not_finite(wrong, shown)
        if self._engine is None:
            whole_model(path, shown, nothing_else=True, device_map="meta")
            with _ending_the_engine(shown):
                llm = _started(path, self._own, tokenization)
                reloadable = all(llm.collective_rpc("guard_watch"))
                if not all(llm.collective_rpc("guard_has", args=(str(path),))):
                    raise RuntimeError("it scores other embeddings than were saved: use the evaluator hf")
            self._engine = _Engine(llm, tokenization, built_for, self._own.batch_size, reloadable)
        elif self._engine.layout != built_for:
            raise StartAgainError(f"{shown} has another layout than the engine was started with")
        else:
            self._engine.load(path, shown)
        positions = self._engine.llm.llm_engine.model_config.max_model_len
        if tokenization.positions is None or positions < tokenization.positions:
            tokenization = replace(tokenization, positions=positions, limit=_LIMIT)
        self._engine.tokenization = tokenization
        return self._engine


@contextmanager
def _ending_the_engine(shown: str) -> Iterator[None]:
    """Treat whatever vLLM raises as the end of the engine, which may be left with half of it.

    The guard has checked the weights before: what fails here is the engine, and not them.
    """
    try:
        yield
    except EngineLostError:
        raise
    except Exception as error:
        raise EngineLostError(
            f"{shown} cannot be loaded by vLLM: {type(error).__name__}: {one_line(error)}",
            FailureKind.OUT_OF_MEMORY if out_of_memory(error) else FailureKind.EVALUATOR,
        ) from error


def _started(path: Path, settings: VllmEvaluatorSettings, tokenization: Tokenization) -> LLM:
    """Start an engine with the weights in this directory."""
    from vllm import LLM
    from vllm.platforms import current_platform

    if not current_platform.device_type:  # else it ends in "Device string must not be empty"
        raise EngineLostError(NO_DEVICE, FailureKind.EVALUATOR)
    longest = settings.max_model_len or _AS_THE_MEMORY_ALLOWS
    # It looks for stop texts in what is written. The tokenizer is the same in a whole run.
    reads = {"tokenizer": tokenization.tokenizer.name_or_path} if tokenization.stops.texts else {}
    return LLM(
        model=str(path),
        runner="generate",
        convert="none",
        config_format="hf",
        load_format="safetensors",
        generation_config="vllm",  # not the checkpoint's: it may bring penalties
        **(reads or {"skip_tokenizer_init": True}),
        dtype=precision(settings.dtype, cuda=on_cuda()),
        max_model_len=min(longest, tokenization.positions or longest),
        max_num_seqs=settings.batch_size,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enforce_eager=settings.enforce_eager,
        worker_extension_cls="guard_service.heldout.evaluators.vllm_worker.GuardedWorker",
        seed=0,  # of the engine; every completion has its own
    )


@dataclass(slots=True)
class _Engine:
    """An engine with a checkpoint's weights, and the layout that it was built for.

    `reloadable`: other weights can be loaded over its own. `reloaded`: that was done.
    """

    llm: LLM
    tokenization: Tokenization
    layout: str
    batch_size: int
    reloadable: bool
    reloaded: bool = False

    def load(self, path: Path, shown: str) -> None:
        """Put other weights of the same layout in the place of those that are there.

        Raises:
            EngineLostError: it has none of the two any more.
            StartAgainError: nothing shows that it has the new ones.
        """
        self.reloaded = True
        with _ending_the_engine(shown):
            self.llm.collective_rpc("guard_erase", args=(str(path),))
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            shown_to_be_new = self.llm.collective_rpc("guard_has", args=(str(path),))
            if not self.llm.reset_prefix_cache():
                raise RuntimeError("the cache of prompts still has entries of the checkpoint before")
        if not all(shown_to_be_new):
            raise StartAgainError(f"nothing shows that vLLM has all weights of {shown}")

    def generate(self, jobs: Sequence[CompletionJob], sampling: EvaluationSampling) -> list[list[int]]:
        """See `LoadedPolicy.generate`. An error may quote a prompt: only its type is told."""
        from vllm import SamplingParams

        common = self._params(sampling)
        prompts: Any = [{"prompt_token_ids": job.tokens} for job in jobs]
        try:
            params = [SamplingParams(seed=job.seed, **common) for job in jobs]
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            broken = any(self.llm.collective_rpc("guard_broken"))
        except Exception as error:
            hint = f"failed with {type(error).__name__}"
            if out_of_memory(error):
                hint = f"ran out of memory: lower batch_size ({self.batch_size}) or gpu_memory_utilization"
            raise EngineLostError(f"vLLM {hint}") from error
        if broken and self.reloaded:  # what it computes with may be what was erased
            raise StartAgainError("after a reload vLLM computes logits that are infinite or not a number")
        if broken:
            raise BrokenGenerationError(
                "its logits are infinite or not a number: the weights are damaged, or overflow in "
                f"{self.llm.llm_engine.model_config.dtype}"
            )
        ends = {output.outputs[0].finish_reason for output in outputs} - {"stop", "length"}
        if len(outputs) != len(jobs) or ends:
            raise EngineLostError(f"vLLM made {len(outputs)} of {len(jobs)} completions; ended by {ends}")
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _params(self, sampling: EvaluationSampling) -> dict[str, Any]:
        """What all completions have in common; what is not used is left at its default, which is none."""
        used = sampling.model_dump(
            include={"top_p", "top_k", "min_p", "repetition_penalty"}, exclude_none=True
        )
        used |= {"temperature": sampling.temperature, "max_tokens": sampling.max_new_tokens}
        used |= {"stop_token_ids": sorted(self.tokenization.ends)}
        stop = list(self.tokenization.stops.texts)
        return used | ({"stop": stop, "detokenize": True} if stop else {"detokenize": False})

    def release(self) -> None:
        """Keep everything: the next checkpoint takes the engine as it is."""
