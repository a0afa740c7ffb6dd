"""How a run ended, in one value, and what follows from it. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from guard_cli.errors import ExitCode
from guard_core.wire import Verdict


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known when everything has stopped.

    Fields:
        verdict: the last one that the guard gave; None if it never did.
        trainer_code: the trainer's exit code as a shell tells it.
        trainer_ended_itself: false if it was stopped here.
        interrupted_by: signal that this program got, or None.
        guard_trouble: why the guard was lost, or "".
        waiting: checkpoints without an evaluation; None if that is not known.
        leftovers: processes of the trainer that not even SIGKILL ended.
    """

    verdict: Verdict | None
    trainer_code: int
    trainer_ended_itself: bool
    interrupted_by: int | None = None
    guard_trouble: str = ""
    waiting: int | None = 0
    leftovers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the command exits with, and the sentence that says why."""

    code: int
    sentence: str


def judge_ending(ending: Ending) -> Outcome:
    """The first that holds: a fire, an interrupt, a lost guard, a stop by policy, the trainer's own end.

    A fire comes first, because it stays true whatever happened besides. A run that ended well but that the
    guard could not judge is no success: missing data is not a pass.
    """
    outcome = _judge(ending)
    if ending.leftovers:
        pids = ", ".join(map(str, ending.leftovers))
        return Outcome(outcome.code, f"{outcome.sentence}; STILL RUNNING after SIGKILL: process {pids}")
    return outcome


def _judge(ending: Ending) -> Outcome:
    verdict, code = ending.verdict, ending.trainer_code
    if verdict is not None and verdict.fire:
        after = ", after the trainer had finished" if ending.trainer_ended_itself and code == 0 else ""
        return Outcome(ExitCode.FIRED, f"fired at step {verdict.latch_step}{after}: {verdict.reason}")
    if ending.interrupted_by is not None:
        name = signal.Signals(ending.interrupted_by).name
        return Outcome(128 + ending.interrupted_by, f"interrupted by {name}; the trainer was stopped")
    if ending.guard_trouble:
        return Outcome(ExitCode.NOT_GUARDED, f"the trainer was stopped: {ending.guard_trouble}")
    if verdict is not None and verdict.halt:
        return Outcome(
            ExitCode.STOPPED_BY_POLICY, f"stopped by policy at step {verdict.latch_step}: {_why(verdict)}"
        )
    if code != 0:
        return Outcome(code, f"the trainer failed by itself with exit code {code}")
    return _finished(verdict, ending.waiting)


def _finished(verdict: Verdict | None, waiting: int | None) -> Outcome:
    finished = "the trainer finished"
    if verdict is None or verdict.steps == 0:
        return Outcome(
            ExitCode.NOT_GUARDED,
            f"{finished}, but reported no step: add GuardCallback.from_env() to the trainer",
        )
    if waiting is None or waiting > 0:
        left = "an unknown number of" if waiting is None else waiting
        return Outcome(
            ExitCode.NOT_GUARDED,
            f"{finished}, but {left} checkpoints were left without an evaluation: raise --drain",
        )
    if verdict.last_evaluation is None:
        return Outcome(
            ExitCode.NOT_GUARDED,
            f"{finished}, but no checkpoint was evaluated: let the trainer save some, under --checkpoints",
        )
    return Outcome(ExitCode.FINISHED, f"{finished} without a fire; last verdict {_said(verdict)}")


def _why(verdict: Verdict) -> str:
    """The message of the condition that stopped the run."""
    return next((c.message for c in verdict.conditions if c.policy == "stop"), verdict.reason)


def _said(verdict: Verdict) -> str:
    return f"{verdict.level.value}: {verdict.reason}"
