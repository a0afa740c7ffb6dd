"""The rules of the evaluator `vllm` without vLLM, which is here no more than what it may do wrong.

`tests/vllm` has the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import queue
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from guard_core.extras import missing_vllm
from guard_core.judge import MAY_PASS
from guard_core.wire import EvaluationSampling, FailureKind, SamplingSource
from guard_service.heldout import child, processes, staging
from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import HeldoutSettings, VllmEvaluatorSettings
from guard_service.heldout.errors import EngineLostError, EvaluationError, SplitError, StartAgainError
from guard_service.heldout.evaluators import vllm
from guard_service.heldout.evaluators.codec import Codec, CompletionJob
from guard_service.heldout.evaluators.frame import Frame, frame_of, has_tied_values
from guard_service.heldout.evaluators.local import BrokenGenerationError
from guard_service.heldout.evaluators.vllm import VllmEvaluator
from guard_service.heldout.evaluators.weights import whole_model
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.staging import Staged, stage
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from tests.heldout.models import save_tiny_model
from tests.heldout.test_adapters import save_adapter

CONFIG = {"model_type": "llama", "hidden_size": 4, "num_attention_heads": 1, "transformers_version": "5.0"}
WEIGHTS = {"a.weight": np.zeros((2, 3), np.float32), "b.weight": np.zeros(3, np.float32)}
JOBS = [CompletionJob(0, 0, [1, 2], 7, None), CompletionJob(1, 0, [3], 8, None)]


def frame(folder: Path, config: dict[str, Any] = CONFIG, weights: dict[str, Any] = WEIGHTS) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return frame_of(folder, "it").digest


class Engine:
    """What the evaluator uses of `vllm.LLM`; the arguments say what goes wrong."""

    def __init__(
        self,
        *,
        error: Exception | None = None,
        reset: bool = True,
        broken: bool = False,
        ends: str = "length",
        wakes: bool = True,
        made: bool = True,
        watched: Sequence[tuple[bool, bool]] = ((False, True), (False, True)),
        sleeps: Sequence[bool] = (True, True),
        dtype: Any = "float32",
    ) -> None:
        self.calls: list[str] = []
        self._made, self._watched = made, watched
        self._sleeps = sleeps
        self._wakes = wakes
        self._error, self._reset, self._broken, self._ends = error, reset, broken, ends
        config = SimpleNamespace(max_model_len=9, dtype=dtype)
        self.llm_engine = SimpleNamespace(model_config=config)

    def collective_rpc(self, method: str, kwargs: dict[str, Any] | None = None) -> list[Any]:
        self.calls.append(method)
        if method == "reload_weights" and self._error is not None:
            raise self._error
        if method == "guard_watch":
            said = zip(self._watched, self._sleeps, strict=False)
            return [SimpleNamespace(tied=t, reloadable=r, sleeps=s) for (t, r), s in said]
        if method == "guard_output":
            return [True, self._made]
        return [False, self._broken] if method == "guard_broken" else [None, None]

    def reset_prefix_cache(self) -> bool:
        return self._reset

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        if self._error is not None:
            raise self._error

    def wake_up(self, tags: list[str]) -> bool:
        self.calls.append(f"wake {tags}")
        return self._wakes

    def generate(self, prompts: list[dict[str, Any]], *_: Any, **__: Any) -> list[Any]:
        if self._error is not None:
            raise self._error
        ends = ["length", self._ends]
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5, 6], finish_reason=end)]) for end in ends
        ]


def engine(**wrong: Any) -> vllm._Engine:
    llm: Any = Engine(**wrong)
    return vllm._Engine(llm, "frame", 16)


def test_a_frame_is_what_an_engine_is_built_for_and_not_the_values(tmp_path: Path) -> None:
    first = frame(tmp_path / "first")
    other = {name: array + 1 for name, array in WEIGHTS.items()}
    assert frame(tmp_path / "later", CONFIG | {"transformers_version": "6.0"}, other) == first
    differ = [
        frame(tmp_path / "config", CONFIG | {"hidden_size": 8}),
        frame(tmp_path / "missing", weights={"a.weight": WEIGHTS["a.weight"]}),
        frame(tmp_path / "more", weights=WEIGHTS | {"c.weight": np.zeros(1, np.float32)}),
        frame(tmp_path / "shape", weights=WEIGHTS | {"b.weight": np.zeros(4, np.float32)}),
        frame(tmp_path / "type", weights=WEIGHTS | {"b.weight": np.zeros(3, np.float16)}),
    ]
    assert len({first, *differ}) == 6


def test_an_output_that_is_saved_like_the_input_is_of_another_frame_than_one_that_is_not(
    tmp_path: Path,
) -> None:
    """An engine that is started with the pair has one tensor for both, and would load one over the other."""
    one, other = (
        rng.standard_normal((2, 3)).astype(np.float32) for rng in map(np.random.default_rng, (1, 2))
    )
    saved = {"model.embed_tokens.weight": one, "lm_head.weight": one}
    for config in (CONFIG, CONFIG | {"tie_word_embeddings": True}):
        folder = tmp_path / str(len(config))
        folder.mkdir()
        equal = frame(folder / "equal", config, saved)
        assert frame(folder / "equal later", config, dict.fromkeys(saved, other)) == equal
        apart = frame(folder / "apart", config, saved | {"lm_head.weight": other})
        assert apart != equal
        swapped = saved | {"model.embed_tokens.weight": other}
        assert frame(folder / "apart later", config, swapped) == apart


def test_an_engine_that_kept_an_output_of_the_checkpoint_before_is_started_again(tmp_path: Path) -> None:
    with pytest.raises(StartAgainError, match="keeps an output"):
        engine(made=False).load(tmp_path, "it")


@pytest.mark.parametrize(
    ("watched", "output", "reloadable"),
    [
        ([(False, True), (False, True)], True, True),
        ([(True, True), (True, True)], False, True),
        ([(True, True), (False, True)], True, False),
        ([(False, True), (False, False)], True, False),
    ],
    ids=["two tensors", "tied", "tied and saved", "a worker that takes none"],
)
def test_weights_are_loaded_over_others_only_where_that_replaces_them_all(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    watched: list[tuple[bool, bool]],
    output: bool,
    reloadable: bool,
) -> None:
    import torch

    rows = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    frame(tmp_path / "it", weights={"model.embed_tokens.weight": rows, "lm_head.weight": rows})
    started = start(
        monkeypatch,
        lambda **_: Engine(watched=watched, dtype=torch.float32),
        frame=Frame("frame", output=output, tied=False),
        path=tmp_path / "it",
    )
    evaluator = VllmEvaluator(VllmEvaluatorSettings(), tmp_path)
    evaluator._engine = started
    assert evaluator.over is not reloadable, "no other weights ever come: the process ends"


def test_an_output_that_vllm_would_not_score_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A class that ties whatever is saved; near ones that are one in the engine's type are the same."""
    import torch

    rows = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    saved = {"model.embed_tokens.weight": rows, "lm_head.weight": rows * np.float32(1 + 1e-6)}
    frame(tmp_path / "it", weights=saved)

    def started(dtype: Any) -> vllm._Engine:
        llm = lambda **_: Engine(watched=[(True, True)], dtype=dtype)  # noqa: E731
        return start(monkeypatch, llm, frame=Frame("frame", False, True), path=tmp_path / "it")

    assert started(torch.bfloat16).over
    with pytest.raises(EngineLostError, match="would not score the output that was saved") as caught:
        started(torch.float32)
    assert caught.value.kind is FailureKind.EVALUATOR
    assert not has_tied_values(tmp_path / "it", torch.float32)


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    frame(tmp_path / "it")
    save_file({"a.weight": WEIGHTS["a.weight"]}, tmp_path / "it" / "model-2.safetensors")
    with pytest.raises(
        EvaluationError, match=r"1 of its weights are there twice, the first: a\.weight"
    ) as caught:
        frame_of(tmp_path / "it", "it")
    assert caught.value.kind is FailureKind.WEIGHTS


