"""The judge: folds what was reported and evaluated, in order, into one verdict. Pure.

The guard service writes an event to its store, folds it here and responds; a replay folds the same events
and gets the same verdicts. The judge has no clock: how long the trainer has been silent is an argument.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Protocol, Self

from guard_core.attempts import EvaluationSeries
from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code, Level
from guard_core.compact import CompactState, policy_digest
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import Policy
from guard_core.rounds import Round
from guard_core.steps import AttemptStarts, StepCount, StepKl, StepWindow
from guard_core.unscored import Unscored
from guard_core.wire import (
    DOUBTS,
    CheckpointReport,
    Condition,
    EndReport,
    EvaluationSampling,
    EvaluationSummary,
    FailureKind,
    KlKind,
    Sampling,
    SamplingSource,
    Verdict,
)

if TYPE_CHECKING:
    from guard_core.detectors.calibrated import DetectorStatus
    from guard_core.detectors.run import CalibratedRun, Pass

#: What is said of a run whose next checkpoint begins a new baseline.
BASELINE_LOST = (
    "the guard came back without its log before the baseline was complete: the outcomes of its passes never "
    "leave the guard, so the next evaluated checkpoint begins a new baseline"
)

#: Checkpoints that are remembered as refused: a trainer may announce without end.
MAX_REFUSED = 1_000

#: Steps in a row without a KL that counts, or without a finite reward, before that is a finding: one overflow
#: happens in good runs.
KL_LOST_STEPS = REWARD_LOST_STEPS = 5

#: What is known of an evaluation beside its outcomes, and what it is called in a guard's own history. The
#: last two are of its sampling.
TOLD = {
    "truncated": "heldout_truncated",
    "unanswered": "heldout_unanswered",
    "unscored": "heldout_unscored",
    "timed_out": "heldout_timed_out",
    "temperature": "heldout_temperature",
    "max_new_tokens": "heldout_max_new_tokens",
}

#: The part of an evaluation in which an engine is started, or weights are loaded.
LOAD = "load"

#: The longest completion of the trainer, as its first checkpoint says, tokens.
TRAINER_LIMIT = "trainer_max_new_tokens"

#: What a further try of the same evaluation may not fail of.
MAY_PASS = frozenset({FailureKind.UNDERWAY, FailureKind.OUT_OF_MEMORY, FailureKind.EVALUATOR})


#: Attempt, step, reward, KL and its kind, with the promises of `StepReport`.
StepTuple = tuple[int, int, float | None, float | None, KlKind]


class StepValues(Protocol):
    """What the judge reads of a step: a `StepReport`, or a row of a log that was checked as a whole.

    The values keep the promises of `StepReport`: `reward` is None or finite, `kl` is None or finite and >= 0.
    """

    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def reward(self) -> float | None: ...  # noqa: D102
    @property
    def kl(self) -> float | None: ...  # noqa: D102
    @property
    def kl_kind(self) -> KlKind: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished held-out evaluation with its per-item outcomes. It never leaves the guard (invariant 8).

    `pass_index`: 0 for a checkpoint's first evaluation; later ones, which `Judge.wanted_pass` asks for, are
    passes of the baseline or the confirmation of an alarm, with fresh randomness.

    `items`: outcome of each held-out item in the split's order, each in [0, 1], shape (n_items,); items that
    succeed or fail together are one item here, with their mean.

    `truncated`: share of the completions that were cut off at the length limit; None where it is not known.

    `proxy_items`: what the training grader gives the same completions, as `items`; None without one, () where
    it failed.

    `fooled_items`: of each item the share of its completions that the training grader pays in full, each as
    far as it is wrong: the mean of [p = 1] (1 - t), as `items`. None where that is not known, or an item is
    one completion.

    `mean_only`: `items` is a mean alone, on any scale, from a log without outcomes. HeldOutGuard takes it;
    the calibrated detector would take it for the outcome of one item, so it is not given it.

    `sampling`: how the completions were sampled; None where that is not known, as in a log.

    `unanswered`: share without an answer, of the completions whose answer begins after a mark; None where
    none does, or it is not known.

    `unscored`: share of the completions that count as wrong and were given to no scorer, because they were
    cut off or have no answer; None where that is not known.

    `timed_out`: share of the completions that count as wrong because a scorer, or the training grader, did
    not end within its limit; None where there is no limit.

    `completions`, `seconds`: how many were made, and how long all of it took; None where that is not known.
    `parts`: how much of that each part took, seconds by its name; empty where that is not known.
    """

    attempt: int
    step: int
    path: str
    items: tuple[float, ...]
    sha256: str | None = None
    pass_index: int = 0
    truncated: float | None = None
    proxy_items: tuple[float, ...] | None = None
    mean_only: bool = False
    sampling: EvaluationSampling | None = None
    unanswered: float | None = None
    unscored: float | None = None
    timed_out: float | None = None
    completions: int | None = None
    seconds: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    fooled_items: tuple[float, ...] | None = None

    @property
    def score(self) -> float:
        """Mean outcome, in [0, 1]."""
        return fmean(self.items)

    @property
    def seconds_again(self) -> float | None:
        """Seconds that a further pass takes, by this one: the first may have started process and engine,
        which are there then. Where weights are loaded for each, it takes so much longer.
        """
        if self.pass_index > 0 or not self.parts:
            return self.seconds
        return sum(seconds for part, seconds in self.parts.items() if part != LOAD)

    def summary(self) -> EvaluationSummary:
        """The evaluation without its items."""
        return EvaluationSummary(
            attempt=self.attempt,
            step=self.step,
            score=self.score,
            items=len(self.items),
            truncated=self.truncated,
            unanswered=self.unanswered,
            timed_out=self.timed_out,
            proxy_score=fmean(self.proxy_items) if self.proxy_items else None,
            path=self.path,
            sha256=self.sha256,
            sampling=self.sampling,
        )


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
    """The state of one guarded run. Fold events in the order in which they were stored."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        liveness = (policy.silent, policy.stale, policy.evaluation_failing)
        self._may_halt = any(section.action == "stop" for section in liveness)
        # Steps without an evaluation are all that a step can make a reason for a halt.
        self._halting_steps = policy.stale.after_steps if policy.stale.action == "stop" else math.inf
        self._guard = policy.heldout_guard.build()
        # The same without a warm-up: what it finds is told for as long as the warm-up lasts.
        self._early = replace(self._guard, min_steps=0)
        self._monitor = policy.kl.build()
        self._early_monitor = replace(self._monitor, min_steps=0)  # the same, fed in the warm-up alone
        self._calibrated = _calibrated_run(policy)
        self._window = StepWindow()
        self._count = StepCount()
        self._starts, self._series = AttemptStarts(), EvaluationSeries()
        self._steps = 0
        self._last_kl: tuple[str, float | None] | None = None  # kind and value of the newest step
        self._kl_lost = 0  # steps in a row without one that counts
        self._reward_lost = 0  # steps in a row without a finite reward
        self._announced = self._evaluated = self._failed = self._skipped = 0  # checkpoints
        self._refused: frozenset[CheckpointKey] = frozenset()  # checkpoints that were not taken
        self._skipped_in_a_row = 0
        self._gone = 0  # checkpoints that were deleted before they could be announced
        self._sampling: Sampling | None = None  # what the first checkpoint said
        self._other_sampling: CheckpointReport | None = None  # the newest that is not that
        self._waits: bool | None = None  # whether the trainer waits for the guard, by its newest checkpoint
        self._short_baseline: int | None = None  # its passes, if one that was wanted could not be made
        self._unconfirmed = False  # whether the fresh pass that an alarm waited for could not be made
        self._failures = 0
        self._last_failure = ""
        self._failure: FailureKind | None = None  # of the newest evaluation
        self._last: EvaluationSummary | None = None
        self._best: EvaluationSummary | None = None
        self._best_since: EvaluationSummary | None = None  # the trainer started from scratch, if it did
        self._unscored = Unscored()
        #: What the newest evaluation came to; None of a later pass.
        self.newest_round: Round | None = None
        self._lost = ""  # why nobody knows what was folded before; "" if nothing was
        self._fire: Latch | None = None
        self._halt: Latch | None = None

    def copy(self) -> Self:
        """A judge of the same run: what is folded into one of them changes nothing in the other."""
        twin = type(self).__new__(type(self))
        vars(twin).update({name: copy.copy(value) for name, value in vars(self).items()})
        return twin

    # -- folding -----------------------------------------------------------------------------------------

    def fold_step(self, report: StepValues) -> None:
        """Fold one new step (the store has already dropped repeats)."""
        self.fold_steps(((report.attempt, report.step, report.reward, report.kl, report.kl_kind),))

    def fold_steps(self, steps: Iterable[StepTuple]) -> None:
        """Fold new steps, oldest first: a run may have a million of them."""
        count, starts, window = self._count, self._starts, self._window
        kls: list[StepKl] = []
        for attempt, step, reward, kl, kind in steps:
            self._steps += 1
            count.fold_step(attempt, step)
            if starts.began is None or attempt > starts.heard:
                starts.fold_step(attempt, step)
            if count.reported > self._halting_steps:
                self._latch_halt(silent_for=0.0)
            if reward is None:  # it is counted, and nothing is judged by it
                self._reward_lost += 1
                continue
            self._reward_lost = 0
            self._last_kl = (kind, kl)
            counting = window.add(attempt, step, reward, kl, kind)
            self._kl_lost = 0 if counting else self._kl_lost + 1
            kls += [(attempt, step, one) for one in counting]
        self._fold_kls(kls)

    def _fold_kls(self, kls: Sequence[StepKl]) -> None:
        """Fold the KLs that count into the monitor; in its warm-up also into the one without a warm-up."""
        warm_up = 0
        while warm_up < len(kls) and self._monitor.rise is None:
            self._watch(kls[warm_up : warm_up + 1])
            if self._monitor.rise is None:
                self._early_monitor.fold(kls[warm_up : warm_up + 1])
            warm_up += 1
        self._watch(kls[warm_up:])

    def _watch(self, kls: Sequence[StepKl]) -> None:
        latched = self._monitor.fold(kls)
        if latched is not None:
            self._latch_fire(Code.KL_HARD_STOP, self._monitor.fired_reason or "", *latched[:2])

    def fold_checkpoint(self, report: CheckpointReport | None = None) -> None:
        """Fold the announcement of a checkpoint that now waits for its evaluation; None: it is not known.

        The first one fixes how the trainer samples, for the whole run: scores of another sampling could not
        be compared with the baseline.
        """
        said = None if report is None else report.sampling
        self._waits = None if report is None else report.waits
        if self._announced == 0:
            self._sampling = said
        elif report is not None and said != self._sampling:
            self._other_sampling = report
        if report is not None:  # it may have been refused before
            self._refused -= {CheckpointKey.of(report)}
        self._announced += 1
        self._latch_halt(silent_for=0.0)

    def counts_as_refused(self, key: CheckpointKey) -> bool:
        """Whether `fold_refused` would change anything: it counts each once, up to MAX_REFUSED."""
        return key not in self._refused and len(self._refused) < MAX_REFUSED

    def fold_refused(self, key: CheckpointKey) -> None:
        """Fold that the announcement of a checkpoint was refused: nobody judges it."""
        if self.counts_as_refused(key):
            self._refused |= {key}

    def fold_evaluation(self, evaluation: Evaluation) -> None:
        """Fold a finished evaluation: one round of `HeldOutGuard`, if steps were reported since the last.

        The in-loop reward is the mean over the steps after the last evaluated checkpoint up to this one, of
        the same attempt. Without any step in that window there is no reward to compare with, so nothing is
        folded (invariant 2). HeldOutGuard gets no KL: the step monitor watches that, at every step. The
        calibrated detector, where the policy has it, folds every evaluation that may be compared with others
        (`Unscored`), and it alone the later passes.
        """
        self._failures, self._failure, self.newest_round = 0, None, None
        if evaluation.pass_index > 0:
            self._fold_items(evaluation, None, None)
            self._take_its_place(evaluation)
            self._take_the_best()
            self._latch_halt(silent_for=0.0)
            return
        self._evaluated += 1
        self._skipped_in_a_row = 0
        self._last = evaluation.summary()
        self._begin_again(evaluation.attempt, evaluation.step)
        comparable = self._unscored.fold(self._last, evaluation.unscored, self._best_since, self._sampling)
        # An alarm that waits is decided, whatever was cut off: nobody may keep it waiting.
        comparable = comparable or self._awaits_confirmation or self._unconfirmed
        self._unconfirmed = False
        attempt, step = evaluation.attempt, evaluation.step
        window = self._window.close(attempt, step)
        self._count.fold_evaluation(attempt, step, window.steps, len(self._window))
        if window.reward is not None and self._unscored.measured:
            self._early.update(step, window.reward, self._last.score)
            status = self._guard.update(step, window.reward, self._last.score)
            if status.fire and self._guard.fired_rule is not None and self._held_out_guard_decides:
                self._latch_fire(Code(self._guard.fired_rule), status.reason, attempt, step)
        if comparable:
            self._fold_items(evaluation, window.reward, window.reward_error)
        self._take_the_best()
        self._latch_halt(silent_for=0.0)
        after = self._guard.last_status
        self.newest_round = Round(
            reward=window.reward,
            kl=window.kl,
            rounds=self._guard.count,
            in_loop_ema=after.in_loop_ema if after else None,
            heldout_ema=after.heldout_ema if after else None,
            proxy_real_gap=after.proxy_real_gap if after else None,
            kl_ema=self._monitor.kl_ema,
            evidence=self._evidence() if comparable else {},
        )

    def _begin_again(self, attempt: int, step: int) -> None:
        """Forget what was judged since the baseline, if this checkpoint's attempt started from scratch."""
        run = self._calibrated
        self._starts.fold_checkpoint(attempt, step)
        made = max(self._guard.count - 1, 0 if run is None else run.evaluations)
        if not self._series.begins(
            self._starts.newest, attempt, made=made, alarmed=run is not None and run.alarmed
        ):
            return
        self._best_since = None
        self._guard.begin_again()
        self._early.begin_again()
        if run is not None:
            run.begin_again()

    def _take_its_place(self, evaluation: Evaluation) -> None:
        """Let a later pass stand for the first one of its checkpoint, if that turned out to be none."""
        if self._calibrated is None or not self._calibrated.contradicted:
            return
        former, self._last = self._last, evaluation.summary()
        if self._best == former:
            self._best = self._last
        if self._best_since == former:
            self._best_since = self._last

    def _take_the_best(self) -> None:
        """Note the newest evaluation if none was better, and no fresh pass has yet to say that it is one."""
        if self._last is None or (self._calibrated is not None and self._calibrated.jumped):
            return
        if self._best is None or self._last.score >= self._best.score:
            self._best = self._last
        if self._best_since is None or self._last.score >= self._best_since.score:
            self._best_since = self._last

    def _evidence(self) -> dict[str, tuple[float, float]]:
        """Statistic and threshold of each calibrated detector that can judge now, nats."""
        readings = self._calibrated.readings if self._calibrated is not None else ()
        return {
            reading.name: (reading.statistic, reading.threshold)
            for reading in readings
            if reading.statistic is not None and reading.threshold is not None
        }

    def _fold_items(
        self,
        evaluation: Evaluation,
        in_loop_reward: float | None,
        in_loop_error: float | None,
    ) -> None:
        """Fold the per-item outcomes into the calibrated detector, if the policy has it."""
        if self._calibrated is None or evaluation.mean_only:
            return
        status = _fold_into(self._calibrated, evaluation, in_loop_reward, in_loop_error)
        if status is not None and status.rule is not None:
            self._latch_fire(Code(status.rule), status.reason, evaluation.attempt, evaluation.step)

    def fold_failure(self, error: str, pass_index: int = 0, kind: FailureKind = FailureKind.UNDERWAY) -> None:
        """Fold an evaluation that failed: the checkpoint, or the wanted pass of it, is given up.

        Weights that were scored as the checkpoint before are judged with it: they are no new evidence, and
        nothing that was missed. Steps since the last evaluation stay unjudged.
        """
        self._failure = kind
        if kind is FailureKind.UNCHANGED and pass_index == 0:
            self._evaluated += 1
            self._last_failure = error
            return
        self._failures += 1
        if pass_index == 0:
            self._failed += 1
        else:
            self._lose_pass(may_pass=kind in MAY_PASS)
        self._last_failure = error
        self._latch_halt(silent_for=0.0)

    def fold_skipped(self, pass_index: int = 0) -> None:
        """Fold that a checkpoint was gone from the disk before it, or the wanted pass, could be evaluated."""
        if pass_index == 0:
            self._skipped += 1
            self._skipped_in_a_row += 1
        else:
            self._lose_pass(may_pass=False)
        self._latch_halt(silent_for=0.0)

    def _lose_pass(self, *, may_pass: bool) -> None:
        """A wanted pass failed. It is tried again, or cannot be had: then the next checkpoint decides the
        alarm, or closes the baseline with the passes that were made.
        """
        if self._calibrated is None:
            return
        confirms = self._waits_for_a_pass
        if not self._calibrated.lose(may_pass=may_pass):
            return
        if confirms:
            self._unconfirmed = True
        elif made := self._calibrated.passes_made:  # none are left of a baseline that is complete
            self._short_baseline = made

    def fold_silence(self, silent_for: float) -> bool:
        """Latch a halt if the trainer has been silent for `silent_for` seconds and the action is `stop`.

        Returns:
            Whether the latch closed now, so that the caller stores it before announcing it.
        """
        closed = self._halt is not None
        self._latch_halt(silent_for)
        return self._halt is not None and not closed

    def fold_latch(self, latch: Latch) -> None:
        """Close a latch that was stored: one that silence closed cannot be had by folding reports again."""
        if latch.fire:
            self._fire = self._fire or latch
        else:
            self._halt = self._halt or latch

    def fold_end(self, report: EndReport) -> None:
        """Fold which step a trainer says was its last, and how many checkpoints it could not announce.

        Neither is taken back: they can only add what nobody judged.
        """
        self._gone = max(self._gone, report.gone)
        if report.step is not None:
            self._count.fold_end(report.attempt, report.step, report.began)

    def knows_end(self, report: EndReport) -> bool:
        """Whether `fold_end` would change nothing."""
        told = self._count.told
        later = report.step is not None and (told is None or (report.attempt, report.step) > told[:2])
        return report.gone <= self._gone and not later

    def _latch_fire(self, code: Code, message: str, attempt: int, step: int) -> None:
        if self._fire is None:
            self._fire = Latch(True, code.value, message, attempt, step)

    def _latch_halt(self, silent_for: float) -> None:
        if self._halt is not None or not self._may_halt:
            return
        for condition in self._liveness(silent_for):
            if condition.action == "stop":
                self._halt = Latch(
                    False,
                    condition.code.value,
                    condition.message,
                    self._count.attempt or 0,
                    self._count.step or 0,
                )
                return

    # -- queries: none of them changes anything ---------------------------------------------------------

    def wanted_pass(self) -> Pass | None:
        """A further evaluation, with fresh randomness, that should come before any other checkpoint's.

        Passes of the baseline until `calibrated.baseline_passes` are done, one to confirm an alarm, and of
        the last checkpoint of a run that ends near one. One that failed of what may pass is wanted once more,
        under a number of its own.
        Respond with an `Evaluation` of that `pass_index`, or `fold_failure` with it.
        """
        if self._calibrated is None or self._fire is not None:
            return None
        return self._calibrated.wanted(over=self._is_over)

    @property
    def sampling(self) -> Sampling | None:
        """What the trainer's first checkpoint said of its sampling; None: nothing, or there was none."""
        return self._sampling

    @property
    def _checkpoints_left(self) -> int:
        """Checkpoints that were announced, and neither evaluated nor given up."""
        return max(0, self._announced - self._evaluated - self._failed - self._skipped)

    @property
    def waiting(self) -> int:
        """Evaluations that are yet to be made. A baseline nobody is compared with waits for nothing."""
        return self._checkpoints_left + (1 if self._fire is None and self._waits_for_a_pass else 0)

    @property
    def _baseline_planned(self) -> int:
        """Passes that the baseline will have, while it is gathered."""
        calibrated = self._calibrated
        return calibrated.passes_planned if calibrated is not None and calibrated.gathers_baseline else 0

    @property
    def _next_pass(self) -> Literal["baseline", "confirmation"] | None:
        """What the pass that `wanted_pass` asks for is good for."""
        if self.wanted_pass() is None:
            return None
        return "baseline" if self._baseline_planned else "confirmation"

    @property
    def _is_over(self) -> bool:
        """Whether the trainer has said that it made its last step, and no checkpoint of it waits."""
        return self._count.over and not self._checkpoints_left

    @property
    def _waits_for_a_pass(self) -> bool:
        """Whether an alarm, or the end of a run that is near one, waits for a pass of the last checkpoint."""
        return self._calibrated is not None and self._calibrated.waits_for_a_pass(over=self._is_over)

    @property
    def _awaits_confirmation(self) -> bool:
        """Whether an alarm waits for a fresh pass of the newest checkpoint."""
        return self._calibrated is not None and self._calibrated.awaits_confirmation

    @property
    def _held_out_guard_decides(self) -> bool:
        """Whether HeldOutGuard may fire; under `calibrated` what it says is advice."""
        return self.policy.detector != "calibrated"

    @property
    def latch(self) -> Latch | None:
        """The fire if there is one, else the halt, else None."""
        return self._fire or self._halt

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one halt."""
        return tuple(latch for latch in (self._fire, self._halt) if latch is not None)

    @property
    def kl_advised(self) -> tuple[bool, bool, bool]:
        """Which advice about the KL holds, which any step can change: the warning's limit is passed, the KL
        did not start near 0, it is not finite. Cheap, for who folds a long run and looks at every change.
        """
        limit, rise = self.policy.kl.warn_above, self._monitor.rise
        return (
            limit is not None and rise is not None and rise > limit,
            bool(self._monitor.start),
            self._kl_is_lost and self._last_kl is not None and self._last_kl[0] == KlKind.NOT_FINITE,
        )

    def verdict(self, silent_for: float = 0.0) -> Verdict:
        """The verdict now.

        Args:
            silent_for: seconds since the last step, or since the guard started if that was later.
        """
        conditions = tuple(sorted(self._conditions(silent_for), key=lambda c: (c.advice, -c.level.severity)))
        worst = next((c for c in conditions if not c.advice and c.level is not Level.HEALTHY), None)
        if worst is None:
            worst = Condition.of(Code.OK, self._ok_sentence(conditions))
        status = self._guard.last_status
        return Verdict(
            level=worst.level,
            code=worst.code,
            reason=worst.message,
            fire=self._fire is not None,
            halt=self._fire is None and self._halt is not None,
            stop=self.latch is not None,
            conditions=conditions,
            latch_attempt=self.latch.attempt if self.latch else None,
            latch_step=self.latch.step if self.latch else None,
            attempt=self._count.attempt,
            step=self._count.step,
            steps=self._steps,
            rounds=self._guard.count,
            announced=self._announced + self._gone,
            evaluated=self._evaluated,
            failed=self._failed,
            skipped=self._skipped + self._gone,
            refused=len(self._refused),
            failure=self._failure,
            baseline_passes=self._calibrated.passes_made if self._calibrated is not None else 0,
            baseline_planned=self._baseline_planned,
            next_pass=self._next_pass,
            waiting=self.waiting,
            sooner=self.latch is None and self._calibrated is not None and self._calibrated.is_near,
            steps_since_evaluation=self._count.after,
            longest_round=self._count.longest_round,
            in_loop_ema=status.in_loop_ema if status else None,
            heldout_ema=status.heldout_ema if status else None,
            proxy_real_gap=status.proxy_real_gap if status else None,
            max_proxy_real_gap=self._guard.max_proxy_real_gap,
            kl_ema=self._monitor.kl_ema,
            kl_start=self._monitor.start or None,
            kl_warn_above=self.policy.kl.warn_above,
            kl_hard_stop=self.policy.kl.hard_stop,
            last_evaluation=self._last,
            best_evaluation=self._best,
            detectors=self._calibrated.readings if self._calibrated is not None else (),
        )

    def _conditions(self, silent_for: float) -> Iterator[Condition]:
        if self._fire is not None:
            yield Condition.of(Code(self._fire.code), self._fire.message, level=Level.FIRED)
        if self._halt is not None:
            yield Condition.of(Code(self._halt.code), self._halt.message, level=Level.WARNING, action="stop")
        if self._lost:
            yield Condition.of(Code.PAST_UNKNOWN, self._lost)
        for condition in self._liveness(silent_for):
            if self._halt is None or condition.code.value != self._halt.code:
                yield condition
        if self._failure in DOUBTS and (self._failure is not FailureKind.UNCHANGED or self._count.reported):
            yield Condition.of(Code.CHECKPOINT_DOUBTFUL, self._last_failure)
        yield from self._unscored.conditions(self._sampling)
        if self._reward_lost >= REWARD_LOST_STEPS:
            message = f"the reward of the last {self._reward_lost} steps is NaN or infinite"
            yield Condition.of(Code.NO_REWARD, message)
        elif self._count.lacks_reward:
            yield Condition.of(
                Code.NO_REWARD,
                f"the last {self._count.unrewarded} evaluated checkpoints were compared with no reward: no "
                f"step was reported for them, and the newest that was is step {self._count.step}",
            )
        if self._steps == 0:
            yield Condition.of(Code.NO_STEPS, "no step has been reported yet")
        elif self._held_out_guard_decides and self._guard.count < max(1, self._guard.min_steps):
            yield from self._warming_up()
        if self._calibrated is not None:
            yield from self._calibrated.conditions()
            yield from self._about_lost_passes()
        yield from self._about_sampling()
        yield from self._about_waiting()
        yield from self._about_starts()
        yield from self._observers()
        yield from self._about_kl()

    def _about_starts(self) -> Iterator[Condition]:
        """That an attempt started from scratch; once too often is among `_liveness`."""
        if self._series.said and not self._series.refused:
            yield Condition.of(Code.STARTED_AGAIN, self._series.said, advice=True)

    def _warming_up(self) -> Iterator[Condition]:
        """That HeldOutGuard may not fire yet, and what it would have fired on by now."""
        rounds = f"{self._guard.count} of {max(1, self._guard.min_steps)} evaluation rounds"
        message = f"{rounds} before the held-out rule may judge"
        yield Condition.of(Code.WARMING_UP, message)
        rule, status = self._early.fired_rule, self._early.last_status
        if rule is not None and status is not None:
            reason = status.reason.removeprefix("latched: ")
            yield Condition.of(
                Code(rule),
                f"only its warm-up keeps the rule from stopping the run: {reason}",
                level=Level.WARNING,
            )

    def _about_lost_passes(self) -> Iterator[Condition]:
        """What passes that could not be made mean. A short baseline is honest, and sees less: `warming_up`
        holds until what there is would show a fall.
        """
        if self._unconfirmed:
            yield Condition.of(
                Code.EVALUATION_FAILING,
                "the fresh evaluation that an alarm, or the end of a run that is near one, waited for could "
                "not be made: the next checkpoint decides about it, and without one nobody does",
                level=Level.WARNING,
            )
        if self._short_baseline is not None and self._evaluated > 1:
            passes = f"{self._short_baseline} of {self.policy.calibrated.baseline_passes} passes"
            yield Condition.of(
                Code.NO_BASELINE,
                f"the baseline has {passes} of the starting policy, because the next one failed, twice "
                "where that could help, or its checkpoint was gone: a decline shows later than with all of "
                "them. Keep the starting policy on the disk until they are made",
                advice=True,
            )

    def _observers(self) -> Iterator[Condition]:
        """What the observers would have done: it is told, and stops nothing."""
        rule, status = self._guard.fired_rule, self._guard.last_status
        if rule is not None and status is not None and not self._held_out_guard_decides:
            reason = status.reason.removeprefix("latched: ")
            yield Condition.of(
                Code(rule),
                f"HeldOutGuard at its thresholds would have stopped the run: {reason}",
                advice=True,
            )
        limit, (passed, *_) = self.policy.kl.warn_above, self.kl_advised
        if limit is not None and passed:
            yield Condition.of(
                Code.KL_HARD_STOP,
                self._monitor.sentence(self._count.step or 0, limit, "limit for a warning"),
                advice=True,
            )

    def _about_sampling(self) -> Iterator[Condition]:
        """How evaluations and trainer differ. It is advice: held-out scores stay comparable with each other.

        What is measured differently is the reward, so a comparison of its gain with theirs is in question,
        and nothing that a trainer could hide by it.
        """
        used = None if self._unscored.first is None else self._unscored.first.sampling
        if used is not None and used.source is SamplingSource.DEFAULT:
            yield Condition.of(
                Code.SAMPLING_UNKNOWN,
                "neither the trainer nor the evaluator's settings say how to sample (temperature and longest "
                f"completion), so evaluations have the default: {used.words}. Where the trainer samples in "
                "another way, gains of the held-out score and of the reward are not the same thing",
                advice=True,
            )
        if (other := self._other_sampling) is not None:
            yield Condition.of(
                Code.SAMPLING_CHANGED,
                f"the trainer's checkpoint at step {other.step} says {_said(other.sampling)}; the run began "
                f"with {_said(self._sampling)}, and its evaluations stay as they were",
                advice=True,
            )

    def _about_waiting(self) -> Iterator[Condition]:
        """That the trainer goes on without a verdict. It judges nothing, but a fire may come too late."""
        if self._waits is False:
            yield Condition.of(
                Code.NOT_WAITING,
                "the trainer does not wait for its guard: waiting is off or its time is used up, so a fire "
                "may come late",
                advice=True,
            )

    def _about_kl(self) -> Iterator[Condition]:
        """What is to be known of the KL itself. A limit that stops and cannot be watched is not kept."""
        watched = self.policy.kl.hard_stop is not None
        _, starts_away, not_finite = self.kl_advised
        early = self._early_monitor.fired_reason
        if self._monitor.rise is None and early is not None:
            yield Condition.of(
                Code.KL_HARD_STOP,
                f"only its warm-up of {self._monitor.min_steps} steps keeps the rule from stopping the run: "
                f"{early}",
                level=Level.WARNING,
            )
        if starts_away:
            yield Condition.of(
                Code.REFERENCE_NOT_START,
                f"the KL began at {self._monitor.start:.4g} nats/token: the reference is not the starting "
                "policy, so limits count from there",
                advice=True,
            )
        if not_finite:
            message = f"none of the last {self._kl_lost} steps has a KL that counts: it is infinite or NaN"
            level = Level.UNKNOWN if watched else Level.WARNING
            yield Condition.of(Code.KL_NOT_FINITE, message, level=level, advice=not watched)
        elif self._steps and (inert := self._why_kl_is_inert()):
            level = Level.UNKNOWN if watched and self._kl_is_lost else Level.HEALTHY
            yield Condition.of(Code.KL_INERT, inert, level=level)

    def _liveness(self, silent_for: float) -> Iterator[Condition]:
        """What keeps the guard from knowing: its own conditions with their own actions (invariant 6)."""
        silent, stale, failing = self.policy.silent, self.policy.stale, self.policy.evaluation_failing
        if silent_for > silent.after_seconds:
            yield Condition.of(
                Code.SILENT,
                f"no step for {silent_for:.0f} s (limit {silent.after_seconds:g} s)",
                action=silent.action,
            )
        if self._series.refused:
            yield Condition.of(Code.STARTED_AGAIN, self._series.said, action=silent.action)
        left, gone = self._checkpoints_left, self._skipped_in_a_row
        if left + gone > stale.after_rounds:
            lost = f"{gone} checkpoints were skipped, and " if gone else ""
            yield Condition.of(
                Code.STALE,
                f"{lost}{left} checkpoints wait for their evaluation (limit {stale.after_rounds})",
                action=stale.action,
            )
        elif self._count.reported > stale.after_steps:
            yield Condition.of(
                Code.STALE,
                f"{self._count.reported} steps since the last evaluated checkpoint "
                f"(limit {stale.after_steps})",
                action=stale.action,
            )
        if self._failures >= failing.after_failures:
            yield Condition.of(
                Code.EVALUATION_FAILING,
                f"{self._failures} evaluations failed in a row; the last: {self._last_failure}",
                action=failing.action,
            )

    @property
    def _kl_is_lost(self) -> bool:
        return self._kl_lost >= KL_LOST_STEPS

    def _why_kl_is_inert(self) -> str:
        """A sentence if the newest step had no usable KL to the reference, else ""."""
        if self._last_kl is None:
            return ""
        kind, value = self._last_kl
        if kind == KlKind.NOT_FINITE:
            return "KL to the reference is infinite or NaN at the newest step"
        if kind != KlKind.REF_TOKEN_MEAN:
            return f"the trainer reports kl_kind={kind}: the KL rule needs {KlKind.REF_TOKEN_MEAN.value}"
        if value is None:
            return "the newest step has no KL: the KL rule is inert"
        if not self._window.kl_moved:
            return "KL to the reference is exactly 0 at every step (beta = 0?): it counts as absent"
        return ""

    def _ok_sentence(self, conditions: Sequence[Condition]) -> str:
        """That nothing stops the run, what was found all the same, and what was not looked at yet."""
        readings = () if self._calibrated is None else self._calibrated.readings
        # What the policy only warns of, by its code: this sentence is told the trainer, numbers are not.
        found = dict.fromkeys(one.code.value for one in readings if one.level is Level.WARNING)
        nothing = "nothing that stops a run by this policy" if found else "nothing"
        so_far = f"{nothing} speaks against the run after {self._evaluated} evaluated checkpoints"
        warned = [f"it warns of {', '.join(found)}"] if found else []
        waited = (c.message for c in conditions if c.code is Code.WARMING_UP)
        return "; ".join((so_far, *warned, *waited))

    # -- what another guard goes on from -----------------------------------------------------------------

    def compact(self) -> CompactState:
        """What a guard without this one's log goes on from.

        The checkpoints that wait go with their trainer, so nobody will announce them again: they are skipped.
        """
        return CompactState(
            policy=policy_digest(self.policy),
            steps=self._steps,
            announced=self._announced,
            evaluated=self._evaluated,
            failed=self._failed,
            skipped=max(0, self._announced - self._evaluated - self._failed),
            skipped_in_a_row=self._skipped_in_a_row,
            gone=self._gone,
            refused=tuple(sorted(self._refused)),
            failures=self._failures,
            last_failure=self._last_failure,
            failure=self._failure,
            unconfirmed=self._unconfirmed,
            sampling=self._sampling,
            other_sampling=self._other_sampling,
            waits=self._waits,
            last_kl=self._last_kl,
            kl_lost=self._kl_lost,
            reward_lost=self._reward_lost,
            kl_gate=replace(self._window.gate),
            kl=self._monitor.memory,
            early_kl=self._early_monitor.memory,
            count=copy.copy(self._count),
            starts=copy.copy(self._starts),
            series=copy.copy(self._series),
            unscored=copy.copy(self._unscored),
            guard=self._guard.to_state(),
            early=self._early.to_state(),
            last=self._last,
            best=self._best,
            best_since=self._best_since,
            detector=None if self._calibrated is None else self._calibrated.compact(),
            lost=self._lost,
        )

    def fold_adopted(self, state: CompactState) -> None:
        """Fold what another guard of this run knew, before anything else is folded.

        Raises:
            ValueError: the run was judged by another policy.
        """
        if state.policy != policy_digest(self.policy):
            raise ValueError("it was made under another policy")
        self._steps, self._kl_lost, self._last_kl = state.steps, state.kl_lost, state.last_kl
        self._reward_lost = state.reward_lost
        self._announced, self._evaluated = state.announced, state.evaluated
        self._failed, self._skipped, self._gone = state.failed, state.skipped, state.gone
        self._skipped_in_a_row = state.skipped_in_a_row
        self._refused = frozenset(CheckpointKey(*key) for key in state.refused)
        self._failures, self._last_failure = state.failures, state.last_failure
        self._failure, self._unconfirmed = state.failure, state.unconfirmed
        self._sampling, self._other_sampling = state.sampling, state.other_sampling
        self._waits = state.waits
        self._window.gate = replace(state.kl_gate)
        self._monitor.memory, self._early_monitor.memory = state.kl, state.early_kl
        self._count, self._starts = copy.copy(state.count), copy.copy(state.starts)
        self._series, self._unscored = copy.copy(state.series), copy.copy(state.unscored)
        if state.guard is not None and state.early is not None:
            self._guard = HeldOutGuard.from_state(state.guard)
            self._early = HeldOutGuard.from_state(state.early)
        self._last, self._best, self._best_since = state.last, state.best, state.best_since
        self._lost = state.lost
        self._adopt_detector(state)

    def _adopt_detector(self, state: CompactState) -> None:
        """Go on with its baseline; of one that was not complete the next checkpoint begins another."""
        if self._calibrated is None:
            return
        if state.detector is not None:
            self._calibrated.adopt(state.detector)
        elif state.last is not None:
            self._calibrated.adopt_nothing(BASELINE_LOST)
            self._starts.base, self._best_since = None, None


def _calibrated_run(policy: Policy) -> CalibratedRun | None:
    """The calibrated detector's run if the policy has one; only then is numpy imported."""
    if policy.detector == "heldout_guard":
        return None
    from guard_core.detectors.run import CalibratedRun

    return CalibratedRun(policy.calibrated if policy.detector == "calibrated" else policy.calibrated_share())


def _fold_into(
    run: CalibratedRun,
    evaluation: Evaluation,
    in_loop_reward: float | None = None,
    in_loop_error: float | None = None,
) -> DetectorStatus | None:
    """What the calibrated detector makes of an evaluation."""
    from guard_core.detectors.run import Pass, PassCost

    return run.fold(
        Pass(evaluation.attempt, evaluation.step, evaluation.path, evaluation.pass_index),
        evaluation.items,
        in_loop_reward,
        evaluation.proxy_items,
        in_loop_error,
        PassCost(evaluation.completions, evaluation.seconds, evaluation.seconds_again),
        evaluation.sampling,
        evaluation.fooled_items,
    )


def _said(sampling: Sampling | None) -> str:
    return "nothing of its sampling" if sampling is None else sampling.words
