"""The contract of `HeldOutGuard` and `GuardedGRPOTrainer`, promise by promise, through public names only.

A guard with `ema_alpha=0` has no memory, so that most cases need no arithmetic. The trainer's parent does
nothing in `__init__`: what the kill switch needs is exactly what these tests give it.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlguard import (
    CollapseStopError,
    GuardedGRPOTrainer,
    HeldOutGuard,
    TripwireStatus,
    kl_token_trust_filter,
)

pytestmark = pytest.mark.torch

# -- HeldOutGuard: values ----------------------------------------------------------------------------------


def guard_without_memory(**overrides: Any) -> HeldOutGuard:
    """No EMA, no warm-up, and no rule within reach unless it is overridden."""
    settings = {"kl_hard_stop": 1e9, "max_proxy_real_gap": 1e9, "decline_patience": 999}
    return HeldOutGuard(**(settings | {"min_steps": 1, "ema_alpha": 0.0, "rise_eps": 0.01} | overrides))


def fold(guard: HeldOutGuard, *rounds: tuple[float, ...]) -> list[TripwireStatus]:
    """The status after each round of (in-loop reward, held-out score[, KL])."""
    return [guard.update(index, *values) for index, values in enumerate(rounds)]


def fires(statuses: list[TripwireStatus]) -> list[bool]:
    return [status.fire for status in statuses]


def test_the_defaults() -> None:
    guard = HeldOutGuard()
    assert (guard.kl_hard_stop, guard.max_proxy_real_gap, guard.min_steps) == (0.08, 0.10, 20)
    assert (guard.decline_patience, guard.ema_alpha, guard.rise_eps) == (3, 0.9, 1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ema_alpha", 1.0),
        ("ema_alpha", -0.1),
        ("kl_hard_stop", 0.0),
        ("kl_hard_stop", -1.0),
        ("decline_patience", 0),
        ("decline_patience", -1),
    ],
)
def test_a_setting_out_of_range_is_a_value_error_that_names_it(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        HeldOutGuard(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), [("ema_alpha", 0.0), ("decline_patience", 1)])
def test_the_edge_of_a_range_is_allowed(field: str, value: float) -> None:
    assert getattr(HeldOutGuard(**{field: value}), field) == value  # type: ignore[arg-type]


def test_update_takes_its_arguments_by_name() -> None:
    status = HeldOutGuard().update(
        round_idx=3, in_loop_reward=0.5, heldout_score=0.4, kl_to_init=0.01, entropy=1.0, reward_std=0.2
    )
    assert status == TripwireStatus(
        fire=False, reason="", step=3, proxy_real_gap=0.0, in_loop_ema=0.5, heldout_ema=0.4, kl_ema=0.01
    )


def test_halt_is_another_name_of_fire() -> None:
    statuses = fold(guard_without_memory(max_proxy_real_gap=0.1), (0.0, 0.0), (1.0, 0.0))
    assert [status.halt for status in statuses] == fires(statuses) == [False, True]


def test_the_first_sample_seeds_each_ema_and_alpha_is_the_weight_of_the_prior() -> None:
    first, second = fold(guard_without_memory(ema_alpha=0.75), (8.0, 4.0, 2.0), (4.0, 8.0, 6.0))
    assert (first.in_loop_ema, first.heldout_ema, first.kl_ema) == (8.0, 4.0, 2.0)
    assert (second.in_loop_ema, second.heldout_ema, second.kl_ema) == (7.0, 5.0, 3.0)


def test_a_kl_that_starts_late_seeds_its_ema_and_a_missing_one_leaves_it() -> None:
    rounds: tuple[tuple[float, ...], ...] = ((0.0, 0.0), (0.0, 0.0, 0.5), (0.0, 0.0))
    assert [status.kl_ema for status in fold(guard_without_memory(ema_alpha=0.9), *rounds)] == [
        None,
        0.5,
        0.5,
    ]


def test_entropy_and_the_spread_of_the_reward_decide_nothing() -> None:
    guard = guard_without_memory(max_proxy_real_gap=0.1, decline_patience=1, kl_hard_stop=0.1)
    for index in range(5):
        assert not guard.update(index, 0.5, 0.5, 0.01, entropy=10.0**index, reward_std=10.0**index).fire


def test_the_gap_is_zero_before_and_at_the_first_update() -> None:
    guard = guard_without_memory()
    assert guard.proxy_real_gap() == 0.0
    assert guard.update(0, 5.0, 1.0).proxy_real_gap == guard.proxy_real_gap() == 0.0


def test_the_gap_is_the_gain_in_the_loop_less_the_gain_on_held_out_data() -> None:
    guard = guard_without_memory()
    assert fold(guard, (1.0, 0.5), (1.5, 0.75))[-1].proxy_real_gap == guard.proxy_real_gap() == 0.25


def test_the_gap_is_of_the_emas_since_the_first_sample() -> None:
    statuses = fold(guard_without_memory(ema_alpha=0.5), (0.0, 0.0), (1.0, 0.0), (1.0, 0.0))
    assert [status.proxy_real_gap for status in statuses] == [0.0, 0.5, 0.75]


# -- HeldOutGuard: the order of its rules -------------------------------------------------------------------


def test_the_warm_up_counts_updates_and_not_the_callers_index() -> None:
    guard = guard_without_memory(min_steps=3, max_proxy_real_gap=0.1)
    statuses = [guard.update(1000 + index, float(index), 0.0) for index in range(3)]
    assert fires(statuses) == [False, False, True]
    assert [status.step for status in statuses] == [1000, 1001, 1002]


def test_nothing_fires_during_the_warm_up() -> None:
    settings = {"kl_hard_stop": 0.1, "decline_patience": 1, "max_proxy_real_gap": 0.1}
    guard = guard_without_memory(min_steps=6, **settings)
    statuses = fold(guard, *((0.1 * index, 1.0 - 0.1 * index, 5.0) for index in range(6)))
    assert fires(statuses) == [False] * 5 + [True]


def test_emas_and_the_streak_grow_during_the_warm_up() -> None:
    guard = guard_without_memory(min_steps=4, decline_patience=3)
    statuses = fold(guard, (0.0, 1.0), (0.1, 0.9), (0.2, 0.8), (0.3, 0.7))
    assert fires(statuses) == [False, False, False, True]
    assert "consecutive" in statuses[-1].reason


def test_a_kl_above_its_stop_fires_and_one_at_it_does_not() -> None:
    at, above = fold(guard_without_memory(kl_hard_stop=0.5), (0.0, 0.0, 0.5), (0.0, 0.0, 0.6))
    assert not at.fire
    assert above.fire and "kl_to_init" in above.reason and "hard stop" in above.reason


def test_the_kl_is_judged_by_its_ema() -> None:
    guard = guard_without_memory(kl_hard_stop=0.5, ema_alpha=0.9)
    assert fires(fold(guard, (0.0, 0.0, 0.0), (0.0, 0.0, 4.0), (0.0, 0.0, 4.0))) == [False, False, True]


def test_the_kl_comes_before_the_decline_and_the_gap() -> None:
    guard = guard_without_memory(kl_hard_stop=0.5, decline_patience=1, max_proxy_real_gap=0.1)
    assert "hard stop" in fold(guard, (0.0, 1.0, 0.0), (1.0, 0.0, 1.0))[-1].reason


def test_a_streak_of_declines_fires_at_the_patience() -> None:
    statuses = fold(guard_without_memory(decline_patience=2), (0.0, 1.0), (0.1, 0.9), (0.2, 0.8))
    assert fires(statuses) == [False, False, True]
    assert "held-out" in statuses[-1].reason and "consecutive" in statuses[-1].reason


def test_the_decline_comes_before_the_gap() -> None:
    guard = guard_without_memory(decline_patience=1, max_proxy_real_gap=0.1)
    assert "consecutive" in fold(guard, (0.0, 1.0), (0.5, 0.5))[-1].reason


def test_a_change_by_rise_eps_is_neither_a_rise_nor_a_fall() -> None:
    settings = {"decline_patience": 1, "rise_eps": 0.25}
    assert not fold(guard_without_memory(**settings), (0.0, 1.0), (0.25, 0.5))[-1].fire
    assert not fold(guard_without_memory(**settings), (0.0, 1.0), (1.0, 0.75))[-1].fire
    assert fold(guard_without_memory(**settings), (0.0, 1.0), (0.5, 0.5))[-1].fire


def test_the_streak_is_of_the_emas() -> None:
    """In the third round the held-out score itself rises, but its EMA still falls."""
    statuses = fold(
        guard_without_memory(ema_alpha=0.9, decline_patience=2), (0.0, 1.0), (1.0, 0.0), (1.0, 0.5)
    )
    assert fires(statuses) == [False, False, True]


@pytest.mark.parametrize("heldout", [0.9, 0.95, 0.895], ids=["flat", "rise", "fall-within-rise-eps"])
@pytest.mark.parametrize("in_loop", [0.0, 0.1, 0.2], ids=["reward-falls", "reward-flat", "reward-rises"])
def test_a_checkpoint_at_which_held_out_does_not_fall_resets_the_streak(
    heldout: float, in_loop: float
) -> None:
    rounds = ((0.0, 1.0), (0.1, 0.9), (in_loop, heldout), (in_loop + 0.1, heldout - 0.1))
    guard = guard_without_memory(decline_patience=2)
    assert fires(fold(guard, *rounds)) == [False] * 4
    assert guard.update(4, in_loop + 0.2, heldout - 0.2).fire


@pytest.mark.parametrize("in_loop", [0.1, 0.0], ids=["reward-flat", "reward-falls"])
def test_a_decline_without_a_rise_of_the_reward_leaves_the_streak_as_it_is(in_loop: float) -> None:
    rounds = ((0.0, 1.0), (0.1, 0.9), (in_loop, 0.8), (in_loop + 0.1, 0.7))
    assert fires(fold(guard_without_memory(decline_patience=2), *rounds)) == [False, False, False, True]


def test_a_gap_above_its_ceiling_fires_and_one_at_it_does_not() -> None:
    at, above = fold(guard_without_memory(max_proxy_real_gap=0.25), (0.0, 0.0), (0.25, 0.0), (0.5, 0.0))[1:]
    assert not at.fire
    assert above.fire and "Hacking Gap" in above.reason


def test_a_gap_fires_also_while_held_out_still_rises() -> None:
    status = fold(guard_without_memory(max_proxy_real_gap=0.1), (0.0, 0.0), (0.5, 0.25))[-1]
    assert status.fire and "Hacking Gap" in status.reason


def test_a_fire_latches_whatever_comes_after_it() -> None:
    guard = guard_without_memory(max_proxy_real_gap=0.1)
    first = fold(guard, (0.0, 0.0), (1.0, 0.0))[-1]
    for index in range(2, 5):
        status = guard.update(index, 0.0, 1.0)
        assert status.fire and status.step == index
        assert status.reason.startswith("latched:") and first.reason in status.reason
    assert guard.should_halt()


def test_a_latch_comes_before_every_other_rule() -> None:
    guard = guard_without_memory(max_proxy_real_gap=0.1, kl_hard_stop=0.5)
    fold(guard, (0.0, 0.0), (1.0, 0.0))
    reason = guard.update(2, 1.0, 0.0, 99.0).reason
    assert reason.startswith("latched:") and "hard stop" not in reason


# -- HeldOutGuard: what it can be asked ---------------------------------------------------------------------


def test_questions_change_nothing() -> None:
    rounds = ((0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0))
    asked, other = (guard_without_memory(max_proxy_real_gap=0.25) for _ in range(2))
    for index, values in enumerate(rounds):
        before = copy.deepcopy(asked)
        for _ in range(3):
            asked.should_halt(), asked.last_status, asked.proxy_real_gap()
        assert asked == before
        assert asked.update(index, *values) == other.update(index, *values)


def test_the_last_status_is_that_of_the_last_update() -> None:
    guard = guard_without_memory()
    assert guard.last_status is None
    assert fold(guard, (0.0, 0.0), (1.0, 0.0))[-1] is guard.last_status


def test_should_halt_is_true_from_the_fire_on() -> None:
    guard = guard_without_memory(max_proxy_real_gap=0.1)
    seen = [guard.should_halt()]
    for index, reward in enumerate((0.0, 1.0, 0.0)):
        guard.update(index, reward, 0.0)
        seen.append(guard.should_halt())
    assert seen == [False, False, True, True]


def test_raise_if_fired_raises_the_last_status_if_it_fired() -> None:
    guard = guard_without_memory(max_proxy_real_gap=0.1)
    guard.raise_if_fired()
    guard.update(0, 0.0, 0.0)
    guard.raise_if_fired()
    status = guard.update(1, 1.0, 0.0)
    with pytest.raises(CollapseStopError, match="Hacking Gap") as stop:
        guard.raise_if_fired()
    assert stop.value.status == status


def test_raise_if_fired_takes_another_status() -> None:
    fired = TripwireStatus(True, "because", 3, 0.0, 0.0, 0.0)
    with pytest.raises(CollapseStopError, match="because") as stop:
        HeldOutGuard().raise_if_fired(fired)
    assert stop.value.status is fired
    guard = guard_without_memory(max_proxy_real_gap=0.1)
    fold(guard, (0.0, 0.0), (1.0, 0.0))
    guard.raise_if_fired(status=TripwireStatus(False, "", 3, 0.0, 0.0, 0.0))


# -- calibrate_kl_threshold and the trust filter ------------------------------------------------------------


def test_calibration_sets_the_stop_to_a_multiple_of_the_mean_kl() -> None:
    guard = HeldOutGuard()
    assert guard.calibrate_kl_threshold([0.01, 0.03]) == guard.kl_hard_stop == pytest.approx(0.06)
    assert guard.calibrate_kl_threshold([0.01, 0.03], factor=2.0) == guard.kl_hard_stop == pytest.approx(0.04)


@pytest.mark.parametrize("kl_hard_stop", [0.08, 1e-9], ids=["the default", "a tiny one"])
def test_calibration_never_loosens(kl_hard_stop: float) -> None:
    guard = HeldOutGuard(kl_hard_stop=kl_hard_stop)
    assert guard.calibrate_kl_threshold([1.0]) == guard.kl_hard_stop == kl_hard_stop


def test_calibration_stays_above_zero() -> None:
    guard = HeldOutGuard()
    assert guard.calibrate_kl_threshold([0.0]) == guard.kl_hard_stop > 0.0


@pytest.mark.parametrize(
    ("kls", "factor", "name"),
    [
        ([], 3.0, "baseline_kls"),
        ([0.1, -0.1], 3.0, "baseline_kls"),
        ([0.1], 0.0, "factor"),
        ([0.1], -1.0, "factor"),
    ],
)
def test_calibration_refuses_bad_arguments_by_name(kls: list[float], factor: float, name: str) -> None:
    guard = HeldOutGuard()
    with pytest.raises(ValueError, match=name):
        guard.calibrate_kl_threshold(kls, factor)
    assert guard.kl_hard_stop == 0.08


def test_the_trust_filter_is_true_above_its_threshold_and_false_at_it() -> None:
    assert [bool(kl_token_trust_filter(x)) for x in (0.0, 0.08, 0.0801)] == [False, False, True]
    assert [bool(kl_token_trust_filter(x, threshold=0.5)) for x in (0.5, 0.6)] == [False, True]


def test_the_trust_filter_takes_arrays() -> None:
    torch = pytest.importorskip("torch")
    masked = kl_token_trust_filter(torch.tensor([[0.0, 1.0], [0.08, 0.09]]))
    assert masked.tolist() == [[False, True], [False, True]]


# -- GuardedGRPOTrainer -------------------------------------------------------------------------------------

PARENT = GuardedGRPOTrainer.__mro__[1]
PARENTS_LOSS = 2.0


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's trainer, whose `__init__` does nothing."""
    monkeypatch.setattr(PARENT, "__init__", lambda self, *args, **kwargs: None)
    monkeypatch.setattr(PARENT, "_compute_loss", lambda self, model, inputs: PARENTS_LOSS)


