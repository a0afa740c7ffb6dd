"""What of a run was not judged when it ended, in one sentence, for `rlguard run`, operator and replay. Pure.

What was not judged has not passed: a run whose trainer ended well is a success only if every checkpoint that
was announced has been evaluated, nothing waits, and the last verdict is healthy (advice aside). What a status
does not say is unknown, and so not a pass.

Steps after the last judged checkpoint are named. As many as one checkpoint has had before are ordinary: the
last save need not be the last step. More are a part of the run that nobody judged, and so is, however long a
checkpoint has been waited for before, more than a quarter of all steps that were reported.
"""

from __future__ import annotations

from typing import Protocol

from rlguard.core.codes import Code, Level

#: Share of a run's steps that may follow its last judged checkpoint.
MOST_AFTER = 0.25

_SAVE_SOME = "set save_steps, or call `guard.checkpoint`, with paths below the guard's checkpoint root"
_SAVE_THE_END = "let the trainer save its last step as well, or save more often (save_steps)"
#: What only says that there were too few evaluations; why they are missing is for the counts to say.
_WANT_MORE = frozenset({Code.WARMING_UP, Code.NO_BASELINE})


class Judged(Protocol):
    """What is read of the newest evaluation."""

    @property
    def step(self) -> int: ...  # noqa: D102


class RunCounts(Protocol):
    """What is read of the last verdict, or of the status that repeats it; None is not known."""

    @property
    def level(self) -> str | None: ...  # noqa: D102
    @property
    def code(self) -> str | None: ...  # noqa: D102
    @property
    def reason(self) -> str | None: ...  # noqa: D102
    @property
    def announced(self) -> int | None: ...  # noqa: D102
    @property
    def evaluated(self) -> int | None: ...  # noqa: D102
    @property
    def failed(self) -> int | None: ...  # noqa: D102
    @property
    def skipped(self) -> int | None: ...  # noqa: D102
    @property
    def refused(self) -> int | None: ...  # noqa: D102
    @property
    def waiting(self) -> int | None: ...  # noqa: D102
    @property
    def step(self) -> int | None: ...  # noqa: D102
    @property
    def steps(self) -> int | None: ...  # noqa: D102
    @property
    def steps_since_evaluation(self) -> int | None: ...  # noqa: D102
    @property
    def longest_round(self) -> int | None: ...  # noqa: D102
    @property
    def last_evaluation(self) -> Judged | None: ...  # noqa: D102


def not_judged(last: RunCounts, wait_longer: str) -> str:
    """What was not judged, why, and what to set; "" if all was judged and found healthy.

    Args:
        last: of a run that has neither fired nor halted.
        wait_longer: the setting that gives the last evaluations more time, as in "raise --drain".
    """
    if last.level is None:
        return "the guard gave no verdict"
    missing = left_out(last)
    unwell = "" if last.level == Level.HEALTHY else f"{last.level} ({last.code}): {last.reason}"
    if not missing and not unwell:
        return ""
    to_do = wait_longer if last.waiting else _remedy(last)
    return "; ".join(part for part in (missing, unwell, to_do) if part)


def warned(last: RunCounts) -> str:
    """What a run that was judged to its end warns of, and what to do; "" if it does not warn."""
    if last.level != Level.WARNING or left_out(last):
        return ""
    return "; ".join(part for part in (last.reason, _remedy(last)) if part)


def steps_after(last: RunCounts) -> str:
    """Which steps came after the last judged checkpoint, in one clause, or ""."""
    count, judged, newest = last.steps_since_evaluation, last.last_evaluation, last.step
    if not count or judged is None or newest is None:
        return ""
    first = judged.step + 1
    if first < newest and count <= newest - judged.step:
        which = f"steps {first} to {newest}"
    else:  # of a later attempt that began again before that checkpoint, or not all of them were reported
        which = f"step {newest}" if (count, newest) == (1, first) else f"{count} steps"
    return f"{which} came after the last judged checkpoint"


def _too_many_after(last: RunCounts) -> bool:
    """Whether more steps came after the last judged checkpoint than one has had before, or too large a share.

    One long round at the beginning would else excuse as many steps at the end.
    """
    after, longest = last.steps_since_evaluation, last.longest_round
    if after is None or longest is None:
        return False
    known = [count for count in (last.steps, last.step) if count is not None]
    return after > longest or (bool(known) and after > MOST_AFTER * max(known))


def left_out(last: RunCounts) -> str:
    """Which checkpoints, passes and steps were not judged, or "". It asks nothing of the verdict itself."""
    if last.announced is None or last.evaluated is None or last.waiting is None:
        return "it is not known which checkpoints were evaluated: the guard does not say"
    if last.announced == 0 and not last.refused:
        return "no checkpoint was announced"
    parts = []
    if left := last.announced - last.evaluated:
        kinds = ((last.failed, "failed"), (last.skipped, "skipped"))
        why = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
        parts.append(f"{left} of {last.announced} checkpoints were not evaluated" + (why and f" ({why})"))
    if last.refused:
        parts.append(f"{last.refused} further checkpoints were refused")
    if last.waiting:
        parts.append(f"{last.waiting} evaluations were left waiting")
    if _too_many_after(last) and (after := steps_after(last)):
        parts.append(after)
    return ", ".join(parts)


def _remedy(last: RunCounts) -> str:
    """What to set. The verdict's condition knows best, unless it only wants evaluations that were lost."""
    lost = (
        (last.refused, Code.REPORTS_REFUSED.remedy),
        (last.announced == 0, _SAVE_SOME),
        (last.failed, Code.EVALUATION_FAILING.remedy),
        (last.skipped, Code.STALE.remedy),
        (_too_many_after(last), _SAVE_THE_END),
    )
    found = next((remedy for holds, remedy in lost if holds), "")
    if last.level == Level.HEALTHY or (found and last.code in _WANT_MORE):
        return found
    return Code(last.code).remedy if last.code in list(Code) else ""
