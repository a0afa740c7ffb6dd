"""Of which start of the trainer a step is, and whether the guard has it."""

import pytest

from rlguard.client.samples import StepSample
from rlguard.core.wire import KlKind
from rlguard.follow.attempts import Attempts


def sample(step, reward, kl=None):
    return StepSample(step, reward, kl, KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN)


def known(*attempts):
    return {n: {step: sample(step, reward) for step in steps} for n, (steps, reward) in enumerate(attempts)}


def placed(attempts, steps, reward):
    found = [(attempts.place(sample(step, reward)), step) for step in steps]
    return [(attempt, step) for attempt, step in found if attempt is not None]


@pytest.mark.parametrize(
    ("steps", "reward", "expected"),
    [
        (range(1, 6), 0.5, []),  # reported already
        ([6, 7], 0.6, [(0, 6), (0, 7)]),  # it goes on
        ([3, 4], 0.6, [(1, 3), (1, 4)]),  # it contradicts
        ([0, 1], 0.6, [(1, 0), (1, 1)]),
    ],
)
def test_what_a_log_has_beside_what_the_guard_has(steps, reward, expected):
    assert placed(Attempts(known((range(1, 6), 0.5))), steps, reward) == expected


def test_a_value_that_one_of_them_lacks_contradicts_nothing():
    attempts = Attempts({0: {1: sample(1, 0.5)}})
    assert attempts.place(sample(1, 0.5, kl=0.1)) is None
    attempts = Attempts({0: {1: sample(1, 0.5, kl=0.1)}})
    assert attempts.place(sample(1, 0.5, kl=0.2)) == 1


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([(range(1, 131), 0.5), (range(101, 111), 0.6)], {50: 0, 105: 1, 120: 0}),
        ([(range(10, 60), 0.5), (range(51, 90), 0.6)], {0: 0, 9: 0, 10: 0, 51: 1}),
        ([(range(10, 60), 0.5), (range(10, 30), 0.6), (range(31, 40), 0.7)], {0: 1}),
        ([], {5: 0}),
    ],
)
def test_a_checkpoint_is_of_the_newest_start_that_came_to_its_step(attempts, expected):
    found = Attempts(known(*attempts))
    assert {step: found.attempt_of_checkpoint(step) for step in expected} == expected


def test_a_guard_that_has_lost_its_steps_is_told_of_another_attempt():
    attempts = Attempts({}, lost=1)
    assert attempts.attempt_of_checkpoint(4) == 2
    assert placed(attempts, (5, 6, 7), 0.1) == [(2, 5), (2, 6), (2, 7)]
    assert placed(Attempts(known(([4], 0.1)), lost=0), (5,), 0.1) == [(0, 5)], "it has lost nothing"
