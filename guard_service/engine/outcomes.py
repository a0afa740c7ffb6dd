"""Outcomes from outside: whoever evaluates checkpoints elsewhere reports them to the same judge.

All evaluations of a run are of the same items, which the first one fixes. They come in the order of their
checkpoints. A mean is judged as in `guard_core.means`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Evaluation, Judge
from guard_core.means import expected_error, independent_items
from guard_core.wire import MAX_OUTCOMES, CheckpointReport, EvaluationReport, EvaluationSummary
from guard_service.engine.allowance import Allowance
from guard_service.engine.ledger import Ledger
from guard_service.errors import FieldError, Problem, conflict, invalid
from guard_service.store import EventLog, Note, NoteKind

#: Ids that a message names.
_NAMED = 3
#: How many times larger than by the first evaluation the standard error of a later mean may be.
_NOISIER = 1.5


class ReportedOutcomes:
    """Takes outcomes into a ledger."""

    def __init__(self, ledger: Ledger, allowance: Allowance) -> None:
        self._ledger, self._allowance = ledger, allowance

    async def add(self, report: EvaluationReport) -> tuple[bool, int | None]:
        """Append and fold an evaluation.

        Returns:
            Whether it is new, and the further pass of the same checkpoint that would help now.

        Raises:
            Problem: 422 if these are not the outcomes of this run's items, 409 if the evaluation contradicts
                one on disk or comes too late, 503 if the store is unavailable, 507 if it is full.
        """
        ledger = self._ledger
        async with ledger.for_request() as store:
            checkpoint, is_new = await self._checkpoint(report, store)
            note = await ledger.call(store.newest_note, NoteKind.ITEMS)
            items = items_of(report) if note is None else note.content
            evaluation = evaluation_of(report, checkpoint, items)
            known = await ledger.call(store.evaluation, CheckpointKey.of(checkpoint), report.pass_index)
            if known is not None:
                if known.items != evaluation.items or known.proxy_items != evaluation.proxy_items:
                    raise _contradicts(evaluation)
                return False, wanted_pass(ledger.judge, checkpoint)
            refuse_late(evaluation, ledger.verdict.last_evaluation, wanted_pass(ledger.judge, checkpoint))
            if (full := self._allowance.refuses_announcement(store.size)) is not None:
                raise full
            before = [checkpoint] if is_new else []
            notes = [Note(NoteKind.ITEMS, items)] if note is None else []
            await ledger.append(store, *before, *notes, evaluation)
            ledger.drop_from_queue(CheckpointKey.of(checkpoint))
            ledger.publish()
            return True, wanted_pass(ledger.judge, checkpoint)

    async def _checkpoint(self, report: EvaluationReport, store: EventLog) -> tuple[CheckpointReport, bool]:
        """The checkpoint that was announced; else, and True, one that counts as announced herewith."""
        known: CheckpointReport | None = await self._ledger.call(store.announced, report.step, report.attempt)
        if known is not None:
            return known, False
        attempt = self._ledger.verdict.attempt or 0 if report.attempt is None else report.attempt
        path = report.path or f"step {report.step}"
        return CheckpointReport(attempt=attempt, step=report.step, path=path), True


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


def wanted_pass(judge: Judge, checkpoint: CheckpointReport) -> int | None:
    """The further pass of this checkpoint that the judge could use now. Pure."""
    wanted = judge.wanted_pass()
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
        raise conflict(f"refused: pass_index; {message}", [FieldError(field="pass_index", message=message)])
    if last is not None and key < CheckpointKey.of(last):
        message = (
            f"{key.step} of attempt {key.attempt} comes before step {last.step} of attempt {last.attempt}, "
            "which was judged already: report evaluations in the order of their checkpoints"
        )
        raise conflict(f"refused: step; {message}", [FieldError(field="step", message=message)])


def _contradicts(evaluation: Evaluation) -> Problem:
    message = f"pass {evaluation.pass_index} of step {evaluation.step} was reported before with other values"
    return conflict(message, [FieldError(field="outcomes", message=message)])


def _refused(field: str, message: str) -> Problem:
    return invalid(f"refused: {field}; nothing was kept", [FieldError(field=field, message=message)])
