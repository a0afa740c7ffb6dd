"""Which attempts started from scratch, and which of those are judged as such."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from guard_core.attempts import MOST_KEPT, MOST_STARTS, Lineage, Mean, Restarts


@dataclass
class Reports:
    stride: int


def reported(*steps: tuple[int, int], stride: int = 1, base: int | None = 0) -> Lineage:
    """After these reports, attempt and step of each, of a run whose baseline is of step `base`."""
    lineage = Lineage()
    if base is not None:
        lineage.fold_checkpoint(steps[0][0], base)
    for attempt, step in steps:
        lineage.fold_step(attempt, step, Reports(stride))
    return lineage


class TestLineage:
    @pytest.mark.parametrize(
        ("began", "again", "from_scratch"),
        [(1, 1, True), (10, 10, True), (0, 0, True), (10, 5, True), (1, 2, True), (1, 3, False)],
        ids=["the same", "logged every ten", "from 0", "earlier", "its first has no reward", "goes on"],
    )
    @pytest.mark.parametrize("base", [0, None], ids=["judged", "not judged yet"])
    def test_an_attempt_that_begins_where_the_first_did_started_from_scratch(
        self, began: int, again: int, from_scratch: bool, base: int | None
    ) -> None:
        lineage = reported((0, began), (0, began + 50), (1, again), (1, again + 1), base=base)
        assert lineage.of == {0: 0, 1: 1 if from_scratch else 0}

    def test_a_report_of_many_steps_tells_no_more_than_its_number(self) -> None:
        """It may be the first of a start of which one was lost, and of a checkpoint between the two."""
        assert reported((0, 500), (0, 1000), (1, 1000), stride=500).of[1] == 0

    def test_it_is_the_first_start_that_is_compared_with(self) -> None:
        assert reported((0, 1), (0, 50), (1, 51), (2, 51)).of == {0: 0, 1: 0, 2: 0}
        assert reported((0, 1), (0, 50), (1, 51), (2, 51), (3, 1)).of[3] == 3
        assert reported((0, 10), (1, 1), (2, 11)).of[2] == 2, "and not the second"

    def test_what_is_heard_first_says_it(self) -> None:
        assert reported((0, 1), (0, 90), (1, 51), (1, 1)).of[1] == 0
        lineage = reported((0, 1), (0, 90), (1, 51))
        lineage.fold_checkpoint(1, 0)
        assert lineage.of[1] == 0, "nor does a checkpoint of the start that somebody finds"

    def test_a_step_of_an_earlier_attempt_is_no_start(self) -> None:
        lineage = reported((0, 1), (0, 50), (2, 51), (1, 1), (0, 1))
        assert lineage.of == {0: 0, 2: 0}

    def test_a_checkpoint_at_the_baselines_step_says_it_before_any_report(self) -> None:
        lineage = reported((0, 1), (0, 50))
        lineage.fold_checkpoint(0, 50)
        lineage.fold_checkpoint(1, 50)
        lineage.fold_checkpoint(2, 0)
        lineage.fold_step(2, 1, Reports(1))
        assert lineage.of == {0: 0, 1: 0, 2: 2}

    def test_what_goes_on_from_a_start_is_of_that_start(self) -> None:
        assert reported((0, 1), (0, 90), (1, 1), (1, 10), (2, 11), (3, 12)).of == {0: 0, 1: 1, 2: 1, 3: 1}

    def test_what_goes_on_from_further_than_a_start_came_is_of_the_one_before(self) -> None:
        lineage = reported((0, 1), (0, 120), (1, 1), (1, 2), (2, 121), (3, 60), (4, 3))
        assert lineage.of == {0: 0, 1: 1, 2: 0, 3: 0, 4: 1}
        assert reported((0, 1), (0, 120), (1, 1), (1, 90), (2, 500)).of[2] == 0, "none came as far"
        late = reported((0, 1), (0, 50), (0, 3), (1, 1), (1, 10), (2, 40))
        assert late.of[2] == 0, "a step that comes late takes nothing back"

    def test_of_steps_that_are_reported_seldom_the_last_was_not(self) -> None:
        far_and_near = ((0, 10), (0, 200), (1, 10), (1, 50), (2, 60))
        assert reported(*far_and_near, stride=10).of[2] == 1
        assert reported(*far_and_near, stride=1).of[2] == 0

    def test_an_attempt_that_reports_first_and_went_on_is_of_the_start_that_was_judged(self) -> None:
        """The one before it had no reward to report."""
        lineage = Lineage()
        lineage.fold_checkpoint(0, 0)
        lineage.fold_checkpoint(0, 50)
        lineage.fold_step(1, 51, Reports(1))
        assert (lineage.of, lineage.began) == ({0: 0, 1: 0}, None)
        lineage.fold_step(2, 1, Reports(1))
        assert (lineage.of[2], lineage.began) == (2, 1)

    def test_attempts_without_end_are_not_remembered(self) -> None:
        lineage = reported(*((attempt, 1) for attempt in range(100)))
        assert len(lineage.of) == len(lineage.reach) == MOST_KEPT and max(lineage.of) == 99


class TestRestarts:
    def restarts(self) -> Restarts:
        """Of a run whose first attempt has been judged."""
        restarts = Restarts()
        assert not restarts.takes(reported((0, 1)), 0, made=0, alarmed=False)
        assert restarts.start == 0
        return restarts

    def test_the_first_checkpoint_of_a_start_begins_it_and_no_other(self) -> None:
        lineage, restarts = reported((0, 1), (0, 50), (1, 1)), self.restarts()
        assert not restarts.takes(lineage, 0, made=5, alarmed=False), "a late one of the attempt before"
        assert restarts.takes(lineage, 1, made=6, alarmed=False)
        assert not restarts.takes(lineage, 1, made=1, alarmed=False)
        assert not restarts.takes(lineage, 0, made=1, alarmed=False)
        said = "attempt 1 started from scratch: it is compared with the baseline (step 0)"
        assert said in restarts.said and "number 1" in restarts.said

    def test_one_of_an_attempt_that_went_on_from_it_does_too(self) -> None:
        lineage, restarts = reported((0, 1), (0, 50), (1, 1), (1, 10), (2, 11)), self.restarts()
        assert restarts.takes(lineage, 2, made=6, alarmed=False)
        assert not restarts.takes(lineage, 1, made=6, alarmed=False)

    def test_the_first_that_is_judged_is_what_others_start_after(self) -> None:
        """The baseline takes its time: another attempt may have begun meanwhile."""
        lineage, restarts = reported((0, 1), (0, 50), (1, 1)), Restarts()
        assert not restarts.takes(lineage, 0, made=0, alarmed=False)
        assert restarts.takes(lineage, 1, made=5, alarmed=False)

    def test_without_a_start_nothing_is_forgotten(self) -> None:
        assert not self.restarts().takes(reported((0, 1), (0, 50), (1, 51)), 1, made=5, alarmed=False)
        assert not Restarts().takes(reported((4, 1), (4, 2)), 4, made=5, alarmed=True)
        assert not self.restarts().takes(reported((0, 1), (2, 1)), 1, made=5, alarmed=False), "never heard of"

    @pytest.mark.parametrize("made", [0, -1])
    def test_where_nothing_was_judged_nothing_is_forgotten_or_said(self, made: int) -> None:
        lineage, restarts = reported((0, 1), (1, 1)), self.restarts()
        assert not restarts.takes(lineage, 1, made=made, alarmed=False)
        assert restarts.said == "" and restarts.taken == 0
        assert not restarts.takes(lineage, 1, made=1, alarmed=False), "its own evaluations are kept"

    def test_a_start_waits_while_an_alarm_does(self) -> None:
        lineage, restarts = reported((0, 1), (0, 50), (1, 1)), self.restarts()
        assert not restarts.takes(lineage, 1, made=5, alarmed=True)
        assert "while an alarm waits to be decided" in restarts.said and restarts.taken == 0
        assert restarts.takes(lineage, 1, made=6, alarmed=False)

    def test_few_are_taken(self) -> None:
        steps, restarts = [(0, 1), (0, 50)], self.restarts()
        for attempt in range(1, MOST_STARTS + 3):
            steps.append((attempt, 1))
            took = restarts.takes(reported(*steps), attempt, made=5, alarmed=False)
            assert took is (attempt <= MOST_STARTS)
            assert f"attempt {attempt} started from scratch" in restarts.said
        assert restarts.taken == MOST_STARTS == 3
        assert "as 3 had done before" in restarts.said and "a guard of its own" in restarts.said


class TestWhatWasReachedBefore:
    def left(self, *levels: float) -> Restarts:
        """After a start that reached each of these, and another one after it."""
        restarts, lineage = Restarts(), reported((0, 1), (0, 50))
        for attempt, level in enumerate(levels):
            if attempt:
                lineage.fold_step(attempt, 1, Reports(1))
            assert restarts.takes(lineage, attempt, made=attempt, alarmed=False) is (attempt > 0)
            for _ in range(20):
                restarts.fold(level)
        lineage.fold_step(len(levels), 1, Reports(1))
        assert restarts.takes(lineage, len(levels), made=9, alarmed=False)
        return restarts

    def test_a_start_is_behind_until_its_newest_evaluations_are_there(self) -> None:
        restarts = self.left(0.7)
        assert restarts.behind(256, 0.03) == "", "nothing is known of it"
        restarts.fold(0.1)
        said = restarts.behind(256, 0.03)
        assert (
            "had reached 0.700 (mean of 4" in said
            and "since that start it is 0.100 (of the newest 1)" in said
        )
        assert "number 1" in said
        for _ in range(8):
            restarts.fold(0.69)
        assert restarts.behind(256, 0.03) == ""

    def after(self, *scores: float) -> Restarts:
        """After a start with these scores, and another one after it."""
        restarts, lineage = Restarts(), reported((0, 1), (0, 50))
        restarts.takes(lineage, 0, made=0, alarmed=False)
        for score in scores:
            restarts.fold(score)
        lineage.fold_step(1, 1, Reports(1))
        assert restarts.takes(lineage, 1, made=9, alarmed=False)
        return restarts

    def test_of_a_run_that_still_climbed_it_is_the_top(self) -> None:
        """Else a trainer that has learnt what it is paid for is compared with what it knew at the start."""
        restarts = self.after(0.43, 0.43, 0.47, 0.51, 0.55, 0.59, 0.63, 0.67, 0.71)
        for _ in range(20):
            restarts.fold(0.53)
        assert "reached 0.650 (mean of 4 evaluations in a row)" in restarts.behind(256, 0.03)

    def test_one_that_climbs_as_the_one_before_did_is_not_behind(self) -> None:
        climb = (0.43, 0.43, 0.47, 0.51, 0.55, 0.59, 0.63, 0.67, 0.71)
        restarts = self.after(*climb)
        for score in climb:
            restarts.fold(score)
        assert restarts.behind(256, 0.0) == ""

    def test_what_was_lost_again_before_it_was_reached(self) -> None:
        restarts = self.after(*[0.4] * 5, *[0.8] * 4, *[0.4] * 12)
        restarts.fold(0.4)
        assert "had reached 0.800" in restarts.behind(256, 0.03)

    def test_an_evaluation_that_was_none_is_of_no_level(self) -> None:
        replaced, left_out = self.after(0.4), self.after(0.4)
        for restarts in (replaced, left_out):
            for score in (0.5, 0.5, 0.5, 1.0):
                restarts.fold(score)
        replaced.take_back(0.75)
        left_out.take_back()
        assert (replaced.scores[2:], left_out.scores[2:]) == ([0.5, 0.75], [0.5])
        for restarts in (replaced, left_out):
            for _ in range(4):
                restarts.fold(0.25)
        assert (replaced.best, left_out.best) == (Mean(0.5625, 4), Mean(0.4375, 4))

    def test_one_far_above_the_others_that_nobody_has_upheld_is_of_none(self) -> None:
        restarts, lineage = self.restarts(), reported((0, 1), (1, 1))
        for score in (0.4, 0.4, 1.0):
            restarts.fold(score)
        assert restarts.takes(lineage, 1, made=3, alarmed=False, jumped=True)
        assert restarts.left == [Mean(0.4, 2)]

    def restarts(self) -> Restarts:
        restarts = Restarts()
        restarts.takes(reported((0, 1)), 0, made=0, alarmed=False)
        return restarts

    def test_each_start_has_a_level_of_its_own(self) -> None:
        restarts = self.after(*[0.8] * 6)
        for _ in range(30):
            restarts.fold(0.4)
        assert len(restarts.scores) == 8, "a long run has no larger state"
        assert restarts.takes(reported((0, 1), (0, 50), (1, 1), (2, 1)), 2, made=9, alarmed=False)
        assert restarts.left == [Mean(0.8, 4), Mean(0.4, 4)]

    def test_a_level_of_few_evaluations_is_as_noisy_as_they_are(self) -> None:
        long, short = self.after(*[0.7] * 4), self.after(0.7)
        for restarts in (long, short):
            for _ in range(8):
                restarts.fold(0.605)
        assert "mean of 4 evaluations" in long.behind(256, 0.03)
        assert short.behind(256, 0.03) == ""

    def test_a_dip_of_the_newest_is_not_where_it_stays(self) -> None:
        restarts = self.after(*[0.7] * 8)
        for score in (*[0.7] * 8, *[0.55] * 3):
            restarts.fold(score)
        assert restarts.behind(256, 0.03) == ""
        restarts.fold(0.55)
        assert "it is 0.550 (of the newest 4)" in restarts.behind(256, 0.03)

    @pytest.mark.parametrize(("evaluations", "starts"), [(2, 3), (4, 3), (20, 1)])
    def test_runs_in_which_nothing_changes_are_seldom_behind(self, evaluations: int, starts: int) -> None:
        rng, behind = random.Random(3), 0
        lineage = reported(*((start, 1) for start in range(starts + 1)))
        for _ in range(200):
            restarts = Restarts()
            for start in range(starts + 1):
                restarts.takes(lineage, start, made=start, alarmed=False)
                for _ in range(20 if start == starts else evaluations):
                    restarts.fold(rng.gauss(0.5, (0.25 / 128) ** 0.5))
            behind += restarts.behind(128, 0.03) != ""
        assert behind <= 2

    def test_the_highest_of_all_is_what_counts(self) -> None:
        restarts = self.left(0.7, 0.5)
        restarts.fold(0.5)
        assert "had reached 0.700" in restarts.behind(256, 0.03)

    @pytest.mark.parametrize(
        ("items", "decline", "behind"), [(256, 0.03, True), (256, 0.1, False), (30, 0.03, False)]
    )
    def test_what_is_accepted_and_what_is_noise_is_none(
        self, items: int, decline: float, behind: bool
    ) -> None:
        restarts = self.left(0.7)
        for _ in range(8):
            restarts.fold(0.6)
        assert bool(restarts.behind(items, decline)) is behind

    def test_a_first_start_is_behind_none(self) -> None:
        restarts = Restarts()
        restarts.takes(reported((0, 1)), 0, made=0, alarmed=False)
        restarts.fold(0.9)
        restarts.fold(0.1)
        assert restarts.behind(256, 0.03) == ""
