"""Which rounds of a long run are kept: few, in order, and no others for having been thinned often."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard_core.checkpoint_key import CheckpointKey
from guard_core.thinning import (
    MAX_ROUNDS,
    NEWEST_ROUNDS,
    evenly,
    fewer_lines,
    rounds_that_stay,
    size,
    thinned,
)

#: Of each attempt its first step, and how far each further round is from the one before it: few long ones, or
#: many short ones.
attempts = st.one_of(
    st.lists(
        st.tuples(st.integers(0, 1000), st.lists(st.integers(1, 500), max_size=longest)),
        min_size=1,
        max_size=most,
    )
    for longest, most in ((60, 6), (2, 80))
)


def placed(given_attempts: list[tuple[int, list[int]]]) -> list[CheckpointKey]:
    places = []
    for attempt, (step, gaps) in enumerate(given_attempts):
        places.append(CheckpointKey(attempt, step))
        for gap in gaps:
            places.append(CheckpointKey(attempt, places[-1].step + gap))
    return places


def every(gap: int, count: int) -> list[CheckpointKey]:
    return [CheckpointKey(0, gap * n) for n in range(1, count + 1)]


@given(attempts, st.integers(0, 10_000))
def test_the_first_the_best_and_the_newest_stay_in_order_and_few(
    given_attempts: list[tuple[int, list[int]]], which: int
) -> None:
    places = placed(given_attempts)
    best = which % len(places)
    stay = rounds_that_stay(places, places[best])
    assert len(stay) <= MAX_ROUNDS and all(a < b for a, b in pairwise(stay))
    assert {0, best, *range(max(0, len(places) - NEWEST_ROUNDS), len(places))} <= {*stay}
    assert {*stay} <= {*range(len(places))}
    if len(places) <= MAX_ROUNDS:
        assert stay == list(range(len(places)))


@given(attempts, st.lists(st.integers(1, 90), min_size=1, max_size=20))
def test_what_is_thinned_as_it_grows_loses_none_of_those_that_stay_of_the_whole(
    given_attempts: list[tuple[int, list[int]]], portions: list[int]
) -> None:
    places = placed(given_attempts)
    kept: list[CheckpointKey] = []
    start = 0
    while start < len(places):
        for portion in portions:
            known = [*kept, *places[start : start + portion]]
            kept = [known[i] for i in rounds_that_stay(known, None)]
            start += portion
    assert {*kept} >= {places[i] for i in rounds_that_stay(places, None)}
    assert kept == sorted({*kept}) and len(kept) <= MAX_ROUNDS


@pytest.mark.parametrize("gap", [1, 4, 25, 1000])
@pytest.mark.parametrize("count", [51, 76, 100, 1000, 100_000])
def test_between_them_the_rounds_are_even(gap: int, count: int) -> None:
    places = every(gap, count)
    old = [places[i].step for i in rounds_that_stay(places, None) if i <= count - NEWEST_ROUNDS]
    room = MAX_ROUNDS - NEWEST_ROUNDS
    assert len(old) >= min(count - NEWEST_ROUNDS, room) / 2 - 2
    assert max(b - a for a, b in pairwise(old)) <= 2 * max(2 * gap, 2 * (old[-1] - old[0]) / (room - 2))


def test_of_more_attempts_than_there_is_room_for_the_newest_stay_and_the_start() -> None:
    places = [CheckpointKey(attempt, step) for attempt in range(300) for step in (0, 2**53 - 1)]
    stay = rounds_that_stay(places, places[7])
    assert len(stay) == MAX_ROUNDS and stay[:2] == [0, 7] and stay[-1] == len(places) - 1
    assert [places[i].step for i in stay[2:-NEWEST_ROUNDS]] == [0] * (MAX_ROUNDS - NEWEST_ROUNDS - 2)


def test_where_there_is_no_room_beside_the_spared_nothing_else_stays() -> None:
    places = [CheckpointKey(attempt, 0) for attempt in range(9)]
    assert thinned(places, 3, {0, 4, 8}) == [0, 4, 8]
    assert thinned(places, 4, {0, 4, 8}) == [0, 4, 7, 8]


def test_a_best_that_is_not_among_them_changes_nothing() -> None:
    places = every(10, 200)
    assert rounds_that_stay(places, CheckpointKey(3, 10)) == rounds_that_stay(places, None)
    assert rounds_that_stay([], CheckpointKey(0, 1)) == []


@given(st.integers(0, 5000), st.integers(2, 300))
def test_evenly_chosen_places_have_both_ends_and_equal_gaps(count: int, most: int) -> None:
    chosen = evenly(count, most)
    assert len(chosen) == min(count, most)
    if count:
        assert (chosen[0], chosen[-1]) == (0, count - 1)
        gaps = {after - before for before, after in pairwise(chosen)}
        assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


def test_lines_go_until_the_rest_fits_first_and_last_last() -> None:
    text = "\n".join(["head", *(f"{n:03}é" for n in range(1, 101))])
    assert fewer_lines(text, size(text)) == text
    for most in range(size("head", "100é"), size(text)):
        fewer = (fewer_lines(text, most) or "").split("\n")
        assert fewer[0] == "head" and fewer[-1] == "100é" and len("\n".join(fewer).encode()) <= most
        assert fewer[1:] == sorted({*fewer[1:]}) and {*fewer} <= {*text.split("\n")}
        if most >= size(text) // 2 + 5:
            assert len(fewer) == 51, "no more than every second goes"
    assert fewer_lines(text, 5) == "head" and fewer_lines(text, 3) is None
    assert fewer_lines("\u2028", 3) == "\u2028" and fewer_lines("", 0) == "" and fewer_lines("", -1) is None