@pytest.mark.torch
def test_weights_that_are_none_of_the_model_are_refused_where_vllm_may_know_them(tmp_path: Path) -> None:
    path = save_tiny_model(tmp_path / "tiny")
    save_file(
        {"model.layers.0.self_attn.qkv_proj.weight": np.zeros((2, 2), np.float32)}, path / "more.safetensors"
    )
    index = {"weight_map": {}}
    from safetensors import safe_open

    for name in ("model.safetensors", "more.safetensors"):
        with safe_open(path / name, "np") as file:
            index["weight_map"] |= dict.fromkeys(file.keys(), name.replace("model.", "model-1."))
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, **index}))
    whole_model(path, "it")
    with pytest.raises(EvaluationError, match="1 of its weights are none of a LlamaForCausalLM") as caught:
        whole_model(path, "it", nothing_else=True)
    assert caught.value.kind is FailureKind.WEIGHTS and "qkv_proj" in str(caught.value)


def test_a_checkpoint_that_names_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="names another model") as caught:
        frame(tmp_path / "it", CONFIG | {"speculators_config": {"verifier": {"name_or_path": "/good"}}})
    assert caught.value.kind is FailureKind.CHECKPOINT


def test_weights_of_another_frame_never_reach_the_engine(tmp_path: Path) -> None:
    evaluator = VllmEvaluator(VllmEvaluatorSettings(), tmp_path)
    evaluator._engine = one = engine()
    codec: Any = None
    assert evaluator._engine_with(tmp_path, Frame("frame", False, False), "it", codec) is one
    with pytest.raises(StartAgainError, match="it is not of the frame"):
        evaluator._engine_with(tmp_path, Frame("another", False, False), "it", codec)
    assert one.llm.calls == ["reload_weights", "guard_output"]


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[VllmEvaluator, Staged]:
    """An evaluator with a base model, and an adapter of that which was taken."""
    base = save_tiny_model(tmp_path / "tiny-base")
    save_adapter(base, tmp_path / "adapter")
    evaluator = VllmEvaluator(VllmEvaluatorSettings(dtype="float32"), tmp_path, look_at(base))
    return evaluator, stage(tmp_path / "adapter", tmp_path / "stage-1", base)


