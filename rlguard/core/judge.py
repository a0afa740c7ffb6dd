"""The judge: folds what was reported and evaluated, in order, into one verdict. Pure.

The guard service writes an event to its store, folds it here and responds; a replay folds the same events
and gets the same verdicts. The judge has no clock: how long the trainer has been silent is an argument, and
the halt that silence closes is an event.

This module is long on purpose: from a step to its verdict it is the only file of decisions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.codes import Code, Level
from rlguard.core.compact import CompactState, RunNotes, policy_digest
from rlguard.core.detectors.run import CalibratedRun, Pass
from rlguard.core.heldout_guard import HeldOutGuard
from rlguard.core.policy import Policy
from rlguard.core.rounds import Evaluation, Round
from rlguard.core.steps import MEDIAN_WINDOW, StepKl, StepWindow
from rlguard.core.wire import (
    DOUBTS,
    CheckpointReport,
    Condition,
    EndReport,
    EvaluationSummary,
    FailureKind,
    KlKind,
    Sampling,
    SamplingSource,
    StepReport,
    Verdict,
)

#: What is said of a run whose next checkpoint begins a new baseline.
BASELINE_LOST = (
    "the guard came back without its log before the baseline was complete: the outcomes of its passes never "
    "leave the guard, so the next evaluated checkpoint begins a new baseline"
)

#: Steps in a row without a KL that counts, or without a finite reward, before that is a finding: one overflow
#: happens in good runs.
KL_LOST_STEPS = REWARD_LOST_STEPS = 5

#: Checkpoints that are remembered as refused: a trainer may announce without end.
MAX_REFUSED = 1_000

#: What a further try of the same evaluation may not fail of.
MAY_PASS = frozenset({FailureKind.UNDERWAY, FailureKind.OUT_OF_MEMORY, FailureKind.EVALUATOR})


#: Attempt, step, reward, KL and its kind, with the promises of `StepReport`.
StepTuple = tuple[int, int, float | None, float | None, KlKind]


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


class Judge:
    """The state of one guarded run. Fold events in the order in which they were stored.

    Attributes:
        policy: by which it is judged.
        guard: HeldOutGuard.
        monitor: of the KL.
        calibrated: the calibrated detector's run; it is given nothing if the policy has it not.
        window: the steps since the last evaluated checkpoint.
        notes: what was counted and noted.
        fire, halt: the latches.
        newest_round: what the newest evaluation came to; None of a later pass.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.guard, self.monitor = policy.heldout_guard.build(), policy.kl.build()
        self.calibrated = CalibratedRun(policy.calibrated)
        self.window, self.notes = StepWindow(), RunNotes()
        self.fire: Latch | None = None
        self.halt: Latch | None = None
        self.newest_round: Round | None = None
        sections = (policy.silent, policy.stale, policy.evaluation_failing)
        self._may_halt = any(section.action == "stop" for section in sections)
        # Steps without an evaluation are all that a step can make a reason for a halt.
        self._halting_steps = policy.stale.after_steps if policy.stale.action == "stop" else math.inf

    def copy(self) -> Self:
        """A judge of the same run: what is folded into one of them changes nothing in the other."""
        twin = type(self).__new__(type(self))
        vars(twin).update({name: copy.copy(value) for name, value in vars(self).items()})
        twin.notes = _copied(self.notes)
        return twin

    # -- folding -----------------------------------------------------------------------------------------

    def fold_step(self, report: StepReport) -> None:
        """Fold one new step (the store has already dropped repeats)."""
        self.fold_steps(((report.attempt, report.step, report.reward, report.kl, report.kl_kind),))

    def fold_steps(self, steps: Iterable[StepTuple]) -> None:
        """Fold new steps, oldest first: a run may have a million of them."""
        notes = self.notes
        count, starts, window = notes.count, notes.starts, self.window
        kls: list[StepKl] = []
        for attempt, step, reward, kl, kind in steps:
            notes.steps += 1
            count.fold_step(attempt, step)
            if starts.began is None or attempt > starts.heard:
                starts.fold_step(attempt, step)
            if count.reported > self._halting_steps:
                self._latch_halt()
            if reward is None:  # it is counted, and nothing is judged by it
                notes.reward_lost += 1
                continue
            notes.reward_lost = 0
            notes.last_kl = (kind, kl)
            counting = window.add(attempt, step, reward, kl, kind)
            notes.kl_lost = 0 if counting else notes.kl_lost + 1
            kls += [(attempt, step, one) for one in counting]
        latched = self.monitor.fold(kls)
        if latched is not None:
            self._latch_fire(Code.KL_HARD_STOP, self.monitor.fired_reason or "", *latched[:2])

    def fold_checkpoint(self, report: CheckpointReport | None = None) -> None:
        """Fold the announcement of a checkpoint that now waits for its evaluation; None: it is not known.

        The first one fixes how the trainer samples, for the whole run: scores of another sampling could not
        be compared with the baseline.
        """
        notes, said = self.notes, None if report is None else report.sampling
        notes.waits = None if report is None else report.waits
        if notes.announced == 0:
            notes.sampling = said
        elif report is not None and said != notes.sampling:
            notes.other_sampling = report
        if report is not None:  # it may have been refused before
            notes.refused -= {CheckpointKey.of(report)}
        notes.announced += 1
        self._latch_halt()

    def counts_as_refused(self, key: CheckpointKey) -> bool:
        """Whether `fold_refused` would change anything: it counts each once, up to MAX_REFUSED."""
        refused = self.notes.refused
        return key not in refused and len(refused) < MAX_REFUSED

    def fold_refused(self, key: CheckpointKey) -> None:
        """Fold that the announcement of a checkpoint was refused: nobody judges it."""
        if self.counts_as_refused(key):
            self.notes.refused |= {key}

    def fold_evaluation(self, evaluation: Evaluation) -> None:
        """Fold a finished evaluation: one round of `HeldOutGuard`, if steps were reported since the last.

        The in-loop reward is the mean over the steps after the last evaluated checkpoint up to this one, of
        the same attempt. Without any step in that window there is no reward to compare with, so nothing is
        folded (invariant 2). HeldOutGuard gets no KL: the step monitor watches that, at every step. The
        calibrated detector, where the policy has it, folds every evaluation that may be compared with others
        (`Unscored`), and it alone the later passes.
        """
        notes = self.notes
        notes.failures, notes.failure, self.newest_round = 0, None, None
        if evaluation.pass_index > 0:
            self._fold_items(evaluation, None, None)
            self._take_its_place(evaluation)
        else:
            self._fold_round(evaluation, evaluation.summary())
        self._take_the_best()
        self._latch_halt()

    def _fold_round(self, evaluation: Evaluation, summary: EvaluationSummary) -> None:
        """Fold the first evaluation of a checkpoint, with the steps since the one before."""
        notes = self.notes
        notes.evaluated += 1
        notes.skipped_in_a_row, notes.last = 0, summary
        self._begin_again(evaluation.attempt, evaluation.step)
        comparable = notes.unscored.fold(summary, evaluation.unscored, notes.best_since, notes.sampling)
        # An alarm that waits is decided, whatever was cut off: nobody may keep it waiting.
        comparable = comparable or self.awaits_confirmation or notes.unconfirmed
        notes.unconfirmed = False
        attempt, step = evaluation.attempt, evaluation.step
        window = self.window.close(attempt, step)
        notes.count.fold_evaluation(attempt, step, window.steps, len(self.window))
        if window.reward is not None and notes.unscored.measured:
            status = self.guard.update(step, window.reward, summary.score)
            if status.fire and self.guard.fired_rule is not None and not self.items_decide:
                self._latch_fire(Code(self.guard.fired_rule), status.reason, attempt, step)
        if comparable:
            self._fold_items(evaluation, window.reward, window.reward_error)
        after = self.guard.last_status
        self.newest_round = Round(
            reward=window.reward,
            kl=window.kl,
            rounds=self.guard.count,
            in_loop_ema=after.in_loop_ema if after else None,
            heldout_ema=after.heldout_ema if after else None,
            proxy_real_gap=after.proxy_real_gap if after else None,
            kl_ema=self.monitor.kl_ema,
            evidence=self.evidence if comparable else {},
        )

    def _begin_again(self, attempt: int, step: int) -> None:
        """Forget what was judged since the baseline, if this checkpoint's attempt started from scratch."""
        notes, calibrated = self.notes, self.calibrated
        notes.starts.fold_checkpoint(attempt, step)
        made = max(self.guard.count - 1, calibrated.evaluations)
        if notes.series.begins(notes.starts.newest, attempt, made=made, alarmed=calibrated.alarmed):
            notes.best_since = None
            self.guard.begin_again()
            calibrated.begin_again()

    def _take_its_place(self, evaluation: Evaluation) -> None:
        """Let a later pass stand for the first one of its checkpoint, if that turned out to be none."""
        notes = self.notes
        if not self.calibrated.contradicted:
            return
        former, notes.last = notes.last, evaluation.summary()
        if notes.best == former:
            notes.best = notes.last
        if notes.best_since == former:
            notes.best_since = notes.last

    def _take_the_best(self) -> None:
        """Note the newest evaluation if none was better, and no fresh pass has yet to say that it is one."""
        notes = self.notes
        if notes.last is None or self.calibrated.jumped:
            return
        if notes.best is None or notes.last.score >= notes.best.score:
            notes.best = notes.last
        if notes.best_since is None or notes.last.score >= notes.best_since.score:
            notes.best_since = notes.last

    def _fold_items(self, evaluation: Evaluation, reward: float | None, error: float | None) -> None:
        """Fold the per-item outcomes into the calibrated detector, if the policy has it.

        `reward`, `error`: mean and standard error of the in-loop reward of its steps.
        """
        if not self.items_decide or evaluation.mean_only:
            return
        status = self.calibrated.fold(evaluation, reward, error)
        if status is not None and status.rule is not None:
            self._latch_fire(Code(status.rule), status.reason, evaluation.attempt, evaluation.step)

    def fold_failure(self, error: str, pass_index: int = 0, kind: FailureKind = FailureKind.UNDERWAY) -> None:
        """Fold an evaluation that failed: the checkpoint, or the wanted pass of it, is given up.

        Weights that were scored as the checkpoint before are judged with it: they are no new evidence, and
        nothing that was missed. Steps since the last evaluation stay unjudged.
        """
        notes = self.notes
        notes.failure, notes.last_failure = kind, error
        if kind is FailureKind.UNCHANGED and pass_index == 0:
            notes.evaluated += 1
            return
        notes.failures += 1
        if pass_index == 0:
            notes.failed += 1
        else:
            self._lose_pass(may_pass=kind in MAY_PASS)
        self._latch_halt()

    def fold_skipped(self, pass_index: int = 0) -> None:
        """Fold that a checkpoint was gone from the disk before it, or the wanted pass, could be evaluated."""
        if pass_index == 0:
            self.notes.skipped += 1
            self.notes.skipped_in_a_row += 1
        else:
            self._lose_pass(may_pass=False)
        self._latch_halt()

    def _lose_pass(self, *, may_pass: bool) -> None:
        """A wanted pass failed. It is tried again, or cannot be had: then the next checkpoint decides the
        alarm, or closes the baseline with the passes that were made.
        """
        confirms = self.waits_for_a_pass
        if not self.calibrated.lose(may_pass=may_pass):
            return
        if confirms:
            self.notes.unconfirmed = True
        elif made := self.calibrated.passes_made:  # none are left of a baseline that is complete
            self.notes.short_baseline = made

    def fold_latch(self, latch: Latch) -> None:
        """Close a latch that was stored: one that silence closed cannot be had by folding reports again."""
        if latch.fire:
            self.fire = self.fire or latch
        else:
            self.halt = self.halt or latch

    def fold_end(self, report: EndReport) -> None:
        """Fold which step a trainer says was its last, and how many checkpoints it could not announce.

        Neither is taken back: they can only add what nobody judged.
        """
        notes = self.notes
        notes.gone = max(notes.gone, report.gone)
        if report.step is not None:
            notes.count.fold_end(report.attempt, report.step, report.began)

    def knows_end(self, report: EndReport) -> bool:
        """Whether `fold_end` would change nothing."""
        notes, told = self.notes, self.notes.count.told
        later = report.step is not None and (told is None or (report.attempt, report.step) > told[:2])
        return report.gone <= notes.gone and not later

    def _latch_fire(self, code: Code, message: str, attempt: int, step: int) -> None:
        if self.fire is None:
            self.fire = Latch(True, code.value, message, attempt, step)

    def _latch_halt(self) -> None:
        if self.halt is not None or not self._may_halt:
            return
        why = next((one for one in _liveness(self, silent_for=0.0) if one.action == "stop"), None)
        if why is not None:
            count = self.notes.count
            self.halt = Latch(False, why.code.value, why.message, count.attempt or 0, count.step or 0)

    # -- queries: none of them changes anything ---------------------------------------------------------

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
        return None if self.fire is not None else self.calibrated.wanted(over=self._is_over)

    @property
    def baseline_planned(self) -> int:
        """Passes that the baseline will have, while it is gathered."""
        gathers = self.items_decide and self.calibrated.gathers_baseline
        return self.calibrated.passes_planned if gathers else 0

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
        return self.calibrated.waits_for_a_pass(over=self._is_over)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether an alarm waits for a fresh pass of the newest checkpoint."""
        return self.calibrated.awaits_confirmation

    @property
    def items_decide(self) -> bool:
        """Whether the calibrated detector judges; else HeldOutGuard does, which beside it only advises."""
        return self.policy.detector == "calibrated"

    @property
    def evidence(self) -> dict[str, tuple[float, float]]:
        """Statistic and threshold of each calibrated detector that can judge now, nats."""
        readings = self.calibrated.readings
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

    def verdict(self, silent_for: float = 0.0) -> Verdict:
        """The verdict now.

        Args:
            silent_for: seconds since the last step, or since the guard started if that was later.
        """
        return _verdict(self, silent_for)

    # -- what the next guard goes on from ------------------------------------------------------------------

    def compact(self) -> CompactState:
        """What a guard without this one's log goes on from.

        The checkpoints that wait go with their trainer, so nobody will announce them again: they are skipped.
        """
        notes = _copied(self.notes)
        notes.skipped += self.checkpoints_left
        return CompactState(
            policy=policy_digest(self.policy),
            notes=notes,
            kl_gate=replace(self.window.gate),
            kl=self.monitor.memory,
            guard=self.guard.to_state(),
            detector=self.calibrated.compact(),
        )

    def fold_adopted(self, state: CompactState) -> None:
        """Fold what another guard of this run knew, before anything else is folded.

        Raises:
            ValueError: the run was judged by another policy.
        """
        if state.policy != policy_digest(self.policy):
            raise ValueError("it was made under another policy")
        self.notes = _copied(state.notes)
        self.window.gate = replace(state.kl_gate)
        self.monitor.memory = state.kl
        if state.guard is not None:
            self.guard = HeldOutGuard.from_state(state.guard)
        if state.detector is not None:
            self.calibrated.adopt(state.detector)
        elif self.items_decide and self.notes.last is not None:  # the next checkpoint begins a baseline anew
            self.calibrated.adopt_nothing(BASELINE_LOST)
            self.notes.starts.base, self.notes.best_since = None, None


def _copied(notes: RunNotes) -> RunNotes:
    """The same notes; what is folded into one of them changes nothing in the other."""
    parts = ("count", "starts", "series", "unscored")
    return replace(notes, **{name: copy.copy(getattr(notes, name)) for name in parts})


# -- what is to be said of a run ---------------------------------------------------------------------


def _verdict(run: Judge, silent_for: float) -> Verdict:
    """The verdict now; `silent_for` as of `Judge.verdict`."""
    conditions = tuple(sorted(_conditions(run, silent_for), key=lambda c: (c.advice, -c.level.severity)))
    worst = next((c for c in conditions if not c.advice and c.level is not Level.HEALTHY), None)
    if worst is None:
        worst = Condition.of(Code.OK, _ok_sentence(run, conditions))
    notes, guard, calibrated, latch = run.notes, run.guard, run.calibrated, run.latch
    status = guard.last_status
    return Verdict(
        level=worst.level,
        code=worst.code,
        reason=worst.message,
        fire=run.fire is not None,
        halt=run.fire is None and run.halt is not None,
        stop=latch is not None,
        conditions=conditions,
        latch_attempt=latch.attempt if latch else None,
        latch_step=latch.step if latch else None,
        attempt=notes.count.attempt,
        step=notes.count.step,
        steps=notes.steps,
        rounds=guard.count,
        announced=notes.announced + notes.gone,
        evaluated=notes.evaluated,
        failed=notes.failed,
        skipped=notes.skipped + notes.gone,
        refused=len(notes.refused),
        failure=notes.failure,
        baseline_passes=calibrated.passes_made,
        baseline_planned=run.baseline_planned,
        next_pass=run.next_pass,
        waiting=run.waiting,
        steps_since_evaluation=notes.count.after,
        longest_round=notes.count.longest_round,
        in_loop_ema=status.in_loop_ema if status else None,
        heldout_ema=status.heldout_ema if status else None,
        proxy_real_gap=status.proxy_real_gap if status else None,
        max_proxy_real_gap=guard.max_proxy_real_gap,
        kl_ema=run.monitor.kl_ema,
        kl_start=run.monitor.start or None,
        kl_warn_above=run.policy.kl.warn_above,
        kl_hard_stop=run.policy.kl.hard_stop,
        last_evaluation=notes.last,
        best_evaluation=notes.best,
        best_path=notes.best.path if notes.best else "",
        detectors=calibrated.readings,
    )


def _conditions(run: Judge, silent_for: float) -> Iterator[Condition]:
    if run.fire is not None:
        yield Condition.of(Code(run.fire.code), run.fire.message, level=Level.FIRED)
    if run.halt is not None:
        yield Condition.of(Code(run.halt.code), run.halt.message, level=Level.WARNING, action="stop")
    if run.notes.lost:
        yield Condition.of(Code.PAST_UNKNOWN, run.notes.lost)
    for condition in _liveness(run, silent_for):
        if run.halt is None or condition.code.value != run.halt.code:
            yield condition
    if run.notes.failure in DOUBTS and (
        run.notes.failure is not FailureKind.UNCHANGED or run.notes.count.reported
    ):
        yield Condition.of(Code.CHECKPOINT_DOUBTFUL, run.notes.last_failure)
    yield from run.notes.unscored.conditions(run.notes.sampling)
    if run.notes.reward_lost >= REWARD_LOST_STEPS:
        message = f"the reward of the last {run.notes.reward_lost} steps is NaN or infinite"
        yield Condition.of(Code.NO_REWARD, message)
    elif run.notes.count.lacks_reward:
        yield Condition.of(
            Code.NO_REWARD,
            f"the last {run.notes.count.unrewarded} evaluated checkpoints were compared with no reward: no "
            f"step was reported for them, and the newest that was is step {run.notes.count.step}",
        )
    if run.notes.steps == 0:
        yield Condition.of(Code.NO_STEPS, "no step has been reported yet")
    elif not run.items_decide and run.guard.count < max(1, run.guard.min_steps):
        rounds = f"{run.guard.count} of {max(1, run.guard.min_steps)} evaluation rounds"
        yield Condition.of(Code.WARMING_UP, f"{rounds} before the held-out rule may judge")
    if run.items_decide:
        yield from run.calibrated.conditions()
        yield from _about_lost_passes(run)
    yield from _about_sampling(run)
    yield from _about_waiting(run)
    yield from _about_starts(run)
    yield from _observers(run)
    yield from _about_kl(run)


def _ok_sentence(run: Judge, conditions: Sequence[Condition]) -> str:
    """That nothing stops the run, what was found all the same, and what was not looked at yet."""
    readings = run.calibrated.readings
    # What the policy only warns of, by its code: this sentence is told the trainer, numbers are not.
    found = dict.fromkeys(one.code.value for one in readings if one.level is Level.WARNING)
    nothing = "nothing that stops a run by this policy" if found else "nothing"
    so_far = f"{nothing} speaks against the run after {run.notes.evaluated} evaluated checkpoints"
    warned = [f"it warns of {', '.join(found)}"] if found else []
    waited = (c.message for c in conditions if c.code is Code.WARMING_UP)
    return "; ".join((so_far, *warned, *waited))


def _liveness(run: Judge, silent_for: float) -> Iterator[Condition]:
    """What keeps the guard from knowing: its own conditions with their own actions (invariant 6)."""
    silent, stale, failing = run.policy.silent, run.policy.stale, run.policy.evaluation_failing
    if silent_for > silent.after_seconds:
        yield Condition.of(
            Code.SILENT,
            f"no step for {silent_for:.0f} s (limit {silent.after_seconds:g} s)",
            action=silent.action,
        )
    if run.notes.series.refused:
        yield Condition.of(Code.STARTED_AGAIN, run.notes.series.said, action=silent.action)
    left, gone = run.checkpoints_left, run.notes.skipped_in_a_row
    if left + gone > stale.after_rounds:
        lost = f"{gone} checkpoints were skipped, and " if gone else ""
        yield Condition.of(
            Code.STALE,
            f"{lost}{left} checkpoints wait for their evaluation (limit {stale.after_rounds})",
            action=stale.action,
        )
    elif run.notes.count.reported > stale.after_steps:
        yield Condition.of(
            Code.STALE,
            f"{run.notes.count.reported} steps since the last evaluated checkpoint "
            f"(limit {stale.after_steps})",
            action=stale.action,
        )
    if run.notes.failures >= failing.after_failures:
        yield Condition.of(
            Code.EVALUATION_FAILING,
            f"{run.notes.failures} evaluations failed in a row; the last: {run.notes.last_failure}",
            action=failing.action,
        )


def _about_lost_passes(run: Judge) -> Iterator[Condition]:
    """What passes that could not be made mean. A short baseline is honest, and sees less: `warming_up`
    holds until what there is would show a fall.
    """
    if run.notes.unconfirmed:
        yield Condition.of(
            Code.EVALUATION_FAILING,
            "the fresh evaluation that an alarm, or the end of a run that is near one, waited for could "
            "not be made: the next checkpoint decides about it, and without one nobody does",
            level=Level.WARNING,
        )
    if run.notes.short_baseline is not None and run.notes.evaluated > 1:
        passes = f"{run.notes.short_baseline} of {run.policy.calibrated.baseline_passes} passes"
        yield Condition.of(
            Code.NO_BASELINE,
            f"the baseline has {passes} of the starting policy, because the next one failed, twice "
            "where that could help, or its checkpoint was gone: a decline shows later than with all of "
            "them. Keep the starting policy on the disk until they are made",
            advice=True,
        )


def _about_sampling(run: Judge) -> Iterator[Condition]:
    """How evaluations and trainer differ. It is advice: held-out scores stay comparable with each other.

    What is measured differently is the reward, so a comparison of its gain with theirs is in question,
    and nothing that a trainer could hide by it.
    """
    used = None if run.notes.unscored.first is None else run.notes.unscored.first.sampling
    if used is not None and used.source is SamplingSource.DEFAULT:
        yield Condition.of(
            Code.SAMPLING_UNKNOWN,
            "neither the trainer nor the evaluator's settings say how to sample (temperature and longest "
            f"completion), so evaluations have the default: {used.words}. Where the trainer samples in "
            "another way, gains of the held-out score and of the reward are not the same thing",
            advice=True,
        )
    if (other := run.notes.other_sampling) is not None:
        yield Condition.of(
            Code.SAMPLING_CHANGED,
            f"the trainer's checkpoint at step {other.step} says {_said(other.sampling)}; the run began "
            f"with {_said(run.notes.sampling)}, and its evaluations stay as they were",
            advice=True,
        )


def _about_waiting(run: Judge) -> Iterator[Condition]:
    """That the trainer goes on without a verdict. It judges nothing, but a fire may come too late."""
    if run.notes.waits is False:
        yield Condition.of(
            Code.NOT_WAITING,
            "the trainer does not wait for its guard: waiting is off or its time is used up, so a fire "
            "may come late",
            advice=True,
        )


def _about_starts(run: Judge) -> Iterator[Condition]:
    """That an attempt started from scratch; once too often is among `_liveness`."""
    if run.notes.series.said and not run.notes.series.refused:
        yield Condition.of(Code.STARTED_AGAIN, run.notes.series.said, advice=True)


def _observers(run: Judge) -> Iterator[Condition]:
    """What the observers would have done: it is told, and stops nothing."""
    rule, status = run.guard.fired_rule, run.guard.last_status
    if rule is not None and status is not None and run.items_decide:
        reason = status.reason.removeprefix("latched: ")
        yield Condition.of(
            Code(rule),
            f"HeldOutGuard at its thresholds would have stopped the run: {reason}",
            advice=True,
        )
    limit, (passed, *_) = run.policy.kl.warn_above, run.kl_advised
    if limit is not None and passed:
        yield Condition.of(
            Code.KL_HARD_STOP,
            run.monitor.sentence(run.notes.count.step or 0, limit, "limit for a warning"),
            advice=True,
        )


def _about_kl(run: Judge) -> Iterator[Condition]:
    """What is to be known of the KL itself. A limit that stops and cannot be watched is not kept."""
    watched = run.policy.kl.hard_stop is not None
    _, starts_away, not_finite = run.kl_advised
    if starts_away:
        yield Condition.of(
            Code.REFERENCE_NOT_START,
            f"the KL began at {run.monitor.start:.4g} nats/token: the reference is not the starting "
            "policy, so limits count from there",
            advice=True,
        )
    inert = _why_kl_is_inert(run)
    if watched and run.notes.steps and not inert and run.monitor.rise is None:
        seen, least = run.monitor.memory.seen, max(run.monitor.min_steps, MEDIAN_WINDOW)
        message = f"{seen} of {least} steps with a KL before kl.hard_stop acts"
        yield Condition.of(Code.WARMING_UP, message)
    if not_finite:
        message = f"none of the last {run.notes.kl_lost} steps has a KL that counts: it is infinite or NaN"
        level = Level.UNKNOWN if watched else Level.WARNING
        yield Condition.of(Code.KL_NOT_FINITE, message, level=level, advice=not watched)
    elif inert:
        level = Level.UNKNOWN if watched and run.kl_is_lost else Level.HEALTHY
        yield Condition.of(Code.KL_INERT, inert, level=level)


def _why_kl_is_inert(run: Judge) -> str:
    """A sentence if the newest step had no usable KL to the reference, else ""."""
    if run.notes.last_kl is None:  # no step so far
        return ""
    kind, value = run.notes.last_kl
    if kind == KlKind.NOT_FINITE:
        return "KL to the reference is infinite or NaN at the newest step"
    if kind != KlKind.REF_TOKEN_MEAN:
        return f"the trainer reports kl_kind={kind}: the KL rule needs {KlKind.REF_TOKEN_MEAN.value}"
    if value is None:
        return "the newest step has no KL: the KL rule is inert"
    if not run.window.kl_moved:
        return "KL to the reference is exactly 0 at every step (beta = 0?): it counts as absent"
    return ""


def _said(sampling: Sampling | None) -> str:
    return "nothing of its sampling" if sampling is None else sampling.words
