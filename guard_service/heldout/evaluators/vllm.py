"""Evaluator of local checkpoints with vLLM: one engine, into which each checkpoint's weights are loaded.

The engine lives in the evaluation process and ends with it: whatever it dies of costs one evaluation, and
nothing is left on the device. vLLM sees token ids alone. Weights are loaded into an engine only if they are
of its frame: configuration, names, types and shapes as in the checkpoint that it was started with. A tensor
that is missing would else keep the values of the checkpoint before. Another frame takes another process.
"""

from __future__ import annotations

import os
import re
import shutil
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guard_core.extras import missing_vllm
from guard_core.wire import EvaluationSampling, FailureKind
from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.config import VllmEvaluatorSettings
from guard_service.heldout.errors import EngineLostError, StartAgainError, failing_as
from guard_service.heldout.evaluators.codec import Codec, CompletionJob
from guard_service.heldout.evaluators.frame import Frame, frame_of, has_tied_values, tensors
from guard_service.heldout.evaluators.local import BrokenGenerationError, LocalEvaluator
from guard_service.heldout.evaluators.lora import merged_adapter
from guard_service.heldout.evaluators.weights import (
    loading,
    not_finite,
    on_cuda,
    one_line,
    out_of_memory,
    precision,
    refuse_not_finite,
    whole_model,
)
from guard_service.heldout.staging import Staged, refuse_without_room

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams

    from guard_service.heldout.evaluators.vllm_worker import Watched

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
    "GPU (on a cluster by spec.guard.resources, with placement: Pod), or use the evaluator checkpoint"
)
_SEED = 0  # of the engine; every completion has its own
#: How vLLM, torch and their workers say that there is no room: in a ValueError, or in a RuntimeError that
#: repeats what a worker said.
_NO_ROOM = re.compile(
    "out of memory"
    r"|is less than desired \w+ memory utilization"
    "|no available memory for the cache blocks"
    "|larger than the available kv cache memory"
    r"|not enough \w+ memory available"
    "|can't allocate memory",
    re.IGNORECASE,
)
_AS_THE_MEMORY_ALLOWS = -1  # tokens: as long as the model's positions, if there is room
_LIMIT = "the {} tokens of vLLM's longest sequence (max_model_len, or what the memory has room for)"


class VllmEvaluator(LocalEvaluator):
    """Keeps one engine for all checkpoints of a frame."""

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

    def _load(self, staged: Staged, codec: Codec, shown: str) -> _Loaded:
        """The weights in the engine, which is started for the first checkpoint."""
        if staged.adapter is None:
            engine = self._engine_of(staged.path, shown, codec)
        else:
            merged = staged.path.with_name(f"{staged.path.name}-merged")
            try:
                self._merge(staged, merged, shown)
                engine = self._engine_of(merged, shown, codec)
            finally:
                shutil.rmtree(merged, ignore_errors=True)
        if codec.positions is None or engine.positions < codec.positions:
            codec = replace(codec, positions=engine.positions, limit=_LIMIT)
        return _Loaded(engine, codec, self._own.release_memory)

    @property
    def over(self) -> bool:
        """See `Evaluator.over`."""
        return self._engine is not None and self._engine.over

    def _merge(self, staged: Staged, target: Path, shown: str) -> None:
        """Save the base model with the adapter in its weights, which are as exact as the engine's."""
        import torch

        assert self._base is not None and staged.adapter is not None
        dtype = getattr(torch, precision(self._own.dtype, cuda=on_cuda()))
        model = whole_model(self._base.path, f"the base model {self._base.path}", dtype=dtype)
        with failing_as(FailureKind.EVALUATOR):
            what = f"{shown}: the base model with the adapter in it needs"
            refuse_without_room(target.parent, what, model.get_memory_footprint())
        with loading(shown, FailureKind.WEIGHTS):
            merged_adapter(model, staged.path, staged.adapter, target)

    def _engine_of(self, path: Path, shown: str, codec: Codec) -> _Engine:
        frame = frame_of(path, shown)
        with loading(shown, FailureKind.WEIGHTS):
            wrong = not_finite(tensors(path))  # here, for vLLM may keep them in another form
        refuse_not_finite(wrong, shown)
        return self._engine_with(path, frame, shown, codec)

    def _engine_with(self, path: Path, frame: Frame, shown: str, codec: Codec) -> _Engine:
        if self._engine is None:
            self._engine = _Engine.start(path, frame, shown, self._own, codec)
        elif self._engine.frame != frame.digest:
            raise StartAgainError(f"{shown} is not of the frame that the engine was started with")
        else:
            self._engine.load(path, shown)
        return self._engine


