"""Outcomes from outside: whoever evaluates checkpoints elsewhere reports them to the same judge.

All evaluations of a run are of the same items, which the first one fixes. They come in the order of their
checkpoints. A mean is judged as in `rlguard.core.means`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard_service.errors import Problem, ProblemType
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.judge import Judge
from rlguard.core.means import expected_error, independent_items
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import MAX_OUTCOMES, CheckpointReport, EvaluationReport, EvaluationSummary

#: Ids that a message names.
_NAMED = 3
#: How many times larger than by the first evaluation the standard error of a later mean may be.
_NOISIER = 1.5


def items_of(report: EvaluationReport) -> Any:
    """What the first evaluation of a run fixes: the ids of its items, or how many a mean is worth. Pure."""
    if report.outcomes is not None:
        return sorted(report.outcomes)
    assert report.mean is not None and report.standard_error is not None
    return independent_items(report.mean, report.standard_error, MAX_OUTCOMES)


def evaluation_of(report: EvaluationReport, checkpoint: CheckpointReport, items: Any) -> Evaluation:
    """The evaluation that is folded; `items` as of `items_of`. Pure.

    Raises:
        Problem: 422: it is of other items, or a mean that is far less certain than the first one.
    """
    graded = report.grader_outcomes
    if isinstance(items, int):
        values, paid = (_checked_mean(report, items),) * items, None
    else:
        outcomes = _checked_outcomes(report.outcomes, items)
        values = tuple(outcomes[name] for name in items)
        paid = None if graded is None else tuple(graded[name] for name in items)
    return Evaluation(
        checkpoint.attempt,
        checkpoint.step,
        checkpoint.path,
        values,
        pass_index=report.pass_index,
        proxy_items=paid,
    )


def _checked_mean(report: EvaluationReport, items: int) -> float:
    if report.mean is None or report.standard_error is None:
        raise _refused("outcomes", "this run's first evaluation was a mean: report mean and standard_error")
    expected = expected_error(report.mean, items)
    if report.standard_error > _NOISIER * expected:
        raise _refused(
            "standard_error",
            f"{report.standard_error:g}, but by the first evaluation of this run it would be "
            f"{expected:.2g}: evaluate every checkpoint on as many items",
        )
    return report.mean


def _checked_outcomes(outcomes: dict[str, float] | None, items: Sequence[str]) -> dict[str, float]:
    if outcomes is None:
        raise _refused("mean", "this run's first evaluation had outcomes of items: report outcomes")
    if outcomes.keys() == set(items):
        return outcomes
    missing, unknown = sorted(set(items) - outcomes.keys()), sorted(outcomes.keys() - set(items))
    found = [
        f"{len(names)} {what} ({', '.join(map(repr, names[:_NAMED]))}{', …' if len(names) > _NAMED else ''})"
        for what, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    raise _refused(
        "outcomes",
        f"not the {len(items)} items of this run's first evaluation: {', '.join(found)}. What could not be "
        "evaluated is not 0: evaluate it again",
    )


def wanted_pass(judge: Judge | None, checkpoint: CheckpointReport) -> int | None:
    """The further pass of this checkpoint that the judge could use now. Pure."""
    wanted = None if judge is None else judge.wanted_pass()
    if wanted is None or CheckpointKey.of(wanted) != CheckpointKey.of(checkpoint):
        return None
    return wanted.index


def refuse_late(evaluation: Evaluation, last: EvaluationSummary | None, wanted: int | None) -> None:
    """Fold evaluations in the order of their checkpoints, and a further pass only where it is wanted. Pure.

    Raises:
        Problem: 409.
    """
    key = CheckpointKey.of(evaluation)
    if evaluation.pass_index > 0 and evaluation.pass_index != wanted:
        asked = "none is" if wanted is None else f"{wanted} is"
        message = f"{evaluation.pass_index}, but of step {key.step} {asked} wanted now"
        raise Problem.of_field(ProblemType.CONFLICT, "pass_index", message, f"refused: pass_index; {message}")
    if last is not None and key < CheckpointKey.of(last):
        message = (
            f"{key.step} of attempt {key.attempt} comes before step {last.step} of attempt {last.attempt}, "
            "which was judged already: report evaluations in the order of their checkpoints"
        )
        raise Problem.of_field(ProblemType.CONFLICT, "step", message, f"refused: step; {message}")


def refuse_other_values(known: Evaluation, given: Evaluation) -> None:
    """Raises `Problem` 409 if an evaluation that is on disk is reported again with other values. Pure."""
    if known.items != given.items or known.proxy_items != given.proxy_items:
        message = f"pass {given.pass_index} of step {given.step} was reported before with other values"
        raise Problem.of_field(ProblemType.CONFLICT, "outcomes", message)


def _refused(field: str, message: str) -> Problem:
    detail = f"refused: {field}; nothing was kept"
    return Problem.of_field(ProblemType.INVALID_CONTENT, field, message, detail)
