"""Of which start of the trainer a step is, and whether the guard has it."""

from guard_client.samples import StepSample
from guard_core.wire import KlKind
from guard_follow.attempts import Attempts


def sample(step, reward, kl=None):
    return StepSample(step, reward, kl, KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN)


def known(**attempts):
    return {
        int(name[1:]): {step: sample(step, reward) for step in steps}
        for name, (steps, reward) in attempts.items()
    }


def placed(attempts, steps, reward):
    found = [(attempts.place(sample(step, reward)), step) for step in steps]
    return [(attempt, step) for attempt, step in found if attempt is not None]


def test_other_values_are_another_start():
    attempts = Attempts(known(a0=(range(1, 6), 0.5)))
    assert placed(attempts, range(1, 6), 0.5) == []
    assert placed(attempts, range(4, 8), 0.6) == [(1, 4), (1, 5), (1, 6), (1, 7)]
    assert placed(attempts, range(6, 9), 0.7) == [(2, 6), (2, 7), (2, 8)]


def test_a_log_that_begins_where_the_one_before_it_ended():
    assert placed(Attempts(known(a0=(range(1, 6), 0.5))), [6, 7], 0.6) == [(0, 6), (0, 7)]


def test_a_log_that_begins_behind_with_other_values():
    assert placed(Attempts(known(a0=(range(1, 6), 0.5))), [3, 4], 0.6) == [(1, 3), (1, 4)]


def test_a_value_that_one_of_them_lacks_contradicts_nothing():
    attempts = Attempts({0: {1: sample(1, 0.5)}})
    assert attempts.place(sample(1, 0.5, kl=0.1)) is None
    assert attempts.place(sample(1, 0.5, kl=0.2)) is None
    attempts = Attempts({0: {1: sample(1, 0.5, kl=0.1)}})
    assert attempts.place(sample(1, 0.5, kl=0.2)) == 1


def test_a_checkpoint_is_of_the_newest_start_that_came_to_its_step():
    attempts = Attempts(known(a0=(range(1, 131), 0.5), a1=(range(101, 111), 0.6)))
    assert [attempts.attempt_of_checkpoint(step) for step in (50, 105, 120)] == [0, 1, 0]
    assert Attempts({}).attempt_of_checkpoint(5) == 0


def test_a_checkpoint_before_all_steps_is_of_an_attempt_that_began_there():
    went_on = Attempts(known(a0=(range(10, 60), 0.5), a1=(range(51, 90), 0.6)))
    assert [went_on.attempt_of_checkpoint(step) for step in (0, 9, 10, 51)] == [0, 0, 0, 1]
    again = Attempts(known(a0=(range(10, 60), 0.5), a1=(range(10, 30), 0.6), a2=(range(31, 40), 0.7)))
    assert again.attempt_of_checkpoint(0) == 1


def test_a_guard_that_has_lost_its_steps_is_told_of_another_attempt():
    attempts = Attempts({}, lost=1)
    assert attempts.attempt_of_checkpoint(4) == 2
    assert placed(attempts, (5, 6, 7), 0.1) == [(2, 5), (2, 6), (2, 7)]
    assert placed(Attempts({}), (5,), 0.1) == [(0, 5)]
    assert placed(Attempts(known(_0=([4], 0.1)), lost=0), (5,), 0.1) == [(0, 5)], "it has lost nothing"
    assert Attempts(known(_0=([4], 0.1)), lost=0).attempt_of_checkpoint(9) == 0
