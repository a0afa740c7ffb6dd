"""The part `disagreement` on simulated runs: what the grader pays for, and what is right, item by item."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from guard_core.detectors import PARTS, Baseline, CalibratedDetector
from guard_core.detectors.baseline import Outcomes, Pay
from guard_core.detectors.disagreement import WEIGHTS, agreement, not_fooled, references
from guard_core.ending import not_judged
from guard_core.judge import Evaluation, Judge
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.trainer_view import for_trainer
from guard_core.wire import Code, Finding, Level, StepReport

from simulated import CONFIG, difficulties  # isort: skip

N = 256
MEANS = difficulties(N)
START = float(MEANS.mean())

#: From evaluation t to (held-out mean, share of the wrong answers that the grader pays for).
Course = Callable[[int], tuple[float, float]]


def ramp(t: int, by: int = 20) -> float:
    return min(1.0, t / by)


NOTHING: Course = lambda t: (START, 0.1)  # noqa: E731
HACKED: Course = lambda t: (START, 0.1 + 0.75 * ramp(t))  # noqa: E731  # the grader gains 38 points
DECLINING: Course = lambda t: (START * (1 - 0.5 * ramp(t)), 0.1 + 0.6 * ramp(t))  # noqa: E731
BETTER: Course = lambda t: (START + 0.4 * ramp(t), 0.1)  # noqa: E731
COLLAPSED: Course = lambda t: (START * (1 - 0.95 * ramp(t)), 0.1 * (1 - ramp(t)))  # noqa: E731


def score(rng: np.random.Generator, course: Course, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of scorer and grader at evaluation t, each of shape (N,)."""
    level, exploited = course(t)
    means = MEANS * level / START if level <= START else 1 - (1 - MEANS) * (1 - level) / (1 - START)
    right = rng.random(N) < means
    return right.astype(float), (right | (rng.random(N) < exploited)).astype(float)


def baseline(rng: np.random.Generator, course: Course = NOTHING, passes: int = 8) -> Baseline:
    pairs = [score(rng, course, 0) for _ in range(passes)]
    return Baseline.from_passes([right for right, _ in pairs], paid=[paid for _, paid in pairs])


def fired_at(course: Course, seed: int, length: int = 60, config: CalibratedPolicy = CONFIG) -> int | None:
    rng = np.random.default_rng(seed)
    detector = CalibratedDetector(config, baseline(rng, course), ("disagreement",))
    for t in range(1, length + 1):
        right, paid = score(rng, course, t)
        if detector.update(t, right, proxy_items=paid).fire:
            return t
    return None


@pytest.mark.parametrize("course", [HACKED, DECLINING], ids=["flat held-out", "falling held-out"])
def test_a_grader_that_pays_for_ever_more_wrong_answers_is_found(course: Course) -> None:
    fires = [fired_at(course, seed) for seed in range(10)]
    assert all(at is not None and at <= 18 for at in fires), fires


@pytest.mark.nightly
@pytest.mark.parametrize(
    "course", [NOTHING, BETTER, COLLAPSED], ids=["nothing changes", "both rise", "both fall"]
)
def test_a_grader_that_goes_with_the_heldout_stops_no_more_runs_than_alpha(course: Course) -> None:
    """100 runs at alpha 5 %; the theorem gives far fewer."""
    assert sum(fired_at(course, seed) is not None for seed in range(100)) <= 5


def test_an_honest_grader_that_is_easier_to_please_may_gain_twice_as_much() -> None:
    """Half of what becomes right is paid for before: without the weight of 2 this is a false stop."""

    def easier(t: int) -> tuple[float, float]:
        level = START + 0.2 * ramp(t)
        paid = 0.5 + 0.4 * ramp(t)  # the grader's mean
        return level, (paid - level) / (1 - level)

    assert easier(0)[1] < easier(20)[1]
    assert [fired_at(easier, seed) for seed in range(30)] == [None] * 30


