"""The rules of the evaluator `vllm` without vLLM, which is here no more than what it may do wrong.

`tests/vllm` has the real one.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from guard_service.heldout import staging
from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import VllmEvaluatorSettings
from guard_service.heldout.errors import EngineLostError, EvaluationError, SplitError
from guard_service.heldout.evaluators.completions import Completions
from guard_service.heldout.evaluators.loading import layout
from guard_service.heldout.evaluators.vllm import VllmEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest
from rlguard.core.extras import missing_vllm
from rlguard.core.judge import MAY_PASS
from rlguard.core.wire import FailureKind, Sampling
from tests.heldout.models import save_tiny_model
from tests.heldout.test_adapters import save_adapter

ITEMS = [HeldoutItem(id=f"i{n}", prompt="7+1=" + "?" * n, answer="8") for n in range(2)]
CONFIG = {"model_type": "llama", "hidden_size": 4, "transformers_version": "5.0"}
WEIGHTS = {"a.weight": np.zeros((2, 3), np.float32), "b.weight": np.zeros(3, np.float32)}


# -- what an engine is built for -----------------------------------------------------------------------------


def layout_of(folder: Path, config: dict[str, Any] = CONFIG, weights: dict[str, Any] = WEIGHTS) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return layout(folder, "it")


def test_a_layout_is_what_an_engine_is_built_for_and_not_the_values(tmp_path: Path) -> None:
    first = layout_of(tmp_path / "first")
    other = {name: array + 1 for name, array in WEIGHTS.items()}
    assert layout_of(tmp_path / "later", CONFIG | {"transformers_version": "6.0"}, other) == first
    differ = [
        layout_of(tmp_path / "config", CONFIG | {"hidden_size": 8}),
        layout_of(tmp_path / "missing", weights={"a.weight": WEIGHTS["a.weight"]}),
        layout_of(tmp_path / "more", weights=WEIGHTS | {"c.weight": np.zeros(1, np.float32)}),
        layout_of(tmp_path / "shape", weights=WEIGHTS | {"b.weight": np.zeros(4, np.float32)}),
        layout_of(tmp_path / "type", weights=WEIGHTS | {"b.weight": np.zeros(3, np.float16)}),
    ]
    assert len({first, *differ}) == 6


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    layout_of(tmp_path / "it")
    save_file({"a.weight": WEIGHTS["a.weight"]}, tmp_path / "it" / "model-2.safetensors")
    with pytest.raises(EvaluationError, match=r"there twice, the first: a\.weight") as caught:
        layout(tmp_path / "it", "it")
    assert caught.value.kind is FailureKind.WEIGHTS


def test_a_checkpoint_that_names_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="names another model") as caught:
        layout_of(tmp_path / "it", CONFIG | {"speculators_config": {"verifier": {"name_or_path": "/good"}}})
    assert caught.value.kind is FailureKind.CHECKPOINT


# -- an engine that goes wrong -------------------------------------------------------------------------------


class Engine:
    """What the evaluator uses of `vllm.LLM`; the arguments of `vllm` say what goes wrong."""

    def __init__(self, wrong: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.wrong, self.arguments, self.calls = wrong, arguments, list[str]()
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=32, dtype="float32"))
        if error := wrong.get("start"):
            raise error

    def collective_rpc(self, method: str, args: Any = (), kwargs: Any = None) -> list[Any]:
        self.calls.append(method)
        if method == "reload_weights" and (error := self.wrong.get("reload")):
            raise error
        said = {"guard_watch": "reloadable", "guard_has": "has", "guard_broken": "broken"}.get(method, "")
        return [method != "guard_broken", self.wrong.get(said, method != "guard_broken")]

    def reset_prefix_cache(self) -> bool:
        return bool(self.wrong.get("reset", True))

    def generate(self, prompts: list[Any], params: list[Any], **_: Any) -> list[Any]:
        self.params = params
        if error := self.wrong.get("generate"):
            raise error
        one = SimpleNamespace(token_ids=[5, 6], finish_reason=self.wrong.get("ends", "length"))
        return [SimpleNamespace(outputs=[one])] * (len(prompts) - self.wrong.get("lost", 0))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Engine]]:
    """Puts a vLLM in place that does this wrong, now and from now on; gives the engines that were started."""
    started: list[Engine] = []
    wrong: dict[str, Any] = {}

    def start(**arguments: Any) -> Engine:
        started.append(Engine(wrong, arguments))
        return started[-1]

    def install(**faults: Any) -> list[Engine]:
        if faults:
            wrong.clear()
            wrong.update(faults)
        module = SimpleNamespace(LLM=start, SamplingParams=SimpleNamespace)
        platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type="cuda"))
        monkeypatch.setitem(sys.modules, "vllm", module)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
        return started

    install()
    return install


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def evaluator(vllm: Any, tmp_path: Path) -> VllmEvaluator:
    return VllmEvaluator(VllmEvaluatorSettings(dtype="float32", max_new_tokens=8), tmp_path)


def complete(
    evaluator: VllmEvaluator, policy: Path, trainer: Sampling | None = None, items: Any = ITEMS
) -> Completions:
    return evaluator.complete(items, EvaluationRequest(0, 1, policy, sampling=trainer))


#: How vLLM, torch and their workers say that there is no room; and what else an engine says.
FAILURES = [
    (ValueError("Free memory on device is less than desired GPU memory utilization (0.9)."), True),
    (ValueError("No available memory for the cache blocks."), True),
    (ValueError("16.00 GiB KV cache is needed, which is larger than the available KV cache memory."), True),
    (ValueError("Cannot auto-fit max_model_len: not enough GPU memory available to serve a token."), True),
    (RuntimeError("Worker failed with error 'CUDA out of memory. Tried to allocate 2.00 GiB.'"), True),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes"),
        True,
    ),
    (MemoryError(), True),
    (RuntimeError("Engine core initialization failed. See root cause above."), False),
    (Exception("WorkerProc initialization failed due to an exception in a background process."), False),
]


@pytest.mark.parametrize(("error", "no_room"), FAILURES)
def test_an_engine_that_does_not_start_or_load_is_not_told_as_damaged_weights(
    evaluator: VllmEvaluator, vllm: Any, policy: Path, error: Exception, no_room: bool
) -> None:
    """They were checked before. So a pass of the starting policy is tried again."""
    vllm(start=error)
    with pytest.raises(EngineLostError, match="cannot be loaded by vLLM") as at_the_start:
        complete(evaluator, policy)
    vllm(reload=error)
    complete(evaluator, policy)
    with pytest.raises(EngineLostError, match="cannot be loaded by vLLM") as later:
        complete(evaluator, policy)
    kind = FailureKind.OUT_OF_MEMORY if no_room else FailureKind.EVALUATOR
    assert at_the_start.value.kind is later.value.kind is kind
    assert kind in MAY_PASS


def test_an_engine_that_still_has_prompts_of_before_is_lost(
    evaluator: VllmEvaluator, vllm: Any, policy: Path
) -> None:
    complete(evaluator, policy)
    vllm(reset=False)
    with pytest.raises(EngineLostError, match="still has entries") as caught:
        complete(evaluator, policy)
    assert caught.value.kind is FailureKind.EVALUATOR


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.qkv_proj.weight", "model.norm.weight"])
def test_weights_that_the_guard_refuses_are_told_as_that_and_start_no_engine(
    evaluator: VllmEvaluator, vllm: Any, policy: Path, tmp_path: Path, name: str
) -> None:
    """One that is none of the model's, which vLLM may know; and one with a value that is no number."""
    spoiled = shutil.copytree(policy, tmp_path / "spoiled")
    weights = load_file(spoiled / "model.safetensors")
    save_file(
        weights
        | {name: np.full(weights.get(name, np.zeros(2)).shape, np.nan if name in weights else 0, "f4")},
        spoiled / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(EvaluationError, match=name.replace(".", r"\.")) as caught:
        complete(evaluator, spoiled)
    assert caught.value.kind is FailureKind.WEIGHTS and not vllm()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"broken": True}, "its logits are infinite or not a number"),
        ({"ends": "abort"}, "ended by {'abort'}"),
        ({"lost": 1}, "1 of 2 completions"),
        ({"generate": MemoryError("7+1=")}, "lower batch_size"),
        ({"generate": RuntimeError("CUDA out of memory at 7+1=")}, "lower batch_size"),
        ({"generate": ValueError("7+1=")}, "failed with ValueError"),
    ],
)
def test_what_is_no_completion_is_an_error_that_quotes_nothing(
    evaluator: VllmEvaluator, vllm: Any, policy: Path, wrong: dict[str, Any], told: str
) -> None:
    vllm(**wrong)
    with pytest.raises(EvaluationError, match=told) as caught:
        complete(evaluator, policy)
    assert "7+1" not in str(caught.value) and caught.value.kind is FailureKind.UNDERWAY


