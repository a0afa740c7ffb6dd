"""LoRA adapters on the guard's own base model: real PEFT, tiny models, and what a hostile adapter tries."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import HeldoutSettings, HfEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.completions import Completions
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.evaluators.lora import merged
from guard_service.heldout.scorable import why_unscorable
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.staging import MAX_CONFIG_BYTES, Staged, read_adapter, refuse_unstageable, stage
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.cli.check.gather import look_at_model
from rlguard.core.wire import Adapters, FailureKind
from tests.heldout.models import make_tokenizer, save_tiny_model
from tests.heldout.test_base_model import rewrite

pytestmark = pytest.mark.torch

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=", answer=str(n * 8)) for n in range(8)]
Change = Callable[[Path], object]
Tensors = dict[str, Any]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("made") / "tiny-base")


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "tiny-base")


def save_adapter(base: Path, path: Path, *, tokenizer: bool = True, **lora: Any) -> Any:
    """Save an adapter as PEFT does, with a random B; gives the model back."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config = LoraConfig(**({"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | lora))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    if tokenizer:
        make_tokenizer().save_pretrained(path)
    return model


@pytest.fixture(scope="module")
def made_adapter(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "checkpoint-10"
    save_adapter(made, path)
    return path


@pytest.fixture
def adapter(made_adapter: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_adapter, tmp_path / "checkpoint-10")


def complete(path: Path, scratch: Path, base: Path | None) -> Completions:
    settings = HfEvaluatorSettings(max_new_tokens=8)
    evaluator = HfEvaluator(settings, scratch, None if base is None else look_at(base))
    return evaluator.complete(ITEMS, EvaluationRequest(0, 1, path))


def edit(path: Path, name: str = "adapter_config.json", **fields: Any) -> None:
    file = path / name
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def merge(base: Path, adapter: Path) -> AbstractContextManager[Path]:
    return merged(Staged(adapter, "", read_adapter(adapter, base)), look_at(base), "float32", "it")


def with_weights(change: Callable[[Tensors], object], name: str = "adapter_model.safetensors") -> Change:
    def spoil(path: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(path / name)
        change(tensors)
        save_file(tensors, path / name, metadata={"format": "pt"})

    return spoil


# -- what is scored ----------------------------------------------------------------------------------------

OUTPUT = {"target_modules": ["lm_head", "q_proj"]}


@pytest.mark.parametrize(
    "lora",
    [
        {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"k_proj": 32}},
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "use_dora": True},
        OUTPUT,
    ],
    ids=["patterns", "DoRA", "the output"],
)
def test_an_adapter_says_what_its_merged_model_says(base: Path, tmp_path: Path, lora: dict[str, Any]) -> None:
    """Beside its layers, as PEFT merges it, and as the guard does for vLLM."""
    model = save_adapter(base, tmp_path / "adapter", **lora)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    make_tokenizer().save_pretrained(tmp_path / "merged")
    texts = complete(tmp_path / "adapter", tmp_path, base).texts
    assert texts == complete(tmp_path / "merged", tmp_path, None).texts
    assert texts != complete(base, tmp_path, base).texts
    with merge(base, tmp_path / "adapter") as whole:
        make_tokenizer().save_pretrained(whole)
        assert complete(whole, tmp_path, None).texts == texts
    assert not whole.exists()


def test_an_adapter_of_a_tied_output_is_not_merged(base: Path, tmp_path: Path) -> None:
    """Merged it would change the input embeddings, too; beside its layer it does not."""
    edit(base, "config.json", tie_word_embeddings=True)
    with_weights(lambda tensors: tensors.pop("lm_head.weight"), "model.safetensors")(base)
    save_adapter(base, tmp_path / "adapter", **OUTPUT)
    refusal = "it changes lm_head, whose weights are the input embeddings"
    with pytest.raises(EvaluationError, match=refusal), merge(base, tmp_path / "adapter"):
        pass
    assert complete(tmp_path / "adapter", tmp_path, base).texts != complete(base, tmp_path, None).texts