@pytest.mark.torch
def test_a_merged_model_for_which_there_is_no_room_is_not_written(
    adapted: tuple[VllmEvaluator, Staged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard's store is on that disk, too."""
    evaluator, staged = adapted
    room = SimpleNamespace(free=50_000, total=0)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: room)
    codec: Any = None
    with pytest.raises(
        EvaluationError, match=r"adapter in it needs \d+ bytes in .*, which has 50000"
    ) as told:
        evaluator._load(staged, codec, "it")
    assert told.value.kind is FailureKind.EVALUATOR
    assert not list(tmp_path.glob("*-merged"))


@pytest.mark.torch
def test_a_merged_model_that_no_engine_takes_does_not_stay_on_the_disk(
    adapted: tuple[VllmEvaluator, Staged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator, staged = adapted

    def refused(path: Path, *_: Any) -> None:
        assert (path / "model.safetensors").exists()
        raise EngineLostError("no")

    monkeypatch.setattr(evaluator, "_engine_of", refused)
    codec: Any = None
    with pytest.raises(EngineLostError):
        evaluator._load(staged, codec, "it")
    assert not list(tmp_path.glob("*-merged"))


class EngineDeadError(Exception):
    """As vLLM has one."""


#: How vLLM, torch and their workers say that there is no room.
NO_ROOM: dict[str, Exception] = {
    "others have it": ValueError(
        "Free memory on device cuda:0 (10.1/79.25 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.33 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes."
    ),
    "none for the cache": ValueError(
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
        "the engine."
    ),
    "too little for the cache": ValueError(
        "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (2.50 GiB). Try increasing "
        "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    ),
    "none for one token": ValueError(
        "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
        "increasing `gpu_memory_utilization`."
    ),
    "a worker": RuntimeError(
        "Worker failed with error 'CUDA out of memory. Tried to allocate 2.00 GiB.', please check the stack "
        "trace above for the root cause"
    ),
    "the machine": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 68719476736 bytes."
    ),
    "Python": MemoryError(),
}
#: What else an engine says that does not come up.
BROKEN: dict[str, Exception] = {
    "its core": RuntimeError(
        "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    ),
    "its end": EngineDeadError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause."
    ),
    "a worker": Exception(
        "WorkerProc initialization failed due to an exception in a background process. See stack trace for "
        "root cause."
    ),
    "something": RuntimeError("half of it"),
}
FAILURES = [
    *((error, FailureKind.OUT_OF_MEMORY) for error in NO_ROOM.values()),
    *((error, FailureKind.EVALUATOR) for error in BROKEN.values()),
]


OWN = Frame("frame", tied=False, output=False)


def start(
    monkeypatch: pytest.MonkeyPatch,
    llm: Callable[..., Any],
    positions: int | None = None,
    frame: Frame = OWN,
    path: Path = Path("it"),
    **settings: Any,
) -> vllm._Engine:
    """An engine of a vLLM that is no more than this class, for weights that the guard has checked."""
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cuda"))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=llm))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(vllm, "whole_model", lambda *_, **__: None)
    monkeypatch.setattr(vllm, "on_cuda", lambda: False)
    monkeypatch.setattr(vllm, "precision", lambda *_, **__: "float32")
    codec: Any = SimpleNamespace(ending=SimpleNamespace(texts=()), positions=positions)
    return vllm._Engine.start(path, frame, "it", VllmEvaluatorSettings(**settings), codec)


@pytest.mark.parametrize(("error", "kind"), FAILURES, ids=[*NO_ROOM, *(f"broken: {name}" for name in BROKEN)])
def test_an_engine_that_does_not_start_or_load_is_not_told_as_damaged_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, kind: FailureKind
) -> None:
    """They were checked before. So a pass of the starting policy is tried again."""

    def refuses(**_: Any) -> None:
        raise error

    with pytest.raises(EngineLostError, match="it cannot be loaded by vLLM") as at_the_start:
        start(monkeypatch, refuses)
    with pytest.raises(EngineLostError, match="it cannot be loaded by vLLM") as later:
        engine(error=error).load(tmp_path, "it")
    assert at_the_start.value.kind is later.value.kind is kind
    assert kind in MAY_PASS


def test_an_engine_that_still_has_prompts_of_before_is_lost(tmp_path: Path) -> None:
    with pytest.raises(EngineLostError, match="still has entries") as caught:
        engine(reset=False).load(tmp_path, "it")
    assert caught.value.kind is FailureKind.EVALUATOR


@pytest.mark.torch
def test_weights_that_the_guard_refuses_are_told_as_that_and_start_no_engine(tmp_path: Path) -> None:
    frame(tmp_path / "it", weights=WEIGHTS | {"b.weight": np.full(3, np.nan, np.float32)})
    evaluator = VllmEvaluator(VllmEvaluatorSettings(), tmp_path)
    codec: Any = None
    with pytest.raises(EvaluationError, match=r"infinite or not a number, the first: b\.weight") as caught:
        evaluator._engine_of(tmp_path / "it", "it", codec)
    assert caught.value.kind is FailureKind.WEIGHTS and evaluator._engine is None


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ({"broken": True}, BrokenGenerationError, "its logits are infinite or not a number"),
        ({"ends": "abort"}, EngineLostError, "ended by {'abort'}"),
        ({"error": MemoryError("7+1=")}, EngineLostError, "lower batch_size"),
        ({"error": RuntimeError("CUDA out of memory at 7+1=")}, EngineLostError, "lower batch_size"),
        ({"error": ValueError("7+1=")}, EngineLostError, "failed with ValueError"),
    ],
)
def test_what_is_no_completion_is_an_error_that_quotes_nothing(
    wrong: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told) as caught:
        engine(**wrong).generate(JOBS, [])
    assert "7+1" not in str(caught.value)
    assert getattr(caught.value, "kind", FailureKind.UNDERWAY) is FailureKind.UNDERWAY


