"""The checkpoint evaluator on tiny real models: it says what `generate` says, however it batches."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.config import CheckpointEvaluatorSettings, HeldoutSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators import Completions, checkpoint
from guard_service.heldout.evaluators.checkpoint import CheckpointEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult, EvaluationWorker
from tests.heldout.models import save_tiny_model

pytestmark = pytest.mark.torch

ITEMS = [
    HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=" + "?" * (n * 5 % 11), answer=str(n * 8)) for n in range(12)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "checkpoint-10")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def complete(
    path: Path, scratch: Path, items: list[HeldoutItem] = ITEMS, pass_index: int = 0, **settings: Any
) -> Completions:
    config = CheckpointEvaluatorSettings.model_validate({"max_new_tokens": 10, **settings})
    return CheckpointEvaluator(config, scratch).complete(items, EvaluationRequest(0, 1, path, pass_index))


def plainly(path: Path, text: str, tokens: int = 10) -> str:
    """Greedy completion of one prompt by transformers alone, without batch and padding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    out = model.generate(**ids, max_new_tokens=tokens, do_sample=False)[0, ids["input_ids"].shape[1] :]
    return tokenizer.decode(out, skip_special_tokens=True)


def test_greedy_completions_are_those_of_generate_for_any_batch_size(model: Path, tmp_path: Path) -> None:
    expected = [[plainly(model, str(item.prompt))] for item in ITEMS]
    assert len({text for (text,) in expected}) > 6  # the model does not say the same to everything
    for batch_size in (1, 5, 64):
        assert complete(model, tmp_path, batch_size=batch_size).texts == expected


def test_sampling_depends_on_seed_pass_and_item_and_not_on_the_batch(model: Path, tmp_path: Path) -> None:
    def sampled(items: list[HeldoutItem] = ITEMS, pass_index: int = 0, **more: Any) -> Any:
        options = {"temperature": 1.0, "samples": 2, **more}
        return complete(model, tmp_path, items, pass_index, **options).texts

    first = sampled(batch_size=3)
    assert sampled(batch_size=64) == first and sampled(ITEMS[::-1])[::-1] == first
    assert sampled(pass_index=1) != first and sampled(seed=1) != first
    assert any(one != other for one, other in first)


def test_sampling_draws_from_the_softmax_at_that_temperature() -> None:
    import torch

    scores = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).repeat(40_000, 1)
    for temperature in (1.0, 0.5):
        sampler = checkpoint._gumbel_sampler(range(40_000), temperature, "cpu")
        drawn = sampler(None, scores).argmax(-1).bincount(minlength=4) / 40_000
        expected = torch.softmax(scores[0] / temperature, -1)
        assert torch.allclose(drawn, expected, atol=0.012)  # five standard errors


def test_a_completion_ends_at_the_end_token(model: Path, tmp_path: Path) -> None:
    texts = complete(model, tmp_path, max_new_tokens=40, temperature=2.0, samples=4).texts
    lengths = {len(text) for row in texts for text in row}
    assert "<eos>" not in str(texts) and "<pad>" not in str(texts) and min(lengths) < 30


def test_the_checkpoints_own_sampling_settings_do_not_count(model: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(model, tmp_path / "odd")
    generation = json.loads((odd / "generation_config.json").read_text())
    generation |= {"repetition_penalty": 9.0, "do_sample": True, "min_new_tokens": 9, "bad_words_ids": [[5]]}
    (odd / "generation_config.json").write_text(json.dumps(generation))
    assert complete(odd, tmp_path).texts == complete(model, tmp_path).texts


def test_messages_and_chat_go_through_the_chat_template(model: Path, tmp_path: Path) -> None:
    talk = HeldoutItem.model_validate(
        {
            "id": "t",
            "prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "1+2="}],
            "answer": "3",
        }
    )
    text = HeldoutItem(id="s", prompt="1+2=", answer="3")
    assert complete(model, tmp_path, [talk, text]).texts == [
        [plainly(model, "s:x\nu:1+2=\na:")],
        [plainly(model, "1+2=")],
    ]
    assert complete(model, tmp_path, [text], chat=True).texts == [[plainly(model, "u:1+2=\na:")]]


def test_shards_are_loaded_and_the_dtype_is_obeyed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    sharded = save_tiny_model(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    assert complete(sharded, tmp_path).texts == complete(model, tmp_path).texts
    loaded = checkpoint._load(model, model, CheckpointEvaluatorSettings(dtype="bfloat16"))
    assert loaded.model.dtype == torch.bfloat16
    assert checkpoint._load(model, model, CheckpointEvaluatorSettings()).model.dtype == torch.float32


def drop_a_tensor(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def change(name: str, **values: Any):
    def spoil(path: Path) -> None:
        content = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(content | values))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (drop_a_tensor, "1 of the model's weights are missing or have another shape"),
        (lambda p: (p / "model.safetensors").write_bytes(b"x" * 100), "cannot be loaded: SafetensorError"),
        (lambda p: (p / "tokenizer.json").unlink(), "cannot be loaded"),
        (change("config.json", model_type="martian"), "cannot be loaded: ValueError"),
        (change("config.json", max_position_embeddings=20), "exceed the model's 20 positions"),
        (lambda p: (p / "chat_template.jinja").unlink(), "item 'i0' needs a chat template"),
    ],
)
def test_a_checkpoint_that_cannot_be_scored_says_why(model: Path, tmp_path: Path, spoil, told: str) -> None:
    bad = shutil.copytree(model, tmp_path / "bad")
    spoil(bad)
    with pytest.raises(EvaluationError) as caught:
        complete(bad, tmp_path, chat="template" in told)
    assert told in str(caught.value) and str(ITEMS[0].prompt) not in str(caught.value)


def test_a_missing_package_is_told_at_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(SplitError, match=r"needs torch: pip install 'rlguard\[eval-hf\]'"):
        CheckpointEvaluator(CheckpointEvaluatorSettings(), tmp_path).check(ITEMS)


def test_through_the_worker_staged_hashed_and_scored(model: Path, tmp_path: Path) -> None:
    """The whole way, with the checkpoint rotated away before the second look at what was staged."""
    answers = [plainly(model, str(item.prompt)) for item in ITEMS]
    rows = [
        {"id": item.id, "prompt": item.prompt, "answer": answers[n] if n % 3 else "something else"}
        for n, item in enumerate(ITEMS)
    ]
    (tmp_path / "split.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = HeldoutSettings.model_validate(
        {"split": tmp_path / "split.jsonl", "evaluator": {"kind": "checkpoint", "max_new_tokens": 10}}
    )
    rotated = shutil.copytree(model, tmp_path / "checkpoint-20")

    async def act() -> tuple[EvaluationResult, EvaluationResult, bool]:
        worker = EvaluationWorker(settings, tmp_path / "scratch")
        await worker.start()
        try:
            first = await worker.evaluate(EvaluationRequest(0, 20, rotated))
            assert first.staged is not None
            first.staged.rename(tmp_path / "best")
            shutil.rmtree(rotated)
            with pytest.raises(EvaluationError, match="rotated away before it was scored"):
                await worker.evaluate(EvaluationRequest(0, 20, rotated))
            second = await worker.evaluate(EvaluationRequest(0, 20, tmp_path / "best"))
            assert second.staged is not None and (second.staged / "config.json").exists()
        finally:
            await worker.close()
        return first, second, second.staged.exists()

    first, second, left = asyncio.run(act())
    assert first.items == tuple(float(n % 3 > 0) for n in range(12)) == second.items
    assert first.sha256 == second.sha256 and not left