@contextmanager
def _ending_the_engine(shown: str) -> Iterator[None]:
    """Whatever vLLM raises ends the engine, which may be left with half of it.

    The guard has checked the weights before: what fails here is the engine, and not them.
    """
    try:
        yield
    except Exception as error:
        raise EngineLostError(
            f"{shown} cannot be loaded by vLLM: {type(error).__name__}: {one_line(error)}",
            FailureKind.OUT_OF_MEMORY if _without_room(error) else FailureKind.EVALUATOR,
        ) from error


def _reloadable(path: Path, frame: Frame, shown: str, llm: LLM, watched: Sequence[Watched]) -> bool:
    """Whether other weights may be loaded over those of this engine, by what its workers say of it.

    Of a tied output that was saved, too, a reload would load both over one another.

    Raises:
        EngineLostError: the output that was saved is another than the one that is scored.
    """
    tied = any(one.tied for one in watched) and frame.output
    if tied and not has_tied_values(path, llm.llm_engine.model_config.dtype):
        raise EngineLostError(
            f"{shown}: vLLM takes the input embeddings of this architecture for its output, and would not "
            "score the output that was saved: use the evaluator checkpoint",
            FailureKind.EVALUATOR,
        )
    return not tied and all(one.reloadable for one in watched)


def _without_room(error: Exception) -> bool:
    """Whether it says that the machine or the device has no room left."""
    return out_of_memory(error) or _NO_ROOM.search(str(error)) is not None


