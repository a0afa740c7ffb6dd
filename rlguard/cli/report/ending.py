"""How a run on a cluster ended, in the words of its report. Pure.

What the operator noted comes before the last verdict: a run that was halted for its guard's silence, that
failed or that was taken away may have a healthy one.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlguard.cli.errors import Result
from rlguard.cli.report.evidence import Evidence
from rlguard.core.codes import Level
from rlguard.core.wire import Verdict

#: By the type of the condition, the one that counts most first; which success it is says its reason.
_ENDS = {
    "Fired": (Level.FIRED, "fired", "Fired ({reason})"),
    "Halted": (Level.WARNING, "halted", "Halted ({reason})"),
    "Disrupted": (Level.UNKNOWN, "disrupted", "Disrupted ({reason})"),
    "Failed": (Level.UNKNOWN, "failed", "The trainer failed by itself"),
    "Succeeded": (Level.UNKNOWN, "not judged", "The trainer finished, but NOT JUDGED"),
}


@dataclass(frozen=True, slots=True)
class Heading:
    """For the top of the page: the colour, the word above the headline, the headline, and the reason."""

    state: Level
    word: str
    headline: str
    reason: str


def heading_of(evidence: Evidence) -> Heading:
    """The first that holds: a fire, a halt, another end, and that nobody kept how it ended."""
    verdict = evidence.verdict
    if verdict.fire:
        found = "" if verdict.code.finding is None else f": {verdict.code.finding.words}"
        return Heading(Level.FIRED, "fired", f"Fired at step {verdict.latch_step}{found}", verdict.reason)
    if verdict.halt:
        return Heading(Level.WARNING, "halted", f"Halted at step {verdict.latch_step}", verdict.reason)
    true = {one.type: one for one in evidence.conditions if one.status == "True"}
    noted = next((true[kind] for kind in _ENDS if kind in true), None)
    if noted is None:
        return Heading(Level.UNKNOWN, "unknown", _with(verdict, "How it ended is not kept"), verdict.reason)
    state, word, headline = _ENDS[noted.type]
    if noted.type == "Succeeded" and noted.reason == "WorkloadSucceeded":
        state, word = Level.HEALTHY, Result.FINISHED
        headline = "The trainer finished without a fire, and all of it was judged"
    elif noted.type == "Succeeded" and noted.reason == "FinishedWithWarning":
        state, word, headline = Level.WARNING, Result.WARNING, "The trainer finished with a warning"
    return Heading(state, word, _with(verdict, headline.format(reason=noted.reason)), noted.message)


def _with(verdict: Verdict, headline: str) -> str:
    return f"{headline}; last verdict {verdict.level.value}"
