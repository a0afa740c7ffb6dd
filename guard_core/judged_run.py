"""What a judge knows of one run, and what follows from it. Pure.

The judge writes here as it folds; the verdict and its conditions are read from here. All of it but the steps
since the last evaluation goes to the next guard of the run, as its compact state.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from guard_core.compact import CompactState, RunNotes, policy_digest
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import Policy
from guard_core.rounds import Round
from guard_core.steps import StepWindow
from guard_core.wire import KlKind, Sampling

if TYPE_CHECKING:
    from guard_core.detectors.run import CalibratedRun, Pass

#: What is said of a run whose next checkpoint begins a new baseline.
BASELINE_LOST = (
    "the guard came back without its log before the baseline was complete: the outcomes of its passes never "
    "leave the guard, so the next evaluated checkpoint begins a new baseline"
)

#: Steps in a row without a KL that counts, or without a finite reward, before that is a finding: one overflow
#: happens in good runs.
KL_LOST_STEPS = REWARD_LOST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Latch:
    """Why the run must stop, written once. `fire`: a rule fired; else it is a halt."""

    fire: bool
    code: str
    message: str
    attempt: int
    step: int

    @property
    def kind(self) -> Literal["fire", "halt"]:
        """What it is called in the log, the store and the job's status."""
        return "fire" if self.fire else "halt"


