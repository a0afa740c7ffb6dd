"""The judge: folds what was reported and evaluated, in order, into one verdict. Pure.

The guard service writes an event to its store, folds it here and answers; a replay folds the same events
and gets the same verdicts. The judge has no clock: how long the trainer has been silent is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Protocol, Self

from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import Policy
from guard_core.step_monitor import StepMonitor
from guard_core.wire import (
    Code,
    Condition,
    EvaluationSummary,
    KlKind,
    Level,
    Verdict,
)

if TYPE_CHECKING:
    from guard_core.detectors.calibrated import DetectorStatus
    from guard_core.detectors.run import CalibratedRun, Pass

    Ahead = tuple[CalibratedRun, DetectorStatus | None]

STATE_VERSION = 2

#: Steps kept for the next evaluation round. A round's window is rarely 100 steps; the bound is for runs that
#: never announce a checkpoint.
MAX_PENDING = 10_000


class Step(Protocol):
    """What the judge reads of a step: a `StepReport`, or a row of a log that was checked as a whole.

    The values keep the promises of `StepReport`: `reward` is finite, `kl` is None or finite and >= 0.
    """

    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def reward(self) -> float: ...  # noqa: D102
    @property
    def kl(self) -> float | None: ...  # noqa: D102
    @property
    def kl_kind(self) -> KlKind: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished held-out evaluation with its per-item outcomes. It never leaves the guard (invariant 8).

    `pass_index`: 0 for a checkpoint's first evaluation; later ones, which `Judge.wanted_pass` asks for, are
    passes of the baseline or the confirmation of an alarm, with fresh randomness.

    `items`: outcome of each held-out item in the split's order, each in [0, 1]; shape (n_items,).
    """

    attempt: int
    step: int
    path: str
    items: tuple[float, ...]
    sha256: str | None = None
    pass_index: int = 0

    @property
    def score(self) -> float:
        """Mean outcome, in [0, 1]."""
        return fmean(self.items)

    def summary(self) -> EvaluationSummary:
        """The evaluation without its items."""
        return EvaluationSummary(
            attempt=self.attempt,
            step=self.step,
            score=self.score,
            items=len(self.items),
            path=self.path,
            sha256=self.sha256,
        )


@dataclass(frozen=True, slots=True)
class Latch:
    """Why the run must stop, written once. `fire`: hacking; otherwise a condition whose policy is `stop`."""

    fire: bool
    code: str
    message: str
    attempt: int
    step: int