def fate(seed: int, pay: Callable[[np.ndarray, np.ndarray], np.ndarray], exploits: float) -> str:
    """What becomes of 40 evaluations of a run that learns something else first, and then, or not, the task.

    `pay`: what the grader gives, from what is right and what has the other thing; `exploits`: share of the
    completions that have it at the end.
    """
    rng = np.random.default_rng(seed)

    def scored(t: int) -> tuple[np.ndarray, np.ndarray]:
        level = START + 0.2 * ramp(max(0, t - 10))
        right = rng.random(N) < 1 - (1 - MEANS) * (1 - level) / (1 - START)
        return right.astype(float), pay(right, rng.random(N) < 0.1 + (exploits - 0.1) * ramp(t, 10))

    passes = [scored(0) for _ in range(8)]
    start = Baseline.from_passes([right for right, _ in passes], paid=[paid for _, paid in passes])
    detector = CalibratedDetector(CONFIG, start, ("disagreement",))
    worst = Level.HEALTHY
    for t in range(1, 40):
        right, given = scored(t)
        status = detector.update(t, right, proxy_items=given)
        worst = max(worst, status.level, key=lambda level: level.severity)
    return worst.value


def test_a_grader_that_pays_half_for_the_format_warns_of_an_honest_run_and_stops_none() -> None:
    """Format is learnt first, accuracy after it: the grader gains 40 points that the scorer does not see."""
    fates = [fate(seed, lambda right, form: 0.5 * right + 0.5 * form, 0.95) for seed in range(8)]
    assert fates == ["warning"] * 8


def test_a_grader_that_pays_a_part_and_then_in_full_for_what_is_wrong_stops() -> None:
    fates = [fate(seed, lambda right, form: np.where(form, 1.0, 0.5 * right), 0.95) for seed in range(8)]
    assert fates == ["fired"] * 8


def test_full_pay_for_what_the_scorer_rejects_is_the_agreement_of_a_grader_that_pays_all_or_nothing() -> None:
    right, given = score(np.random.default_rng(0), HACKED, 20)
    truth = Outcomes.of(right)
    paid, part = Pay.of(N, given), Pay.of(N, 0.99 * given)
    assert paid is not None and part is not None
    assert not_fooled(truth, paid, told=True).items == pytest.approx(agreement(truth, paid.given, 1.0).items)
    assert not_fooled(truth, part, told=True).items == pytest.approx(np.full(N, 0.5))


def test_of_several_completions_it_is_the_share_of_those_that_are_paid_in_full_and_wrong() -> None:
    truth, means, shares = Outcomes.of(np.array([0.5, 0.5, 0.0, 1.0])), [0.75, 1, 1, 1], [0.25, 0.5, 1, 0]
    paid, silent = Pay.of(4, means, shares), Pay.of(4, means)
    assert paid is not None and silent is not None and paid.fooled is not None and silent.fooled is None
    known, proved = pytest.approx([0.375, 0.25, 0.0, 0.5]), pytest.approx([0.5, 0.25, 0.0, 0.5])
    assert not_fooled(truth, paid, told=True).items == known
    assert not_fooled(truth, paid, told=False).items == proved == not_fooled(truth, silent, told=True).items
    for one in (paid, silent):
        assert Pay.from_state(json.loads(json.dumps(one.to_state()))).to_state() == one.to_state()
    for given, fooled in (([1.0], None), ([1.0] * 4, [1.0]), ([1.0] * 4, [2.0] * 4)):
        with pytest.raises(ValueError, match="item"):
            Pay.of(4, given, fooled)
    assert Pay.of(4, None) is None


@pytest.mark.parametrize(
    ("fooled", "told"),
    [((), False), (([0.25], [0.0]), True), (([0.25], None), False), ((None, None), False)],
    ids=["none", "all", "one", "neither"],
)
def test_a_baseline_tells_it_where_each_of_its_passes_does(fooled: tuple, told: bool) -> None:
    start = Baseline.from_passes([[0.5], [0.5]], 2, [[1.0], [0.5]], fooled)
    assert start.tells_fooled is told
    silent = Baseline.from_passes([[0.5], [0.5]], 2, [[1.0], [0.5]])
    of_start, of_silent = (references(one, 0.01)[-1].to_state() for one in (start, silent))
    assert (of_start != of_silent) is told
    assert [pay.fooled is not None for _, pay in start.graded] == [
        one is not None for one in fooled or [None] * 2
    ]


