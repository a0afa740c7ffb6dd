"""What a run of the Trainer needs so that a guard can judge it: one row for each question.

What would be refused is refused before that (`unscorable`); what only the guard knows, `rlguard check` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from guard_client.client import VerdictView
from guard_core.preflight import WITHOUT_KL, CheckLevel, Row
from guard_core.wire import Adapters, Code, Sampling
from trainer_image.figures import UNKNOWN, figures_of, kl_needs_beta, what_is_learnt
from trainer_image.outlook import capped_lag, evaluations_ahead, kept_for_their_turn, safe_lag
from trainer_image.unscorable import trains_adapter

_OK, _WARN, _UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.UNKNOWN
_NO_TRAINER = "the trainer is not known: rlguard check --model looks at a checkpoint"
_NO_ANSWER = "the guard has not answered yet: its log says why, once it runs"


@dataclass(frozen=True, slots=True)
class Outset:
    """A run of the Trainer at its first step, and its guard.

    Args:
        args: the `TrainingArguments`; what they lack has no row.
        state: the `TrainerState` at the beginning of training.
        trainer: the Trainer, or None where only its arguments are known.
        verdict: what the guard says of itself; None: it has not answered.
        sampling: how the trainer samples, None where that is not known, or why no guard can sample so.
        max_lag: checkpoints that may be unscored while training goes on; None: it never waits.
        keep_best: whether the best checkpoint takes the place of one that rotation keeps.
    """

    args: Any
    state: Any
    trainer: Any = None
    verdict: VerdictView | None = None
    sampling: Sampling | ValueError | None = None
    max_lag: int | None = None
    keep_best: bool = False


def trainer_rows(run: Outset) -> list[Row]:
    """The whole table, of a run that is not refused."""
    return [
        _learnt_row(run),
        *_kl_rows(run),
        *_folder_rows(run),
        _layout_row(run),
        _tokenizer_row(run),
        _evaluations_row(run),
        _sampling_row(run),
        _rotation_row(run),
        _start_row(run),
        Row("evaluation time", _UNKNOWN, "rlguard check --time makes one, and compares it with the saves"),
    ]


def _learnt_row(run: Outset) -> Row:
    """What the guard will be told at every step."""
    enough, said = what_is_learnt(run.args, run.trainer)
    if figures_of(run.args) is UNKNOWN:
        return Row("steps", _UNKNOWN, f"{said}: without a `reward` in its logs nothing can be judged")
    return Row("steps", _OK if enough else _WARN, said)


def _kl_rows(run: Outset) -> Iterator[Row]:
    """Whether there will be a KL to the reference, where `beta` decides it."""
    if kl_needs_beta(run.args):
        known = (_OK, f"beta is {run.args.beta}") if run.args.beta else (_WARN, WITHOUT_KL)
        yield Row("KL to the reference", *known)


def _folder_rows(run: Outset) -> Iterator[Row]:
    """Whether checkpoints are saved where the guard takes them from; elsewhere the run is refused."""
    name, output = "checkpoints folder", getattr(run.args, "output_dir", None)
    if output is None:
        return
    if run.verdict is None or run.verdict.checkpoint_root is None:
        why = _NO_ANSWER if run.verdict is None else "the guard does not say where it may read: see its log"
        yield Row(name, _UNKNOWN, why)
    else:
        said = f"{os.path.abspath(output)} is below the guard's {run.verdict.checkpoint_root}"
        yield Row(name, _OK, said)


def _layout_row(run: Outset) -> Row:
    """Whether the guard could load what will be saved; what it could not is refused."""
    name = "checkpoint layout"
    if run.trainer is None:
        return Row(name, _UNKNOWN, _NO_TRAINER)
    if not trains_adapter(run.trainer):
        return Row(name, _OK, "whole weights in safetensors")
    if run.verdict is None or run.verdict.adapters != Adapters.APPLIED:
        return Row(
            name, _UNKNOWN, "an adapter; the guard does not say whether it has the base model: see its log"
        )
    return Row(
        name, _OK, "an adapter; that the guard's base model is its own is looked at with the first one"
    )


def _tokenizer_row(run: Outset) -> Row:
    """Whether there will be one beside the weights; a run without is refused."""
    if run.trainer is None:
        return Row("tokenizer", _UNKNOWN, _NO_TRAINER)
    return Row("tokenizer", _OK, "saved with the model")


def _evaluations_row(run: Outset) -> Row:
    """Whether there will be enough checkpoints to judge by."""
    name = "evaluations"
    if run.verdict is None:
        return Row(name, _UNKNOWN, _NO_ANSWER)
    if run.verdict.needed is None:
        return Row(name, _UNKNOWN, "the guard does not say how many its policy takes: rlguard check does")
    seen = run.verdict.attempt is not None
    ahead = evaluations_ahead(run.args, run.state, run.verdict.needed, 0 if seen else run.state.global_step)
    if ahead is None:
        said = "how many there will be is not known: set save_strategy='steps' and save_steps"
        return Row(name, _UNKNOWN, said)
    enough, said = ahead
    return Row(name, _OK if enough else _WARN, said)


def _sampling_row(run: Outset) -> Row:
    """Whether evaluations will sample as training does."""
    name = "sampling"
    if isinstance(run.sampling, ValueError):
        said = (
            f"the guard cannot evaluate as this trainer samples ({run.sampling}), so it is not told: its "
            "evaluator's own settings count"
        )
        return Row(name, _WARN, said)
    if run.sampling is None:
        said = "this trainer does not say how it samples: set temperature and max_new_tokens of the evaluator"
        return Row(name, _UNKNOWN, said)
    return Row(name, _OK, f"completions are sampled with {run.sampling.words}; the guard is told")


def _rotation_row(run: Outset) -> Row:
    """Whether a checkpoint will still be there when its turn comes."""
    name, room = "save_total_limit", kept_for_their_turn(run.args, keep_best=run.keep_best)
    if room is None:
        return Row(name, _OK, "none: every checkpoint stays until it is scored")
    if room < 1:
        return Row(name, _WARN, "none has room to wait for its score beside the best one: raise it")
    if run.max_lag is not None:
        most = capped_lag(run.max_lag, room)
        return Row(name, _OK, f"{room} are kept, and training waits while more than {most} are unscored")
    wait = f"max_lag={safe_lag(room)} has training wait for them"
    return Row(
        name,
        _UNKNOWN,
        f"whether checkpoints last until they are scored shows once evaluations have been made: {wait}; "
        "rlguard check --time computes it",
    )


def _start_row(run: Outset) -> Row:
    """Whether the guard has, or will have, what it compares with."""
    name, verdict = "starting policy", run.verdict
    if verdict is None:
        return Row(name, _UNKNOWN, f"{_NO_ANSWER}; without its answer none is saved for it")
    if all(condition.code != Code.NO_BASELINE.value for condition in verdict.conditions):
        return Row(name, _OK, "the guard has its baseline, or its policy needs none")
    if not verdict.wants_the_start:
        said = f"the baseline is being made: {verdict.baseline_passes} passes so far"
        return Row(name, _UNKNOWN, f"{said}; nothing is judged before it is whole")
    later = "the first checkpoint will be the baseline, and what was learnt before it is not judged"
    if run.state.global_step > 0:
        said = f"training goes on at step {run.state.global_step}: {later}; start with the guard from step 0"
        return Row(name, _WARN, said)
    if run.trainer is None:
        return Row(
            name, _WARN, f"it cannot be saved, for the trainer is not known: {later}; save it at step 0"
        )
    return Row(name, _OK, "saved for the guard before the first step: it is the baseline")
