"""What is known of a run of the Trainer before its first step, for the checks of `rlguard.core.run_checks`.

A run whose checkpoints nobody can load would train to its end unjudged, so what could never be scored is
refused with the setting to change. Everything here reads the trainer as it is, and changes nothing.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlguard.client.client import VerdictView
from rlguard.core.adapter import MERGE, AdapterError, read_adapter_config
from rlguard.core.codes import Code
from rlguard.core.preflight import FROM_NOISIEST, CheckLevel, CheckRow, needed_for
from rlguard.core.run_checks import (
    EVALUATIONS,
    FOLDER,
    LAYOUT,
    SAMPLING,
    START,
    STEPS,
    TIME,
    TOKENIZER,
    Folder,
    Needed,
    RunFacts,
    Saves,
    run_rows,
)
from rlguard.core.wire import Adapters, KlKind, Sampling
from trainer_image.figures import UNKNOWN, figures_of, kl_needs_beta

_OK, _WARN, _UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.UNKNOWN
_NO_ANSWER = "the guard has not answered yet: its log says why, once it runs"


@dataclass(frozen=True, slots=True)
class Outset:
    """A run of the Trainer at its first step, and its guard.

    Args:
        args: the `TrainingArguments`; what they lack is not checked.
        state: the `TrainerState` at the beginning of training.
        model: that is trained; None: not known.
        processing_class: the tokenizer; None: there is none, or it is not known.
        trainer: the Trainer; None: not known.
        verdict: what the guard says of itself; None: it has not answered.
        sampling: how the trainer samples, None where that is not known, or why no guard can sample so.
        max_lag: checkpoints that may be unscored while training goes on; None: it never waits.
        keep_best: whether the best checkpoint takes the place of one that rotation keeps.
    """

    args: Any
    state: Any
    model: Any = None
    processing_class: Any = None
    trainer: Any = None
    verdict: VerdictView | None = None
    sampling: Sampling | ValueError | None = None
    max_lag: int | None = None
    keep_best: bool = False


def trainer_rows(run: Outset) -> list[CheckRow]:
    """Every check of the run."""
    return run_rows(facts_of(run))


def facts_of(run: Outset) -> RunFacts:
    """What is known of the run."""
    verdict, known = run.verdict, figures_of(run.args)
    of_trl = known is not None and known is not UNKNOWN
    watched = (kl_needs_beta(run.args) or _limit(verdict) is not None) and of_trl
    kept = kept_for_their_turn(run.args, keep_best=run.keep_best)
    own = {STEPS: _steps_row(run), SAMPLING: _sampling_row(run), START: _start_row(run)}
    no_root = "the guard does not say where it may read: see its log"
    no_number = (
        "the guard does not say how many its policy takes: rlguard check does"
        if verdict is None or verdict.needed is None
        else "how many there will be is not known: set save_strategy='steps' and save_steps"
    )
    return RunFacts(
        beta=getattr(run.args, "beta", None) if kl_needs_beta(run.args) else None,
        kl_counts=known.kl_kind is KlKind.REF_TOKEN_MEAN if watched and known is not None else None,
        kl_limit=_limit(verdict),
        folder=_folder(run),
        layout=_layout(run),
        adapter=trains_adapter(run.model),
        tokenizer=_tokenizer(run),
        saves=_saves(run),
        needed=_needed(run),
        kept=0 if kept is None else kept or -1,
        max_lag=run.max_lag,
        own=own,
        ask={
            FOLDER: _NO_ANSWER if verdict is None else no_root,
            LAYOUT: "an adapter; the guard does not say whether it has the base model: see its log"
            if trains_adapter(run.model)
            else "the trainer is not known: rlguard check --model looks at a checkpoint",
            TOKENIZER: "the trainer is not known: rlguard check --model looks at a checkpoint",
            EVALUATIONS: _NO_ANSWER if verdict is None else no_number,
            TIME: "rlguard check --time makes one, and compares it with the saves",
        },
    )


def _limit(verdict: VerdictView | None) -> float | None:
    return None if verdict is None else verdict.kl_hard_stop


# -- rows that only the trainer's side can fill in -------------------------------------------------------


#: What the guard learns of the KL, by what the trainer's is.
_KL_IN_WORDS = {
    KlKind.ABSENT: "no KL to the reference, so the guard's KL rule stays inert",
    KlKind.REF_TOKEN_MEAN: "KL to the reference (mean over tokens)",
    KlKind.REF_SEQ_SUM: "KL to the reference (a sum over the completion: no threshold applies to it)",
    KlKind.BEHAVIOUR: "no KL to the reference (its `kl` is the drift between policy and rollouts)",
}


def _steps_row(run: Outset) -> CheckRow:
    """What the guard will learn from this trainer at every step."""
    who = "this trainer" if run.trainer is None else type(run.trainer).__name__
    figures = figures_of(run.args)
    if figures is None:
        says = (
            f"{who} measures no in-loop reward: no step of it can be reported, so the guard has nothing to "
            "compare the held-out score with, unless something logs `reward`"
        )
        return CheckRow(STEPS, _WARN, says)
    if figures is UNKNOWN:
        says = (
            f"{who} is reported as it logs: `reward`, `entropy` and `reward_std`; its KL is not known: "
            "without a `reward` in its logs nothing can be judged"
        )
        return CheckRow(STEPS, _UNKNOWN, says)
    more = "; `beta` > 0 would give one" if figures.kl is None and kl_needs_beta(run.args) else ""
    kl = _KL_IN_WORDS[figures.kl_kind]
    says = f"from {who} the guard learns at every step: reward (`{figures.reward}`), {kl}{more}"
    return CheckRow(STEPS, _OK, says)


def _sampling_row(run: Outset) -> CheckRow:
    if isinstance(run.sampling, ValueError):
        says = (
            f"the guard cannot evaluate as this trainer samples ({run.sampling}), so it is not told: its "
            "evaluator's own settings count"
        )
        return CheckRow(SAMPLING, _WARN, says)
    if run.sampling is None:
        says = "this trainer does not say how it samples: set temperature and max_new_tokens of the evaluator"
        return CheckRow(SAMPLING, _UNKNOWN, says)
    return CheckRow(SAMPLING, _OK, f"completions are sampled with {run.sampling.words}; the guard is told")


def _start_row(run: Outset) -> CheckRow:
    """Whether the guard has, or will have, what it compares with."""
    verdict = run.verdict
    if verdict is None:
        return CheckRow(START, _UNKNOWN, f"{_NO_ANSWER}; without its answer none is saved for it")
    if all(condition.code != Code.NO_BASELINE.value for condition in verdict.conditions):
        return CheckRow(START, _OK, "the guard has its baseline, or its policy needs none")
    if not verdict.wants_the_start:
        says = f"the baseline is being made: {verdict.baseline_passes} passes so far"
        return CheckRow(START, _UNKNOWN, f"{says}; nothing is judged before it is whole")
    later = "the first checkpoint will be the baseline, and what was learnt before it is not judged"
    if run.state.global_step > 0:
        says = f"training goes on at step {run.state.global_step}: {later}; start with the guard from step 0"
        return CheckRow(START, _WARN, says)
    if not can_save_start(run.args, run.model, run.trainer):
        how = "GuardCallback.from_env(trainer)"
        return CheckRow(START, _WARN, f"it cannot be saved without the trainer: {later}; give it with {how}")
    return CheckRow(START, _OK, "saved for the guard before the first step: it is the baseline")


def can_save_start(args: Any, model: Any, trainer: Any) -> bool:
    """Whether the starting policy can be saved: of a sharded model only its trainer can."""
    sharded = bool(getattr(args, "fsdp", None) or getattr(args, "deepspeed", None))
    return trainer is not None or (hasattr(model, "save_pretrained") and not sharded)


# -- what is saved ---------------------------------------------------------------------------------------


def _folder(run: Outset) -> Folder | None:
    """Where checkpoints go. The guard may see other links, so a place is wrong only with and without them."""
    output = getattr(run.args, "output_dir", None)
    if output is None or run.verdict is None:
        return None
    root = run.verdict.checkpoint_root
    inside = root is None or any(
        Path(of(output)).is_relative_to(of(root)) for of in (os.path.abspath, os.path.realpath)
    )
    return Folder(Path(os.path.abspath(output)), None if root is None else Path(root), inside)


def _saves(run: Outset) -> Saves:
    strategy, last = _strategy(run.args), getattr(run.state, "max_steps", 0)
    if strategy == "no":
        return Saves(
            never="no checkpoint would be saved that the guard could score: "
            f"set save_strategy='steps' and save_steps={max(1, last // 10)}"
        )
    every = steps_per_save(run.args, run.state)
    if every is None:
        return Saves()
    seen = run.verdict is not None and run.verdict.attempt is not None
    since = 0 if seen else run.state.global_step  # a guard that knows of none is given those after it alone
    count = math.ceil(last / every) - since // every
    return Saves(every, last, count, by_steps=strategy == "steps")


def _needed(run: Outset) -> Needed | None:
    needed, every = None if run.verdict is None else run.verdict.needed, steps_per_save(run.args, run.state)
    return None if needed is None else Needed(needed_for(needed, every), FROM_NOISIEST)


def _tokenizer(run: Outset) -> str | None:
    collator = getattr(run.trainer, "data_collator", None)
    if run.processing_class or getattr(collator, "tokenizer", None):
        return ""
    if run.model is None and run.trainer is None:
        return None
    return (
        "checkpoints would lack a tokenizer, without which nothing can be generated: "
        "pass processing_class=tokenizer to the trainer"
    )


def _layout(run: Outset) -> str | None:
    """Why no checkpoint could be loaded; "" if nothing speaks against it, None if that is not known."""
    if not getattr(run.args, "save_safetensors", True):
        return "the guard reads safetensors only, and runs no pickle of a trainer: set save_safetensors=True"
    if run.model is None:
        return None
    if sharded := _sharded(run.trainer):
        return sharded
    if not trains_adapter(run.model):
        return ""
    adapters = None if run.verdict is None else run.verdict.adapters
    if adapters == Adapters.REFUSED:
        return (
            "checkpoints of an adapter (PEFT) lack the base model, and the guard was given none: set "
            "--base-model DIR (evaluator.base_model; on a cluster baseModel of the evaluator) to the model "
            "that it is trained on"
        )
    return _adapter_problem(run.model) if adapters == Adapters.APPLIED else None


def trains_adapter(model: Any) -> bool:
    """Whether a model is an adapter (PEFT), so that its checkpoints lack the base model."""
    wrapped = any(base.__module__.split(".")[0] == "peft" for base in type(model).__mro__)
    return wrapped or bool(getattr(model, "_hf_peft_config_loaded", False))


def _adapter_problem(model: Any) -> str:
    for config in getattr(model, "peft_config", {}).values():
        try:
            read_adapter_config(config.to_dict())
        except AdapterError as error:
            return f"the guard could not score checkpoints of this adapter (peft_config): {error}"
    names = [name for name, _ in model.named_parameters()] if hasattr(model, "named_parameters") else []
    embedding = next((name for name in names if ".lora_embedding_" in name), None)
    if embedding is None:
        return ""
    # target_modules need not name an embedding: it may be tied to what they do.
    return (
        f"the guard could not score checkpoints of this adapter: {embedding} adapts an embedding, and the "
        f"guard applies LoRA of linear layers only (target_modules, ensure_weight_tying): {MERGE}"
    )


def _sharded(trainer: Any) -> str:
    """That FSDP or DeepSpeed would save shards; "" if not."""
    if getattr(trainer, "is_fsdp_enabled", False):
        kind = str(trainer.accelerator.state.fsdp_plugin.state_dict_type)
        if "FULL_STATE_DICT" not in kind:
            return (
                f"FSDP saves shards ({kind}) that the guard cannot load: set state_dict_type to "
                "FULL_STATE_DICT in fsdp_config"
            )
    if getattr(trainer, "is_deepspeed_enabled", False):
        zero = trainer.accelerator.state.deepspeed_plugin.deepspeed_config.get("zero_optimization", {})
        if zero.get("stage") == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
            return (
                "DeepSpeed ZeRO-3 saves shards that the guard cannot load: set "
                "zero_optimization.stage3_gather_16bit_weights_on_model_save to true"
            )
    return ""


# -- when it is saved ------------------------------------------------------------------------------------


def _strategy(args: Any) -> str | None:
    strategy = getattr(args, "save_strategy", None)
    return getattr(strategy, "value", strategy)


def steps_per_save(args: Any, state: Any) -> int | None:
    """Steps between two checkpoints that the Trainer saves by itself; None where it saves none by a count."""
    last, epochs = getattr(state, "max_steps", 0), getattr(state, "num_train_epochs", 0)
    match _strategy(args):
        case "steps" if last > 0 and getattr(state, "save_steps", 0) > 0:
            return int(state.save_steps)
        case "epoch" if last > 0 and epochs > 0:
            return math.ceil(last / epochs)
    return None


def kept_for_their_turn(args: Any, *, keep_best: bool = False) -> int | None:
    """How many checkpoints rotation leaves to wait for their score; None: it deletes none.

    Args:
        args: the `TrainingArguments`.
        keep_best: whether the best one is spared, and takes the place of one that waits.
    """
    limit = getattr(args, "save_total_limit", None)
    return None if limit is None or limit <= 0 else int(limit) - keep_best