does_nothing = pytest.mark.usefixtures("parent")


def unused() -> float:
    raise AssertionError("heldout_eval_fn was called")


def trainer_with(guard: HeldOutGuard | None, scores: Any = 0.5, **settings: Any) -> Any:
    """A trainer that has what the kill switch needs, and nothing else; `.entries` is what it logged."""
    score = scores if callable(scores) else lambda: scores
    trainer: Any = GuardedGRPOTrainer(heldout_guard=guard, heldout_eval_fn=score, **settings)
    trainer.state = SimpleNamespace(global_step=0)
    trainer.args = SimpleNamespace(logging_steps=1)
    trainer.control = SimpleNamespace(should_training_stop=False)
    trainer._metrics = {"train": defaultdict(list)}
    trainer.entries = []
    trainer.log = lambda logs, *_: trainer.entries.append(logs)
    return trainer


def test_it_is_a_subclass_of_trls_trainer() -> None:
    import trl

    assert PARENT is trl.GRPOTrainer


@does_nothing
def test_a_guard_without_an_evaluation_is_a_value_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="heldout_eval_fn"):
        GuardedGRPOTrainer(heldout_guard=HeldOutGuard())


@does_nothing
def test_it_is_made_with_neither_guard_nor_evaluation() -> None:
    trainer = GuardedGRPOTrainer()
    assert trainer.heldout_guard is None and trainer.strict_killswitch is True


