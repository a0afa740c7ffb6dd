"""How a run ended, in one value, and what follows from it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from rlguard.cli.errors import ExitCode, Result
from rlguard.cli.summary import heldout_scores
from rlguard.core.codes import Code, Level
from rlguard.core.ending import not_judged, steps_after, warned
from rlguard.core.preflight import REFUSED
from rlguard.core.terminal import plain
from rlguard.core.wire import Verdict
from rlguard.core.wording import count

_REFUSAL = re.compile(rf"(?:{re.escape(REFUSED)}|\bGuardConfigError: )(.*)")


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known when everything has stopped.

    Fields:
        verdict: the last one that the guard gave; None if it never did.
        trainer_code: the trainer's exit code as a shell tells it.
        trainer_ended_itself: false if it was stopped here.
        interrupted_by: signal that this program got, or None.
        guard_lost: why nobody guards the run any more; "" if the guard does.
        responded: whether the guard responded when it was asked last, so that `verdict` is its last word.
        leftovers: processes of the trainer that not even SIGKILL ended.
        refusal: why the trainer refused to start, by its own output; "" if it did not.
        restarts: how often the guard was started again.
    """

    verdict: Verdict | None
    trainer_code: int
    trainer_ended_itself: bool
    interrupted_by: int | None = None
    guard_lost: str = ""
    responded: bool = True
    leftovers: tuple[int, ...] = ()
    refusal: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What the command exits with, the sentence that says why, and the result for programs."""

    code: int
    sentence: str
    result: Result = Result.FINISHED


def judge_ending(ending: Ending) -> RunOutcome:
    """The first that holds: a fire, an interrupt, a lost guard, a halt, the trainer's own end.

    A fire comes first, because it stays true whatever happened besides. A run that ended well but that the
    guard did not judge to its end, or did not find healthy, is no success: see `rlguard.core.ending`.
    """
    verdict, code, reached = ending.verdict, ending.trainer_code, _reached(ending.verdict)
    if verdict is not None and verdict.fire:
        after = ", after the trainer had finished" if ending.trainer_ended_itself and code == 0 else ""
        sentence = f"fired at step {verdict.latch_step}{after}: {verdict.reason.removesuffix('.')}{reached}"
        return RunOutcome(ExitCode.FIRED, sentence, Result.FIRED)
    if ending.interrupted_by is not None:
        name = signal.Signals(ending.interrupted_by).name
        sentence = f"interrupted by {name}; the trainer was stopped{reached}"
        return RunOutcome(128 + ending.interrupted_by, sentence, Result.INTERRUPTED)
    if ending.guard_lost:
        sentence = f"the trainer was stopped: {ending.guard_lost}{reached}"
        return RunOutcome(ExitCode.NOT_PASSED, sentence, Result.GUARD_LOST)
    if verdict is not None and verdict.halt:
        sentence = f"halted at step {verdict.latch_step}: {_why(verdict)}{reached}"
        return RunOutcome(ExitCode.HALTED, sentence, Result.HALTED)
    if code != 0:
        failed = f"the trainer failed by itself with exit code {code}{_refusals(verdict)}{reached}"
        refused = f"the trainer refused to start (exit code {code}): {ending.refusal}"
        return RunOutcome(code, refused if ending.refusal else failed, Result.FAILED)
    return _finished(verdict, ending.responded)


def notes(ending: Ending) -> Iterator[str]:
    """What else a person should know of how the run went, one fact a line."""
    verdict = ending.verdict
    if verdict is not None and (scores := heldout_scores(verdict)):
        yield f"held-out score {scores}"
    if ending.restarts:
        times = "once" if ending.restarts == 1 else f"{ending.restarts} times"
        yield f"the guard died and was started again {times}: see guard.log"
    if verdict is not None and verdict.refused:
        yield f"{verdict.refused} checkpoints were refused: see guard.log"
    for one in () if verdict is None else verdict.conditions:
        if one.code is Code.STORE_UNAVAILABLE:
            yield f"the guard could not store what it was told: {one.message}"
    if ending.leftovers:
        yield f"STILL RUNNING after SIGKILL: process {', '.join(map(str, ending.leftovers))}"


def refusal_in(output: str) -> str:
    """Why a trainer refused to start, from the end of its output; "" if it does not say so."""
    found = _REFUSAL.findall(output)
    return plain(found[-1], 1_000) if found else ""


def _reached(verdict: Verdict | None) -> str:
    """Where the trainer was, in one clause; "" before its first step."""
    if verdict is None or verdict.step is None:
        return ""
    unscored = f", with {count(verdict.waiting, 'unscored checkpoint')}" if verdict.waiting else ""
    return f"; the trainer had reached step {verdict.step}{unscored}"


def _refusals(verdict: Verdict | None) -> str:
    """What was refused last, in one clause, or "": a guarded loop ends with an error for that, too."""
    conditions = () if verdict is None else verdict.conditions
    said = next((c.message for c in conditions if c.code is Code.REPORTS_REFUSED), "")
    return said and f"; {said}; a loop that reports to the guard ends when that goes on"


def _finished(verdict: Verdict | None, responded: bool) -> RunOutcome:
    if verdict is None or not responded:
        missing = "the guard gave no response at the end, so nobody knows what it judged; see guard.log"
    else:
        verdict = _without_silence(verdict)
        if warning := warned(verdict):
            judged = f"all of {verdict.announced} checkpoints were judged"
            sentence = f"the trainer finished with a warning: {warning}; {judged}"
            return RunOutcome(ExitCode.NOT_PASSED, sentence, Result.WARNING)
        missing = not_judged(verdict, wait_longer="raise --drain")
    if missing or verdict is None:
        sentence = f"the trainer finished, but NOT JUDGED: {missing}"
        return RunOutcome(ExitCode.NOT_PASSED, sentence, Result.NOT_JUDGED)
    advice = "".join(f"; advice ({c.code}): {c.message}" for c in verdict.conditions if c.advice)
    parts = (
        f"the trainer finished without a fire, all of {verdict.announced} checkpoints were judged",
        steps_after(verdict),
        f"last verdict {verdict.level}: {verdict.reason}{advice}",
    )
    return RunOutcome(ExitCode.FINISHED, "; ".join(filter(None, parts)), Result.FINISHED)


def _without_silence(verdict: Verdict) -> Verdict:
    """A trainer that has ended may be silent while its last checkpoints are scored: what else there is."""
    if verdict.code is not Code.SILENT:
        return verdict
    others = tuple(c for c in verdict.conditions if c.code is not Code.SILENT)
    worst = next((c for c in others if not c.advice and c.level is not Level.HEALTHY), None)
    said = (
        (Level.HEALTHY, Code.OK, Code.OK.meaning)
        if worst is None
        else (worst.level, worst.code, worst.message)
    )
    return verdict.model_copy(
        update={"conditions": others} | dict(zip(("level", "code", "reason"), said, strict=True))
    )


def _why(verdict: Verdict) -> str:
    """The message of the condition that halted the run."""
    return next((c.message for c in verdict.conditions if c.action == "stop"), verdict.reason)