COPY = "base_model.model.lm_head.base_layer.weight"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_that_is_not_the_bases_is_refused(base: Path, tmp_path: Path, dtype: str) -> None:
    """PEFT saves a copy of it, in the type of the training. Were it trained, a part would not be scored."""
    import torch

    def retyped(tensors: Tensors) -> None:
        tensors[COPY] = tensors[COPY].to(getattr(torch, dtype))

    def changed(tensors: Tensors) -> None:
        tensors[COPY][0, 0] += 1

    save_adapter(base, tmp_path / "adapter", **OUTPUT)
    with_weights(retyped)(tmp_path / "adapter")
    assert complete(tmp_path / "adapter", tmp_path, base).texts
    with_weights(changed)(tmp_path / "adapter")
    told = f"holds {COPY}, which is not the base model's own weight of lm_head"
    with pytest.raises(EvaluationError, match=told) as failed:
        complete(tmp_path / "adapter", tmp_path, base)
    assert failed.value.kind is FailureKind.WEIGHTS


def test_the_digest_is_of_the_weights_and_of_what_scales_them(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    first = stage(adapter, tmp_path / "a", base)
    edit(adapter, lora_alpha=64)
    assert stage(adapter, tmp_path / "b", base).sha256 != first.sha256


def test_whole_weights_count_and_no_adapter_beside_them_is_loaded(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    whole = shutil.copytree(base, tmp_path / "whole")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / name, whole)
    found = complete(whole, tmp_path, None)
    assert found.texts == complete(base, tmp_path, None).texts
    assert not (found.staged / "adapter_config.json").exists()


# -- what a hostile or wrong adapter tries -----------------------------------------------------------------


def write(name: str, content: bytes) -> Change:
    return lambda path: (path / name).write_bytes(content)


def piped(path: Path) -> None:
    (path / "adapter_config.json").unlink()
    os.mkfifo(path / "adapter_config.json")


def linked(path: Path) -> None:
    (path / "adapter_model.safetensors").rename(path.parent / "elsewhere")
    (path / "adapter_model.safetensors").symlink_to(path.parent / "elsewhere")


def integers(tensors: Tensors) -> None:
    tensors[f"{Q}A.weight"] = tensors[f"{Q}A.weight"].int()


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


REFUSED_AT_ONCE: list[tuple[Change, str]] = [
    (lambda p: (p / WEIGHTS).unlink(), "no adapter_model.safetensors: save the adapter"),
    (lambda p: (p / WEIGHTS).rename(p / "adapter_model.bin"), "adapter_model.bin is a pickle"),
    (lambda p: edit(p, peft_type="IA3"), "an adapter of the kind 'IA3', and the guard applies LORA only"),
    (lambda p: edit(p, modules_to_save=["embed_tokens"]), "'modules_to_save' is ['embed_tokens']"),
    (lambda p: edit(p, base_model_name_or_path="org/other"), "trained on 'org/other', and the guard's"),
    (write(CONFIG, b"["), "adapter_config.json cannot be read"),
    (write(CONFIG, b"[" * 100_000), "adapter_config.json cannot be read"),
    (write(CONFIG, b" " * (MAX_CONFIG_BYTES + 1)), "adapter_config.json "),
    (piped, "adapter_config.json "),
]
REFUSED_LATER: list[tuple[Change, str]] = [
    (lambda p: edit(p, r=8), "and its rank in adapter_config.json is 8"),
    (write(WEIGHTS, b"\xff" * 64), "adapter_model.safetensors cannot be read"),
    (write(WEIGHTS, (1 << 40).to_bytes(8, "little") + b"{"), "adapter_model.safetensors cannot be read"),
    (with_weights(integers), "is not one of F16, BF16, F32, F64"),
    (linked, "adapter_model.safetensors is a symbolic link"),
]


@pytest.mark.parametrize(("spoil", "told"), [*REFUSED_AT_ONCE, *REFUSED_LATER])
def test_one_that_cannot_be_applied_is_refused(
    adapter: Path, base: Path, tmp_path: Path, spoil: Change, told: str
) -> None:
    """When its files are taken, by `rlguard check`, and where its configuration says it at once."""
    assert why_unscorable(adapter, base) == ""
    spoil(adapter)
    at_once = told if (spoil, told) in REFUSED_AT_ONCE else ""
    assert at_once in why_unscorable(adapter, base) and bool(at_once) == bool(why_unscorable(adapter, base))
    with pytest.raises(EvaluationError) as staged:
        stage(adapter, tmp_path / "stage", base)
    with pytest.raises(EvaluationError) as looked:
        refuse_unstageable(adapter, base)
    assert told in str(staged.value) and told in str(looked.value)
    assert not (tmp_path / "stage").exists()


def test_the_preflight_takes_an_adapter_of_the_base_model(adapter: Path, base: Path) -> None:
    found = look_at_model(adapter, base)
    assert (found.problem, found.no_tokenizer, found.adapter) == (None, None, True)
    assert "--base-model DIR" in str(look_at_model(adapter, None).problem)


def test_nothing_that_it_names_is_imported_fetched_or_tried(
    adapter: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = complete(adapter, tmp_path, base).texts
    edit(
        adapter,
        auto_mapping={"base_model_class": "X", "parent_library": "evil"},
        megatron_core="evil",
        target_modules="(x+x+)+y",
        exclude_modules="(x+x+)+y",
        runtime_config={"ephemeral_gpu_offload": True},
        base_model_name_or_path="/nowhere/at/all/tiny-base",
    )
    assert complete(adapter, tmp_path, base).texts == expected
    assert not (tmp_path / "ran").exists()


def not_finite(tensors: Tensors) -> None:
    tensors[f"{Q}B.weight"][0, 0] = float("nan")


def too_wide(tensors: Tensors) -> None:
    tensors[f"{Q}A.weight"] = tensors[f"{Q}A.weight"].repeat(1, 2)


def of_no_layer(tensors: Tensors) -> None:
    for half in "AB":
        tensors[f"{Q}{half}.weight".replace("layers.0", "layers.99")] = tensors.pop(f"{Q}{half}.weight")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (not_finite, "infinite or not a number, the first: model.layers.0.self_attn.q_proj.lora_B"),
        (too_wide, "1 of 14 modules of the adapter do not fit, the first: 'model.layers.0.self_attn.q_proj'"),
        (of_no_layer, "the base model has no linear layer 'model.layers.99.self_attn.q_proj'"),
    ],
)
def test_weights_that_cannot_be_applied_are_a_failed_evaluation(
    adapter: Path, base: Path, tmp_path: Path, change: Callable[[Tensors], None], told: str
) -> None:
    with_weights(change)(adapter)
    with pytest.raises(EvaluationError) as failed:
        complete(adapter, tmp_path, base)
    assert told in str(failed.value) and failed.value.kind is FailureKind.WEIGHTS