@does_nothing
def test_it_is_made_with_both() -> None:
    guard = HeldOutGuard()
    trainer = GuardedGRPOTrainer(heldout_guard=guard, heldout_eval_fn=unused, strict_killswitch=False)
    assert trainer.heldout_guard is guard and trainer.heldout_eval_fn is unused
    assert trainer.strict_killswitch is False


@does_nothing
def test_the_parent_gets_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(PARENT, "__init__", lambda self, *args, **kwargs: given.append((args, kwargs)))
    GuardedGRPOTrainer("model", reward_funcs="reward", heldout_guard=HeldOutGuard(), heldout_eval_fn=unused)
    assert given == [(("model",), {"reward_funcs": "reward"})]


@does_nothing
def test_without_a_guard_nothing_is_touched() -> None:
    trainer: Any = GuardedGRPOTrainer(heldout_eval_fn=unused)
    assert trainer._maybe_update_killswitch() is None
    assert trainer._compute_loss(None, {}) == PARENTS_LOSS


@does_nothing
@pytest.mark.parametrize("metrics", [{}, {"reward": []}, {"kl": [0.5]}], ids=["none", "empty", "only a KL"])
def test_without_a_reward_nothing_is_folded_and_no_evaluation_is_called(metrics: dict[str, Any]) -> None:
    guard = HeldOutGuard()
    trainer = trainer_with(guard, scores=unused)
    trainer._metrics["train"] |= metrics
    trainer._maybe_update_killswitch()
    assert guard.last_status is None and trainer.entries == []