@dataclass(slots=True)
class _Engine:
    """An engine of vLLM, and the digest of the frame that it was built for.

    `sleeps`: whether it is the same after a sleep. `over`: only its end gives its memory back, where that is
    wanted, or lets other weights in. `asleep`: it has given its memory back.
    """

    llm: LLM
    frame: str
    batch_size: int
    sleeps: bool = True
    over: bool = False
    asleep: bool = False

    @classmethod
    def start(
        cls, path: Path, frame: Frame, shown: str, settings: VllmEvaluatorSettings, codec: Codec
    ) -> _Engine:
        """An engine with the weights in this directory; where a text may end a completion, it reads along.

        Raises:
            EvaluationError: they are not whole, or not the model's alone; vLLM would leave what is missing as
                the memory was, and load what it knows by another name.
            EngineLostError: vLLM cannot load them, or would not score them all, or has no device.
        """
        from vllm.platforms import current_platform

        if not current_platform.device_type:  # else it ends in "Device string must not be empty"
            raise EngineLostError(NO_DEVICE, FailureKind.EVALUATOR)
        whole_model(path, shown, nothing_else=True, device_map="meta")
        with _ending_the_engine(shown):
            from vllm import LLM

            llm = LLM(
                model=str(path),
                runner="generate",
                convert="none",
                config_format="hf",
                load_format="safetensors",
                generation_config="vllm",  # not the checkpoint's: it may bring penalties
                # The tokenizer is the same in all checkpoints of a run.
                **(
                    {"tokenizer": codec.tokenizer.name_or_path}
                    if codec.ending.texts
                    else {"skip_tokenizer_init": True}
                ),
                dtype=precision(settings.dtype, cuda=on_cuda()),
                max_model_len=_longest(settings.max_model_len, codec.positions),
                max_num_seqs=settings.batch_size,
                tensor_parallel_size=settings.tensor_parallel_size,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                enforce_eager=settings.enforce_eager,
                enable_sleep_mode=settings.release_memory and on_cuda(),
                worker_extension_cls="guard_service.heldout.evaluators.vllm_worker.GuardedWorker",
                seed=_SEED,
            )
            watched = llm.collective_rpc("guard_watch")
        sleeps, over = all(one.sleeps for one in watched), not _reloadable(path, frame, shown, llm, watched)
        return cls(llm, frame.digest, settings.batch_size, sleeps, over)

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence that there is room for."""
        return int(self.llm.llm_engine.model_config.max_model_len)

    def load(self, path: Path, shown: str) -> None:
        """Put other weights of this frame in the place of those that are there.

        Raises:
            EngineLostError: it has none of the two any more.
            StartAgainError: its output is not made of them.
        """
        with _ending_the_engine(shown):
            if self.asleep:
                self.llm.wake_up(tags=["weights"])
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
            if self.asleep and not self.llm.wake_up(tags=["kv_cache"]):
                raise RuntimeError("it did not wake")
            self.asleep = False
            if not self.llm.reset_prefix_cache():
                raise RuntimeError("the cache of prompts still has entries of the checkpoint before")
            made = self.llm.collective_rpc("guard_output")
        if not all(made):
            raise StartAgainError(f"vLLM keeps an output of the checkpoint before {shown}")

    def rest(self) -> None:
        """Give the device's memory back: by sleep where vLLM has that, else by an end that is asked for."""
        if on_cuda() and self.sleeps and not self.over:
            try:
                self.llm.sleep(level=2)  # every evaluation loads weights, so none are kept
                self.asleep = True
            except Exception:  # the evaluation is made: it costs no more than the engine
                traceback.print_exc()
        self.over = not self.asleep

    def generate(self, jobs: Sequence[CompletionJob], params: Sequence[SamplingParams]) -> list[list[int]]:
        """Tokens of each completion. The message of an error may quote a prompt: its type is told."""
        prompts: Any = [{"prompt_token_ids": job.tokens} for job in jobs]
        try:
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            broken = any(self.llm.collective_rpc("guard_broken"))
        except Exception as error:
            hint = (
                f"ran out of memory: lower batch_size ({self.batch_size}) or gpu_memory_utilization"
                if _without_room(error)
                else f"failed with {type(error).__name__}"
            )
            raise EngineLostError(f"vLLM {hint}") from error
        if broken:
            raise BrokenGenerationError(
                "its logits are infinite or not a number: the weights are damaged, or overflow in "
                f"{self.llm.llm_engine.model_config.dtype}"
            )
        ends = {output.outputs[0].finish_reason for output in outputs} - {"stop", "length"}
        if len(outputs) != len(jobs) or ends:
            raise EngineLostError(f"vLLM made {len(outputs)} of {len(jobs)} completions; ended by {ends}")
        return [list(output.outputs[0].token_ids) for output in outputs]


@dataclass(slots=True)
class _Loaded:
    """The engine with a checkpoint's weights."""

    engine: _Engine
    codec: Codec
    rests: bool

    def generate(self, jobs: Sequence[CompletionJob], sampling: EvaluationSampling) -> list[list[int]]:
        """See `LoadedPolicy.generate`."""
        from vllm import SamplingParams

        common = _params(sampling, self.codec.ends, self.codec.ending.texts)
        return self.engine.generate(jobs, [SamplingParams(seed=job.seed, **common) for job in jobs])

    def release(self) -> None:
        """Only if it is asked for: the next checkpoint takes the engine as it is."""
        if self.rests:
            self.engine.rest()


def _longest(wanted: int | None, positions: int | None) -> int:
    """Tokens of the longest sequence as vLLM takes them: no more than the model's positions."""
    if wanted is None:
        return _AS_THE_MEMORY_ALLOWS
    return wanted if positions is None else min(wanted, positions)


def _params(sampling: EvaluationSampling, ends: frozenset[int], stop: Sequence[str]) -> Mapping[str, Any]:
    """Of `SamplingParams`; what is not used is left at its default, which is none."""
    names = ("top_p", "top_k", "min_p", "repetition_penalty")
    used = {name: value for name in names if (value := getattr(sampling, name)) is not None}
    return {
        **used,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": sorted(ends),
        "detokenize": bool(stop),
        **({"stop": list(stop)} if stop else {}),
    }
