"""What is remembered of a run's steps: their window, their count, the trainer's starts, and their KL. Pure.

A log may lack steps, and a trainer may end before it has reported its last ones. That they were made shows in
the numbers of the steps around them, and in the last step that the trainer names at its end. So what nobody
judged is counted in step numbers.

TRL logs the k3 estimator of the KL without a clamp: one token with a log-ratio of 10 adds about 22,000 nats
to one step. A median over the last five steps drops such a spike before the EMA sees it; a true drift passes.
So a breach of a limit does not wait for the next evaluation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import NamedTuple, Self

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.rounds import Window, standard_error
from rlguard.core.wire import KlKind

#: Steps kept for the next evaluation round. A round's window is rarely 100 steps; the bound is for runs that
#: never announce a checkpoint.
MAX_PENDING = 10_000

#: Evaluated checkpoints in a row without a reported step, from which on that is said: if they span more than
#: twice the usual distance of two reports, too, for a log may have a step less often than the trainer saves.
UNREWARDED = 3

#: Steps under the median. Five survives two spikes side by side and delays a true drift by two steps.
MEDIAN_WINDOW = 5

#: A KL that is above this at each of the first five steps did not start near 0 (nats/token): the reference is
#: not the starting policy, or the two run in different precision. On-policy, the first step's KL is 0.
STARTS_NEAR_ZERO = 0.05


@dataclass(slots=True)
class KlGate:
    """Which KL may be held against a limit: a token mean to the reference, and 0 only if it can move.

    With beta = 0 the KL is exactly 0 at every step, which says nothing. When it moves, a 0 before it counts
    after all: the run did start at the reference. `moved`: another value than 0 was seen; `was_zero`: 0 was.
    """

    moved: bool = False
    was_zero: bool = False

    def admit(self, kl: float | None, kind: KlKind) -> tuple[float, ...]:
        """The KLs that count from now on, oldest first, nats/token: none, this one, or a 0 and this one."""
        if kl is None or kind != KlKind.REF_TOKEN_MEAN:
            return ()
        first = kl != 0.0 and not self.moved
        self.moved = self.moved or kl != 0.0
        before = (0.0,) if first and self.was_zero else ()
        self.was_zero = self.was_zero or kl == 0.0
        return (*before, kl) if self.moved else ()


class StepWindow:
    """Gathers steps until their checkpoint is evaluated."""

    def __init__(self) -> None:
        # (attempt, step, reward, KL that counts) of the steps after the last evaluated checkpoint.
        self._pending: deque[tuple[int, int, float | None, float | None]] = deque(maxlen=MAX_PENDING)
        #: What is known of the KLs so far.
        self.gate = KlGate()

    def __copy__(self) -> Self:
        twin = type(self)()
        twin._pending, twin.gate = self._pending.copy(), replace(self.gate)
        return twin

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def kl_moved(self) -> bool:
        """Whether a KL to the reference other than exactly 0 has been seen."""
        return self.gate.moved

    def add(
        self, attempt: int, step: int, reward: float | None, kl: float | None, kind: KlKind
    ) -> tuple[float, ...]:
        """Keep one step.

        Returns:
            The KLs that may be held against a limit from now on; see `KlGate.admit`.
        """
        if kl and self.gate.moved and kind == KlKind.REF_TOKEN_MEAN:  # as of nearly all steps of a run
            self._pending.append((attempt, step, reward, kl))
            return (kl,)
        counts = self.gate.admit(kl, kind)
        self._pending.append((attempt, step, reward, counts[-1] if counts else None))
        return counts

    def close(self, attempt: int, step: int) -> Window:
        """Take out the steps of `attempt` up to `step`, which was evaluated; earlier ones are dropped."""
        window = [p for p in self._pending if p[0] == attempt and p[1] <= step]
        later = [p for p in self._pending if (p[0], p[1]) > (attempt, step)]
        self._pending = deque(later, maxlen=MAX_PENDING)
        kls = [kl for _, _, _, kl in window if kl is not None]
        rewards = [reward for _, _, reward, _ in window if reward is not None]
        return Window(
            fmean(rewards) if rewards else None,
            median(kls) if kls else None,
            standard_error(rewards),
            len(window),
        )


@dataclass(slots=True)
class StepCount:
    """The steps of one run that no evaluated checkpoint has judged yet.

    `attempt`, `step`: the newest reported step; None before the first. `reported`: steps that were reported
    after the last evaluated checkpoint, of all attempts. `longest_round`: most step numbers that one had.
    `apart`: step numbers between the newest two reports of an attempt.
    """

    attempt: int | None = None
    step: int | None = None
    reported: int = 0
    longest_round: int = 0
    apart: int | None = None
    #: Evaluated checkpoints in a row without a reported step, and the step of the one before them.
    unrewarded: int = 0
    rewarded: int = 0
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
            self.apart, self.step = step - self.step, step
        if attempt == self.attempt and step > self.since:
            self.here += 1

    def _begin(self, attempt: int, step: int) -> None:
        self.attempt, self.step, self.since, self.here = attempt, step, step - 1, 0
        if self.judged is not None and self.judged.attempt == attempt:
            self.since = min(self.since, self.judged.step)

    def fold_evaluation(self, attempt: int, step: int, in_round: int, left: int) -> None:
        """Count an evaluated checkpoint, with as many reported steps in its round, and so many after it."""
        if attempt == self.attempt:
            self.longest_round = max(self.longest_round, step - self.since)
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
        self.longest_round = max(self.longest_round, in_round)

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
        return self.judged.step - self.rewarded > 2 * (self.apart or self.step)

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
        return self.reported + max(0, end - since - here)


@dataclass(slots=True)
class AttemptStarts:
    """Which attempt was the newest that began where the first one did.

    `began`: first step that the first attempt reported; `base`: step of the first evaluated checkpoint; None
    before there is one. `heard`: newest attempt that was heard of. `newest`: the newest start.
    """

    began: int | None = None
    base: int | None = None
    heard: int = -1
    newest: int | None = None

    def fold_step(self, attempt: int, step: int) -> None:
        """Fold a reported step."""
        if attempt > self.heard:
            self._hear(attempt, step, self.base if self.began is None else self.began + 1)
        if self.began is None and attempt == self.newest:
            self.began = step

    def fold_checkpoint(self, attempt: int, step: int) -> None:
        """Fold a checkpoint that was evaluated."""
        if self.base is None:
            self.base = step
        if attempt > self.heard:
            self._hear(attempt, step, self.base)

    def _hear(self, attempt: int, step: int, limit: int | None) -> None:
        """Note an attempt of which nothing was heard before: its first word says where it began."""
        if self.newest is None or limit is None or step <= limit:
            self.newest = attempt
        self.heard = attempt


def starts_away(first: Sequence[float]) -> bool:
    """Whether a run whose first KLs to the reference are these, nats/token, did not start near 0."""
    return len(first) == MEDIAN_WINDOW and min(first) > STARTS_NEAR_ZERO


StepKl = tuple[int, int, float]
"""Attempt and number of a step, and its KL to the reference, nats/token."""


class KlMemory(NamedTuple):
    """What a monitor remembers: its newest KLs, how many there were, where they began, their EMA.

    KLs are in nats/token; `fired_reason`: None while it has not latched.
    """

    window: tuple[float, ...] = ()
    seen: int = 0
    start: float = 0.0
    kl_ema: float | None = None
    fired_reason: str | None = None


@dataclass
class StepMonitor:
    """Latches when the EMA of the median-of-5 KL to the reference has risen by more than `kl_hard_stop`.

    The rise is counted from 0; from the median of the first five KLs if none of them was near 0.

    Fields:
        kl_hard_stop: nats/token, > 0; None never latches.
        ema_alpha: weight on the prior, in [0, 1).
        min_steps: steps with a KL before it may latch, >= 0; five are always needed.
    """

    kl_hard_stop: float | None = 0.08
    ema_alpha: float = 0.9
    min_steps: int = 20

    #: Replaced as a whole, so a shallow copy of a monitor is an independent one.
    memory: KlMemory = field(default=KlMemory(), init=False, repr=False)

    @property
    def kl_ema(self) -> float | None:
        """EMA of the median KL, nats/token; None until five steps carried a KL."""
        return self.memory.kl_ema

    @property
    def start(self) -> float:
        """The KL that rises are counted from, nats/token: 0.0 unless the KL did not start near 0."""
        return self.memory.start

    @property
    def rise(self) -> float | None:
        """How far `kl_ema` is above `start`, nats/token; None until `min_steps` (and five) steps had a KL."""
        if self.memory.kl_ema is None or self.memory.seen < self.min_steps:
            return None
        return self.memory.kl_ema - self.memory.start

    @property
    def fired_reason(self) -> str | None:
        """Why the monitor latched, or None."""
        return self.memory.fired_reason

    def fold(self, kls: Iterable[StepKl]) -> StepKl | None:
        """Fold the KLs to the reference of several steps, nats/token, each finite and >= 0.

        Returns:
            The first of them after which the monitor is latched; None if it is not.

        Raises:
            ValueError: one is negative or not finite; the monitor is then unchanged.
        """
        window, seen, start, kl_ema, reason = self.memory
        limit = math.inf if self.kl_hard_stop is None else self.kl_hard_stop
        latched: StepKl | None = None
        for place in kls:
            if not 0.0 <= place[2] < math.inf:
                raise ValueError(f"kl must be finite and >= 0 nats/token, got {place[2]!r}")
            window, seen = (*window[1 - MEDIAN_WINDOW :], place[2]), seen + 1
            if seen >= MEDIAN_WINDOW:
                middle = sorted(window)[MEDIAN_WINDOW // 2]
                if seen == MEDIAN_WINDOW and starts_away(window):
                    start = middle
                prior = middle if kl_ema is None else kl_ema
                kl_ema = self.ema_alpha * prior + (1.0 - self.ema_alpha) * middle
                if reason is None and kl_ema - start > limit and seen >= self.min_steps:
                    reason = self._sentence(place[1], kl_ema, start, limit, "hard stop")
            if latched is None and reason is not None:
                latched = place
        self.memory = KlMemory(window, seen, start, kl_ema, reason)
        return latched

    def sentence(self, step: int, limit: float, name: str) -> str:
        """That the KL is above a limit, with the numbers."""
        return self._sentence(step, self.kl_ema or 0.0, self.start, limit, name)

    @staticmethod
    def _sentence(step: int, kl_ema: float, start: float, limit: float, name: str) -> str:
        above = f" over its start at {start:.4g}" if start else ""
        return (
            f"KL to the reference at step {step} is {kl_ema:.4g} nats/token (EMA), above the {name} of "
            f"{limit:g}{above}"
        )
