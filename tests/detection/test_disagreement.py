"""The question `disagreement` on simulated runs: what the grader pays for, and what is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.detectors import Baseline, CalibratedDetector
from rlguard.core.detectors.baseline import Outcomes
from rlguard.core.ending import not_judged
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import DetectorReading, StepReport

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
    detector = CalibratedDetector(config, baseline(rng, course))
    for t in range(1, length + 1):
        right, paid = score(rng, course, t)
        status = detector.update(t, right, proxy_items=paid)
        if status.fire:
            return t if status.rule == Code.GRADERS_DISAGREE else None
    return None


def said(readings: tuple[DetectorReading, ...]) -> DetectorReading:
    return next(r for r in readings if r.name == "disagreement")


def test_a_grader_that_pays_for_ever_more_wrong_answers_is_found() -> None:
    fires = [fired_at(HACKED, seed) for seed in range(10)]
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


Scored = Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray | None]]
"""From evaluation t to what the scorer and the grader give each item, and where the grader was fooled."""


def worst(scored: Scored, samples: int = 1) -> str:
    """The worst level in 40 evaluations."""
    right, paid, fooled = zip(*(scored(0) for _ in range(8)), strict=True)
    detector = CalibratedDetector(CONFIG, Baseline.from_passes(right, samples, paid, fooled))
    levels = []
    for t in range(1, 40):
        truth, given, wrong = scored(t)
        status = detector.update(t, truth, proxy_items=given, fooled_items=wrong)
        levels.append(Level.FIRED if status.fire else said(status.readings).level)
    return max(levels, key=lambda level: level.severity).value


def form_first(seed: int, pay: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> str:
    """The worst of a run that learns a form first, and then the task.

    `pay`: what the grader gives, from what is right and what has the form.
    """
    rng = np.random.default_rng(seed)

    def scored(t: int) -> tuple[np.ndarray, np.ndarray, None]:
        level = START + 0.2 * ramp(max(0, t - 10))
        right = rng.random(N) < 1 - (1 - MEANS) * (1 - level) / (1 - START)
        return right.astype(float), pay(right, rng.random(N) < 0.1 + 0.85 * ramp(t, 10)), None

    return worst(scored)


def test_a_grader_that_pays_half_for_the_format_warns_of_an_honest_run_and_stops_none() -> None:
    """Format is learnt first, accuracy after it: the grader gains 40 points that the scorer does not see."""
    fates = [form_first(seed, lambda right, form: 0.5 * right + 0.5 * form) for seed in range(8)]
    assert fates == ["warning"] * 8


def test_a_grader_that_pays_a_part_and_then_in_full_for_what_is_wrong_stops() -> None:
    fates = [form_first(seed, lambda right, form: np.where(form, 1.0, 0.5 * right)) for seed in range(8)]
    assert fates == ["fired"] * 8


def test_of_several_completions_full_pay_for_wrong_ones_is_what_was_reported_or_what_the_means_prove() -> (
    None
):
    truth, means, shares = [0.5, 0.5, 0.0, 1.0], [0.75, 1, 1, 1], [0.25, 0.5, 1, 0]
    for fooled, fair in ((shares, [-0.25, -0.5, -1, 0]), (None, [0, -0.5, -1, 0])):
        assert Outcomes.of(truth, means, fooled).quantities()["fair_pay"].tolist() == fair
    for given, fooled in (([1.0], None), ([1.0] * 4, [1.0]), ([1.0] * 4, [2.0] * 4)):
        with pytest.raises(ValueError, match="item"):
            Outcomes.of(truth, given, fooled)


def of_eight(seed: int, exploited: Callable[[int], float], *, joint: bool) -> str:
    """The worst of a run with eight samples an item, of a grader that is fooled on some of them.

    `exploited`: share of the wrong completions that it pays for; `joint`: whether each is told by itself.
    """
    rng = np.random.default_rng(seed)

    def scored(t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        right = rng.random((N, 8)) < MEANS[:, None]
        paid = right | (rng.random((N, 8)) < exploited(t))
        return right.mean(axis=1), paid.mean(axis=1), (paid & ~right).mean(axis=1) if joint else None

    return worst(scored, samples=8)


def test_a_grader_that_is_fooled_on_half_of_an_items_samples_stops_the_run() -> None:
    half = lambda t: 0.1 + 0.4 * ramp(t)  # noqa: E731
    assert [of_eight(seed, half, joint=True) for seed in range(6)] == ["fired"] * 6
    assert [of_eight(seed, half, joint=False) for seed in range(6)] == ["warning"] * 6
    assert [of_eight(seed, lambda t: 0.4, joint=True) for seed in range(8)] == ["healthy"] * 8


def test_it_is_asked_where_the_grader_scored_the_baseline() -> None:
    with_grader = baseline(np.random.default_rng(0))
    without = Baseline(tuple(Outcomes(one.truth) for one in with_grader.passes))
    for start, names in ((with_grader, ["decline", "disagreement", "gap"]), (without, ["decline", "gap"])):
        status = CalibratedDetector(CONFIG, start).update(1, start.passes[0].truth)
        assert [r.name for r in status.readings] == names


def test_an_evaluation_that_the_grader_did_not_score_is_unknown_and_changes_no_evidence() -> None:
    rng = np.random.default_rng(0)
    detector = CalibratedDetector(CONFIG, baseline(rng))
    for t in range(1, 5):
        right, paid = score(rng, HACKED, t)
        before = said(detector.update(t, right, proxy_items=paid).readings).statistic
    reading = said(detector.update(5, right).readings)
    assert reading.level is Level.UNKNOWN and reading.statistic is None
    after = said(detector.update(6, right, proxy_items=paid).readings).statistic
    assert before is not None and after is not None and after >= before


@pytest.mark.parametrize(
    ("setting", "course", "code"),
    [("on_disagreement", HACKED, Code.GRADERS_DISAGREE), ("on_decline", DECLINING, Code.FELL_BELOW_START)],
)
def test_by_policy_a_finding_only_warns(setting: str, course: Course, code: Code) -> None:
    others = {"on_decline", "on_disagreement"} - {setting}
    for action in ("stop", "warn"):
        config = CONFIG.model_copy(update={setting: action} | dict.fromkeys(others, "warn"))
        rng = np.random.default_rng(0)
        detector = CalibratedDetector(config, baseline(rng))
        for t in range(1, 40):
            right, paid = score(rng, course, t)
            status = detector.update(t, right, proxy_items=paid)
        assert status.fire is (action == "stop")
    assert not status.needs_confirmation
    reading = next(r for r in status.readings if r.code is code)
    assert reading.level is Level.WARNING and reading.message.endswith(f"the policy's {setting} is warn")


@pytest.mark.parametrize(
    ("pays", "said"), [(0.0, "pays nothing"), (0.8, "pays less than 1"), (1.0, "")], ids=str
)
def test_a_grader_that_never_pays_right_answers_in_full_is_told_at_the_start(pays: float, said: str) -> None:
    judge = Judge(Policy(detector="calibrated", calibrated=CONFIG.model_copy(update={"baseline_passes": 2})))
    right = tuple(float(i % 2) for i in range(64))
    paid = tuple(pays * one for one in right)
    for index in range(2):
        judge.fold_evaluation(Evaluation(0, 0, "/c/0", right, None, index, None, paid))
    told = [c for c in judge.verdict().conditions if "for every answer" in c.message]
    assert [said in c.message and c.advice for c in told] == ([True] if said else [])


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
        judge = judge.copy()
    return judge


def about_the_grader(judge: Judge) -> list[tuple[Level, bool]]:
    return [
        (c.level, c.advice)
        for c in judge.verdict().conditions
        if c.code is Code.EVALUATION_FAILING and "training grader" in c.message
    ]


@pytest.mark.parametrize(
    ("grades", "told"),
    [
        ([False] * 14, [(Level.UNKNOWN, False)]),
        ([False] * 2 + [True] * 12, [(Level.UNKNOWN, False)]),
        ([True] * 2 + [False] * 12, [(Level.UNKNOWN, False)]),
        ([True] * 13 + [False], [(Level.UNKNOWN, False)]),
        ([True] * 12 + [False, True], [(Level.WARNING, True)]),
        ([True] * 10 + [False, True, False, True], [(Level.UNKNOWN, False)]),
    ],
    ids=["never", "no pass of the baseline", "nothing later", "the newest", "once", "too often"],
)
def test_what_the_grader_did_not_score_was_not_judged(
    grades: list[bool], told: list[tuple[Level, bool]]
) -> None:
    judge = judged(grades)
    assert about_the_grader(judge) == told
    if told[0][0] is Level.UNKNOWN:
        assert judge.verdict().level is Level.UNKNOWN and not_judged(judge.verdict(), "")
