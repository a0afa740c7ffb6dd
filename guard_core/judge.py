"""The judge: folds what was reported and evaluated, in order, into one verdict. Pure.

The guard service writes an event to its store, folds it here and responds; a replay folds the same events
and gets the same verdicts. The judge has no clock: how long the trainer has been silent is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code
from guard_core.findings import liveness, verdict_of
from guard_core.judged_run import JudgedRun, Latch
from guard_core.policy import Policy
from guard_core.rounds import Round
from guard_core.steps import StepKl
from guard_core.wire import (
    CheckpointReport,
    EndReport,
    EvaluationSampling,
    EvaluationSummary,
    FailureKind,
    KlKind,
    Verdict,
)

if TYPE_CHECKING:
    from guard_core.detectors.calibrated import DetectorStatus
    from guard_core.detectors.run import CalibratedRun

__all__ = ["LOAD", "TOLD", "TRAINER_LIMIT", "Evaluation", "Judge", "Latch", "StepTuple", "StepValues"]

#: Checkpoints that are remembered as refused: a trainer may announce without end.
MAX_REFUSED = 1_000

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


class Judge(JudgedRun):
    """Folds what happened to one guarded self. Fold events in the order in which they were stored."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        sections = (policy.silent, policy.stale, policy.evaluation_failing)
        self._may_halt = any(section.action == "stop" for section in sections)
        # Steps without an evaluation are all that a step can make a reason for a halt.
        self._halting_steps = policy.stale.after_steps if policy.stale.action == "stop" else math.inf

    # -- folding -----------------------------------------------------------------------------------------

    def fold_step(self, report: StepValues) -> None:
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
                self._latch_halt(silent_for=0.0)
            if reward is None:  # it is counted, and nothing is judged by it
                notes.reward_lost += 1
                continue
            notes.reward_lost = 0
            notes.last_kl = (kind, kl)
            counting = window.add(attempt, step, reward, kl, kind)
            notes.kl_lost = 0 if counting else notes.kl_lost + 1
            kls += [(attempt, step, one) for one in counting]
        self._fold_kls(kls)

    def _fold_kls(self, kls: Sequence[StepKl]) -> None:
        """Fold the KLs that count into the monitor; in its warm-up also into the one without a warm-up."""
        warm_up = 0
        while warm_up < len(kls) and self.monitor.rise is None:
            self._watch(kls[warm_up : warm_up + 1])
            if self.monitor.rise is None:
                self.early_monitor.fold(kls[warm_up : warm_up + 1])
            warm_up += 1
        self._watch(kls[warm_up:])

    def _watch(self, kls: Sequence[StepKl]) -> None:
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
        self._latch_halt(silent_for=0.0)

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
        self._latch_halt(silent_for=0.0)

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
            self.early.update(step, window.reward, summary.score)
            status = self.guard.update(step, window.reward, summary.score)
            if status.fire and self.guard.fired_rule is not None and self.held_out_guard_decides:
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
        made = max(self.guard.count - 1, 0 if calibrated is None else calibrated.evaluations)
        alarmed = calibrated is not None and calibrated.alarmed
        if not notes.series.begins(notes.starts.newest, attempt, made=made, alarmed=alarmed):
            return
        notes.best_since = None
        self.guard.begin_again()
        self.early.begin_again()
        if calibrated is not None:
            calibrated.begin_again()

    def _take_its_place(self, evaluation: Evaluation) -> None:
        """Let a later pass stand for the first one of its checkpoint, if that turned out to be none."""
        calibrated, notes = self.calibrated, self.notes
        if calibrated is None or not calibrated.contradicted:
            return
        former, notes.last = notes.last, evaluation.summary()
        if notes.best == former:
            notes.best = notes.last
        if notes.best_since == former:
            notes.best_since = notes.last

    def _take_the_best(self) -> None:
        """Note the newest evaluation if none was better, and no fresh pass has yet to say that it is one."""
        calibrated, notes = self.calibrated, self.notes
        if notes.last is None or (calibrated is not None and calibrated.jumped):
            return
        if notes.best is None or notes.last.score >= notes.best.score:
            notes.best = notes.last
        if notes.best_since is None or notes.last.score >= notes.best_since.score:
            notes.best_since = notes.last

    def _fold_items(self, evaluation: Evaluation, reward: float | None, error: float | None) -> None:
        """Fold the per-item outcomes into the calibrated detector, if the policy has it.

        `reward`, `error`: mean and standard error of the in-loop reward of its steps.
        """
        if self.calibrated is None or evaluation.mean_only:
            return
        status = _fold_into(self.calibrated, evaluation, reward, error)
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
        self._latch_halt(silent_for=0.0)

    def fold_skipped(self, pass_index: int = 0) -> None:
        """Fold that a checkpoint was gone from the disk before it, or the wanted pass, could be evaluated."""
        if pass_index == 0:
            self.notes.skipped += 1
            self.notes.skipped_in_a_row += 1
        else:
            self._lose_pass(may_pass=False)
        self._latch_halt(silent_for=0.0)

    def _lose_pass(self, *, may_pass: bool) -> None:
        """A wanted pass failed. It is tried again, or cannot be had: then the next checkpoint decides the
        alarm, or closes the baseline with the passes that were made.
        """
        calibrated, confirms = self.calibrated, self.waits_for_a_pass
        if calibrated is None or not calibrated.lose(may_pass=may_pass):
            return
        if confirms:
            self.notes.unconfirmed = True
        elif made := calibrated.passes_made:  # none are left of a baseline that is complete
            self.notes.short_baseline = made

    def fold_silence(self, silent_for: float) -> bool:
        """Latch a halt if the trainer has been silent for `silent_for` seconds and the action is `stop`.

        Returns:
            Whether the latch closed now, so that the caller stores it before announcing it.
        """
        closed = self.halt is not None
        self._latch_halt(silent_for)
        return self.halt is not None and not closed

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

    def _latch_halt(self, silent_for: float) -> None:
        if self.halt is not None or not self._may_halt:
            return
        why = next((one for one in liveness(self, silent_for) if one.action == "stop"), None)
        if why is not None:
            count = self.notes.count
            self.halt = Latch(False, why.code.value, why.message, count.attempt or 0, count.step or 0)

    def verdict(self, silent_for: float = 0.0) -> Verdict:
        """The verdict now.

        Args:
            silent_for: seconds since the last step, or since the guard started if that was later.
        """
        return verdict_of(self, silent_for)


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