@does_nothing
def test_it_folds_the_newest_reward_and_the_score_of_the_evaluation() -> None:
    guard = HeldOutGuard()
    trainer = trainer_with(guard, scores=0.3)
    trainer.state.global_step = 7
    trainer._metrics["train"]["reward"] = [0.1, 0.7]
    trainer._maybe_update_killswitch()
    status = guard.last_status
    assert status is not None
    assert (status.step, status.in_loop_ema, status.heldout_ema, status.kl_ema) == (7, 0.7, 0.3, None)


@does_nothing
def test_it_folds_the_newest_kl_from_the_first_one_on() -> None:
    guard = guard_without_memory()
    trainer = trainer_with(guard)
    seen = []
    for step, kl in enumerate((0.01, 0.05, 9.0, 0.02)):
        trainer.state.global_step = step
        trainer._metrics["train"]["reward"].append(0.5)
        trainer._metrics["train"]["kl"].append(kl)
        trainer._maybe_update_killswitch()
        assert guard.last_status is not None
        seen.append(guard.last_status.kl_ema)
    assert seen == [0.01, 0.05, 9.0, 0.02]


def hack(trainer: Any) -> None:
    """Two steps between which only the reward rises."""
    for step, reward in enumerate((0.2, 0.9)):
        trainer.state.global_step = step
        trainer._metrics["train"]["reward"].append(reward)
        trainer._maybe_update_killswitch()


