"""What a run of the Trainer needs so that a guard can judge it: one row for each question.

What would be refused is refused before that (`unscorable`); what only the guard knows, `rlguard check` says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from guard_client.client import VerdictView
from guard_core.preflight import WITHOUT_KL, CheckLevel, Row
from guard_core.wire import Adapters, Sampling
from trainer_image.figures import kl_needs_beta, what_is_learnt
from trainer_image.outlook import evaluations_ahead

_OK, _WARN, _UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.UNKNOWN
_NO_ANSWER = "the guard has not answered yet"


def trainer_rows(
    args: Any,
    state: Any,
    trainer: Any,
    verdict: VerdictView | None,
    sampling: Sampling | ValueError | None,
    max_lag: int | None,
) -> list[Row]:
    """The whole table, of a run that is not refused.

    Args:
        args: the `TrainingArguments`; what they lack has no row.
        state: the `TrainerState` at the beginning of training.
        trainer: the Trainer, or None where only its arguments are known.
        verdict: what the guard says of itself; None: it has not answered.
        sampling: how the trainer samples, None where that is not known, or why no guard can sample so.
        max_lag: checkpoints that may be unscored before training waits; None: it never does.
    """
    return [
        _learnt_row(args, trainer),
        *_kl_rows(args),
        _folder_row(args, verdict),
        _layout_row(verdict),
        _evaluations_row(args, state, verdict),
        _sampling_row(sampling),
        _rotation_row(args, max_lag),
        _start_row(state, verdict),
        _time_row(),
    ]


def _learnt_row(args: Any, trainer: Any) -> Row:
    """What the guard will be told at every step."""
    enough, said = what_is_learnt(args, trainer)
    return Row("steps", _OK if enough else _WARN, said)


def _kl_rows(args: Any) -> Iterator[Row]:
    """Whether there will be a KL to the reference, where `beta` decides it."""
    if kl_needs_beta(args):
        known = (_OK, f"beta is {args.beta:g}") if args.beta else (_WARN, WITHOUT_KL)
        yield Row("KL to the reference", *known)


def _folder_row(args: Any, verdict: VerdictView | None) -> Row:
    """Whether checkpoints are saved where the guard takes them from; elsewhere the run is refused."""
    name, root = "checkpoints folder", None if verdict is None else verdict.checkpoint_root
    if root is None:
        return Row(
            name, _UNKNOWN, _NO_ANSWER if verdict is None else "the guard does not say where it may read"
        )
    return Row(name, _OK, f"{os.path.abspath(args.output_dir)} is below the guard's {root}")


def _layout_row(verdict: VerdictView | None) -> Row:
    """What the guard will load; what it could not is refused."""
    adapters = verdict is not None and verdict.adapters == Adapters.APPLIED
    found = "adapters of the guard's base model, or whole weights" if adapters else "whole weights"
    return Row("checkpoint layout", _OK, f"{found} in safetensors, with a tokenizer")


def _evaluations_row(args: Any, state: Any, verdict: VerdictView | None) -> Row:
    """Whether there will be enough checkpoints to judge by."""
    name = "evaluations"
    if verdict is None:
        return Row(name, _UNKNOWN, _NO_ANSWER)
    ahead = evaluations_ahead(args, state, verdict.needed)
    if ahead is None:
        return Row(name, _UNKNOWN, "how many there will be, or how many the policy takes, is not known")
    enough, said = ahead
    return Row(name, _OK if enough else _WARN, said)


def _sampling_row(sampling: Sampling | ValueError | None) -> Row:
    """Whether evaluations will sample as training does."""
    name = "sampling"
    if isinstance(sampling, ValueError):
        said = f"the guard cannot evaluate as this trainer samples ({sampling}), so it is not told"
        return Row(name, _WARN, said)
    if sampling is None:
        said = "this trainer does not say how it samples: set temperature and max_new_tokens of the evaluator"
        return Row(name, _UNKNOWN, said)
    return Row(name, _OK, f"completions are sampled with {sampling.words}; the guard is told")


def _rotation_row(args: Any, max_lag: int | None) -> Row:
    """Whether a checkpoint will still be there when its turn comes."""
    name, limit = "save_total_limit", getattr(args, "save_total_limit", None)
    if limit is None:
        return Row(name, _OK, "none: every checkpoint stays until it is scored")
    if max_lag is not None and max_lag <= limit:
        return Row(name, _OK, f"{limit}; training waits while more than {max_lag} are unscored (max_lag)")
    return Row(
        name,
        _UNKNOWN,
        f"whether {limit} kept checkpoints last until they are scored shows once evaluations have been made: "
        f"max_lag={limit} has training wait for them, and rlguard check --time computes it",
    )


def _start_row(state: Any, verdict: VerdictView | None) -> Row:
    """Whether the guard has, or will have, what it compares with."""
    name = "starting policy"
    if verdict is None:
        return Row(name, _UNKNOWN, _NO_ANSWER)
    if verdict.wants_the_start and state.global_step == 0:
        return Row(name, _OK, "saved for the guard before the first step: it is the baseline")
    if verdict.wants_the_start:
        said = f"training goes on at step {state.global_step}: the first checkpoint will be the baseline"
        return Row(name, _WARN, said)
    return Row(name, _OK, "the guard has its baseline, or its policy needs none")


def _time_row() -> Row:
    """What an evaluation takes is not known before one was made."""
    return Row("evaluation time", _UNKNOWN, "rlguard check --time makes one, and compares it with the saves")