def test_a_completion_that_is_missing_is_an_error() -> None:
    assert engine().generate(JOBS, []) == [[5, 6], [5, 6]]
    with pytest.raises(EngineLostError, match="2 of 3 completions"):
        engine().generate([*JOBS, JOBS[0]], [])


def test_sampling_is_as_it_is_said_and_the_end_is_the_guards() -> None:
    plain = EvaluationSampling(temperature=0.0, max_new_tokens=9, samples=1, source=SamplingSource.DEFAULT)
    common = {"max_tokens": 9, "stop_token_ids": [1, 4], "detokenize": False}
    assert vllm._params(plain, frozenset({4, 1}), ()) == {"temperature": 0.0, **common}
    used = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.2}
    assert vllm._params(plain.model_copy(update=used), frozenset({4, 1}), ()) == used | common
    ending = vllm._params(plain, frozenset(), ("\n",))
    assert ending["stop"] == ["\n"] and ending["detokenize"], "vLLM looks for it in the text"


def test_without_vllm_it_is_said_before_any_work(tmp_path: Path) -> None:
    assert "the image guard-vllm" in str(missing_vllm())
    with pytest.raises(SplitError, match="the evaluator 'vllm' needs the package vllm"):
        VllmEvaluator(VllmEvaluatorSettings(), tmp_path).check([])


# -- the longest sequence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "positions", "given"),
    [(None, 4096, -1), (None, None, -1), (1024, 4096, 1024), (8192, 4096, 4096), (1024, None, 1024)],
)
def test_the_longest_sequence_is_what_the_engine_is_started_with(
    monkeypatch: pytest.MonkeyPatch, wanted: int | None, positions: int | None, given: int
) -> None:
    told: dict[str, Any] = {}

    def llm(**arguments: Any) -> Engine:
        told.update(arguments)
        return Engine()

    start(monkeypatch, llm, positions, max_model_len=wanted)
    assert told["max_model_len"] == given


