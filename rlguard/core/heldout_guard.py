"""HeldOutGuard: the classic rule on reward, held-out score and KL to the reference.

Pure: no clock, no I/O, no threads. One call of `update` is one evaluation round. The rules and their
order are part of the public contract; `docs/concepts/detectors.md` states them in prose. Detectors with a
false-stop guarantee live in `rlguard.core.detectors`; this rule stays as it is, because users know it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

Rule = Literal["kl_hard_stop", "heldout_decline", "hacking_gap"]

#: `calibrate_kl_threshold` never returns less than this (nats/token): a threshold of 0 would fire on noise.
KL_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class TripwireStatus:
    """The judgement after one `HeldOutGuard.update`.

    `reason` is "" unless `fire`. `step` repeats the caller's `round_idx`. `proxy_real_gap`, `in_loop_ema`
    and `heldout_ema` are in reward units; `kl_ema` is in nats/token, None while no KL was ever given.
    """

    fire: bool
    reason: str
    step: int
    proxy_real_gap: float
    in_loop_ema: float
    heldout_ema: float
    kl_ema: float | None = None

    @property
    def halt(self) -> bool:
        """The same as `fire`, by the name that this class has had from its beginning. No halt is meant."""
        return self.fire


class CollapseStopError(RuntimeError):
    """Raised where a fired guard must end the program. `.status` is the status that fired."""

    def __init__(self, status: TripwireStatus) -> None:
        super().__init__(status.reason)
        self.status = status

    def __reduce__(self) -> tuple[type[CollapseStopError], tuple[TripwireStatus]]:
        # RuntimeError would rebuild itself from the message alone; a worker process must get the status.
        return type(self), (self.status,)


@dataclass
class HeldOutGuard:
    """Fires when in-loop reward rises while the held-out score does not, or when the policy drifts too far.

    Fields (all finite):
        kl_hard_stop: KL to the reference above which the run stops, nats/token; > 0.
        max_proxy_real_gap: ceiling of the Hacking Gap, reward units.
        min_steps: updates before anything may fire; counts calls, not `round_idx`.
        decline_patience: consecutive declines of the held-out EMA, while in-loop rises, that fire; >= 1.
        ema_alpha: weight on the PRIOR value of each EMA, in [0, 1); the first sample seeds it.
        rise_eps: change of an EMA that counts as a rise or a fall, reward units.

    Raises:
        ValueError: naming the field that is out of range or not finite.
    """

    kl_hard_stop: float = 0.08
    max_proxy_real_gap: float = 0.10
    min_steps: int = 20
    decline_patience: int = 3
    ema_alpha: float = 0.9
    rise_eps: float = 1e-4

    _count: int = field(default=0, init=False, repr=False)
    _streak: int = field(default=0, init=False, repr=False)
    _in_loop_ema: float | None = field(default=None, init=False, repr=False)
    _heldout_ema: float | None = field(default=None, init=False, repr=False)
    _kl_ema: float | None = field(default=None, init=False, repr=False)
    _entropy_ema: float | None = field(default=None, init=False, repr=False)
    _reward_std_ema: float | None = field(default=None, init=False, repr=False)
    _in_loop_baseline: float | None = field(default=None, init=False, repr=False)
    _heldout_baseline: float | None = field(default=None, init=False, repr=False)
    _fired_rule: Rule | None = field(default=None, init=False, repr=False)
    _fired_reason: str | None = field(default=None, init=False, repr=False)
    _last_status: TripwireStatus | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.init:
                _require_finite(f.name, getattr(self, f.name))
        if not 0.0 <= self.ema_alpha < 1.0:
            raise ValueError(f"ema_alpha must be in [0, 1), got {self.ema_alpha!r}")
        if not self.kl_hard_stop > 0.0:
            raise ValueError(f"kl_hard_stop must be > 0 nats/token, got {self.kl_hard_stop!r}")
        if self.decline_patience < 1:
            raise ValueError(f"decline_patience must be >= 1, got {self.decline_patience!r}")

    # -- folding ---------------------------------------------------------------------------------------

    def update(
        self,
        round_idx: int,
        in_loop_reward: float,
        heldout_score: float,
        kl_to_init: float | None = None,
        entropy: float | None = None,
        reward_std: float | None = None,
    ) -> TripwireStatus:
        """Fold one evaluation round and judge it.

        Args:
            round_idx: the caller's label of the round; it is repeated in the status and gates nothing.
            in_loop_reward: mean reward of the training loop since the last round.
            heldout_score: mean score of the policy on the held-out split.
            kl_to_init: KL to the reference, nats/token; None leaves the KL EMA as it was.
            entropy, reward_std: kept as EMAs for reports; they gate nothing. None leaves them as they were.

        Raises:
            ValueError: if a value is not finite; the guard is then unchanged.
        """
        given = {
            "in_loop_reward": in_loop_reward,
            "heldout_score": heldout_score,
            "kl_to_init": kl_to_init,
            "entropy": entropy,
            "reward_std": reward_std,
        }
        for name, value in given.items():
            if value is not None:
                _require_finite(name, value)

        self._count += 1
        previous = (self._in_loop_ema, self._heldout_ema)
        self._in_loop_ema = self._fold(self._in_loop_ema, in_loop_reward)
        self._heldout_ema = self._fold(self._heldout_ema, heldout_score)
        if kl_to_init is not None:
            self._kl_ema = self._fold(self._kl_ema, kl_to_init)
        if entropy is not None:
            self._entropy_ema = self._fold(self._entropy_ema, entropy)
        if reward_std is not None:
            self._reward_std_ema = self._fold(self._reward_std_ema, reward_std)
        if self._in_loop_baseline is None:
            self._in_loop_baseline, self._heldout_baseline = self._in_loop_ema, self._heldout_ema
        self._count_decline(*previous)

        rule, reason = self._judge()
        status = TripwireStatus(
            fire=bool(reason),
            reason=reason,
            step=round_idx,
            proxy_real_gap=self.proxy_real_gap(),
            in_loop_ema=self._in_loop_ema,
            heldout_ema=self._heldout_ema,
            kl_ema=self._kl_ema,
        )
        if status.fire and self._fired_reason is None:
            self._fired_rule, self._fired_reason = rule, reason
        self._last_status = status
        return status

    def _fold(self, prev: float | None, x: float) -> float:
        """One EMA step: `ema_alpha` is the weight on the prior, and the first sample seeds it."""
        return float(x) if prev is None else self.ema_alpha * prev + (1.0 - self.ema_alpha) * x

    def _count_decline(self, prev_in_loop: float | None, prev_heldout: float | None) -> None:
        if prev_in_loop is None or prev_heldout is None:
            return
        assert self._in_loop_ema is not None and self._heldout_ema is not None
        if prev_heldout - self._heldout_ema <= self.rise_eps:
            self._streak = 0
        elif self._in_loop_ema - prev_in_loop > self.rise_eps:
            self._streak += 1
        # A decline without a rise of the proxy is evidence of neither: the streak stays.

    def _judge(self) -> tuple[Rule | None, str]:
        """The rule that fires and its reason, or (None, ""). The first rule that holds decides."""
        if self._fired_reason is not None:
            return self._fired_rule, f"latched: {self._fired_reason}"
        if self._count < self.min_steps:
            return None, ""
        gap = self.proxy_real_gap()
        if self._kl_ema is not None and self._kl_ema > self.kl_hard_stop:
            return (
                "kl_hard_stop",
                f"kl_to_init EMA {self._kl_ema:.4g} nats/token is above the hard stop {self.kl_hard_stop:g}",
            )
        if self._streak >= self.decline_patience:
            return (
                "heldout_decline",
                f"held-out score fell in {self._streak} consecutive rounds while in-loop reward rose "
                f"(Hacking Gap {gap:+.4f})",
            )
        if gap > self.max_proxy_real_gap:
            return "hacking_gap", f"Hacking Gap {gap:+.4f} is above {self.max_proxy_real_gap:g}"
        return None, ""

    def begin_again(self) -> None:
        """Go back to the baseline, where a trainer is that starts from scratch; a latch stays closed.

        The count stays, too: whoever starts again and again is not in a warm-up for ever.
        """
        self._in_loop_ema, self._heldout_ema = self._in_loop_baseline, self._heldout_baseline
        self._streak = 0

    # -- queries: none of them changes anything ---------------------------------------------------------

    def proxy_real_gap(self) -> float:
        """The Hacking Gap: in-loop gain minus held-out gain since the first update; 0.0 before it."""
        if self._in_loop_ema is None or self._heldout_ema is None:
            return 0.0
        assert self._in_loop_baseline is not None and self._heldout_baseline is not None
        return (self._in_loop_ema - self._in_loop_baseline) - (self._heldout_ema - self._heldout_baseline)

    @property
    def last_status(self) -> TripwireStatus | None:
        """The status of the last `update`, or None before the first."""
        return self._last_status

    @property
    def count(self) -> int:
        """How many rounds were folded."""
        return self._count

    @property
    def fired_rule(self) -> Rule | None:
        """Which rule fired first, or None."""
        return self._fired_rule

    @property
    def fired(self) -> bool:
        """Whether the guard has fired, now or earlier."""
        return self._fired_reason is not None

    def should_halt(self) -> bool:
        """The same as `fired`, by the name that this class has had from its beginning. No halt is meant."""
        return self.fired

    def raise_if_fired(self, status: TripwireStatus | None = None) -> None:
        """Raise `CollapseStopError` if `status` (default: the last one) fired.

        Raises:
            CollapseStopError: carrying that status.
        """
        status = self._last_status if status is None else status
        if status is not None and status.fire:
            raise CollapseStopError(status)

    # -- calibration -------------------------------------------------------------------------------------

    def calibrate_kl_threshold(self, baseline_kls: Sequence[float], factor: float = 3.0) -> float:
        """Tighten `kl_hard_stop` to `factor` times the mean KL of a run known to be good; never loosen it.

        Args:
            baseline_kls: KL to the reference of good steps, nats/token, each >= 0.
            factor: head-room above their mean, > 0.

        Returns:
            The new `kl_hard_stop`, nats/token.

        Raises:
            ValueError: `baseline_kls` is empty, has a negative or non-finite value, or `factor` is not > 0.
        """
        if len(baseline_kls) == 0:
            raise ValueError("baseline_kls must be non-empty")
        _require_finite("factor", factor)
        if not factor > 0.0:
            raise ValueError(f"factor must be > 0, got {factor!r}")
        for kl in baseline_kls:
            _require_finite("baseline_kls", kl)
            if kl < 0.0:
                raise ValueError(f"baseline_kls must be non-negative, got {kl!r}")
        mean = math.fsum(baseline_kls) / len(baseline_kls)
        self.kl_hard_stop = min(max(factor * mean, KL_FLOOR), self.kl_hard_stop)
        return self.kl_hard_stop

    # -- state -------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The whole guard as plain JSON; `from_state` gives back an equal one (floats round-trip exactly)."""
        state = {f.name.removeprefix("_"): getattr(self, f.name) for f in fields(self)}
        state["last_status"] = None if self._last_status is None else asdict(self._last_status)
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild a guard from `to_state`.

        Raises:
            ValueError: a key is missing or unknown, or a threshold out of range.
        """
        names = {f.name.removeprefix("_"): f for f in fields(cls)}
        if state.keys() != names.keys():
            raise ValueError(f"HeldOutGuard state: not these keys: {sorted(state.keys() ^ names.keys())}")
        guard = cls(**{name: state[name] for name, f in names.items() if f.init})
        vars(guard).update({f.name: state[name] for name, f in names.items()})
        if state["last_status"] is not None:
            guard._last_status = TripwireStatus(**state["last_status"])
        return guard


def kl_token_trust_filter(logratio_sq_half: Any, threshold: float = 0.08) -> Any:
    """True where a token is outside the trust region and must be masked.

    Args:
        logratio_sq_half: 0.5 * (log pi - log pi_ref)^2 per token, the k2 estimator of the KL (nats/token;
            Schulman, "Approximating KL divergence", 2020). A float, or any array or tensor that compares
            elementwise, of any shape.
        threshold: nats/token; a token is masked strictly above it.

    Returns:
        A bool, or an array or tensor of bools of the same shape.
    """
    return logratio_sq_half > threshold


def _require_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
