"""The trainer's table before the first step, row by row: no guard, no training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlguard.client.client import VerdictView
from rlguard.core.codes import Code
from rlguard.core.preflight import CheckLevel, CheckRow
from rlguard.core.run_checks import reason_to_refuse
from rlguard.core.wire import Sampling
from trainer_image.preflight import Outset, trainer_rows

OK, WARN, UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.UNKNOWN


def verdict(**more: Any) -> VerdictView:
    return VerdictView.model_validate({"fire": False, "stop": False, **more})


TRAINED = {"model": SimpleNamespace(), "trainer": SimpleNamespace()}
ADAPTED = TRAINED | {"model": SimpleNamespace(_hf_peft_config_loaded=True)}
NO_BASELINE = [{"code": Code.NO_BASELINE.value}]
TEN = {"long_rounds": 10, "short_rounds": 10}


def row_of(
    name: str, answer: VerdictView | None = None, step: int = 0, of: dict[str, Any] | None = None, **args: Any
) -> CheckRow:
    """One row of a run with these arguments; `of`: what else is known of it."""
    given = SimpleNamespace(**{"output_dir": "/c/out", "save_strategy": "steps", **args})
    state = SimpleNamespace(global_step=step, max_steps=100, save_steps=10, num_train_epochs=2)
    rows = trainer_rows(Outset(given, state, verdict=answer, **(of or {})))
    return next(row for row in rows if row.name == name)


@pytest.mark.parametrize(
    ("row", "level", "words"),
    [
        (row_of("steps"), UNKNOWN, "without a `reward` in its logs nothing can be judged"),
        (row_of("checkpoints folder"), UNKNOWN, "not answered"),
        (row_of("checkpoints folder", verdict()), UNKNOWN, "does not say"),
        (row_of("checkpoints folder", verdict(checkpoint_root="/c")), OK, "/c/out is below the guard's /c"),
        (row_of("checkpoint layout", verdict()), UNKNOWN, "the trainer is not known"),
        (row_of("checkpoint layout", of=TRAINED), OK, "whole weights in safetensors"),
        (row_of("checkpoint layout", verdict(), of=ADAPTED), UNKNOWN, "does not say whether"),
        (
            row_of("checkpoint layout", verdict(adapters="applied"), of=ADAPTED),
            OK,
            "an adapter of the guard's base model",
        ),
        (row_of("tokenizer"), UNKNOWN, "rlguard check --model"),
        (row_of("evaluations"), UNKNOWN, "not answered"),
        (row_of("evaluations", verdict()), UNKNOWN, "rlguard check does"),
        (row_of("evaluations", verdict(needed=TEN), save_strategy="best"), UNKNOWN, "set save_strategy"),
        (row_of("evaluations", verdict(needed=TEN)), OK, "10 checkpoints; 10 are needed"),
        (
            row_of("evaluations", verdict(needed=TEN), save_strategy="epoch"),
            WARN,
            "with save_strategy='steps', set save_steps to 10 or less",
        ),
        (row_of("evaluations", verdict(needed=TEN), step=90), WARN, "you will get 1 evaluations"),
        (row_of("evaluations", verdict(needed=TEN, attempt=0), step=90), OK, "10 checkpoints"),
        (row_of("sampling"), UNKNOWN, "set temperature and max_new_tokens"),
        (row_of("sampling", of={"sampling": ValueError("too hot")}), WARN, "(too hot), so it is not told"),
        (row_of("sampling", of={"sampling": Sampling(temperature=0.7)}), OK, "temperature 0.7"),
        (row_of("save_total_limit"), OK, "every checkpoint stays"),
        (row_of("save_total_limit", save_total_limit=0), OK, "every checkpoint stays"),
        (
            row_of("save_total_limit", of={"max_lag": 2, "keep_best": True}, save_total_limit=3),
            OK,
            "more than 1 are unscored",
        ),
        (row_of("save_total_limit", of={"max_lag": None}, save_total_limit=3), WARN, "max_lag=2"),
        (row_of("save_total_limit", of={"keep_best": True}, save_total_limit=1), WARN, "raise it"),
        (row_of("starting policy"), UNKNOWN, "not answered"),
        (row_of("starting policy", verdict(), step=7), OK, "has its baseline"),
        (
            row_of("starting policy", verdict(conditions=NO_BASELINE), of=TRAINED),
            OK,
            "saved for the guard before the first step",
        ),
        (row_of("starting policy", verdict(conditions=NO_BASELINE)), WARN, "it cannot be saved"),
        (
            row_of("starting policy", verdict(conditions=NO_BASELINE), step=7, of=TRAINED),
            WARN,
            "at step 7: the first checkpoint will be the baseline",
        ),
        (
            row_of("starting policy", verdict(conditions=NO_BASELINE, attempt=0, baseline_passes=3)),
            UNKNOWN,
            "3 passes so far",
        ),
    ],
)
def test_a_row_says_how_it_is_and_what_to_do(row: CheckRow, level: CheckLevel, words: str) -> None:
    assert row.level == level and words in row.says


# -- what could never be scored ----------------------------------------------------------------------------


def why_refused(args: Any = None, of: dict[str, Any] | None = None, **answer: Any) -> str:
    """Why a run must not start, "" if it may; it has a model and a tokenizer unless `of` says otherwise."""
    model = {"model": SimpleNamespace(), "processing_class": object(), "trainer": SimpleNamespace()}
    run = Outset(
        args or SimpleNamespace(),
        SimpleNamespace(global_step=0),
        verdict=verdict(**answer),
        **(model | (of or {})),
    )
    return reason_to_refuse(trainer_rows(run)) or ""


def sharded(kind: str, **plugins: Any) -> dict[str, Any]:
    accelerator = SimpleNamespace(state=SimpleNamespace(**plugins))
    return {"trainer": SimpleNamespace(**{f"is_{kind}_enabled": True, "accelerator": accelerator})}


def fsdp(state_dict_type: str) -> dict[str, Any]:
    return sharded("fsdp", fsdp_plugin=SimpleNamespace(state_dict_type=f"StateDictType.{state_dict_type}"))


def zero(stage: int, *, gathers: bool = False) -> dict[str, Any]:
    settings = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": gathers}
    config = {"zero_optimization": settings}
    return sharded("deepspeed", deepspeed_plugin=SimpleNamespace(deepspeed_config=config))


COLLATED = SimpleNamespace(data_collator=SimpleNamespace(tokenizer=object()))


@pytest.mark.parametrize(
    ("of", "setting"),
    [
        ({}, ""),
        ({"processing_class": None}, "pass processing_class=tokenizer"),
        ({"processing_class": None, "trainer": COLLATED}, ""),
        (fsdp("FULL_STATE_DICT"), ""),
        (fsdp("SHARDED_STATE_DICT"), "FULL_STATE_DICT in fsdp_config"),
        (zero(2), ""),
        (zero(3), "stage3_gather_16bit_weights_on_model_save to true"),
        (zero(3, gathers=True), ""),
    ],
)
def test_what_a_trainer_saves_that_nobody_could_load_is_refused(of: dict[str, Any], setting: str) -> None:
    reason = why_refused(of=of)
    assert setting in reason if setting else reason == ""


LORA = {"peft_type": "LORA", "r": 8}
PEFT_MODEL = type("PeftModel", (SimpleNamespace,), {"__module__": "peft.peft_model"})


@pytest.mark.parametrize(
    ("adapters", "config", "message"),
    [
        ("refused", LORA, "set --base-model DIR"),
        ("applied", LORA, ""),
        ("applied", LORA | {"peft_type": "IA3"}, "an adapter of the kind 'IA3'"),
        ("applied", LORA | {"modules_to_save": ["lm_head"]}, "'modules_to_save' is ['lm_head']"),
        (None, LORA | {"peft_type": "IA3"}, ""),  # whether the guard can score it is the guard's to say
    ],
)
@pytest.mark.parametrize("model", [PEFT_MODEL(), SimpleNamespace(_hf_peft_config_loaded=True)])
def test_an_adapter_that_the_guard_cannot_apply_is_refused(
    model: Any, adapters: str | None, config: dict[str, Any], message: str
) -> None:
    model.peft_config = {"default": SimpleNamespace(to_dict=lambda: config)}
    reason = why_refused(of={"model": model}, adapters=adapters)
    assert message in reason if message else reason == ""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("lora", "refused"),
    [
        ({"target_modules": ["q_proj", "lm_head"]}, False),
        ({"target_modules": r".*(q_proj|embed_tokens)"}, True),
        ({"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True}, True),
    ],
    ids=str,
)
def test_an_adapted_embedding_is_refused_however_it_was_chosen(lora: dict[str, Any], refused: bool) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    tied = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, tie_word_embeddings=True, **sizes))
    model = get_peft_model(tied, LoraConfig(r=2, task_type="CAUSAL_LM", **lora))
    assert (
        "embed_tokens.lora_embedding_A" in why_refused(of={"model": model}, adapters="applied")
    ) == refused


def test_a_folder_is_inside_the_root_with_or_without_its_links(tmp_path: Path) -> None:
    def outside(output: str, root: str) -> bool:
        args = SimpleNamespace(output_dir=tmp_path / output)
        return why_refused(args, checkpoint_root=str(tmp_path / root)) != ""

    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "out").symlink_to(tmp_path / "away")
    inside = [("disk/runs", "disk"), ("link/runs", "disk"), ("disk/runs", "link"), ("disk/out", "disk")]
    assert not any(outside(output, root) for output, root in inside)
    assert outside("disk/../away", "disk")


@pytest.mark.parametrize(
    ("args", "setting"),
    [
        ({"save_strategy": "no"}, "set save_strategy='steps' and save_steps=4"),
        ({"save_strategy": "steps", "save_safetensors": False}, "set save_safetensors=True"),
    ],
)
def test_a_run_without_a_checkpoint_to_score_is_refused(args: dict[str, Any], setting: str) -> None:
    state = SimpleNamespace(global_step=0, max_steps=40, save_steps=4)
    assert setting in (reason_to_refuse(trainer_rows(Outset(SimpleNamespace(**args), state))) or "")
