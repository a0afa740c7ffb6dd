"""Assign each step of a log to a start of the trainer, an attempt. Pure.

One rule for a log that is followed and for one that is replayed: another attempt begins with the first step
that contradicts the current one, or that goes back before its first. A step that comes again
with the same values was reported already. Nothing looks ahead, so a log may be asked while it is written.
"""

from __future__ import annotations

from rlguard.client.samples import StepSample

#: What a step measured, each None where it is not known.
VALUES = ("reward", "kl", "entropy", "reward_std")


class Attempts:
    """Places each step, in the order of the log.

    Args:
        known: what is known of this run, as by a guard, by attempt and step. A log that is read again from
            its beginning brings nothing twice.
        lost: the newest attempt of a guard that has no step of it any more; None where it has all.
    """

    def __init__(self, known: dict[int, dict[int, StepSample]], lost: int | None = None) -> None:
        self._known = known
        self._first = 0 if known or lost is None else lost + 1
        #: The attempt that the log is in; None before its first step.
        self.current: int | None = None
        self._last = -1  # the step that came last
        self._may_repeat = False  # one with its number repeats it: it came last in this very file
        self._begins = True

    def place(self, step: StepSample, named: int | None = None) -> int | None:
        """The attempt of a step; None where the step is known already.

        Args:
            step: the step.
            named: the attempt that the log itself names.
        """
        attempt = self._attempt_of(step) if named is None else named
        self.current, self._last, self._begins, self._may_repeat = attempt, step.step, False, True
        there = self._known.setdefault(attempt, {}).setdefault(step.step, step)
        contradicts = named is not None and not _agree(there, step)  # the guard refuses it
        return attempt if there is step or contradicts else None

    def read_again(self) -> None:
        """The log is read from its beginning: what agrees with what is known is the same."""
        self.another_file()
        self._begins, self._last = True, -1

    def another_file(self) -> None:
        """The log goes on in another file: a step with the number of the last one may be of another start."""
        self._may_repeat = False

    def has_come_to(self, step: int) -> bool:
        """Whether the log, where it stands, has this step or a later one."""
        return self._last >= step

    def attempt_of_checkpoint(self, step: int) -> int:
        """The newest attempt that has come to this step, or is on its way there."""
        spans = {attempt: (min(steps), max(steps)) for attempt, steps in self._known.items() if steps}
        reached = [a for a, (low, high) in spans.items() if low <= step <= high]
        reached += [a for a, (low, _) in spans.items() if a == self.current and low <= step]
        if not reached and spans and step < min(low for low, _ in spans.values()):
            # One that went on from a later checkpoint has not saved it.
            reached = [a for a, (low, _) in spans.items() if low <= spans[min(spans)][0]]
        return max(reached, default=self._first if self.current is None else self.current)

    def _attempt_of(self, step: StepSample) -> int:
        if self._begins or self.current is None:
            newest = max(self._known, default=self._first)
            goes_on = step.step > max(self._known.get(newest, ()), default=-1)
            return self._known_attempt(step, -1, newest if goes_on else newest + 1)
        there = self._known[self.current].get(step.step)
        if there is None:  # lines of one file may have any order
            before = step.step < min(self._known[self.current]) and self.current > min(self._known)
            same = not before and (self._may_repeat or step.step >= self._last)
        else:
            same = (self._may_repeat and step.step == self._last) or _agree(there, step)
        return self.current if same else self._known_attempt(step, self.current, max(self._known) + 1)

    def _known_attempt(self, step: StepSample, after: int, otherwise: int) -> int:
        """The first attempt after another one that has this step with these values."""
        fits = (a for a in sorted(self._known) if a > after and step.step in self._known[a])
        return next((a for a in fits if _agree(self._known[a][step.step], step)), otherwise)


def _agree(one: StepSample, other: StepSample) -> bool:
    """Whether two reports of a step do not contradict each other; a value that one lacks does not."""
    pairs = ((getattr(one, name), getattr(other, name)) for name in VALUES)
    return all(a is None or b is None or a == b for a, b in pairs)
