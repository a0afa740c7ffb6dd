"""LoRA adapters on the guard's own base model: real PEFT, tiny models, and what a hostile adapter tries."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from guard_cli.check.gather import look_at_model
from guard_core.policy import Policy
from guard_core.wire import Adapters, FailureKind
from guard_service.errors import ChangedRunError
from guard_service.event_log import EventLog
from guard_service.heldout.adapter_files import MAX_CONFIG_BYTES, MAX_TENSORS, read_adapter
from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import HeldoutSettings, HfEvaluatorSettings
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError, SplitError
from guard_service.heldout.evaluators.completions import Completions
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.evaluators.loading import whole_model
from guard_service.heldout.evaluators.lora import apply_adapter, merged
from guard_service.heldout.scorable import why_unscorable
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.staging import Staged, refuse_unstageable, stage
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from tests.heldout.models import make_tokenizer, save_tiny_model
from tests.heldout.test_base_model import rewrite

pytestmark = pytest.mark.torch

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=", answer=str(n * 8)) for n in range(8)]
Change = Callable[[Path], object]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("made") / "tiny-base")


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "tiny-base")


def save_adapter(base: Path, path: Path, *, fresh: bool = False, tokenizer: bool = True, **lora: Any) -> Any:
    """Save an adapter as PEFT does, its B random unless it is fresh; gives the model back."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config = LoraConfig(**({"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | lora))
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    if not fresh:
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


def test_an_adapter_of_a_tied_output_is_not_merged(base: Path, tmp_path: Path) -> None:
    """Merged it would change the input embeddings, too; beside its layer it does not."""
    edit(base, "config.json", tie_word_embeddings=True)
    rewrite_tensors(base / "model.safetensors", lambda name: name != "lm_head.weight")
    import torch

    trained = save_adapter(base, tmp_path / "adapter", target_modules=["lm_head", "q_proj"])
    found = read_adapter(tmp_path / "adapter", base)
    refusal = "it changes lm_head, whose weights are the input embeddings"
    with pytest.raises(EvaluationError, match=refusal), merge(base, tmp_path / "adapter"):
        pass
    beside = apply_adapter(whole_model(base, "base"), tmp_path / "adapter", found)
    prompt = torch.arange(8)[None]
    assert torch.equal(beside(prompt).logits, trained.eval()(prompt).logits)


OUTPUT = {"target_modules": ["lm_head", "q_proj"]}
COPY = "base_model.model.lm_head.base_layer.weight"


@pytest.mark.parametrize("trained", ["float32", "bfloat16"])
@pytest.mark.parametrize("scored", ["float32", "bfloat16"])
def test_the_copy_of_an_output_that_peft_saves_is_the_bases_whatever_the_types(
    base: Path, tmp_path: Path, trained: str, scored: str
) -> None:
    import torch

    save_adapter(base, tmp_path / "adapter", **OUTPUT)
    with_weights(lambda tensors: tensors.update({COPY: tensors[COPY].to(getattr(torch, trained))}))(
        tmp_path / "adapter"
    )
    model = whole_model(base, "base", dtype=getattr(torch, scored))
    apply_adapter(model, tmp_path / "adapter", read_adapter(tmp_path / "adapter", base))
    assert torch.equal(
        model.lm_head.base_layer.weight, whole_model(base, "base").lm_head.weight.to(model.dtype)
    )


def changed(tensors: dict[str, Any]) -> None:
    tensors[COPY][0, 0] += 1e-3


def narrower(tensors: dict[str, Any]) -> None:
    tensors[COPY] = tensors[COPY][:1].clone()


