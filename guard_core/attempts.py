"""Which attempts of a trainer started from scratch, and which of those are judged as such. Pure.

A pod that finds no checkpoint when it is made again trains the starting policy anew. What the attempt before
had reached was never its own, so a fall from there is none. The baseline is its own.

Who holds the ingest token can say that it starts from scratch, and be rid of the evidence since the baseline.
So few starts are believed, and none while an alarm waits to be decided; the baseline stays in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

#: Attempts of one run that are judged as starts, beside the first. Each has a false-stop rate of its own.
MOST_STARTS = 3


@dataclass(slots=True)
class Attempts:
    """The attempts of one run, by their first reported steps.

    `began`: first reported step of the first attempt; `attempt`, `step`: the newest attempt and its first;
    None before any step. `waits`: whether the newest started from scratch and no checkpoint of it was judged
    yet. `taken`: how many were judged as starts. `said`: a sentence about the newest that started from
    scratch and was judged; "" if none was.
    """

    began: int | None = None
    attempt: int | None = None
    step: int | None = None
    waits: bool = False
    taken: int = 0
    said: str = ""

    def fold_step(self, attempt: int, step: int) -> None:
        """Fold a reported step."""
        if self.began is None:
            self.began, self.attempt, self.step = step, attempt, step
        elif self.attempt is None or attempt > self.attempt:
            self.attempt, self.step, self.waits = attempt, step, step <= self.began

    def judge(self, attempt: int, *, made: int, alarmed: bool) -> bool:
        """Whether what was judged since the baseline is to be forgotten before this attempt is judged.

        Args:
            attempt: whose checkpoint is about to be judged.
            made: evaluations since the baseline, of all attempts.
            alarmed: whether an alarm waits to be decided.
        """
        if not self.waits or attempt != self.attempt:
            return False
        self.waits = False
        if not made:
            return False
        start = f"attempt {attempt} began at step {self.step}, where the first one did"
        if alarmed or self.taken >= MOST_STARTS:
            why = "an alarm waited to be decided" if alarmed else f"{MOST_STARTS} had done so before"
            self.said = (
                f"{start}, and is compared all the same with what the attempts before had reached: {why}. "
                "Give a run that starts from scratch a guard of its own"
            )
            return False
        self.taken += 1
        self.said = (
            f"{start}: it is compared with the starting policy, and not with what the attempts before had "
            f"reached. That is done for {MOST_STARTS} attempts at most, and this is number {self.taken}"
        )
        return True

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        return cls(**state)
