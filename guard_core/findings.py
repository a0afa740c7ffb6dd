"""What is to be said of a judged run: the verdict, its conditions, and what may halt it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from guard_core.codes import Code, Level
from guard_core.judged_run import REWARD_LOST_STEPS, JudgedRun
from guard_core.wire import DOUBTS, Condition, FailureKind, KlKind, Sampling, SamplingSource, Verdict


def verdict_of(run: JudgedRun, silent_for: float) -> Verdict:
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
        baseline_passes=calibrated.passes_made if calibrated is not None else 0,
        baseline_planned=run.baseline_planned,
        next_pass=run.next_pass,
        waiting=run.waiting,
        sooner=latch is None and calibrated is not None and calibrated.is_near,
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
        detectors=calibrated.readings if calibrated is not None else (),
    )


def _conditions(run: JudgedRun, silent_for: float) -> Iterator[Condition]:
    if run.fire is not None:
        yield Condition.of(Code(run.fire.code), run.fire.message, level=Level.FIRED)
    if run.halt is not None:
        yield Condition.of(Code(run.halt.code), run.halt.message, level=Level.WARNING, action="stop")
    if run.notes.lost:
        yield Condition.of(Code.PAST_UNKNOWN, run.notes.lost)
    for condition in liveness(run, silent_for):
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
    elif run.held_out_guard_decides and run.guard.count < max(1, run.guard.min_steps):
        yield from _warming_up(run)
    if run.calibrated is not None:
        yield from run.calibrated.conditions()
        yield from _about_lost_passes(run)
    yield from _about_sampling(run)
    yield from _about_waiting(run)
    yield from _about_starts(run)
    yield from _observers(run)
    yield from _about_kl(run)


def _ok_sentence(run: JudgedRun, conditions: Sequence[Condition]) -> str:
    """That nothing stops the run, what was found all the same, and what was not looked at yet."""
    readings = () if run.calibrated is None else run.calibrated.readings
    # What the policy only warns of, by its code: this sentence is told the trainer, numbers are not.
    found = dict.fromkeys(one.code.value for one in readings if one.level is Level.WARNING)
    nothing = "nothing that stops a run by this policy" if found else "nothing"
    so_far = f"{nothing} speaks against the run after {run.notes.evaluated} evaluated checkpoints"
    warned = [f"it warns of {', '.join(found)}"] if found else []
    waited = (c.message for c in conditions if c.code is Code.WARMING_UP)
    return "; ".join((so_far, *warned, *waited))


def liveness(run: JudgedRun, silent_for: float) -> Iterator[Condition]:
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


def _warming_up(run: JudgedRun) -> Iterator[Condition]:
    """That HeldOutGuard may not fire yet, and what it would have fired on by now."""
    rounds = f"{run.guard.count} of {max(1, run.guard.min_steps)} evaluation rounds"
    message = f"{rounds} before the held-out rule may judge"
    yield Condition.of(Code.WARMING_UP, message)
    rule, status = run.early.fired_rule, run.early.last_status
    if rule is not None and status is not None:
        reason = status.reason.removeprefix("latched: ")
        yield Condition.of(
            Code(rule),
            f"only its warm-up keeps the rule from stopping the run: {reason}",
            level=Level.WARNING,
        )


def _about_lost_passes(run: JudgedRun) -> Iterator[Condition]:
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


def _about_sampling(run: JudgedRun) -> Iterator[Condition]:
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


def _about_waiting(run: JudgedRun) -> Iterator[Condition]:
    """That the trainer goes on without a verdict. It judges nothing, but a fire may come too late."""
    if run.notes.waits is False:
        yield Condition.of(
            Code.NOT_WAITING,
            "the trainer does not wait for its guard: waiting is off or its time is used up, so a fire "
            "may come late",
            advice=True,
        )


def _about_starts(run: JudgedRun) -> Iterator[Condition]:
    """That an attempt started from scratch; once too often is among `_liveness`."""
    if run.notes.series.said and not run.notes.series.refused:
        yield Condition.of(Code.STARTED_AGAIN, run.notes.series.said, advice=True)


def _observers(run: JudgedRun) -> Iterator[Condition]:
    """What the observers would have done: it is told, and stops nothing."""
    rule, status = run.guard.fired_rule, run.guard.last_status
    if rule is not None and status is not None and not run.held_out_guard_decides:
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


def _about_kl(run: JudgedRun) -> Iterator[Condition]:
    """What is to be known of the KL itself. A limit that stops and cannot be watched is not kept."""
    watched = run.policy.kl.hard_stop is not None
    _, starts_away, not_finite = run.kl_advised
    early = run.early_monitor.fired_reason
    if run.monitor.rise is None and early is not None:
        yield Condition.of(
            Code.KL_HARD_STOP,
            f"only its warm-up of {run.monitor.min_steps} steps keeps the rule from stopping the run: "
            f"{early}",
            level=Level.WARNING,
        )
    if starts_away:
        yield Condition.of(
            Code.REFERENCE_NOT_START,
            f"the KL began at {run.monitor.start:.4g} nats/token: the reference is not the starting "
            "policy, so limits count from there",
            advice=True,
        )
    if not_finite:
        message = f"none of the last {run.notes.kl_lost} steps has a KL that counts: it is infinite or NaN"
        level = Level.UNKNOWN if watched else Level.WARNING
        yield Condition.of(Code.KL_NOT_FINITE, message, level=level, advice=not watched)
    elif run.notes.steps and (inert := _why_kl_is_inert(run)):
        level = Level.UNKNOWN if watched and run.kl_is_lost else Level.HEALTHY
        yield Condition.of(Code.KL_INERT, inert, level=level)


def _why_kl_is_inert(run: JudgedRun) -> str:
    """A sentence if the newest step had no usable KL to the reference, else ""."""
    if run.notes.last_kl is None:
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