@pytest.mark.parametrize("change", [changed, narrower])
def test_an_output_that_is_not_the_bases_is_refused(
    base: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """Or else what was trained would be scored without a part of it."""
    save_adapter(base, tmp_path / "adapter", **OUTPUT)
    assert complete(tmp_path / "adapter", tmp_path, base).texts
    with_weights(change)(tmp_path / "adapter")
    told = f"holds {COPY}, which is not the base model's own weight of lm_head"
    with pytest.raises(EvaluationError, match=told) as failed:
        complete(tmp_path / "adapter", tmp_path, base)
    assert failed.value.kind is FailureKind.WEIGHTS
    with pytest.raises(EvaluationError, match=told), merge(base, tmp_path / "adapter"):
        pass


def rewrite_tensors(file: Path, keep: Callable[[str], bool]) -> None:
    from safetensors.torch import load_file, save_file

    kept = {name: one for name, one in load_file(file).items() if keep(name)}
    save_file(kept, file, metadata={"format": "pt"})


# -- what is scored
# -------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    "lora",
    [
        {},
        {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"k_proj": 32}},
        {"use_dora": True},
        {"target_modules": r".*self_attn\.(q|v)_proj"},
        {"target_modules": ["q_proj"], "layers_to_transform": [1]},
        OUTPUT,
        OUTPUT | {"use_dora": True},
    ],
    ids=str,
)
def test_an_adapter_says_what_its_merged_model_says(base: Path, tmp_path: Path, lora: dict[str, Any]) -> None:
    model = save_adapter(base, tmp_path / "adapter", **lora)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    make_tokenizer().save_pretrained(tmp_path / "merged")
    texts = complete(tmp_path / "adapter", tmp_path, base).texts
    assert texts == complete(tmp_path / "merged", tmp_path, base).texts
    assert texts != complete(base, tmp_path, base).texts


@pytest.mark.parametrize(
    ("lora", "tied"),
    [({"rank_pattern": {"q_proj": 2}, "use_rslora": True}, True), ({"use_dora": True}, False)],
    ids=["rank pattern, tied", "DoRA"],
)
def test_an_adapter_that_is_merged_says_the_same(
    base: Path, tmp_path: Path, lora: dict[str, Any], tied: bool
) -> None:
    if tied:
        edit(base, "config.json", tie_word_embeddings=True)
    save_adapter(base, tmp_path / "adapter", **lora)
    with merge(base, tmp_path / "adapter") as whole:
        make_tokenizer().save_pretrained(whole)
        texts = complete(whole, tmp_path, None).texts
    assert not whole.exists()
    assert texts == complete(tmp_path / "adapter", tmp_path, base).texts
    assert texts != complete(base, tmp_path, None).texts