@pytest.mark.parametrize(
    ("positions", "told"),
    [
        (4096, "exceed the 9 tokens of vLLM's longest sequence (max_model_len, or what the memory has"),
        (None, "exceed the 9 tokens of vLLM's longest sequence"),
        (8, "exceed the model's 8 positions"),
    ],
)
def test_an_item_that_is_longer_fails_by_name_and_says_what_is_too_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, positions: int | None, told: str
) -> None:
    """The engine here takes 9 tokens."""
    evaluator = VllmEvaluator(VllmEvaluatorSettings(), tmp_path)
    monkeypatch.setattr(evaluator, "_engine_of", lambda *_: engine())
    ending: Any = None
    codec = Codec(lambda _: {"input_ids": [1, 2, 3]}, frozenset(), positions, ending)
    ready = evaluator._load(Staged(tmp_path, "0"), codec, "it")
    greedy = EvaluationSampling(temperature=0.0, max_new_tokens=6, samples=1, source=SamplingSource.SETTINGS)
    asked = [HeldoutItem(id="i1", prompt="7+1=", answer="8")]
    if positions != 8:
        assert len(ready.codec.jobs(asked, evaluator._own, greedy, 0)) == 1, "as long as it may be"
    longer = greedy.model_copy(update={"max_new_tokens": 7})
    with pytest.raises(EvaluationError) as caught:
        ready.codec.jobs(asked, evaluator._own, longer, 0)
    assert str(caught.value).startswith("item 'i1': 3 prompt tokens and max_new_tokens=7")
    assert told in str(caught.value) and "7+1" not in str(caught.value)


# -- memory that is given back -------------------------------------------------------------------------------


def loaded(one: vllm._Engine, *, release_memory: bool) -> vllm._Loaded:
    codec: Any = None
    return vllm._Loaded(one, codec, release_memory)


def test_on_cuda_an_engine_sleeps_and_has_its_weights_before_its_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The order in which vLLM is asked, and no more: what it does then is in tests/gpu."""
    monkeypatch.setattr(vllm, "on_cuda", lambda: True)
    one = engine()
    loaded(one, release_memory=True).release()
    one.load(tmp_path, "it")
    one.load(tmp_path, "it")
    assert one.llm.calls == [
        *("sleep 2", "wake ['weights']", "reload_weights", "wake ['kv_cache']", "guard_output"),
        *("reload_weights", "guard_output"),
    ]
    assert not one.over
    one = engine(wakes=False)
    loaded(one, release_memory=True).release()
    with pytest.raises(EngineLostError, match="it did not wake"):
        one.load(tmp_path, "it")


@pytest.mark.parametrize(("cuda", "wrong"), [(False, {}), (True, {"error": RuntimeError("no sleep mode")})])
def test_what_cannot_sleep_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: bool, wrong: dict[str, Any]
) -> None:
    monkeypatch.setattr(vllm, "on_cuda", lambda: cuda)
    evaluator = VllmEvaluator(VllmEvaluatorSettings(release_memory=True), tmp_path)
    assert not evaluator.over, "it has nothing yet"
    evaluator._engine = engine(**wrong)
    loaded(evaluator._engine, release_memory=True).release()
    assert evaluator.over


@pytest.mark.parametrize(
    ("sleeps", "watched", "calls"),
    [
        ((True, True), (False, True), ["sleep 2"]),
        ((True, False), (False, True), []),
        ((True,), (False, False), []),
    ],
    ids=["sleeps", "a worker that would lose something", "no other weights ever come"],
)
def test_an_engine_that_would_not_be_the_same_after_a_sleep_is_ended(
    monkeypatch: pytest.MonkeyPatch, sleeps: Sequence[bool], watched: tuple[bool, bool], calls: list[str]
) -> None:
    llm = lambda **_: Engine(watched=[watched] * len(sleeps), sleeps=sleeps)  # noqa: E731
    one = start(monkeypatch, llm, release_memory=True)
    monkeypatch.setattr(vllm, "on_cuda", lambda: True)
    loaded(one, release_memory=True).release()
    assert [*one.llm.calls] == ["guard_watch", *calls] and one.over is not bool(calls)


@pytest.mark.torch
def test_what_an_attention_computes_with_beside_the_weights_would_be_lost_in_a_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM makes the slopes of ALiBi where it makes the weights, and nobody loads them again."""
    import torch

    monkeypatch.setattr(processes, "die_with_parent", lambda: None)  # this process is no worker of vLLM
    from guard_service.heldout.evaluators.vllm_worker import keeps_tensors_of_its_own

    class Attention(torch.nn.Module):
        def __init__(self, slopes: Any) -> None:
            super().__init__()
            self.sinks = torch.nn.Parameter(torch.zeros(4))
            self.register_buffer("scale", torch.ones(1))
            self.impl = SimpleNamespace(alibi_slopes=slopes, sinks=self.sinks, scale=self.scale, heads=4)

    assert not keeps_tensors_of_its_own(torch.nn.Sequential(torch.nn.Linear(2, 2), Attention(None)))
    assert keeps_tensors_of_its_own(torch.nn.Sequential(Attention(None), Attention(torch.ones(4))))


