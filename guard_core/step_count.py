"""Count the steps after the last evaluated checkpoint, also those that were not reported. Pure.

A log may lack steps, and a trainer may end before it has reported its last ones. That they were made shows in
the numbers of the steps around them, and in the last step that the trainer names at its end. So steps are
counted by their numbers, in units of the usual distance of two reports: a loop that reports every tenth step
has left none out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from guard_core.checkpoint_key import CheckpointKey

#: Evaluated checkpoints in a row without a reported step, from which on that is said: if they span more than
#: twice the usual distance of two reports, too, for a log may have a step less often than the trainer saves.
UNREWARDED = 3

#: Distances of two reports that are told apart: a trainer may number its steps without any order.
MAX_DISTANCES = 64


@dataclass(slots=True)
class StepCount:
    """The steps of one run that no evaluated checkpoint has judged yet.

    `attempt`, `step`: the newest reported step; None before the first. `reported`: steps that were reported
    after the last evaluated checkpoint, of all attempts. `most_reported`, `longest_span`: most reports that
    one had, and most step numbers. `apart`: how often two successive reports of an attempt were so many steps
    apart.
    """

    attempt: int | None = None
    step: int | None = None
    reported: int = 0
    most_reported: int = 0
    longest_span: int = 0
    #: Evaluated checkpoints in a row without a reported step, and the step of the one before them.
    unrewarded: int = 0
    rewarded: int = 0
    apart: dict[int, int] = field(default_factory=dict)
    #: Of the newest attempt: the step after which nothing is judged, and how many reports came after it.
    since: int = 0
    here: int = 0
    #: The last evaluated checkpoint.
    judged: CheckpointKey | None = None
    #: Attempt, last step, and the step after which it began, as the trainer says it.
    told: tuple[int, int, int | None] | None = None

    def fold_step(self, attempt: int, step: int) -> None:
        """Count one reported step."""
        self.reported += 1
        if self.attempt is None or attempt > self.attempt:
            self._begin(attempt, step)
        elif attempt == self.attempt and self.step is not None and step > self.step:
            apart = step - self.step
            if apart in self.apart or len(self.apart) < MAX_DISTANCES:
                self.apart[apart] = self.apart.get(apart, 0) + 1
            self.step = step
        if attempt == self.attempt and step > self.since:
            self.here += 1

    def __copy__(self) -> Self:
        return replace(self, apart=dict(self.apart))

    def _begin(self, attempt: int, step: int) -> None:
        self.attempt, self.step, self.since, self.here = attempt, step, step - 1, 0
        if self.judged is not None and self.judged.attempt == attempt:
            self.since = min(self.since, self.judged.step)

    def fold_evaluation(self, attempt: int, step: int, in_round: int, left: int) -> None:
        """Count an evaluated checkpoint, with as many reported steps in its round, and so many after it."""
        if attempt == self.attempt:
            self.longest_span = max(self.longest_span, step - self.since)
            if self.judged is None or self.judged.attempt != attempt:
                # The attempt's first: what lies between it and the first report was made after it.
                self.since = min(self.since, step)
            self.since, self.here = max(self.since, step), left
        elif self.attempt is not None and self.step is not None and attempt > self.attempt:
            self.since, self.here = self.step, 0
        self.reported, key = left, CheckpointKey(attempt, step)
        newest = max(self.judged or key, key)
        if in_round or self.judged is None:
            self.unrewarded, self.rewarded = 0, newest.step
        elif key > self.judged:  # of an attempt that began anew, its first is where one can count from
            self.unrewarded, self.rewarded = self.unrewarded + 1, min(self.rewarded, step)
        self.judged = newest
        self.most_reported = max(self.most_reported, in_round)

    def fold_end(self, attempt: int, step: int, began: int | None) -> None:
        """Take what a trainer says of its last step. It can only add steps, and is never taken back."""
        if self.told is None or (attempt, step) > self.told[:2]:
            self.told = attempt, step, began

    @property
    def over(self) -> bool:
        """Whether the trainer has said that its newest step was the last."""
        return self.told is not None and self.told[:2] >= (self.attempt or 0, self.step or 0)

    @property
    def lacks_reward(self) -> bool:
        """Whether several evaluated checkpoints in a row were compared with no reward, unlike usual."""
        if self.unrewarded < UNREWARDED or self.judged is None or self.step is None:
            return False
        usual = self.stride if self.apart else self.step
        return self.judged.step - self.rewarded > 2 * usual

    @property
    def stride(self) -> int:
        """The usual distance of two reports, in step numbers; of several the least."""
        return min(self.apart, key=lambda apart: (-self.apart[apart], apart), default=1)

    @property
    def longest_round(self) -> int:
        """Most steps that one evaluated checkpoint had."""
        return max(self.most_reported, self.longest_span // self.stride)

    @property
    def after(self) -> int:
        """Steps after the last evaluated checkpoint: the reported ones, and those that must lie between.

        What an earlier attempt reported says nothing of steps that a later one made again.
        """
        end, since, here = self.step or 0, self.since, self.here
        if self.told is not None and self.told[0] >= (self.attempt or 0):
            attempt, last, began = self.told
            judged_here = self.judged is not None and self.judged.attempt == attempt
            if attempt != self.attempt:  # a start that has reported nothing
                end, since, here = last, (self.step or 0) if began is None else began, 0
            else:
                end = max(end, last)
                if began is not None:
                    since = min(since, began)
            if self.judged is not None and (judged_here or (attempt != self.attempt and began is None)):
                since = max(since, self.judged.step)
        return self.reported + max(0, (end - since) // self.stride - here)