def test_the_digest_is_of_the_weights_and_of_what_scales_them(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    first = stage(adapter, tmp_path / "a", base)
    edit(adapter, lora_alpha=64)
    second = stage(adapter, tmp_path / "b", base)
    assert len({first.sha256, second.sha256}) == 2
    assert {p.name for p in first.path.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert first.adapter is not None and "model.layers.1.self_attn.q_proj" in first.adapter.shapes


# -- what a hostile or wrong adapter tries
# ----------------------------------------------------------------------


def no_weights(path: Path) -> None:
    (path / "adapter_model.safetensors").unlink()


def pickled(path: Path) -> None:
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")


def config_of(text: str) -> Change:
    return lambda path: (path / "adapter_config.json").write_text(text)


def header_of(data: bytes) -> Change:
    return lambda path: (path / "adapter_model.safetensors").write_bytes(data)


def says(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


def piped_config(path: Path) -> None:
    (path / "adapter_config.json").unlink()
    os.mkfifo(path / "adapter_config.json")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (no_weights, "no adapter_model.safetensors: save the adapter"),
        (pickled, "adapter_model.bin is a pickle"),
        (lambda p: edit(p, peft_type="IA3"), "an adapter of the kind 'IA3', and the guard applies LORA only"),
        (lambda p: edit(p, modules_to_save=["embed_tokens"]), "'modules_to_save' is ['embed_tokens']"),
        (
            lambda p: edit(p, base_model_name_or_path="org/other"),
            "trained on 'org/other', and the guard's base_model is",
        ),
        (lambda p: edit(p, r=8), "and its rank in adapter_config.json is 8"),
        (config_of("{"), "adapter_config.json cannot be read"),
        (config_of("[" * 100_000), "adapter_config.json cannot be read"),
        (
            config_of(" " * (MAX_CONFIG_BYTES + 1)),
            f"adapter_config.json is longer than {MAX_CONFIG_BYTES} bytes",
        ),
        (header_of(b""), "adapter_model.safetensors cannot be read"),
        (header_of(b"\xff" * 64), "adapter_model.safetensors cannot be read"),
        (header_of(b"\x02" + b"\0" * 7 + b"[]"), "is not a safetensors file"),
        (header_of(says(b'{"":0},' * MAX_TENSORS + b"{},{},{}")), "has more than 80000 tensors"),
        (header_of(says(b"[]," * 4 * MAX_TENSORS + b"[]")), "has more than 80000 tensors"),
        (piped_config, "adapter_config.json is not a plain file"),
    ],
)
def test_it_is_refused_when_it_is_announced_and_when_it_is_staged(
    adapter: Path, base: Path, tmp_path: Path, spoil: Change, told: str
) -> None:
    spoil(adapter)
    assert told in why_unscorable(adapter, base)
    with pytest.raises(EvaluationError) as staged:
        stage(adapter, tmp_path / "stage", base)
    with pytest.raises(EvaluationError) as looked:
        refuse_unstageable(adapter, base)
    assert told in str(staged.value) and told in str(looked.value)
    assert not (tmp_path / "stage").exists()


def test_without_a_base_model_it_is_refused_with_the_setting(adapter: Path, tmp_path: Path) -> None:
    told = "give the guard the base model that it is trained on (--base-model DIR"
    assert told in why_unscorable(adapter)
    with pytest.raises(EvaluationError) as refused:
        stage(adapter, tmp_path / "stage")
    assert told in str(refused.value)


def test_a_link_is_no_part_of_it(adapter: Path, base: Path, tmp_path: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(tmp_path / "elsewhere")
    (adapter / "adapter_model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert why_unscorable(adapter, base) == ""  # it may be rotated away as it is looked at; staging says more
    with pytest.raises(EvaluationError, match=r"adapter_model\.safetensors is a symbolic link"):
        stage(adapter, tmp_path / "stage", base)


def test_one_that_was_rotated_away_is_no_failure(base: Path, tmp_path: Path) -> None:
    assert why_unscorable(tmp_path / "gone", base) == ""
    with pytest.raises(CheckpointGoneError):
        stage(tmp_path / "gone", tmp_path / "stage", base)


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


def test_whole_weights_count_and_no_adapter_beside_them_is_loaded(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    whole = shutil.copytree(base, tmp_path / "whole")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / name, whole)
    edit(whole, megatron_config={"x": 1}, megatron_core="evil")
    assert why_unscorable(whole) == ""
    found = complete(whole, tmp_path, None)
    assert found.texts == complete(base, tmp_path, None).texts
    assert found.staged is not None and not (found.staged / "adapter_config.json").exists()


def with_weights(change: Callable[[dict[str, Any]], None]) -> Change:
    def spoil(path: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(path / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, path / "adapter_model.safetensors")

    return spoil


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def not_finite(tensors: dict[str, Any]) -> None:
    tensors[f"{Q}B.weight"][0, 0] = float("nan")


def too_wide(tensors: dict[str, Any]) -> None:
    tensors[f"{Q}A.weight"] = tensors[f"{Q}A.weight"].repeat(1, 2)


def of_no_layer(tensors: dict[str, Any]) -> None:
    for half in "AB":
        tensors[f"{Q}{half}.weight".replace("layers.0", "layers.99")] = tensors.pop(f"{Q}{half}.weight")


def of_an_embedding(tensors: dict[str, Any]) -> None:
    for half in "AB":
        key = f"base_model.model.model.embed_tokens.lora_{half}.weight"
        tensors[key] = tensors[f"{Q}{half}.weight"].clone()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (not_finite, "infinite or not a number, the first: model.layers.0.self_attn.q_proj.lora_B"),
        (
            too_wide,
            "1 of 14 modules of the adapter do not fit, the first: 'model.layers.0.self_attn.q_proj' "
            "has 64 inputs",
        ),
        (of_no_layer, "the base model has no linear layer 'model.layers.99.self_attn.q_proj'"),
        (of_an_embedding, "the base model has no linear layer 'model.embed_tokens'"),
    ],
)
def test_weights_that_cannot_be_applied_are_a_failed_evaluation(
    adapter: Path, base: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    with_weights(change)(adapter)
    with pytest.raises(EvaluationError) as failed:
        complete(adapter, tmp_path, base)
    assert told in str(failed.value)
    assert failed.value.kind is FailureKind.WEIGHTS


# -- the base model
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (shutil.rmtree, "cannot be read: No such file or directory: mount it"),
        (lambda p: (p / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda p: (p / "tokenizer.json").unlink() or (p / "tokenizer_config.json").unlink(), "no tokenizer"),
        (
            lambda p: (p / "adapter_config.json").write_text("{}"),
            "it has an adapter_config.json: give the whole model",
        ),
        (lambda p: (p / "config.json").write_text('{"auto_map": {}}'), "config.json has an auto_map"),
        (lambda p: (p / "config.json").write_text("{"), "a configuration in it is not JSON"),
    ],
)
def test_a_base_model_that_cannot_be_used_ends_the_guard(base: Path, spoil: Change, told: str) -> None:
    spoil(base)
    with pytest.raises(SplitError) as refused:
        look_at(base)
    assert f"base_model {base}" in str(refused.value) and told in str(refused.value)


def test_a_base_model_in_the_cache_of_a_hub_is_one(base: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "linked"
    snapshot.mkdir()
    for file in base.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert look_at(snapshot).sha256 == look_at(base).sha256


def test_a_base_model_that_is_changed_under_the_guard_scores_nothing_until_it_is_restored(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    """Rewritten in place, with its size and its time of writing as they were."""
    evaluator = HfEvaluator(HfEvaluatorSettings(max_new_tokens=4), tmp_path, look_at(base))
    request = EvaluationRequest(0, 1, adapter)
    expected = evaluator.complete(ITEMS, request).texts
    weights = base / "model.safetensors"
    kept = weights.read_bytes()
    rewrite(weights)
    for _ in range(2):
        with pytest.raises(EvaluationError, match="no longer the one that the guard started with") as failed:
            evaluator.complete(ITEMS, request)
        assert failed.value.kind is FailureKind.EVALUATOR
    weights.write_bytes(kept)
    assert evaluator.complete(ITEMS, request).texts == expected


def settings_for(folder: Path, base: str | None) -> HeldoutSettings:
    split = folder / "split.jsonl"
    split.write_text("".join(f'{{"id": "{n}", "prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(4)))
    evaluator = {"kind": "hf", "max_new_tokens": 4, "device": "cpu", "base_model": base}
    return HeldoutSettings.model_validate({"split": split, "evaluator": evaluator})


@pytest.mark.nightly
def test_the_worker_scores_adapters_and_its_measure_has_the_digest_of_the_base(
    adapter: Path, base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rlguard.guard")

    async def act() -> None:
        worker = EvaluationWorker(settings_for(tmp_path, base.name), tmp_path / "scratch")  # beside the split
        assert worker.adapters is Adapters.APPLIED and worker.unfit(adapter) == ""
        try:
            await worker.start()
            assert worker.measure["base_model"] == look_at(base).sha256
            assert f"the base model {base} has the sha256 {look_at(base).sha256}" in caplog.text
            result = await worker.evaluate(EvaluationRequest(0, 10, adapter))
            assert len(result.items) == 4 and result.sha256
            await worker._kill()
            (base / "config.json").write_text((base / "config.json").read_text() + " ")
            with pytest.raises(EvaluationError, match=r"the base model in .* changed while the guard ran"):
                await worker.evaluate(EvaluationRequest(0, 20, adapter))
        finally:
            await worker.close()

    asyncio.run(act())


def test_another_base_model_at_a_restart_is_refused_as_another_run(tmp_path: Path) -> None:
    def begin(measure: dict[str, Any]) -> None:
        store = EventLog(tmp_path / "state", Policy())
        try:
            store.check_evaluation("split", {"scorer": "exact"} | measure)
        finally:
            store.close()

    begin({"base_model": "a" * 64})
    begin({"base_model": "a" * 64})
    for other in ({"base_model": "b" * 64}, {}):
        with pytest.raises(ChangedRunError, match="base_model"):
            begin(other)


def test_the_preflight_takes_an_adapter_of_the_base_model(adapter: Path, base: Path) -> None:
    found = look_at_model(adapter, base)
    assert (found.problem, found.no_tokenizer, found.adapter) == (None, None, True)
    assert "--base-model DIR" in str(look_at_model(adapter, None).problem)
    edit(adapter, peft_type="VERA")
    assert "an adapter of the kind 'VERA'" in str(look_at_model(adapter, base).problem)


def test_a_run_without_a_base_model_is_measured_as_before(tmp_path: Path) -> None:
    worker = EvaluationWorker(settings_for(tmp_path, None), tmp_path / "scratch")
    assert worker.adapters is Adapters.REFUSED and "base_model" not in worker.measure
