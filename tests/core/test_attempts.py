"""Which attempts started from scratch, and which of those are judged as such."""

from __future__ import annotations

import pytest

from guard_core.attempts import MOST_STARTS, Lineage, Restarts


def reported(*steps: tuple[int, int], stride: int = 1, base: int | None = 0) -> Lineage:
    """After these reports, attempt and step of each, of a run whose baseline is of step `base`."""
    lineage = Lineage()
    if base is not None:
        lineage.fold_checkpoint(steps[0][0], base)
    for attempt, step in steps:
        lineage.fold_step(attempt, step, stride)
    return lineage


class TestLineage:
    @pytest.mark.parametrize(
        ("began", "again", "stride", "from_scratch"),
        [
            (1, 1, 1, True),
            (10, 10, 10, True),
            (0, 0, 1, True),
            (10, 5, 10, True),
            (1, 2, 1, True),
            (1, 3, 1, False),
            (10, 20, 10, True),
            (10, 21, 10, False),
        ],
        ids=[
            *("the same", "logged every ten", "numbered from 0", "earlier"),
            *("its first has no reward", "goes on", "the first of ten has none", "goes on after ten"),
        ],
    )
    def test_an_attempt_that_begins_where_the_first_did_started_from_scratch(
        self, began: int, again: int, stride: int, from_scratch: bool
    ) -> None:
        lineage = reported((0, began), (0, began + 50), (1, again), (1, again + 1), stride=stride)
        assert lineage.start == (1 if from_scratch else 0)
        assert not from_scratch or lineage.at == again

    def test_it_is_the_first_attempt_that_is_compared_with(self) -> None:
        assert reported((0, 1), (1, 51), (2, 51)).start == 0
        assert reported((0, 1), (1, 51), (2, 51), (3, 1)).start == 3

    def test_a_first_step_that_comes_late_counts(self) -> None:
        assert reported((0, 5), (0, 1), (0, 9), (1, 5)).start == 0
        assert reported((0, 1), (1, 3), (1, 1)).start == 1
        assert reported((0, 10), (1, 1), (2, 10)).start == 2, "only of the first attempt"

    def test_a_step_of_an_earlier_attempt_is_no_start(self) -> None:
        assert reported((0, 1), (2, 51), (1, 1), (0, 1)).start == 0

    def test_a_checkpoint_at_the_baselines_step_says_it_before_any_report(self) -> None:
        lineage = reported((0, 1), (0, 50))
        lineage.fold_checkpoint(0, 50)
        lineage.fold_checkpoint(1, 50)
        assert lineage.start == 0
        lineage.fold_checkpoint(2, 0)
        assert (lineage.start, lineage.at) == (2, 0)
        lineage.fold_step(2, 1, 1)
        assert (lineage.start, lineage.at) == (2, 0), "it is one start"

    def test_what_goes_on_from_a_start_is_of_that_start(self) -> None:
        assert reported((0, 1), (1, 1), (2, 11), (3, 21)).start == 1

    def test_an_attempt_that_is_the_first_to_report_is_what_others_are_compared_with(self) -> None:
        lineage = Lineage()
        lineage.fold_checkpoint(0, 0)
        for attempt, step in ((1, 1), (1, 50), (2, 51)):
            lineage.fold_step(attempt, step, 1)
        assert (lineage.by, lineage.began, lineage.start) == (1, 1, 1)

    def test_the_state_is_the_whole_of_it(self) -> None:
        lineage = reported((0, 1), (1, 1), (2, 7))
        assert Lineage.from_state(lineage.to_state()) == lineage


class TestRestarts:
    def restarts(self, lineage: Lineage) -> Restarts:
        """Of a run whose first attempt has been judged."""
        restarts = Restarts()
        assert not restarts.takes(reported((0, 1)), 0, made=0, alarmed=False)
        assert restarts.start == 0 and not restarts.takes(lineage, 0, made=5, alarmed=False)
        return restarts

    def test_the_first_checkpoint_of_a_start_begins_it_and_no_other(self) -> None:
        lineage = reported((0, 1), (0, 50), (1, 1))
        restarts = self.restarts(lineage)
        assert not restarts.takes(lineage, 0, made=5, alarmed=False), "a late one of the attempt before"
        assert restarts.takes(lineage, 1, made=6, alarmed=False)
        assert not restarts.takes(lineage, 1, made=1, alarmed=False)
        assert (
            "attempt 1 started from scratch (step 1): it is compared with the baseline (step 0)"
            in restarts.said
        )

    def test_one_of_an_attempt_that_went_on_from_it_does_too(self) -> None:
        lineage = reported((0, 1), (0, 50), (1, 1), (2, 11))
        restarts = self.restarts(lineage)
        assert restarts.takes(lineage, 2, made=6, alarmed=False)
        assert not restarts.takes(lineage, 1, made=6, alarmed=False)

    def test_without_a_start_nothing_is_forgotten(self) -> None:
        lineage = reported((0, 1), (0, 50), (1, 51))
        assert not self.restarts(lineage).takes(lineage, 1, made=5, alarmed=False)
        assert not Restarts().takes(reported((4, 1), (4, 2)), 4, made=5, alarmed=False)

    @pytest.mark.parametrize("made", [0, -1])
    def test_where_nothing_was_judged_nothing_is_forgotten_or_said(self, made: int) -> None:
        lineage = reported((0, 1), (1, 1))
        restarts = self.restarts(lineage)
        assert not restarts.takes(lineage, 1, made=made, alarmed=False)
        assert restarts.said == "" and restarts.taken == 0
        assert not restarts.takes(lineage, 1, made=1, alarmed=False), "its own evaluations are kept"

    def test_a_start_waits_while_an_alarm_does(self) -> None:
        lineage = reported((0, 1), (0, 50), (1, 1))
        restarts = self.restarts(lineage)
        assert not restarts.takes(lineage, 1, made=5, alarmed=True)
        assert "while an alarm waits to be decided" in restarts.said and restarts.taken == 0
        assert restarts.takes(lineage, 1, made=6, alarmed=False)

    def test_few_are_taken(self) -> None:
        steps = [(0, 1), (0, 50)]
        restarts = self.restarts(reported(*steps))
        for attempt in range(1, MOST_STARTS + 3):
            steps.append((attempt, 1))
            took = restarts.takes(reported(*steps), attempt, made=5, alarmed=False)
            assert took is (attempt <= MOST_STARTS)
            assert f"attempt {attempt} started from scratch" in restarts.said
        assert restarts.taken == MOST_STARTS == 3
        assert "as 3 had done before" in restarts.said and "a guard of its own" in restarts.said

    def test_the_state_is_the_whole_of_it(self) -> None:
        lineage = reported((0, 1), (0, 50), (1, 1))
        restarts = self.restarts(lineage)
        assert Restarts.from_state(restarts.to_state()) == restarts
        assert restarts.takes(lineage, 1, made=5, alarmed=False)
        assert Restarts.from_state(restarts.to_state()) == restarts