# -- the base model ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_base_model_that_is_changed_under_the_guard_scores_nothing_until_it_is_restored(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    """Rewritten in place, with its size and its time of writing as they were."""
    split = tmp_path / "split.jsonl"
    split.write_text("".join(f'{{"id": "{n}", "prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(4)))
    evaluator = {"max_new_tokens": 4, "device": "cpu", "base_model": base.name}  # beside the split
    settings = HeldoutSettings.model_validate({"split": split, "evaluator": evaluator})
    weights = base / "model.safetensors"
    kept = weights.read_bytes()

    async def act() -> None:
        worker = EvaluationWorker(settings, tmp_path / "scratch")
        assert worker.adapters is Adapters.APPLIED
        try:
            await worker.start()
            assert worker.measure["base_model"] == look_at(base).sha256
            expected = await worker.evaluate(EvaluationRequest(0, 10, adapter))
            rewrite(weights)
            for step in (11, 12):
                with pytest.raises(EvaluationError, match="changed while the guard ran") as failed:
                    await worker.evaluate(EvaluationRequest(0, step, adapter))
                assert failed.value.kind is FailureKind.EVALUATOR
            weights.write_bytes(kept)
            assert (await worker.evaluate(EvaluationRequest(0, 13, adapter))).items == expected.items
        finally:
            await worker.close()

    asyncio.run(act())