def test_without_vllm_it_is_said_before_any_work(tmp_path: Path) -> None:
    assert "the image guard-vllm" in str(missing_vllm())
    with pytest.raises(SplitError, match="the evaluator 'vllm' needs the package vllm"):
        VllmEvaluator(VllmEvaluatorSettings(), tmp_path).check([])


@pytest.mark.parametrize(("wanted", "given"), [(None, -1), (16, 16), (8192, 256)])
def test_the_longest_sequence_is_what_the_engine_is_started_with_and_an_item_beyond_it_fails_by_name(
    vllm: Any, policy: Path, tmp_path: Path, wanted: int | None, given: int
) -> None:
    """The policy has 256 positions, and the engine here room for 32."""
    settings = VllmEvaluatorSettings(dtype="float32", max_new_tokens=8, max_model_len=wanted)
    evaluator = VllmEvaluator(settings, tmp_path)
    complete(evaluator, policy)
    assert vllm()[0].arguments["max_model_len"] == given
    long = [HeldoutItem(id="i1", prompt="7+1=" + "?" * 24, answer="8")]
    with pytest.raises(
        EvaluationError, match="item 'i1': 28 prompt tokens and max_new_tokens=8 exceed the 32"
    ):
        complete(evaluator, policy, items=long)


# -- an adapter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["no room", "no engine"])
def test_a_merged_model_does_not_stay_on_the_disk(
    vllm: Any, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The guard's store is on that disk, too."""
    save_adapter(policy, tmp_path / "adapter")
    evaluator = VllmEvaluator(VllmEvaluatorSettings(dtype="float32"), tmp_path, look_at(policy))
    if fault == "no room":
        room = iter([SimpleNamespace(free=1 << 30, total=0)] * 2)
        full = SimpleNamespace(free=50_000, total=0)
        monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: next(room, full))
    else:
        vllm(start=RuntimeError("half of it"))
    with pytest.raises(EvaluationError, match=r"adapter in it needs \d+ bytes|half of it") as told:
        complete(evaluator, tmp_path / "adapter")
    assert told.value.kind is FailureKind.EVALUATOR
    assert not list(tmp_path.glob("*-merged")) and len(vllm()) == 0
