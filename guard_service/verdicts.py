"""The verdict as clients get it: with what is no event beside it, encoded once per change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from guard_core.codes import Code
from guard_core.judge import Judge, Latch
from guard_core.policy import RefusedPolicy
from guard_core.trainer_view import for_trainer
from guard_core.wire import Condition, Verdict
from guard_service.errors import Problem

MAX_SHOWN = 300  # characters of a refusal that a verdict repeats; it quotes what a trainer sent
#: What most steps change, and sentences. The rest is worth waking a client for.
_CHANGES_WITH_STEPS = {
    *("step", "steps", "steps_since_evaluation", "longest_round", "latched_at"),
    *("kl_ema", "in_loop_ema", "proxy_real_gap", "reason", "conditions"),
}


class Published:
    """The newest verdict, for whoever asks and whoever waits."""

    def __init__(self, verdict: Verdict) -> None:
        self._changed = asyncio.Event()
        self._closed = False
        self.revision = ""
        self.put(verdict)

    def put(self, verdict: Verdict) -> None:
        """Give out this verdict from now on, and wake who waits if its revision is another."""
        self.verdict, self._reader_json = verdict, b""
        told = for_trainer(verdict)
        #: What a trainer is told of it.
        self.trainer_json = told.model_dump_json().encode()
        if (revision := _revision(told)) != self.revision:
            self.revision = revision
            self._wake()

    @property
    def reader_json(self) -> bytes:
        """All of it."""
        if not self._reader_json:
            self._reader_json = self.verdict.model_dump_json().encode()
        return self._reader_json

    async def wait(self, since: str, seconds: float) -> None:
        """Return once the revision differs from `since`, or after so many seconds.

        How many wait is bounded by the connections that the guard takes.
        """
        if self.revision != since or self._closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _revision(told: Verdict) -> str:
    """Digest what a trainer is told: a digest of more would confirm what it guesses.

    It is the same after a restart of the guard.
    """
    conditions = [(one.code, one.action) for one in told.conditions]
    lasting = told.model_dump_json(exclude=_CHANGES_WITH_STEPS)
    return hashlib.sha256(f"{lasting}{conditions}".encode()).hexdigest()[:16]


class Kind(StrEnum):
    """What is reported; a refused checkpoint is not made good by an accepted step."""

    STEPS = "steps"
    CHECKPOINTS = "checkpoints"


@dataclass(slots=True)
class Refusals:
    """What was refused since the last report of its kind was accepted."""

    policy: RefusedPolicy
    _in_a_row: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _newest: dict[Kind, str] = field(default_factory=dict)

    def refused(self, kind: Kind, problem: Problem) -> None:
        """Count a report that was refused for what it says."""
        self._in_a_row[kind] += 1
        self._newest[kind] = _shown(problem)

    def accepted(self, kind: Kind) -> None:
        """A report of this kind is fine again."""
        self._in_a_row[kind] = 0

    def condition(self) -> Condition | None:
        """`reports_refused`, if it holds; with its action from as many refusals as the policy asks for."""
        kind = max(Kind, key=lambda kind: self._in_a_row[kind])
        count = self._in_a_row[kind]
        if not count:
            return None
        what = "1 report" if count == 1 else f"{count} reports in a row"
        return Condition.of(
            Code.REPORTS_REFUSED,
            f"{what} of {kind} refused, the newest: {self._newest[kind]}",
            action=self.policy.action if count >= self.policy.after else None,
        )


def _shown(problem: Problem) -> str:
    """The refusal in one printable line of bounded length, with the first field that was wrong."""
    first = next((e for e in problem.errors if e.message not in problem.detail), None)
    text = problem.detail if first is None else f"{problem.detail} ({first.field}: {first.message})"
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def verdict_now(judge: Judge, silent_for: float, refused: Condition | None) -> Verdict:
    """The verdict after that many seconds of silence, with what is said of refused reports."""
    return beside(judge.verdict(silent_for), refused)


def halted(judge: Judge, silent_for: float, refused: Condition | None) -> Latch | None:
    """The halt that silence or refused reports close now; None if there is none."""
    verdict = verdict_now(judge, silent_for, refused)
    if verdict.stop or all(c.action != "stop" for c in verdict.conditions):
        return None
    after = judge.copy()
    after.fold_silence(silent_for)
    if refused is not None and refused.action == "stop":
        place = (verdict.attempt or 0, verdict.step or 0)
        after.fold_latch(Latch(False, refused.code.value, refused.message, *place))
    return after.latch


def without_store(verdict: Verdict, reason: str) -> Verdict:
    """The last verdict, while the store is unavailable: `unknown`, unless a fire was known."""
    condition = Condition.of(Code.STORE_UNAVAILABLE, reason)
    others = tuple(c for c in verdict.conditions if c.code is not Code.STORE_UNAVAILABLE)
    if verdict.fire:
        return verdict.model_copy(update={"conditions": (*others, condition)})
    return verdict.model_copy(update=_headline(condition) | {"conditions": (condition, *others)})


def beside(verdict: Verdict, condition: Condition | None) -> Verdict:
    """The verdict with one more condition; it speaks for it unless it is advice, or a worse one does."""
    if condition is None or any(known.code is condition.code for known in verdict.conditions):
        return verdict
    conditions = sorted((condition, *verdict.conditions), key=lambda c: (c.advice, -c.level.severity))
    speaks = not condition.advice and condition.level.severity >= verdict.level.severity
    return verdict.model_copy(
        update=(_headline(condition) if speaks else {}) | {"conditions": tuple(conditions)}
    )


def _headline(condition: Condition) -> dict[str, Any]:
    return {"level": condition.level, "code": condition.code, "reason": condition.message}
