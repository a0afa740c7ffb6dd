"""Which attempts of a trainer started from scratch, and which of those are judged as starts. Pure.

A pod that finds no checkpoint when it is made again trains the starting policy anew. What the attempt before
had reached was never its own, so a fall from there is none. The baseline is its own.

Who holds the ingest token can say that it starts from scratch, and be rid of the evidence since the baseline.
So few starts are believed, and none while an alarm waits to be decided; the baseline stays in any case, and
so do the first rewards. And what the attempts before had reached is not judged: a run that stays below it has
not passed. Reached is the level of the best evaluations in a row: a trainer that has just learnt what it is
paid for would else be compared with what it knew when it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Protocol, Self

#: Starts of one run that are judged as starts, beside the first. Each has a false-stop rate of its own.
MOST_STARTS = 3

#: Evaluations in a row whose mean score is a level that was reached, and where a start stands.
LEVEL = 4

#: A start is below only if the mean of so many is, too: a dip of the newest ones is none.
LONGER = 8

#: Standard errors of two such means by which they may differ beside a decline that is accepted. The level is
#: the best of many: of runs that stay where they are (128 items, one half of them solved, 20 evaluations of a
#: start) fewer than 1 in 100 end below.
ERRORS = 2.5

#: Attempts, and starts, that are remembered: the newest.
MOST_KEPT = 16


class Reports(Protocol):
    """What is known of the steps that were reported."""

    @property
    def stride(self) -> int:
        """The usual distance of two, in step numbers."""


@dataclass(slots=True)
class Lineage:
    """From which start the weights of each attempt come: from its own, or from one that it goes on from.

    That is said by the first that is heard of an attempt, a reported step or an evaluated checkpoint.

    `began`: first step that an attempt which started reported; `base`: step of the first evaluated
    checkpoint; None before there is one. `reach`: of each start, by its attempt, the highest step that was
    heard of it; `of`: of each attempt its start.
    """

    began: int | None = None
    base: int | None = None
    reach: dict[int, int] = field(default_factory=dict)
    of: dict[int, int] = field(default_factory=dict)

    def fold_step(self, attempt: int, step: int, reports: Reports) -> None:
        """Fold a reported step.

        An attempt may begin one later than the first did: a step without a finite reward is not reported.
        """
        if attempt in self.of:  # as of nearly all steps of a run
            self._reach(self.of[attempt], step)
        else:
            limit = self.base if self.began is None else self.began
            self._hear(attempt, step, reports.stride, scratch=limit is not None and step <= limit + 1)
        if self.began is None and self.of.get(attempt) == attempt:
            self.began = step

    def fold_checkpoint(self, attempt: int, step: int) -> None:
        """Fold a checkpoint that was evaluated."""
        if self.base is None:
            self.base = step
        if attempt in self.of:
            self._reach(self.of[attempt], step)
        else:
            self._hear(attempt, step, 0, scratch=step <= self.base)

    def _hear(self, attempt: int, step: int, stride: int, *, scratch: bool) -> None:
        """Say of which start an attempt is that nothing was heard of before."""
        if self.of and attempt < max(self.of):
            return  # a late word of one that is over
        self.of[attempt] = attempt if scratch or not self.reach else self._gone_on_from(step - stride)
        self._reach(self.of[attempt], step)
        for kept in (self.of, self.reach):
            if len(kept) > MOST_KEPT:
                del kept[min(kept)]

    def _reach(self, start: int, step: int) -> None:
        if step > self.reach.get(start, -1):
            self.reach[start] = step

    def _gone_on_from(self, step: int) -> int:
        """The newest start that came as far; where none did, the one that came farthest."""
        reached = [start for start, reach in self.reach.items() if reach >= step]
        return max(reached) if reached else max(self.reach, key=lambda start: (self.reach[start], start))

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        pairs = {"reach": [list(one) for one in self.reach.items()], "of": [list(o) for o in self.of.items()]}
        return {"began": self.began, "base": self.base} | pairs

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        return cls(**{**state, "reach": dict(state["reach"]), "of": dict(state["of"])})


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean score, and of how many evaluations."""

    score: float
    of: int

    @classmethod
    def newest(cls, scores: Sequence[float], most: int) -> Self:
        """Of the newest of these scores, `most` at most; there is one."""
        return cls(fmean(scores[-most:]), len(scores[-most:]))

    def below(self, level: Self, items: int, decline: float) -> bool:
        """Whether this is less than that level, by more than `decline` and noise."""
        variance = level.score * (1 - level.score) / items * (1 / level.of + 1 / self.of)
        return self.score < level.score - decline - ERRORS * math.sqrt(max(0.0, variance))


