"""The evaluator `vllm` with a real vLLM: what is hashed is what is scored, whatever was loaded before.

One engine for this process; the evaluation processes of the last test have their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import (
    HeldoutSettings,
    HfEvaluatorSettings,
    VllmEvaluatorSettings,
)
from guard_service.heldout.errors import EngineLostError, EvaluationError, StartAgainError
from guard_service.heldout.evaluators.completions import Completions
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.evaluators.vllm import VllmEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.core.wire import FailureKind, Sampling
from tests.heldout.models import make_tokenizer, save_tiny_model
from tests.heldout.test_adapters import save_adapter
from tests.heldout.test_hf import change, drop_a_tensor, spoil_a_weight

ITEMS = [
    HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=" + "?" * (n * 5 % 11), answer=str(n * 8)) for n in range(40)
]
SETTINGS = {"max_new_tokens": 24, "dtype": "float32"}
VLLM = {**SETTINGS, "enforce_eager": True, "batch_size": 16}


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two checkpoints of a run, and one of another architecture."""
    folder = tmp_path_factory.mktemp("policies")
    made = {"first": {"seed": 0}, "second": {"seed": 1}, "deeper": {"layers": 3}}
    return {name: save_tiny_model(folder / name, width=128, **more) for name, more in made.items()}


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEvaluator]:
    one = VllmEvaluator(VllmEvaluatorSettings(**VLLM), tmp_path_factory.mktemp("scratch"))
    one.check(ITEMS)
    one.warm_up()
    return one


def by_vllm(evaluator: VllmEvaluator, path: Path, pass_index: int = 0, **settings: Any) -> Completions:
    """By the one engine, with other settings of generation."""
    evaluator._settings = VllmEvaluatorSettings(**{**VLLM, **settings})
    return evaluator.complete(ITEMS, EvaluationRequest(0, 1, path, pass_index))


def by_transformers(
    path: Path, scratch: Path, trainer: Sampling | None = None, **settings: Any
) -> Completions:
    config = HfEvaluatorSettings(**{**SETTINGS, **settings})
    request = EvaluationRequest(0, 1, path, sampling=trainer)
    return HfEvaluator(config, scratch).complete(ITEMS, request)


def settings_for(asked: Iterable[tuple[HeldoutItem, str]], folder: Path, **own: Any) -> HeldoutSettings:
    """A split of these items, each with its answer, that vLLM is asked."""
    rows = ({"id": item.id, "prompt": item.prompt, "answer": answer} for item, answer in asked)
    split = folder / "split.jsonl"
    split.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HeldoutSettings.model_validate({"split": split, "evaluator": {"kind": "vllm", **VLLM, **own}})


def in_turns(
    local: HfEvaluator, items: Sequence[HeldoutItem], paths: tuple[Path, Path]
) -> list[tuple[HeldoutItem, str]]:
    """Items to which two checkpoints say something else, each with what one of them says, in turns."""
    one, other = (
        [text for (text,) in local.complete(items, EvaluationRequest(0, 1, path)).texts] for path in paths
    )
    differ = [n for n in range(len(items)) if one[n].split() != other[n].split()]
    differ = [n for n in differ if one[n].strip() and other[n].strip()]
    return [(items[n], (one, other)[place % 2][n]) for place, n in enumerate(differ)]


def spoiled(path: Path, target: Path, spoil: Any) -> Path:
    copy = shutil.copytree(path, target)
    spoil(copy)
    return copy


def test_checkpoints_that_alternate_say_each_time_what_a_fresh_load_says(
    evaluator: VllmEvaluator, policies: dict[str, Path], tmp_path: Path
) -> None:
    fresh = {name: by_transformers(policies[name], tmp_path) for name in ("first", "second")}
    assert sum(a != b for a, b in zip(fresh["first"].texts, fresh["second"].texts, strict=True)) > 30
    assert 0 < (fresh["first"].truncated or 0) < 1, "ends and lengths are compared, too"
    for name in ("first", "second", "first", "second", "second", "first"):
        made = by_vllm(evaluator, policies[name])
        assert made.rows == fresh[name].rows and made.sha256 == fresh[name].sha256
        assert made.staged is not None
        shutil.rmtree(made.staged)  # as the guard does: the engine must not need it any more


