"""Of which start of the trainer a step is: one rule, for a log that is followed and for one that is replayed.

It never looks ahead, so it can be asked while the log is written, and says the same of the whole log later.
Pure.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

VALUES = ("reward", "kl", "entropy", "reward_std")


class PlacedStep(Protocol):
    """What a step measured; None: not known."""

    @property
    def step(self) -> int:
        """Its number."""

    @property
    def reward(self) -> float | None:
        """Mean reward."""

    @property
    def kl(self) -> float | None:
        """Nats/token."""

    @property
    def entropy(self) -> float | None:
        """Nats/token."""

    @property
    def reward_std(self) -> float | None:
        """In units of reward."""


S = TypeVar("S", bound=PlacedStep)


class Starts(Generic[S]):
    """Says of each step, in the order of the log, of which attempt it is, and whether it is new.

    A trainer that starts again writes steps a second time, with other values: a new attempt. It begins where
    the steps went back, also if the first of them have the values that they had before: those are held until
    it is seen which they are. Steps of which all come again with the same values were reported, and so was
    one that comes twice in a row, of which the first value counts.

    What is known already, as by a guard, is the memory: a log that is read again from its beginning brings
    nothing twice, whatever was lost of it meanwhile.

    Args:
        known: what is known of this run, by attempt and step.
        lost: the newest attempt of a guard that has no step of it any more; None where it has all.
    """

    def __init__(self, known: dict[int, dict[int, S]], lost: int | None = None) -> None:
        self._known = known
        self._first = 0 if known or lost is None else lost + 1
        #: The attempt that the log is in; None before its first step.
        self.current: int | None = None
        self._last = -1  # newest step of `current` in this reading of the log
        self._lowest = 0  # step of `current`
        self._at: int | None = None  # the step that came last
        self._held: list[S] = []
        self._begins = True  # the next step is the first of a reading
        self._rotated = self._another_file = False

    def place(self, step: S, named: int | None = None) -> list[tuple[int, S]]:
        """What is new by now, with its attempt: this step, and those that were held until it came.

        Args:
            step: the step.
            named: the attempt that the log itself names.
        """
        at, self._at = self._at, step.step
        if named is not None:
            return self._named(named, step)
        if self._begins or self.current is None:
            return self._begin(step)
        if self._held and step.step <= self._held[-1].step:  # it went back once more: those were repeats
            self._held = []
        there = self._known[self.current].get(step.step)
        if there is None:
            return self._unknown(step, self.current)
        if _agree(there, step):
            self._repeated(step)
            return []
        return [] if step.step == at else self._start(step, self.current)

    def read_again(self, *, rotated: bool = False) -> None:
        """The log is read from its beginning: what agrees with what is known is the same.

        Args:
            rotated: it begins otherwise than before, so it may also go on where it was.
        """
        self.another_file()
        self._begins, self._rotated, self._last = True, rotated, -1

    def another_file(self) -> None:
        """The log goes on in another file, so what comes may be another start of the trainer."""
        self._held, self._at, self._another_file = [], None, True

    def has_come_to(self, step: int) -> bool:
        """Whether the log, where it stands, has this step or a later one."""
        return self._last >= step

    def attempt_of_checkpoint(self, step: int) -> int:
        """The newest attempt that has come to this step; the current one if it is on its way there."""
        reached = [a for a, steps in self._known.items() if steps and min(steps) <= step <= max(steps)]
        if not reached and (before := self._that_began_before(step)) is not None:
            return before
        newest = max(reached, default=self._first if self.current is None else self.current)
        on_its_way = self.current is not None and min(self._known.get(self.current, {step + 1: None})) <= step
        return max(newest, self.current or 0) if on_its_way else newest

    def _that_began_before(self, step: int) -> int | None:
        """The newest attempt that began at the start, of a step before all that are known; else None.

        One that went on from a later checkpoint has not saved it.
        """
        begun = {attempt: min(steps) for attempt, steps in self._known.items() if steps}
        if not begun or step >= min(begun.values()):
            return None
        return max(attempt for attempt, first in begun.items() if first <= begun[min(begun)])

    def _named(self, attempt: int, step: S) -> list[tuple[int, S]]:
        there = self._known.get(attempt, {}).get(step.step)
        self._last = step.step if attempt != self.current else max(self._last, step.step)
        self.current, self._begins = attempt, False
        if there is not None and _agree(there, step):
            return []
        self._known.setdefault(attempt, {}).setdefault(step.step, step)
        return [(attempt, step)]

    def _begin(self, step: S) -> list[tuple[int, S]]:
        """The first step of a reading."""
        self._begins = False
        newest = max(self._known, default=None)
        if newest is None:
            return self._go_to(self._first, [step])
        goes_on = step.step > max(self._known[newest])
        if goes_on and self._rotated and self.current == newest:
            return self._go_to(newest, [step])
        same = next((a for a in sorted(self._known) if self._fits(a, [step])), None)
        if same is not None:
            return self._go_to(same, [step])
        return self._go_to(newest if goes_on else newest + 1, [step])

    def _unknown(self, step: S, current: int) -> list[tuple[int, S]]:
        """A step that the current attempt does not have."""
        before_it_began = step.step < self._lowest and current > min(self._known)
        if before_it_began or (self._another_file and step.step < self._last):
            return self._start(step, current)
        if current < max(self._known) and step.step > max(self._known[current]):
            later = next((a for a in sorted(self._known) if a > current and self._fits(a, [step])), None)
            if later is not None:
                return self._go_to(later, [step])
        self._held, self._another_file = [], False
        self._last = max(self._last, step.step)
        return self._add(current, [step])

    def _repeated(self, step: S) -> None:
        """A step that the current attempt has, with these values."""
        if step.step > self._last:  # nothing went back: it was known before it was read
            self._held, self._another_file, self._last = [], False, step.step
            return
        self._held.append(step)

    def _start(self, step: S, current: int) -> list[tuple[int, S]]:
        """A step that contradicts the current attempt: of a later one, which may be known already.

        Files may be read in another order than they were written in, so one that begins may be of an earlier
        attempt, if that begins with the same step.
        """
        steps = [*self._held, step]
        others = (
            a for a in sorted(self._known) if a > current or (a < current and self._begins_with(a, steps[0]))
        )
        attempt = next((a for a in others if self._fits(a, steps)), None)
        if attempt is None:
            return self._go_to(max(self._known) + 1, steps)
        return self._go_to(attempt, [step])  # those that were held are not of it, or it would have them

    def _begins_with(self, attempt: int, step: S) -> bool:
        return self._another_file and min(self._known[attempt]) == step.step

    def _fits(self, attempt: int, steps: list[S]) -> bool:
        """Whether an attempt has one of these steps, and none with other values."""
        known = self._known[attempt]
        pairs = [(known[step.step], step) for step in steps if step.step in known]
        return bool(pairs) and all(_agree(there, step) for there, step in pairs)

    def _go_to(self, attempt: int, steps: list[S]) -> list[tuple[int, S]]:
        self.current, self._last = attempt, steps[-1].step
        self._held, self._another_file = [], False
        placed = self._add(attempt, steps)
        self._lowest = min(self._known[attempt])
        return placed

    def _add(self, attempt: int, steps: list[S]) -> list[tuple[int, S]]:
        known = self._known.setdefault(attempt, {})
        new = [step for step in steps if step.step not in known]
        known.update((step.step, step) for step in new)
        return [(attempt, step) for step in new]


def _agree(one: PlacedStep, other: PlacedStep) -> bool:
    """Whether two reports of a step do not contradict each other; a value that one lacks does not."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in VALUES)
    return all(a is None or b is None or a == b for a, b in pairs)
