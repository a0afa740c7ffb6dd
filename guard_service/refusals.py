"""Reports that the guard refused: how many in a row, and what the newest refusal said. Pure.

A guard that refuses everything watches nothing: checkpoints outside the root, an attempt number that was used
before, a trainer of another release. The trainer's log has each refusal; the verdict has the newest, for as
long as no report of its kind was accepted after it. This is not stored. Which checkpoints were
refused is, because nobody judges them: see `Engine.add_checkpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from guard_core.codes import Code
from guard_core.policy import RefusedPolicy
from guard_core.wire import Condition
from guard_service.errors import Problem

MAX_SHOWN = 300  # characters of a refusal that a verdict repeats; it quotes what a trainer sent


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