class JudgedRun:
    """The state of one guarded run.

    Attributes:
        policy: by which it is judged.
        guard: HeldOutGuard; `early` is the same without a warm-up: what it finds is told for as long as the
            warm-up lasts.
        monitor: of the KL; `early_monitor` is the same, fed in the warm-up alone.
        calibrated: the calibrated detector's run; None if the policy has it not.
        window: the steps since the last evaluated checkpoint.
        notes: what was counted and noted.
        fire, halt: the latches.
        newest_round: what the newest evaluation came to; None of a later pass.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.guard, self.monitor = policy.heldout_guard.build(), policy.kl.build()
        self.early, self.early_monitor = replace(self.guard, min_steps=0), replace(self.monitor, min_steps=0)
        self.calibrated = _calibrated_run(policy)
        self.window, self.notes = StepWindow(), RunNotes()
        self.fire: Latch | None = None
        self.halt: Latch | None = None
        self.newest_round: Round | None = None

    def copy(self) -> Self:
        """A judge of the same run: what is folded into one of them changes nothing in the other."""
        twin = type(self).__new__(type(self))
        vars(twin).update({name: copy.copy(value) for name, value in vars(self).items()})
        return twin

    # -- what follows from it ------------------------------------------------------------------------------

    @property
    def latch(self) -> Latch | None:
        """The fire if there is one, else the halt, else None."""
        return self.fire or self.halt

    @property
    def checkpoints_left(self) -> int:
        """Checkpoints that were announced, and neither evaluated nor given up."""
        notes = self.notes
        return max(0, notes.announced - notes.evaluated - notes.failed - notes.skipped)

    @property
    def waiting(self) -> int:
        """Evaluations that are yet to be made. A baseline nobody is compared with waits for nothing."""
        return self.checkpoints_left + (1 if self.fire is None and self.waits_for_a_pass else 0)

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one halt."""
        return tuple(latch for latch in (self.fire, self.halt) if latch is not None)

    @property
    def sampling(self) -> Sampling | None:
        """What the trainer's first checkpoint said of its sampling; None: nothing, or there was none."""
        return self.notes.sampling

    def wanted_pass(self) -> Pass | None:
        """A further evaluation, with fresh randomness, that should come before any other checkpoint's.

        Passes of the baseline until `calibrated.baseline_passes` are done, one to confirm an alarm, and of
        the last checkpoint of a run that ends near one. One that failed of what may pass is wanted once more,
        under a number of its own.
        Respond with an `Evaluation` of that `pass_index`, or `fold_failure` with it.
        """
        if self.calibrated is None or self.fire is not None:
            return None
        return self.calibrated.wanted(over=self._is_over)

    @property
    def baseline_planned(self) -> int:
        """Passes that the baseline will have, while it is gathered."""
        calibrated = self.calibrated
        return calibrated.passes_planned if calibrated is not None and calibrated.gathers_baseline else 0

    @property
    def next_pass(self) -> Literal["baseline", "confirmation"] | None:
        """What the wanted pass is good for."""
        if self.wanted_pass() is None:
            return None
        return "baseline" if self.baseline_planned else "confirmation"

    @property
    def _is_over(self) -> bool:
        """Whether the trainer has said that it made its last step, and no checkpoint of it waits."""
        return self.notes.count.over and not self.checkpoints_left

    @property
    def waits_for_a_pass(self) -> bool:
        """Whether an alarm, or the end of a run that is near one, waits for a pass of the last checkpoint."""
        return self.calibrated is not None and self.calibrated.waits_for_a_pass(over=self._is_over)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether an alarm waits for a fresh pass of the newest checkpoint."""
        return self.calibrated is not None and self.calibrated.awaits_confirmation

    @property
    def held_out_guard_decides(self) -> bool:
        """Whether HeldOutGuard may fire; under `calibrated` what it says is advice."""
        return self.policy.detector != "calibrated"

    @property
    def evidence(self) -> dict[str, tuple[float, float]]:
        """Statistic and threshold of each calibrated detector that can judge now, nats."""
        readings = self.calibrated.readings if self.calibrated is not None else ()
        return {
            reading.name: (reading.statistic, reading.threshold)
            for reading in readings
            if reading.statistic is not None and reading.threshold is not None
        }

    @property
    def kl_is_lost(self) -> bool:
        """Whether the newest steps have no KL that counts."""
        return self.notes.kl_lost >= KL_LOST_STEPS

    @property
    def kl_advised(self) -> tuple[bool, bool, bool]:
        """Which advice about the KL holds, which any step can change: the warning's limit is passed, the KL
        did not start near 0, it is not finite. Cheap, for who folds a long run and looks at every change.
        """
        limit, rise, last = self.policy.kl.warn_above, self.monitor.rise, self.notes.last_kl
        return (
            limit is not None and rise is not None and rise > limit,
            bool(self.monitor.start),
            self.kl_is_lost and last is not None and last[0] == KlKind.NOT_FINITE,
        )

    # -- what the next guard goes on from ------------------------------------------------------------------

    def compact(self) -> CompactState:
        """What a guard without this one's log goes on from.

        The checkpoints that wait go with their trainer, so nobody will announce them again: they are skipped.
        """
        notes = copy.copy(self.notes)
        notes.skipped += self.checkpoints_left
        return CompactState(
            policy=policy_digest(self.policy),
            notes=notes,
            kl_gate=replace(self.window.gate),
            kl=self.monitor.memory,
            early_kl=self.early_monitor.memory,
            guard=self.guard.to_state(),
            early=self.early.to_state(),
            detector=None if self.calibrated is None else self.calibrated.compact(),
        )

    def fold_adopted(self, state: CompactState) -> None:
        """Fold what another guard of this run knew, before anything else is folded.

        Raises:
            ValueError: the run was judged by another policy.
        """
        if state.policy != policy_digest(self.policy):
            raise ValueError("it was made under another policy")
        self.notes = copy.copy(state.notes)
        self.window.gate = replace(state.kl_gate)
        self.monitor.memory, self.early_monitor.memory = state.kl, state.early_kl
        if state.guard is not None and state.early is not None:
            self.guard = HeldOutGuard.from_state(state.guard)
            self.early = HeldOutGuard.from_state(state.early)
        if self.calibrated is None:
            return
        if state.detector is not None:
            self.calibrated.adopt(state.detector)
        elif (
            self.notes.last is not None
        ):  # of a baseline that was not complete the next checkpoint begins one
            self.calibrated.adopt_nothing(BASELINE_LOST)
            self.notes.starts.base, self.notes.best_since = None, None


def _calibrated_run(policy: Policy) -> CalibratedRun | None:
    """The calibrated detector's run if the policy has one; only then is numpy imported."""
    if policy.detector == "heldout_guard":
        return None
    from guard_core.detectors.run import CalibratedRun

    return CalibratedRun(policy.calibrated if policy.detector == "calibrated" else policy.calibrated_share())