@dataclass(slots=True)
class Restarts:
    """Which starts were judged as starts.

    `start`: attempt of the newest start of which a checkpoint was judged; None before any. `taken`: how many
    were judged as starts, beside the first. `said`: a sentence about the newest; "" if there was none.
    `scores`: of the newest evaluations since that start, the newest last. `best`: the highest level that it
    had reached before the newest of them; None before there was one. `left`: the level that each start before
    it had reached.
    """

    start: int | None = None
    taken: int = 0
    said: str = ""
    scores: list[float] = field(default_factory=list)
    best: Mean | None = None
    left: list[Mean] = field(default_factory=list)

    def fold(self, score: float) -> None:
        """Fold the score of a checkpoint, after it was asked whether it `takes` a start.

        By then it is known whether the one before is an evaluation: only now can it be of the best ones.
        """
        self.best = self._highest()
        self.scores = [*self.scores, score][-LONGER:]

    def take_back(self, fresh: float | None = None) -> None:
        """The newest evaluation was none; `fresh`: what another one of the same checkpoint says."""
        self.scores = [*self.scores[:-1], *([] if fresh is None else [fresh])]

    def _highest(self) -> Mean | None:
        """The highest level that the newest start has reached; None before there is one."""
        if len(self.scores) < LEVEL:
            return self.best
        newest = Mean.newest(self.scores, LEVEL)
        return newest if self.best is None or newest.score > self.best.score else self.best

    def behind(self, items: int, decline: float) -> str:
        """That the newest start stays below what another had reached, in one sentence; "" if it does not.

        Args:
            items: held-out items of an evaluation.
            decline: of the score that is accepted, in [0, 1].
        """
        if not self.scores or not items:
            return ""
        level, longer = (Mean.newest(self.scores, most) for most in (LEVEL, LONGER))
        above = [m for m in self.left if level.below(m, items, decline) and longer.below(m, items, decline)]
        if not above:
            return ""
        highest = max(above, key=lambda mean: mean.score)
        return (
            f"{self.said}. Their held-out score had reached {highest.score:.3f} (mean of {highest.of} "
            f"evaluations in a row), and since that start it is {level.score:.3f} (of the newest "
            f"{level.of}): whether that is a fall was not judged"
        )

    def takes(
        self, lineage: Lineage, attempt: int, *, made: int, alarmed: bool, jumped: bool = False
    ) -> bool:
        """Whether what was judged since the baseline is to be forgotten before a checkpoint is judged.

        Args:
            lineage: of all that was heard, the checkpoint included.
            attempt: whose checkpoint it is.
            made: evaluations since the baseline, of all attempts.
            alarmed: whether an alarm waits to be decided. The start waits, too.
            jumped: whether nobody has said yet that the newest evaluation, far above those before, is one.
        """
        start, former = lineage.of.get(attempt), self.start
        if start is None or (former is not None and start <= former):
            return False
        started = f"attempt {start} started from scratch"
        if alarmed and former is not None:
            self.said = (
                f"{started} while an alarm waits to be decided: until then it is compared with what the "
                "attempts before had reached"
            )
            return False
        self.start = start
        if former is None or made < 1:
            return False
        if self.taken >= MOST_STARTS:
            self.said = (
                f"{started}, as {MOST_STARTS} had done before, so it is compared with what the attempts "
                "before had reached. Give a run that starts from scratch a guard of its own"
            )
            return False
        self.taken += 1
        if jumped:
            self.take_back()
        if self.scores:
            self.left.append(self._highest() or Mean.newest(self.scores, LEVEL))
        self.scores, self.best = [], None
        self.said = (
            f"{started}: it is compared with the baseline (step {lineage.base}), and not with what the "
            f"attempts before had reached. That is done {MOST_STARTS} times at most; this is number "
            f"{self.taken}"
        )
        return True

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        best, left = state["best"], [Mean(**mean) for mean in state["left"]]
        return cls(**{**state, "best": None if best is None else Mean(**best), "left": left})
