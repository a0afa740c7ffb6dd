"""Properties of the core under arbitrary histories (hypothesis).

Latched means latched; a copy goes on by itself from every prefix; the state of HeldOutGuard round-trips
exactly through JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.core import HeldOutGuard
from rlguard.core.judge import Judge, Latch
from rlguard.core.policy import (
    CalibratedPolicy,
    HeldOutGuardPolicy,
    KlPolicy,
    Policy,
    SilentPolicy,
    StalePolicy,
)
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import KlKind, StepReport

values = st.floats(-1e6, 1e6, allow_nan=False)
kls = st.none() | st.floats(0.0, 1e5, allow_nan=False)
configs = st.builds(
    HeldOutGuard,
    kl_hard_stop=st.floats(1e-6, 10.0),
    max_proxy_real_gap=st.floats(-1.0, 1.0),
    min_steps=st.integers(0, 5),
    decline_patience=st.integers(1, 4),
    ema_alpha=st.floats(0.0, 0.99),
    rise_eps=st.floats(0.0, 0.1),
)
rounds = st.lists(st.tuples(values, values, kls, st.none() | values, st.none() | values), max_size=30)


@given(configs, rounds)
def test_a_fired_guard_never_un_fires(guard: HeldOutGuard, history: list[tuple[Any, ...]]) -> None:
    fired = False
    for i, update in enumerate(history):
        status = guard.update(i, *update)
        assert status.fire or not fired
        assert status.fire == status.halt == guard.should_halt() == bool(status.reason)
        fired = status.fire


@given(configs, rounds, st.data())
def test_a_guard_restarted_anywhere_goes_on_where_it_was(
    guard: HeldOutGuard, history: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    for i, update in enumerate(history[:cut]):
        guard.update(i, *update)
    restarted = HeldOutGuard.from_state(json.loads(json.dumps(guard.to_state())))
    assert restarted == guard
    for i, update in enumerate(history[cut:]):
        assert restarted.update(i, *update) == guard.update(i, *update)


# -- the judge ---------------------------------------------------------------------------------------------

Event = Callable[[Judge], object]


def step_event(attempt: int, step: int, reward: float, kl: float | None, kind: KlKind) -> Event:
    without = kind in (KlKind.ABSENT, KlKind.NOT_FINITE)
    report = StepReport(attempt=attempt, step=step, reward=reward, kl=None if without else kl, kl_kind=kind)
    return lambda judge: judge.fold_step(report)


def evaluation_event(attempt: int, step: int, items: list[float]) -> Event:
    evaluation = Evaluation(attempt, step, f"/checkpoints/{step}", tuple(items))
    return lambda judge: judge.fold_evaluation(evaluation)


attempts, steps = st.integers(0, 2), st.integers(0, 12)
events = st.lists(
    st.one_of(
        st.builds(
            step_event,
            attempts,
            steps,
            st.floats(-2, 2),
            st.none() | st.floats(0, 2),
            st.sampled_from(KlKind),
        ),
        st.builds(
            evaluation_event,
            attempts,
            steps,
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
        ),
        st.just(lambda judge: judge.fold_checkpoint()),
        st.just(lambda judge: judge.fold_failure("boom")),
        st.just(lambda judge: judge.fold_latch(Latch(False, "silent", "no step", 0, 1))),
    ),
    max_size=40,
)
policies = st.builds(
    Policy,
    detector=st.sampled_from(["heldout_guard", "calibrated"]),
    kl=st.builds(KlPolicy, hard_stop=st.sampled_from([None, 0.5]), min_steps=st.integers(0, 8)),
    calibrated=st.builds(  # small: each example closes a baseline and simulates its thresholds
        CalibratedPolicy, baseline_passes=st.integers(1, 3)
    ),
    heldout_guard=st.builds(
        HeldOutGuardPolicy,
        min_steps=st.integers(0, 3),
        ema_alpha=st.sampled_from([0.0, 0.5]),
        rise_eps=st.just(0.01),
    ),
    silent=st.builds(SilentPolicy, after_seconds=st.just(50.0), action=st.sampled_from(["warn", "stop"])),
    stale=st.builds(
        StalePolicy, after_rounds=st.just(3), after_steps=st.just(8), action=st.sampled_from(["warn", "stop"])
    ),
)


@settings(deadline=None)  # a closed baseline simulates its thresholds
@given(policies, events)
def test_the_judge_latches_and_a_copy_goes_on_by_itself_at_every_prefix(
    policy: Policy, history: list[Event]
) -> None:
    judge = Judge(policy)
    stopped = fired = False
    for event in history:
        twin = judge.copy()
        assert twin.verdict() == judge.verdict()
        event(judge)
        event(twin)
        verdict = judge.verdict()
        assert twin.verdict() == verdict
        assert verdict.fire or not fired
        assert verdict.stop or not stopped
        assert verdict.stop == (verdict.fire or verdict.halt)
        stopped, fired = verdict.stop, verdict.fire
