"""When a trainer has started from scratch, and a new series of evaluations begins. Pure.

A pod that finds no checkpoint when it is made again trains the starting policy anew. What the attempt before
had reached was never its own, so a fall from there is none. The baseline is its own: it stays.

Who holds the ingest token can say that it starts from scratch, and be rid of the evidence since the baseline.
So few new series begin in a run, and none while an alarm waits to be decided.
"""

from __future__ import annotations

from dataclasses import dataclass

#: New series of one run. Each has a false-stop rate of its own.
MOST_STARTS = 3


@dataclass(slots=True)
class EvaluationSeries:
    """The evaluations that are judged together: those since one start.

    `start`: that attempt; None before the first evaluation. `taken`: series that began, beside the first.
    `refused`: whether a start came after the last that may begin one. `said`: a sentence about the newest
    start; "" if there was none beside the first.
    """

    start: int | None = None
    taken: int = 0
    refused: bool = False
    said: str = ""

    def begins(self, start: int | None, attempt: int, *, made: int, alarmed: bool) -> bool:
        """Whether a new series begins with this evaluated checkpoint.

        Args:
            start: the newest, as of `AttemptStarts`.
            attempt: whose checkpoint it is.
            made: evaluations since the baseline.
            alarmed: whether an alarm waits to be decided. The start waits, too.
        """
        if self.start is None:  # the first: its attempt may be over by now
            self.start = attempt if start is None else min(start, attempt)
            return False
        if start is None or attempt < start or start <= self.start:
            return False
        started = f"attempt {start} started from scratch"
        if alarmed:
            self.said = (
                f"{started} while an alarm waits to be decided: until then it is compared with what the "
                "attempts before had reached"
            )
            return False
        self.start = start
        if made < 1:
            return False
        if self.taken >= MOST_STARTS:
            self.refused = True
            self.said = (
                f"{started}, as {MOST_STARTS} had done before. Give a run that starts from scratch a guard "
                "of its own"
            )
            return False
        self.taken += 1
        self.said = (
            f"{started}: it is compared with the baseline, and not with what the attempts before "
            f"had reached. That is done {MOST_STARTS} times at most; this is number {self.taken}"
        )
        return True
