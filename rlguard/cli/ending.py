"""How a run on a cluster ended, by what the operator noted: for its report, and for `rlguard status`. Pure.

What the operator noted comes before the last verdict: a run that was halted for its guard's silence, that
failed or that was taken away may have a healthy one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from rlguard.cli.errors import Result
from rlguard.core.codes import Level
from rlguard.core.wire import Verdict


class NotedCondition(BaseModel):
    """What the operator said of the job."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """For the top of the page: the colour, the word above the headline, the headline, and the reason."""

    state: Level
    word: str
    headline: str
    reason: str


#: By the type of the condition, the one that counts most first; which success it is says its reason.
_ENDS = {
    "Fired": (Level.FIRED, "fired", "Fired ({reason})"),
    "Halted": (Level.WARNING, "halted", "Halted ({reason})"),
    "Disrupted": (Level.UNKNOWN, "disrupted", "Disrupted ({reason})"),
    "Failed": (Level.UNKNOWN, "failed", "The trainer failed by itself"),
    "Succeeded": (Level.UNKNOWN, "not judged", "The trainer finished, but NOT JUDGED"),
}
_SUCCESSES = {
    "WorkloadSucceeded": (
        *(Level.HEALTHY, Result.FINISHED),
        "The trainer finished without a fire, and all of it was judged",
    ),
    "FinishedWithWarning": (Level.WARNING, Result.WARNING, "The trainer finished with a warning"),
}


def noted_end(conditions: Sequence[NotedCondition]) -> Heading | None:
    """The end that the operator noted; None of a run that goes on, or of which nobody kept it."""
    true = {one.type: one for one in conditions if one.status == "True"}
    noted = next((true[kind] for kind in _ENDS if kind in true), None)
    if noted is None:
        return None
    success = _SUCCESSES.get(noted.reason) if noted.type == "Succeeded" else None
    state, word, headline = success or _ENDS[noted.type]
    return Heading(state, word, headline.format(reason=noted.reason), noted.message or noted.reason)


def heading_of(verdict: Verdict, conditions: Sequence[NotedCondition]) -> Heading:
    """The first that holds: a fire, a halt, another end, and that nobody kept how it ended."""
    if verdict.fire:
        finding = "" if verdict.code.finding is None else f": {verdict.code.finding.words}"
        return Heading(Level.FIRED, "fired", f"Fired at step {verdict.latch_step}{finding}", verdict.reason)
    if verdict.halt:
        return Heading(Level.WARNING, "halted", f"Halted at step {verdict.latch_step}", verdict.reason)
    found = noted_end(conditions) or Heading(
        Level.UNKNOWN, "unknown", "How it ended is not kept", verdict.reason
    )
    return replace(found, headline=f"{found.headline}; last verdict {verdict.level.value}")