class Judge:
    """The state of one guarded run. Fold events in the order in which they were stored."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        liveness = (policy.silent, policy.stale, policy.evaluation_failing)
        self._may_stop = any(section.policy == "stop" for section in liveness)
        self._guard = policy.heldout_guard.build()
        self._monitor = policy.build_step_monitor()
        self._calibrated = _calibrated_run(policy)
        # (attempt, step, reward, armed KL) of the steps after the last evaluated checkpoint.
        self._pending: deque[tuple[int, int, float, float | None]] = deque(maxlen=MAX_PENDING)
        self._attempt: int | None = None
        self._step: int | None = None
        self._steps = 0
        self._kl_armed = False
        self._last_kl: tuple[str, float | None] | None = None  # kind and value of the newest step
        self._waiting = 0  # checkpoints announced since the last finished evaluation
        self._steps_since_evaluation = 0
        self._failures = 0
        self._last_failure = ""
        self._last: EvaluationSummary | None = None
        self._best: EvaluationSummary | None = None
        self._fire: Latch | None = None
        self._stop: Latch | None = None

    # -- folding -----------------------------------------------------------------------------------------

    def fold_step(self, report: Step) -> None:
        """Fold one new step (the store has already dropped repeats)."""
        attempt, step = report.attempt, report.step
        self._steps += 1
        self._steps_since_evaluation += 1
        if self._attempt is None or (attempt, step) >= (self._attempt, self._step or 0):
            self._attempt, self._step = attempt, step
        kl = self._armed_kl(report.kl, report.kl_kind)
        self._pending.append((attempt, step, report.reward, kl))
        if kl is not None:
            status = self._monitor.update(step, kl)
            if status.fire and self._rules_fire:
                self._latch_fire(Code.KL_HARD_STOP, status.reason, attempt, step)
        self._latch_stop(silent_for=0.0)

    def fold_checkpoint(self) -> None:
        """Fold the announcement of a checkpoint that now waits for its evaluation."""
        self._waiting += 1
        self._latch_stop(silent_for=0.0)

    def fold_evaluation(self, evaluation: Evaluation, ahead: Ahead | None = None) -> None:
        """Fold a finished evaluation: one round of `HeldOutGuard`, if steps were reported since the last.

        The in-loop reward is the mean over the steps after the last evaluated checkpoint up to this one, of
        the same attempt; the KL is their median, because one k3 spike would own a mean. Without any step
        in that window there is no reward to compare with, so nothing is folded (invariant 2). The calibrated
        detector, where the policy has it, folds every evaluation, and it alone the later passes. `ahead` is
        what `fold_ahead` made of this evaluation.
        """
        self._failures = 0
        if evaluation.pass_index > 0:
            self._fold_items(evaluation, None, ahead)
            self._latch_stop(silent_for=0.0)
            return
        self._waiting = max(0, self._waiting - 1)
        self._last = evaluation.summary()
        if self._best is None or self._last.score >= self._best.score:
            self._best = self._last
        attempt, step = evaluation.attempt, evaluation.step
        window = [p for p in self._pending if p[0] == attempt and p[1] <= step]
        later = [p for p in self._pending if (p[0], p[1]) > (attempt, step)]
        self._pending = deque(later, maxlen=MAX_PENDING)
        self._steps_since_evaluation = len(self._pending)
        reward = fmean([reward for _, _, reward, _ in window]) if window else None
        if reward is not None:
            kls = [kl for _, _, _, kl in window if kl is not None]
            status = self._guard.update(step, reward, self._last.score, median(kls) if kls else None)
            if status.fire and self._guard.fired_rule is not None and self._rules_fire:
                self._latch_fire(Code(self._guard.fired_rule), status.reason, attempt, step)
        self._fold_items(evaluation, reward)
        self._latch_stop(silent_for=0.0)

    def fold_ahead(self, evaluation: Evaluation) -> Ahead | None:
        """What the calibrated detector will make of a later pass, for `fold_evaluation`; it changes nothing.

        The last pass of the baseline takes seconds, in which steps may be folded and asked about. No other
        evaluation or failure may be folded before this one.
        """
        if self._calibrated is None or evaluation.pass_index == 0:
            return None
        copy = type(self._calibrated).from_state(self._calibrated.to_state())
        return copy, copy.fold(_pass(evaluation), evaluation.items, None)

    def _fold_items(
        self, evaluation: Evaluation, in_loop_reward: float | None, ahead: Ahead | None = None
    ) -> None:
        """Fold the per-item outcomes into the calibrated detector, if the policy has it."""
        if self._calibrated is None:
            return
        if ahead is None:
            status = self._calibrated.fold(_pass(evaluation), evaluation.items, in_loop_reward)
        else:
            self._calibrated, status = ahead
        if status is not None and status.rule is not None:
            self._latch_fire(Code(status.rule), status.reason, evaluation.attempt, evaluation.step)

    def fold_failure(self, error: str, pass_index: int = 0) -> None:
        """Fold an evaluation that failed: the checkpoint, or the wanted pass of it, is given up."""
        self._failures += 1
        if pass_index == 0:
            self._waiting = max(0, self._waiting - 1)
        elif self._calibrated is not None:
            self._calibrated.give_up()
        self._last_failure = error
        self._latch_stop(silent_for=0.0)

    def fold_silence(self, silent_for: float) -> bool:
        """Latch a stop if the trainer has been silent for `silent_for` seconds and the policy is `stop`.

        Returns:
            Whether the latch closed now, so that the caller stores it before announcing it.
        """
        closed = self._stop is not None
        self._latch_stop(silent_for)
        return self._stop is not None and not closed

    def fold_latch(self, latch: Latch) -> None:
        """Close a latch that was stored: one that silence closed cannot be had by folding reports again."""
        if latch.fire:
            self._fire = self._fire or latch
        else:
            self._stop = self._stop or latch

    def _armed_kl(self, kl: float | None, kind: KlKind) -> float | None:
        """The KL the rule may use. An exact 0 counts only once the KL has been seen to move (beta = 0)."""
        self._last_kl = (kind, kl)
        if kl is None or kind is not KlKind.REF_TOKEN_MEAN:
            return None
        self._kl_armed = self._kl_armed or kl != 0.0
        return kl if self._kl_armed else None

    def _latch_fire(self, code: Code, message: str, attempt: int, step: int) -> None:
        if self._fire is None:
            self._fire = Latch(True, code.value, message, attempt, step)

    def _latch_stop(self, silent_for: float) -> None:
        if self._stop is not None or not self._may_stop:
            return
        for condition in self._liveness(silent_for):
            if condition.policy == "stop":
                self._stop = Latch(
                    False, condition.code.value, condition.message, self._attempt or 0, self._step or 0
                )
                return

    # -- queries: none of them changes anything ---------------------------------------------------------

    def wanted_pass(self) -> Pass | None:
        """A further evaluation, with fresh randomness, that should come before any other checkpoint's.

        Passes of the baseline until `calibrated.baseline_passes` are done, and one to confirm an alarm.
        Answer with an `Evaluation` of that `pass_index`, or `fold_failure` with it.
        """
        return self._calibrated.wanted() if self._calibrated is not None and self._fire is None else None

    @property
    def _rules_fire(self) -> bool:
        """Whether HeldOutGuard and the KL stop may fire; under `calibrated` the KL stop only warns."""
        return self.policy.detector != "calibrated"

    @property
    def latch(self) -> Latch | None:
        """The fire if there is one, else the stop, else None."""
        return self._fire or self._stop

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one stop."""
        return tuple(latch for latch in (self._fire, self._stop) if latch is not None)

    def verdict(self, silent_for: float = 0.0) -> Verdict:
        """The verdict now.

        Args:
            silent_for: seconds since the last step, or since the guard started if that was later.
        """
        conditions = tuple(sorted(self._conditions(silent_for), key=lambda c: -c.level.severity))
        worst = conditions[0] if conditions else _condition(Code.OK, Level.HEALTHY, Code.OK.meaning)
        if worst.level is Level.HEALTHY:
            worst = _condition(Code.OK, Level.HEALTHY, self._ok_sentence())
        status = self._guard.last_status
        return Verdict(
            level=worst.level,
            code=worst.code,
            reason=worst.message,
            fire=self._fire is not None,
            halt=self.latch is not None,
            conditions=conditions,
            latch_attempt=self.latch.attempt if self.latch else None,
            latch_step=self.latch.step if self.latch else None,
            attempt=self._attempt,
            step=self._step,
            steps=self._steps,
            rounds=self._guard.count,
            waiting=self._waiting,
            in_loop_ema=status.in_loop_ema if status else None,
            heldout_ema=status.heldout_ema if status else None,
            proxy_real_gap=status.proxy_real_gap if status else None,
            max_proxy_real_gap=self._guard.max_proxy_real_gap,
            kl_ema=self._monitor.kl_ema,
            kl_hard_stop=self._monitor.kl_hard_stop,
            last_evaluation=self._last,
            best_evaluation=self._best,
            detectors=self._calibrated.readings if self._calibrated is not None else (),
        )

    def _conditions(self, silent_for: float) -> Iterator[Condition]:
        if self._fire is not None:
            yield _condition(Code(self._fire.code), Level.FIRED, self._fire.message)
        if self._stop is not None:
            yield _condition(Code(self._stop.code), Level.WARNING, self._stop.message, "stop")
        for condition in self._liveness(silent_for):
            if self._stop is None or condition.code.value != self._stop.code:
                yield condition
        if self._steps == 0:
            yield _condition(Code.NO_STEPS, Level.UNKNOWN, "no step has been reported yet")
        elif self._rules_fire and self._guard.count < max(1, self._guard.min_steps):
            yield _condition(
                Code.WARMING_UP,
                Level.UNKNOWN,
                f"{self._guard.count} of {max(1, self._guard.min_steps)} evaluation rounds "
                "before the held-out rule may judge",
            )
        if self._calibrated is not None:
            yield from self._calibrated.conditions()
        if not self._rules_fire and (reason := self._monitor.fired_reason):
            yield _condition(Code.KL_HARD_STOP, Level.WARNING, reason)
        if self._steps and (inert := self._why_kl_is_inert()):
            yield _condition(Code.KL_INERT, Level.HEALTHY, inert)

    def _liveness(self, silent_for: float) -> Iterator[Condition]:
        """What keeps the guard from knowing: its own conditions with their own policies (invariant 6)."""
        silent, stale, failing = self.policy.silent, self.policy.stale, self.policy.evaluation_failing
        if silent_for > silent.after_seconds:
            yield _condition(
                Code.SILENT,
                Level.UNKNOWN,
                f"no step for {silent_for:.0f} s (limit {silent.after_seconds:g} s)",
                silent.policy,
            )
        if self._waiting > stale.after_rounds:
            yield _condition(
                Code.STALE,
                Level.UNKNOWN,
                f"{self._waiting} checkpoints wait for their evaluation (limit {stale.after_rounds})",
                stale.policy,
            )
        elif self._steps_since_evaluation > stale.after_steps:
            yield _condition(
                Code.STALE,
                Level.UNKNOWN,
                f"{self._steps_since_evaluation} steps since the last evaluated checkpoint "
                f"(limit {stale.after_steps})",
                stale.policy,
            )
        if self._failures >= failing.after_failures:
            yield _condition(
                Code.EVALUATION_FAILING,
                Level.UNKNOWN,
                f"{self._failures} evaluations failed in a row; the last: {self._last_failure}",
                failing.policy,
            )

    def _why_kl_is_inert(self) -> str:
        """A sentence if the newest step had no usable KL to the reference, else ""."""
        if self._last_kl is None:
            return ""
        kind, value = self._last_kl
        if kind != KlKind.REF_TOKEN_MEAN:
            return f"the trainer reports kl_kind={kind}: the KL rule needs {KlKind.REF_TOKEN_MEAN.value}"
        if value is None:
            return "the newest step has no KL: the KL rule is inert"
        if not self._kl_armed:
            return "KL to the reference is exactly 0 at every step (beta = 0?): it counts as absent"
        return ""

    def _ok_sentence(self) -> str:
        gap = self._guard.proxy_real_gap()
        return f"nothing speaks against the run after {self._guard.count} rounds (Hacking Gap {gap:+.4f})"

    # -- state -------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Everything folded so far, as plain JSON; floats round-trip exactly."""
        return {
            "version": STATE_VERSION,
            "policy": self.policy.model_dump(mode="json"),
            "guard": self._guard.to_state(),
            "monitor": self._monitor.to_state(),
            "calibrated": None if self._calibrated is None else self._calibrated.to_state(),
            "pending": [list(p) for p in self._pending],
            "attempt": self._attempt,
            "step": self._step,
            "steps": self._steps,
            "kl_armed": self._kl_armed,
            "last_kl": None if self._last_kl is None else list(self._last_kl),
            "waiting": self._waiting,
            "steps_since_evaluation": self._steps_since_evaluation,
            "failures": self._failures,
            "last_failure": self._last_failure,
            "last": None if self._last is None else self._last.model_dump(mode="json"),
            "best": None if self._best is None else self._best.model_dump(mode="json"),
            "fire": None if self._fire is None else asdict(self._fire),
            "stop": None if self._stop is None else asdict(self._stop),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild a judge from `to_state`.

        Raises:
            ValueError: the state is of another version or does not validate.
            KeyError: a key is missing.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"Judge state has version {state.get('version')!r}; expected {STATE_VERSION}")
        judge = cls(Policy.model_validate(state["policy"]))
        judge._guard = HeldOutGuard.from_state(state["guard"])
        judge._monitor = StepMonitor.from_state(state["monitor"])
        if state["calibrated"] is not None:
            from guard_core.detectors.run import CalibratedRun

            judge._calibrated = CalibratedRun.from_state(state["calibrated"])
        judge._pending.extend((a, s, reward, kl) for a, s, reward, kl in state["pending"])
        for name in ("attempt", "step", "steps", "kl_armed", "waiting", "steps_since_evaluation"):
            setattr(judge, f"_{name}", state[name])
        judge._last_kl = None if state["last_kl"] is None else (state["last_kl"][0], state["last_kl"][1])
        judge._failures, judge._last_failure = state["failures"], state["last_failure"]
        judge._last = None if state["last"] is None else EvaluationSummary.model_validate(state["last"])
        judge._best = None if state["best"] is None else EvaluationSummary.model_validate(state["best"])
        judge._fire = None if state["fire"] is None else Latch(**state["fire"])
        judge._stop = None if state["stop"] is None else Latch(**state["stop"])
        return judge


def _calibrated_run(policy: Policy) -> CalibratedRun | None:
    """The calibrated detector's run if the policy has one; only then is numpy imported."""
    if policy.detector == "heldout_guard":
        return None
    from guard_core.detectors.run import CalibratedRun

    return CalibratedRun(policy.calibrated if policy.detector == "calibrated" else policy.calibrated_share())


def _pass(evaluation: Evaluation) -> Pass:
    from guard_core.detectors.run import Pass

    return Pass(evaluation.attempt, evaluation.step, evaluation.path, evaluation.pass_index)


def _condition(code: Code, level: Level, message: str, policy: Any = None) -> Condition:
    return Condition(code=code, level=level, message=message, policy=policy)