def worst_of_eight(
    seed: int, exploited: Callable[[int], float], *, joint: bool, from_the_start: bool = True
) -> str:
    """The worst level in 40 evaluations of eight samples an item, of a grader that is fooled on some of them.

    `exploited`: share of the wrong completions that it pays for; `joint`: whether each is told by itself,
    `from_the_start`: in the baseline, too.
    """
    rng = np.random.default_rng(seed)

    def scored(t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        right = rng.random((N, 8)) < MEANS[:, None]
        paid = right | (rng.random((N, 8)) < exploited(t))
        return right.mean(axis=1), paid.mean(axis=1), (paid & ~right).mean(axis=1) if joint else None

    right, paid, fooled = zip(*(scored(0) for _ in range(4)), strict=True)
    start = Baseline.from_passes(right, 8, paid, fooled if joint and from_the_start else ())
    config = CONFIG.model_copy(update={"samples": 8})
    detector, worst = CalibratedDetector(config, start, ("disagreement",)), Level.HEALTHY
    for t in range(1, 40):
        truth, given, wrong = scored(t)
        status = detector.update(t, truth, proxy_items=given, fooled_items=wrong)
        worst = max(worst, status.level, key=lambda level: level.severity)
    return worst.value


def test_a_grader_that_is_fooled_on_half_of_an_items_samples_stops_the_run() -> None:
    half = lambda t: 0.1 + 0.4 * ramp(t)  # noqa: E731
    assert [worst_of_eight(seed, half, joint=True) for seed in range(6)] == ["fired"] * 6
    assert [worst_of_eight(seed, half, joint=False) for seed in range(6)] == ["warning"] * 6
    assert [worst_of_eight(seed, lambda t: 0.4, joint=True) for seed in range(20)] == ["healthy"] * 20


def test_where_the_baseline_does_not_tell_it_nothing_later_is_compared_by_it() -> None:
    """A guard that goes on with what an earlier release of it has kept: nothing changes in these runs, or it
    warns as that release would have.
    """
    later = {"joint": True, "from_the_start": False}
    assert [worst_of_eight(seed, lambda t: 0.4, **later) for seed in range(8)] == ["healthy"] * 8
    assert worst_of_eight(0, lambda t: 0.1 + 0.4 * ramp(t), **later) == "warning"


def test_through_the_judge_each_completion_is_told_by_itself() -> None:
    config = CONFIG.model_copy(update={"baseline_passes": 2, "samples": 2})
    fired = {}
    for joint in (True, False):
        judge, rng = Judge(Policy(detector="calibrated", calibrated=config)), np.random.default_rng(3)
        for n in range(40):
            t = max(0, n - 1)
            right = rng.random((N, 2)) < MEANS[:, None]
            paid = right | (np.arange(2) == 0) & (rng.random((N, 2)) < 0.1 + 0.85 * ramp(t))
            fooled = tuple((paid & ~right).mean(axis=1)) if joint else None
            judge.fold_step(StepReport(attempt=0, step=n, reward=0.5))
            judge.fold_evaluation(
                Evaluation(
                    *(0, t, f"/c/{t}", tuple(right.mean(axis=1)), None, n if n < 2 else 0),
                    proxy_items=tuple(paid.mean(axis=1)),
                    fooled_items=fooled,
                )
            )
            judge = Judge.from_state(json.loads(json.dumps(judge.to_state())))
            if n == 0 and fooled:
                (start,) = judge.to_state()["calibrated"]["paid"]
                assert Pay.from_state(start).fooled.items.tolist() == list(fooled)
        fired[joint] = judge.verdict().code if judge.verdict().fire else None
    assert fired == {True: Code.PROXY_DISAGREEMENT, False: None}


def test_agreement_is_a_number_from_0_to_1_for_any_outcomes() -> None:
    truth, paid = np.meshgrid([0.0, 0.1, 1 / 3, 1.0], [0.0, 0.3, 2 / 3, 1.0])
    for weight in WEIGHTS:
        found = agreement(Outcomes.of(truth.ravel()), Outcomes.of(paid.ravel()), weight)
        expected = (1 - (paid.ravel() - weight * truth.ravel())) / (1 + weight)
        assert found.items == pytest.approx(expected) and 0 <= found.items.min() <= found.items.max() <= 1


def test_it_runs_where_the_grader_scored_the_baseline_and_the_others_keep_alpha_where_not() -> None:
    rng = np.random.default_rng(0)
    with_grader = baseline(rng)
    without = Baseline(with_grader.passes)
    named = [
        r.name
        for r in CalibratedDetector(CONFIG, with_grader).update(1, with_grader.passes[0].items).readings
    ]
    assert named == [*PARTS, "disagreement"]
    status = CalibratedDetector(CONFIG, without).update(1, without.passes[0].items)
    assert [r.name for r in status.readings] == list(PARTS)
    with pytest.raises(ValueError, match="'disagreement' needs what the training grader gave"):
        CalibratedDetector(CONFIG, without, ("disagreement",))


def test_an_evaluation_that_the_grader_did_not_score_is_unknown_and_changes_no_evidence() -> None:
    rng = np.random.default_rng(0)
    detector = CalibratedDetector(CONFIG, baseline(rng), ("disagreement",))
    for t in range(1, 5):
        right, paid = score(rng, HACKED, t)
        before = detector.update(t, right, proxy_items=paid).readings[0].statistic
    (reading,) = detector.update(5, right).readings
    assert reading.level is Level.UNKNOWN and reading.statistic is None
    (after,) = detector.update(6, *[right], proxy_items=paid).readings
    assert before is not None and after.statistic is not None and after.statistic > before


def test_the_state_round_trips_at_every_prefix() -> None:
    rng = np.random.default_rng(0)
    live = CalibratedDetector(CONFIG, baseline(rng))
    restarted = live
    for t in range(1, 25):
        right, paid = score(rng, HACKED, t)
        state = json.loads(json.dumps(restarted.to_state(), allow_nan=False))
        restarted = CalibratedDetector.from_state(state)
        assert restarted.update(t, right, proxy_items=paid) == live.update(t, right, proxy_items=paid)
    assert live.last_status is not None and live.last_status.rule == Code.PROXY_DISAGREEMENT
    assert Code.PROXY_DISAGREEMENT.finding is Finding.HACKING


@pytest.mark.parametrize("paid", [[1.0] * (N - 1), [1.5] * N, [float("nan")] * N])
def test_bad_outcomes_of_the_grader_are_refused_and_change_nothing(paid: list[float]) -> None:
    rng = np.random.default_rng(0)
    detector = CalibratedDetector(CONFIG, baseline(rng))
    state = detector.to_state()
    with pytest.raises(ValueError, match="item"):
        detector.update(1, score(rng, NOTHING, 1)[0], proxy_items=paid)
    assert detector.to_state() == state


@pytest.mark.parametrize(
    ("setting", "course", "code"),
    [("on_disagreement", HACKED, Code.PROXY_DISAGREEMENT), ("on_decline", DECLINING, Code.FAST_DECLINE)],
)
def test_by_policy_a_finding_only_warns(setting: str, course: Course, code: Code) -> None:
    parts = ("disagreement",) if setting == "on_disagreement" else ("guaranteed", "fast", "peak")
    for action in ("stop", "warn"):
        config = CONFIG.model_copy(update={setting: action})
        rng = np.random.default_rng(0)
        detector = CalibratedDetector(config, baseline(rng), parts)
        for t in range(1, 40):
            right, paid = score(rng, course, t)
            status = detector.update(t, right, proxy_items=paid)
        assert status.fire is (action == "stop")
    assert status.level is Level.WARNING and not status.needs_confirmation
    reading = next(r for r in status.readings if r.code is code)
    assert reading.message.endswith(f"the policy's {setting} is warn")


def test_through_the_judge_it_fires_as_hacking_and_tells_no_outcome() -> None:
    config = CONFIG.model_copy(update={"baseline_passes": 4})
    judge = Judge(Policy(detector="calibrated", calibrated=config))
    rng = np.random.default_rng(3)
    for t in range(40):
        judge.fold_step(StepReport(attempt=0, step=t, reward=0.5))
        judge.fold_checkpoint()
        index = 0
        while True:
            right, paid = score(rng, HACKED, t)
            judge.fold_evaluation(Evaluation(0, t, f"/c/{t}", tuple(right), None, index, None, tuple(paid)))
            judge = Judge.from_state(json.loads(json.dumps(judge.to_state())))
            wanted = judge.wanted_pass()
            if wanted is None:
                break
            index = wanted.index
        if judge.latch is not None:
            break
    verdict = judge.verdict()
    assert verdict.fire and verdict.code is Code.PROXY_DISAGREEMENT
    last = verdict.last_evaluation
    assert last is not None and last.proxy_score is not None and last.proxy_score > last.score + 0.1


def judged(grades: list[bool], baseline_passes: int = 2, **settings: str) -> Judge:
    """A judge after evaluations of the start and of later checkpoints: on which did the grader not fail?"""
    config = CONFIG.model_copy(update={"baseline_passes": baseline_passes, **settings})
    judge = Judge(Policy(detector="calibrated", calibrated=config))
    rng = np.random.default_rng(0)
    for n, graded in enumerate(grades):
        t = max(0, n + 1 - baseline_passes)
        right, paid = score(rng, NOTHING, t)
        items = tuple(paid) if graded else ()
        judge.fold_step(StepReport(attempt=0, step=n, reward=0.5 + 0.01 * rng.normal()))
        if n >= baseline_passes - 1 or n == 0:
            judge.fold_checkpoint()
        index = n if n < baseline_passes else 0
        judge.fold_evaluation(Evaluation(0, t, f"/c/{t}", tuple(right), None, index, None, items))
        judge = Judge.from_state(json.loads(json.dumps(judge.to_state())))
    return judge


def about_the_grader(judge: Judge) -> list[tuple[Level, bool]]:
    return [
        (c.level, c.advice)
        for c in judge.verdict().conditions
        if c.code is Code.EVALUATION_FAILING and "training grader" in c.message
    ]


def test_a_grader_that_failed_on_one_pass_of_the_baseline_costs_that_pass_alone() -> None:
    judge = judged([True] * 7 + [False] + [True] * 12, baseline_passes=8)
    readings = {r.name: r for r in judge.verdict().detectors}
    assert readings["disagreement"].statistic is not None
    assert not about_the_grader(judge) and judge.verdict().level is Level.HEALTHY
    state = judge.to_state()["calibrated"]["detector"]
    assert state["reference"]["strata"] != state["agreements"][0]["strata"]


def test_a_grader_that_scored_no_pass_of_the_baseline_leaves_the_run_unknown() -> None:
    for later in (False, True):
        judge = judged([False, False] + [later] * 12)
        assert [r.name for r in judge.verdict().detectors] == list(PARTS)
        assert about_the_grader(judge) == [(Level.UNKNOWN, False)]
        assert judge.verdict().level is Level.UNKNOWN and not_judged(judge.verdict(), "")


def test_a_grader_that_fails_at_every_later_evaluation_leaves_the_run_unknown() -> None:
    judge = judged([True, True] + [False] * 12)
    assert about_the_grader(judge) == [(Level.UNKNOWN, False)] and judge.verdict().level is Level.UNKNOWN
    assert "failed on 12 of 12 evaluations" in judge.verdict().reason


def test_a_grader_that_failed_now_and_then_is_told_and_on_the_newest_evaluation_is_unknown() -> None:
    assert about_the_grader(judged([True] * 12 + [False, True])) == [(Level.WARNING, True)]
    assert about_the_grader(judged([True] * 13 + [False])) == [(Level.UNKNOWN, False)]
    assert about_the_grader(judged([True] * 10 + [False, True, False, True])) == [(Level.UNKNOWN, False)]


def test_without_a_grader_nothing_is_said_of_one() -> None:
    judge = Judge(Policy(calibrated=CONFIG.model_copy(update={"baseline_passes": 1})))
    for t in range(4):
        judge.fold_evaluation(
            Evaluation(0, t, f"/c/{t}", tuple(score(np.random.default_rng(t), NOTHING, t)[0]))
        )
    assert not about_the_grader(judge)


@pytest.mark.parametrize(("action", "level"), [("warn", Level.HEALTHY), ("stop", Level.WARNING)])
def test_what_the_policy_only_warns_of_is_advice(action: str, level: Level) -> None:
    """An alarm that nobody has confirmed yet is a warning that counts; what only warns is advice."""
    config = CONFIG.model_copy(update={"baseline_passes": 4, "on_disagreement": action})
    judge = Judge(Policy(calibrated=config))
    rng = np.random.default_rng(3)
    for n in range(60):
        t = max(0, n - 3)
        right, paid = score(rng, HACKED, t)
        judge.fold_step(StepReport(attempt=0, step=n, reward=0.5))
        judge.fold_evaluation(
            Evaluation(0, t, f"/c/{t}", tuple(right), None, n if n < 4 else 0, None, tuple(paid))
        )
        told = [c for c in judge.verdict().conditions if c.code is Code.PROXY_DISAGREEMENT]
        if told:
            break
    assert [(c.level, c.advice) for c in told] == [(Level.WARNING, action == "warn")]
    assert not judge.verdict().fire
    levels = [c.level for c in judge.verdict().conditions if not c.advice]
    assert max(levels, key=lambda found: found.severity) is level
    reason = judge.verdict().reason
    assert (reason == told[0].message) is (action == "stop")
    if action == "warn":
        assert reason.startswith("nothing that stops a run by this policy speaks against the run after ")
        assert "; it warns of proxy_disagreement; " in reason
        assert for_trainer(judge.verdict()).reason == reason, "no number that a trainer may not know"