@does_nothing
def test_a_strict_fire_is_logged_and_then_raised() -> None:
    trainer = trainer_with(guard_without_memory(max_proxy_real_gap=0.1))
    with pytest.raises(CollapseStopError, match="Hacking Gap") as stop:
        hack(trainer)
    assert [entry["killswitch/fire"] for entry in trainer.entries] == [0.0, 1.0]
    assert stop.value.status.step == 1
    assert not trainer.control.should_training_stop


@does_nothing
def test_a_soft_fire_is_logged_and_ends_training() -> None:
    trainer = trainer_with(guard_without_memory(max_proxy_real_gap=0.1), strict_killswitch=False)
    hack(trainer)
    assert [entry["killswitch/fire"] for entry in trainer.entries] == [0.0, 1.0]
    assert trainer.control.should_training_stop


@does_nothing
def test_a_fire_ends_training_also_where_it_is_called_by_the_loss() -> None:
    trainer = trainer_with(guard_without_memory(max_proxy_real_gap=0.1))
    trainer._metrics["train"]["reward"].append(0.2)
    trainer._compute_loss(None, {})
    trainer.state.global_step = 1
    trainer._metrics["train"]["reward"].append(0.9)
    with pytest.raises(CollapseStopError):
        trainer._compute_loss(None, {})


