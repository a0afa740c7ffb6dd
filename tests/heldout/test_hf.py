"""The checkpoint evaluator on tiny real models: it says what `generate` says, however it batches."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.config import HeldoutSettings, HfEvaluatorSettings
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError, SplitError
from guard_service.heldout.evaluators.completions import Completions
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.identity import Expected
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.core.evaluation import RESERVED_KWARGS
from rlguard.core.wire import FailureKind, Sampling
from tests.heldout.models import save_tiny_model

pytestmark = pytest.mark.torch

CHECKPOINT, TOKENIZER, WEIGHTS, UNDERWAY = (
    FailureKind(name) for name in ("checkpoint", "tokenizer", "weights", "underway")
)

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
    config = HfEvaluatorSettings.model_validate({"max_new_tokens": 10, **settings})
    return HfEvaluator(config, scratch).complete(items, EvaluationRequest(0, 1, path, pass_index))


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


def drawn(sampling: Sampling, probabilities: list[float], rows: int = 8_000) -> Any:
    """How often each token is drawn from these probabilities, shape (tokens,)."""
    import torch

    from guard_service.heldout.evaluators.sampling import sampler

    scores = torch.log(torch.tensor(probabilities)).repeat(rows, 1)
    ids = torch.zeros((rows, 1), dtype=torch.long)
    used = HfEvaluatorSettings().sampling_with(sampling)
    for processor in sampler(used, [0] * rows, range(rows), "cpu"):
        scores = processor(ids, scores)
    return scores.argmax(-1).bincount(minlength=len(probabilities)) / rows


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": 1.0}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.5}, [0.25, 0.09, 0.0225, 0.0025]),
        ({"temperature": 1.0, "top_k": 2}, [0.5, 0.3, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.9}, [0.5, 0.3, 0.15, 0]),
        ({"temperature": 0.5, "top_p": 0.9}, [0.25, 0.09, 0, 0]),
        ({"temperature": 1.0, "min_p": 0.25}, [0.5, 0.3, 0.15, 0]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 1e-300}, [1, 0, 0, 0]),
        ({"temperature": 0.0, "repetition_penalty": 2.0}, [0, 1, 0, 0]),
    ],
    ids=str,
)
def test_sampling_draws_from_the_distribution_that_generate_makes(
    sampling: dict[str, float], expected: list[float]
) -> None:
    import torch

    shares = drawn(Sampling(**sampling), [0.5, 0.3, 0.15, 0.05])
    wanted = torch.tensor(expected) / sum(expected)
    assert torch.allclose(shares, wanted, atol=0.028)  # five standard errors
    assert (shares[wanted == 0] == 0).all()


def test_by_default_it_samples_as_the_trainer_does_and_says_so(model: Path, tmp_path: Path) -> None:
    trainer = Sampling(temperature=1.5, top_k=9, repetition_penalty=1.3, max_new_tokens=7)

    def evaluated(pass_index: int, batch_size: int) -> Completions:
        settings = HfEvaluatorSettings(batch_size=batch_size)
        request = EvaluationRequest(0, 1, model, pass_index, trainer)
        return HfEvaluator(settings, tmp_path).complete(ITEMS, request)

    first = evaluated(0, 3)
    assert first.sampling == HfEvaluatorSettings().sampling_with(trainer)
    assert max(len(text) for (text,) in first.texts) == 7, "a token is a character"
    assert evaluated(0, 64).texts == first.texts, "by seed, and whatever shares a batch"
    assert evaluated(1, 3).texts != first.texts
    pinned = {"temperature": 0.0, "max_new_tokens": 7}
    assert complete(model, tmp_path, **pinned).texts != first.texts


def test_a_completion_ends_at_a_text_and_is_the_same_before_it(model: Path, tmp_path: Path) -> None:
    settings = {"max_new_tokens": 24, "temperature": 1.5, "samples": 2}
    whole = complete(model, tmp_path, **settings)
    stop = [whole.texts[0][0][5:7], whole.texts[0][0][9:10]]
    for batch_size in (1, 64):
        made = complete(model, tmp_path, batch_size=batch_size, stop=stop, **settings)
        ended = 0
        for rows, before in zip(made.rows, whole.rows, strict=True):
            for one, other in zip(rows, before, strict=True):
                text = min((other.text.split(end)[0] for end in stop), key=len)
                assert one.text == one.answer == text
                assert one.truncated == (other.truncated and text == other.text)
                ended += text != other.text
        assert 0 < ended < 2 * len(ITEMS)


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


def test_the_chat_template_gets_the_system_prompt_and_its_variables(model: Path, tmp_path: Path) -> None:
    thinking = shutil.copytree(model, tmp_path / "thinking")
    (thinking / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
        "{{ raise_exception(messages[0]['content']) if fail is defined else effort }}a:"
    )
    text = HeldoutItem(id="s", prompt="1+2=", answer="3")
    own = HeldoutItem(id="t", prompt="1+2=", answer="3", system_prompt="", chat_template_kwargs={"effort": 9})
    settings = {"chat": True, "system_prompt": "think", "chat_template_kwargs": {"effort": 1}}
    assert complete(thinking, tmp_path, [text, own], **settings).texts == [
        [plainly(thinking, "s:think\nu:1+2=\n1a:")],
        [plainly(thinking, "u:1+2=\n9a:")],
    ]
    with pytest.raises(
        EvaluationError, match="item 's': the chat template fails with TemplateError"
    ) as failed:
        complete(thinking, tmp_path, [text], chat=True, chat_template_kwargs={"fail": 1})
    assert failed.value.kind is UNDERWAY and "1+2" not in str(failed.value)


def test_reserved_names_are_those_that_transformers_takes_for_itself() -> None:
    from transformers import PreTrainedTokenizerBase

    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    assert {*taken, "conversations"} - {"kwargs"} <= RESERVED_KWARGS, "the last is what they go on to"


def test_the_answer_begins_after_the_last_mark_also_where_it_is_a_special_token(
    model: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    text = complete(model, tmp_path, ITEMS[:1]).texts[0][0]
    mark = text[3]
    special = shutil.copytree(model, tmp_path / "special")
    tokenizer = AutoTokenizer.from_pretrained(special)
    tokenizer.add_special_tokens({"additional_special_tokens": [mark]})
    tokenizer.save_pretrained(special)
    ((plain,),) = complete(model, tmp_path, ITEMS[:1], answer_after=mark).rows
    ((hidden,),) = complete(special, tmp_path, ITEMS[:1], answer_after=mark).rows
    assert plain.text == text and plain.truncated
    assert plain.answer == hidden.answer == text.rpartition(mark)[2] and mark not in hidden.text
    ((without,),) = complete(special, tmp_path, ITEMS[:1], answer_after="@").rows
    assert without.answer is None and without.text == hidden.text


def drop_a_tensor(path: Path, name: str = "model.layers.1.mlp.up_proj.weight") -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def spoil_the_vocabulary(path: Path) -> None:
    """A tokenizer that knows every token of the model as a special one."""
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] = [
        {"id": id_, "content": content, **token} for content, id_ in tokenizer["model"]["vocab"].items()
    ]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


def spoil_a_weight(value: float, name: str = "model.layers.1.mlp.up_proj.weight"):
    def spoil(path: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(path / "model.safetensors")
        tensors[name].view(-1)[7] = value
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    return spoil


def change(name: str, **values: Any):
    def spoil(path: Path) -> None:
        content = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(content | values))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "kind", "told"),
    [
        (drop_a_tensor, WEIGHTS, "1 of the model's weights are missing or have another shape"),
        (
            spoil_a_weight(math.nan),
            WEIGHTS,
            "1 of the model's weights hold values that are infinite or not a number",
        ),
        (spoil_a_weight(3e38, "model.norm.weight"), UNDERWAY, "logits are infinite or not a number"),
        (spoil_the_vocabulary, UNDERWAY, "tokens were generated, and no completion has a text"),
        (
            lambda p: (p / "model.safetensors").write_bytes(b"x" * 100),
            WEIGHTS,
            "cannot be loaded: SafetensorError",
        ),
        (lambda p: (p / "tokenizer.json").unlink(), TOKENIZER, "cannot be loaded"),
        (change("config.json", model_type="martian"), CHECKPOINT, "cannot be loaded: ValueError"),
        (change("config.json", max_position_embeddings=20), UNDERWAY, "exceed the model's 20 positions"),
        (lambda p: (p / "chat_template.jinja").unlink(), TOKENIZER, "item 'i0' needs a chat template"),
        (change("generation_config.json", eos_token_id={"a": 1}), CHECKPOINT, "{'a': 1} is no token's"),
        (change("generation_config.json", eos_token_id=[2, "\ud800"]), CHECKPOINT, "is no token's number"),
        (change("config.json", model_type="\ud800\n"), CHECKPOINT, r"cannot be loaded: "),
    ],
)
def test_a_checkpoint_that_cannot_be_scored_says_why(
    model: Path, tmp_path: Path, spoil, kind: FailureKind, told: str
) -> None:
    """What may depend on an item is one kind."""
    bad = shutil.copytree(model, tmp_path / "bad")
    spoil(bad)
    with pytest.raises(EvaluationError) as caught:
        complete(bad, tmp_path, chat="template" in told)
    assert told in str(caught.value) and str(ITEMS[0].prompt) not in str(caught.value)
    assert caught.value.kind is kind and str(caught.value).isprintable()


def test_a_device_without_room_for_the_model_is_its_own_kind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(EvaluationError, match="cannot be loaded: OutOfMemoryError") as caught:
        complete(model, tmp_path)
    assert caught.value.kind is FailureKind.OUT_OF_MEMORY


def test_a_policy_that_ends_at_once_has_said_nothing_and_that_is_judged(model: Path, tmp_path: Path) -> None:
    mute = shutil.copytree(model, tmp_path / "mute")
    (mute / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(80))}))
    silent = complete(mute, tmp_path)
    assert silent.texts == [[""]] * len(ITEMS) and silent.truncated == 0.0


def test_a_missing_package_is_told_at_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SplitError, match=r"needs torch: pip install 'rlguard\[eval-hf\]'"):
        HfEvaluator(HfEvaluatorSettings(), tmp_path).check(ITEMS)


def through_the_worker(
    folder: Path, answers: Sequence[str], act: Callable[[EvaluationWorker], Awaitable[None]]
) -> None:
    """Act with a worker whose items have these answers."""
    rows = ({"id": i.id, "prompt": i.prompt, "answer": a} for i, a in zip(ITEMS, answers, strict=True))
    (folder / "split.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = HeldoutSettings.model_validate(
        {"split": folder / "split.jsonl", "evaluator": {"max_new_tokens": 10, "score_truncated": True}}
    )

    async def whole() -> None:
        worker = EvaluationWorker(settings, folder / "scratch")
        try:
            await worker.start()
            await act(worker)
        finally:
            await worker.close()

    asyncio.run(whole())
    assert not list((folder / "scratch").glob("stage-*"))


def test_through_the_worker_staged_hashed_and_scored(model: Path, tmp_path: Path) -> None:
    """The same weights under another name are no new evidence; another template never meets an item."""
    answers = [plainly(model, str(item.prompt)) for item in ITEMS]
    answers[::3] = ["something else"] * 4
    later = shutil.copytree(model, tmp_path / "checkpoint-20")

    async def act(worker: EvaluationWorker) -> None:
        pins = await worker.pins(EvaluationRequest(0, 10, model))
        first = await worker.evaluate(EvaluationRequest(0, 10, model))
        assert first.items == tuple(float(n % 3 > 0) for n in range(12))
        assert first.truncated and first.unanswered is None
        assert first.parts.keys() == {"stage", "load", "generate", "score"}
        assert all(part > 0 for part in first.parts.values()) and sum(first.parts.values()) < first.seconds
        request = EvaluationRequest(0, 20, later, expected=Expected(None, pins, first.sha256))
        for kind in (FailureKind.UNCHANGED, FailureKind.TOKENIZER_CHANGED):
            with pytest.raises(EvaluationError) as caught:
                await worker.evaluate(request)
            assert caught.value.kind is kind and str(ITEMS[0].prompt) not in str(caught.value)
            (later / "chat_template.jinja").write_text("{{ messages[0]['content'] * 9 }}")
        shutil.rmtree(later)
        with pytest.raises(CheckpointGoneError, match="rotated away before it was scored"):
            await worker.evaluate(request)

    through_the_worker(tmp_path, answers, act)


@pytest.mark.nightly
def test_further_passes_are_made_of_the_copy_of_the_first(model: Path, tmp_path: Path) -> None:
    """A baseline has up to sixteen, and its checkpoint may be rotated away, or written over, meanwhile."""
    saved = shutil.copytree(model, tmp_path / "checkpoint-20")
    other = save_tiny_model(tmp_path / "other", seed=1)

    async def act(worker: EvaluationWorker) -> None:
        first = await worker.evaluate(EvaluationRequest(0, 20, saved))
        staged = worker.staged
        shutil.rmtree(saved)
        shutil.copytree(other, saved)
        again = await worker.evaluate(EvaluationRequest(0, 20, saved, 1))
        assert (again.sha256, worker.staged) == (first.sha256, staged) and staged is not None
        staged.rename(tmp_path / "best")
        third = await worker.evaluate(EvaluationRequest(0, 20, saved, 2))
        assert third.sha256 != first.sha256, "what is no longer there is copied again"
        assert list((tmp_path / "scratch").glob("stage-*")) == [worker.staged]
        shutil.rmtree(saved)
        with pytest.raises(CheckpointGoneError):
            await worker.evaluate(EvaluationRequest(0, 21, saved, 1))
        with pytest.raises(CheckpointGoneError):
            await worker.evaluate(EvaluationRequest(0, 20, saved, 3))

    through_the_worker(tmp_path, [item.answer for item in ITEMS], act)