@pytest.mark.parametrize("cuda", [True, False])
def test_memory_is_kept_unless_it_is_wanted_back(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    monkeypatch.setattr(vllm, "on_cuda", lambda: cuda)
    one = engine()
    loaded(one, release_memory=False).release()
    assert (one.llm.calls, one.over, one.asleep) == ([], False, False)


def test_a_process_that_says_it_is_over_is_waited_for_and_not_asked_again(tmp_path: Path) -> None:
    line = json.dumps({"number": 1, "over": True})
    says = f"import sys, time; sys.stdin.readline(); print({line!r}, flush=True); time.sleep(600)"

    async def act() -> None:
        worker = EvaluationWorker(HeldoutSettings(split=tmp_path / "split.jsonl"), tmp_path)
        worker.log_path.touch()
        process = worker._child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", says, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        await worker._ask(process, {})
        assert worker._child is None and process.returncode is not None

    asyncio.run(act())


# -- a process that is over ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "over"),
    [
        (StartAgainError("another frame"), "again", False),
        (EngineLostError("it died"), "evaluation", False),
        (EvaluationError("no outcome"), "evaluation", False),
        (EvaluationError("no outcome"), "evaluation", True),
        (None, None, True),
    ],
)
def test_the_process_ends_where_the_engine_is_in_the_way_or_lost_or_only_that_gives_memory_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception | None, kind: str | None, over: bool
) -> None:
    def run(_: Any, __: EvaluationRequest) -> Any:
        if error is not None:
            raise error
        return {}

    parts = {"__init__": lambda *_, **__: None, "ready": lambda _: {}, "warm_up": lambda _: None}
    for name, part in {**parts, "run": run, "over": over}.items():
        monkeypatch.setattr(child.HeldoutEvaluation, name, part)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    settings = HeldoutSettings(split=tmp_path / "split.jsonl").model_dump(mode="json")
    start = {"settings": settings, "scratch": str(tmp_path), "first": True, "number": 0}
    for message in (start, EvaluationRequest(0, 1, tmp_path).to_json() | {"number": 1}):
        lines.put(json.dumps(message).encode())
    lines.put(b"what is read only by a process that goes on")
    responses = io.BytesIO()
    ends = over or kind == "again" or isinstance(error, EngineLostError)
    how = SystemExit if ends else json.JSONDecodeError
    with contextlib.nullcontext() if error is None else pytest.raises(how):
        child.serve_requests(lines, responses)
    _, told = map(json.loads, responses.getvalue().splitlines())
    assert told.get("error", told)["over"] is ends and told.get("error", {}).get("kind") == kind


def test_a_request_that_needs_a_new_process_is_asked_once_more_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    response = {"items": [1.0], "sha256": None, "staged": None, "proxy_items": None}

    async def running(_: EvaluationWorker) -> str:
        return f"process {len(asked)}"

    async def ask(_: EvaluationWorker, process: str, __: Any) -> dict[str, Any]:
        asked.append((process, os.listdir(tmp_path)))
        if len(asked) == 1:
            (tmp_path / "stage-1").mkdir()
            raise StartAgainError("another frame")
        return response

    monkeypatch.setattr(EvaluationWorker, "_running", running)
    monkeypatch.setattr(EvaluationWorker, "_ask", ask)
    worker = EvaluationWorker(HeldoutSettings(split=tmp_path / "split.jsonl"), tmp_path)
    result = asyncio.run(worker.evaluate(EvaluationRequest(0, 1, tmp_path)))
    assert result.items == (1.0,) and asked == [("process 0", []), ("process 1", [])]