@does_nothing
def test_the_loss_folds_at_the_cadence_of_logging_steps_only() -> None:
    trainer = trainer_with(HeldOutGuard())
    trainer.args.logging_steps = 10
    folded = []
    for step in range(35):
        trainer.state.global_step = step
        trainer._metrics["train"]["reward"].append(0.5)
        before = len(trainer.entries)
        assert trainer._compute_loss(None, {}) == PARENTS_LOSS
        folded += [step] * (len(trainer.entries) - before)
    assert folded == [0, 10, 20, 30]


class LastInputs(GuardedGRPOTrainer):
    """Keeps the inputs of the last loss, so that a test can compute it again."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.last_inputs = inputs
        return super()._compute_loss(model, inputs)


def test_the_loss_adds_the_two_weighted_extra_losses_to_the_parents(tmp_path: Path) -> None:
    from tests.trainer.tiny import grpo_trainer, make_model, prompts

    columns = {"privileged_prompt": "9 1+1=", "replay_prompt": "1+1=", "replay_completion": "2"}
    rows = prompts(16).map(lambda _: columns)
    weights = {"alpha_sdpo": 1.0, "beta_replay": 1.0}
    model = make_model(tmp_path / "model")
    trainer: Any = grpo_trainer(model, tmp_path, LastInputs, rows, trainer_kwargs=weights, max_steps=1)
    trainer.train()

    def loss(alpha_sdpo: float, beta_replay: float) -> float:
        trainer.alpha_sdpo, trainer.beta_replay = alpha_sdpo, beta_replay
        return trainer._compute_loss(trainer.model, trainer.last_inputs).item()

    parents = PARENT._compute_loss(trainer, trainer.model, trainer.last_inputs).item()
    assert loss(0.0, 0.0) == pytest.approx(parents)
    distillation, replay = loss(1.0, 0.0) - parents, loss(0.0, 1.0) - parents
    assert distillation > 0.0 and replay > 0.0
    assert loss(0.5, 0.25) == pytest.approx(parents + 0.5 * distillation + 0.25 * replay, rel=1e-4)