@pytest.mark.parametrize(
    "settings",
    [
        {"chat": True, "system_prompt": "be quick"},
        {"answer_after": "a"},
        {"max_new_tokens": 3},
    ],
    ids=str,
)
def test_greedy_completions_are_those_of_the_evaluator_checkpoint(
    evaluator: VllmEvaluator, policies: dict[str, Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    expected = by_transformers(policies["second"], tmp_path, **settings)
    made = by_vllm(evaluator, policies["second"], **settings)
    assert made.rows == expected.rows and made.sampling == expected.sampling


def test_a_completion_is_sampled_as_is_said_from_a_seed_of_its_own(
    evaluator: VllmEvaluator, policies: dict[str, Path]
) -> None:
    def sampled(pass_index: int = 0, **more: Any) -> list[list[str]]:
        settings = {"temperature": 1.5, "samples": 2, **more}
        return by_vllm(evaluator, policies["first"], pass_index, **settings).texts

    greedy = [row * 2 for row in by_vllm(evaluator, policies["first"]).texts]
    first = sampled()
    assert sampled() == first, "the same pass again"
    assert sampled(1) != first and sampled(seed=1) != first
    assert sum(one != other for one, other in first) > 30, "each sample has its own"
    assert sampled(top_k=1) == greedy and sampled(top_p=1e-9) == greedy


def test_what_the_trainer_says_of_min_p_and_penalties_is_used(
    evaluator: VllmEvaluator, policies: dict[str, Path], tmp_path: Path
) -> None:
    from rlguard.core.wire import Sampling

    evaluator._settings = VllmEvaluatorSettings(**VLLM)

    def asked(of: Any, trainer: Sampling) -> Completions:
        return of.complete(ITEMS, EvaluationRequest(0, 1, policies["first"], 0, trainer))

    surest = Sampling(temperature=2.0, min_p=1.0)
    assert asked(evaluator, surest).texts == by_vllm(evaluator, policies["first"]).texts
    penalised = Sampling(temperature=0.0, repetition_penalty=1.7)
    local = HfEvaluator(HfEvaluatorSettings(**SETTINGS), tmp_path)
    made = asked(evaluator, penalised)
    assert made.rows == asked(local, penalised).rows
    assert made.texts != by_vllm(evaluator, policies["first"]).texts


def test_logits_that_are_not_finite_after_a_reload_are_left_to_a_new_engine(
    evaluator: VllmEvaluator, policies: dict[str, Path], tmp_path: Path
) -> None:
    """What computes them may be what was erased; an engine that is new tells the policy's own."""
    expected = by_vllm(evaluator, policies["first"]).rows
    bad = spoiled(policies["second"], tmp_path / "bad", spoil_a_weight(3e38, "model.norm.weight"))
    with pytest.raises(StartAgainError, match="after a reload"):
        by_vllm(evaluator, bad)
    assert by_vllm(evaluator, policies["first"]).rows == expected


def test_a_reload_that_loads_nothing_or_not_all_is_noticed(
    evaluator: VllmEvaluator, policies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if vLLM passed over a tensor, or loaded none: neither is scored with what was there before."""
    from vllm.v1.worker import gpu_model_runner

    real = gpu_model_runner.reload_weights
    by_vllm(evaluator, policies["first"])
    for passed_over in ("", "model.layers.1.mlp.down_proj.weight"):

        def reload(
            config: Any,
            model: Any,
            weights_iterator: Any = None,
            weights_path: str | None = None,
            passed_over: str = passed_over,
            **more: Any,
        ) -> None:
            from safetensors.torch import load_file

            if weights_path is not None:
                tensors = load_file(Path(weights_path) / "model.safetensors")
                tensors.pop(passed_over, None)
                weights_iterator = iter(tensors.items() if passed_over else ())
            real(config, model, weights_iterator, None, **more)

        with monkeypatch.context() as patch:
            patch.setattr(gpu_model_runner, "reload_weights", reload)
            with pytest.raises(
                StartAgainError, match=r"nothing shows that vLLM has all weights|after a reload"
            ):
                by_vllm(evaluator, policies["second"])
    assert by_vllm(evaluator, policies["first"]).rows


@pytest.mark.parametrize(
    "spoil",
    [
        drop_a_tensor,
        change("config.json", rope_theta=99.0),
        change("config.json", num_hidden_layers=1),
        change("config.json", max_position_embeddings=128),
    ],
)
def test_what_is_not_of_the_frame_is_never_loaded_over_another(
    evaluator: VllmEvaluator, policies: dict[str, Path], tmp_path: Path, spoil: Any
) -> None:
    """A tensor that is missing would be scored with the values of the checkpoint before."""
    by_vllm(evaluator, policies["first"])
    with pytest.raises(StartAgainError):
        by_vllm(evaluator, spoiled(policies["first"], tmp_path / "other", spoil))


def test_without_a_device_that_is_said_and_no_fault_of_the_checkpoint(
    policies: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the image guard-vllm, whose vLLM is built for CUDA, on a node without a GPU."""
    from vllm import platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    monkeypatch.setattr(platforms, "_current_platform", UnspecifiedPlatform())
    one = VllmEvaluator(VllmEvaluatorSettings(**VLLM), tmp_path)
    with pytest.raises(EngineLostError, match=r"no device .* Give the guard a GPU") as caught:
        by_vllm(one, policies["first"])
    assert caught.value.kind is FailureKind.EVALUATOR


@pytest.mark.parametrize("lora", [{}, {"use_dora": True}], ids=str)
def test_an_adapter_says_what_it_says_to_the_evaluator_checkpoint(
    evaluator: VllmEvaluator, policies: dict[str, Path], tmp_path: Path, lora: dict[str, Any]
) -> None:
    """It is merged into the guard's own base model, in the engine in which whole checkpoints are, too."""
    save_adapter(policies["first"], tmp_path / "adapter", **lora)
    base = look_at(policies["first"])
    request = EvaluationRequest(0, 1, tmp_path / "adapter")
    settings = HfEvaluatorSettings(**SETTINGS)
    expected = HfEvaluator(settings, tmp_path, base).complete(ITEMS, request)
    evaluator._settings, evaluator._base = VllmEvaluatorSettings(**VLLM), base
    made = evaluator.complete(ITEMS, request)
    assert made.rows == expected.rows and made.sha256 == expected.sha256
    whole = by_vllm(evaluator, policies["first"])
    assert whole.rows != made.rows, "the adapter did something, and is gone"
    assert whole.rows == by_transformers(policies["first"], tmp_path).rows
    assert not list(evaluator._scratch.glob("*-merged"))


def tied(path: Path, target: Path) -> Path:
    """The same, whose output embeddings are its input embeddings."""
    copy = shutil.copytree(path, target)
    change("config.json", tie_word_embeddings=True)(copy)
    drop_a_tensor(copy, "lm_head.weight")
    return copy


@pytest.mark.timeout(600)
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapters"])
def test_policies_with_tied_embeddings_share_an_engine(
    policies: dict[str, Path], tmp_path: Path, adapters: bool
) -> None:
    """The output is made of what was loaded, whether the embeddings are others then or as they were."""
    base, other = (tied(policies[name], tmp_path / name) for name in ("first", "second"))
    one = base
    if adapters:
        one, other = tmp_path / "one", tmp_path / "other"
        for path, targets in ((one, "all-linear"), (other, ["q_proj", "up_proj"])):
            save_adapter(base, path, target_modules=targets)
    settings = HfEvaluatorSettings(**SETTINGS)
    local = HfEvaluator(settings, tmp_path, look_at(base) if adapters else None)
    asked = in_turns(local, ITEMS, (one, other))
    assert len(asked) > 20
    own = {"base_model": str(base)} if adapters else {}
    heldout = settings_for(asked, tmp_path, score_truncated=True, **own)

    async def act() -> tuple[list[tuple[float, ...]], set[int]]:
        worker = EvaluationWorker(heldout, tmp_path / "scratch")
        await worker.start()
        try:
            items, pids = [], set()
            for step, path in enumerate((one, other, one, other)):
                items.append((await worker.evaluate(EvaluationRequest(0, step, path))).items)
                assert worker.pid is not None
                pids.add(worker.pid)
            return items, pids
        finally:
            await worker.close()

    items, pids = asyncio.run(act())
    ones = tuple(float(place % 2 == 0) for place in range(len(asked)))
    others = tuple(1 - outcome for outcome in ones)
    assert items == [ones, others, ones, others]
    assert len(pids) == 1, "one engine"


def save_smol_lm3(path: Path) -> Path:
    """A tiny model of an architecture that vLLM runs with transformers' own class."""
    import torch
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = SmolLM3Config(
        **sizes,
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    SmolLM3ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.timeout(900)
def test_adapters_of_a_model_of_transformers_own_take_an_engine_each(tmp_path: Path) -> None:
    """vLLM changes the class of such a model, so that no other can be made there to merge an adapter into."""
    base = save_smol_lm3(tmp_path / "base")
    adapters = tmp_path / "one", tmp_path / "other"
    for path, targets in zip(adapters, ("all-linear", ["q_proj", "up_proj"]), strict=True):
        save_adapter(base, path, target_modules=targets)
    local = HfEvaluator(HfEvaluatorSettings(**SETTINGS), tmp_path, look_at(base))
    texts = local.complete(ITEMS, EvaluationRequest(0, 1, adapters[1])).texts
    said = [(item, text) for item, (text,) in zip(ITEMS, texts, strict=True) if text.strip()]
    heldout = settings_for(said, tmp_path, score_truncated=True, base_model=str(base))

    async def act() -> tuple[float, ...]:
        worker = EvaluationWorker(heldout, tmp_path / "scratch")
        await worker.start()
        try:
            await worker.evaluate(EvaluationRequest(0, 1, adapters[0]))
            return (await worker.evaluate(EvaluationRequest(0, 2, adapters[1]))).items
        finally:
            await worker.close()

    assert len(said) > 20 and set(asyncio.run(act())) == {1.0}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("says", ["settings", "trainer"])
def test_a_text_ends_a_completion_as_with_the_evaluator_checkpoint(
    policies: dict[str, Path], tmp_path: Path, says: str
) -> None:
    """In a process of its own: an engine that is to read along is started so."""
    whole = by_transformers(policies["first"], tmp_path).texts
    stop = [whole[0][0][2:4], whole[1][0][5:6]]
    theirs = Sampling(temperature=0.0, stop=stop) if says == "trainer" else None
    own = {"stop": stop} if theirs is None else {"temperature": None}
    expected = by_transformers(policies["first"], tmp_path, theirs, **own)
    assert expected.texts != whole
    asked = [(item, text) for item, (text,) in zip(ITEMS, expected.texts, strict=True) if text.strip()]
    heldout = settings_for(asked, tmp_path, **own, score_truncated=True)

    async def act() -> None:
        worker = EvaluationWorker(heldout, tmp_path / "scratch")
        await worker.start()
        try:
            result = await worker.evaluate(EvaluationRequest(0, 1, policies["first"], sampling=theirs))
            assert len(asked) > 20 and list(result.items) == [1.0] * len(asked)
        finally:
            await worker.close()

    asyncio.run(act())


async def struck(worker: EvaluationWorker, request: EvaluationRequest) -> str:
    """How an evaluation fails whose process is killed once the weights have been loaded."""
    assert worker.pid is not None
    before = worker.log_path.read_text().count("Reloading and processing weights took")
    underway = asyncio.create_task(worker.evaluate(request))
    end = time.monotonic() + 120
    while worker.log_path.read_text().count("Reloading and processing weights took") == before:
        assert time.monotonic() < end and not underway.done()
        await asyncio.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EvaluationError) as caught:
        await underway
    return str(caught.value)


@pytest.mark.timeout(600)
def test_an_engine_that_dies_and_another_architecture_cost_no_more_than_one_evaluation(
    policies: dict[str, Path], tmp_path: Path
) -> None:
    """Real evaluation processes: killed while it generates; asked for a model of another frame."""
    settings = {"max_new_tokens": 200, "score_truncated": True}
    first_says, deeper_says = (
        by_transformers(policies[name], tmp_path, **settings).texts for name in ("first", "deeper")
    )
    half = [(first_says if n % 2 else deeper_says)[n][0] for n in range(len(ITEMS))]
    heldout = settings_for(zip(ITEMS, half, strict=True), tmp_path, **settings)
    scratch = tmp_path / "scratch"

    async def act() -> list[Any]:
        worker = EvaluationWorker(heldout, scratch)
        await worker.start()
        try:
            first, deeper = (EvaluationRequest(0, 1, policies[name]) for name in ("first", "deeper"))
            scores, pids = [await worker.evaluate(first)], [worker.pid]
            told = await struck(worker, replace(first, step=2))
            for request in (first, deeper):
                scores.append(await worker.evaluate(request))
                pids.append(worker.pid)
            return [told, [score.items for score in scores], pids]
        finally:
            await worker.close()

    told, items, pids = asyncio.run(act())
    odd = tuple(float(n % 2) for n in range(len(ITEMS)))
    assert "ended (SIGKILL" in told
    assert items == [odd, odd, tuple(1 - outcome for outcome in odd)]
    assert len(set(pids)) == 3, "one process for each engine"
