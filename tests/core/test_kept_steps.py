"""What outlives a run's pods: few steps, the symptoms of all, in a bounded number of bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard_core.figures import kept_figures
from guard_core.guard_log import symptoms_of_history
from guard_core.kept_steps import MOST_OF_FIGURES, MOST_STEPS, read_steps, written_steps
from guard_core.symptoms import TITLES
from guard_core.thinning import MAX_KEPT_STEPS, size
from guard_core.wire import MAX_FIGURE_NAME, MAX_FIGURES, FiguresReport, StepReport

Json = dict[str, Any]


def line(step: int, attempt: int = 0, **values: Any) -> Json:
    """A line of a guard's history."""
    kind = {"kl_kind": "ref_token_mean"} if "kl" in values else {}
    report = StepReport.model_validate({"attempt": attempt, "step": step, "reward": 0.5} | kind | values)
    return report.model_dump(mode="json")


def figures(steps: range, **values: float) -> list[FiguresReport]:
    return [FiguresReport(attempt=0, step=step, figures=values) for step in steps]


def test_a_short_run_comes_back_as_it_was() -> None:
    lines = [line(n, kl=n / 100, entropy=1.5, reward_std=0.25) for n in range(1, 41)]
    told = figures(range(1, 41), **{"rewards/form/mean": 0.75, "completions/clipped_ratio": 0.5})
    kept = read_steps(written_steps(lines, told, 40) or "")
    assert kept is not None and kept.total == 40
    assert [one.model_dump(mode="json") for one in kept.steps] == lines
    assert list(kept.figures) == told
    seen = symptoms_of_history(lines, told)
    assert seen is not None and kept.symptoms is not None
    assert [(o.name, o.sentence) for o in kept.symptoms.symptoms] == [
        (o.name, o.sentence) for o in seen.symptoms
    ]
    assert [(o.name, o.why) for o in kept.symptoms.unseen] == [(o.name, o.why) for o in seen.unseen]
    assert [o.name for o in seen.symptoms] == ["length_at_cap"] and seen.unseen


def test_what_is_not_known_is_not_0_and_another_kind_of_kl_is_none_to_the_reference() -> None:
    lines = [line(1), line(2, kl=0.5, kl_kind="behaviour"), line(3, kl_kind="not_finite"), line(4, kl=0.5)]
    told = [
        FiguresReport(attempt=0, step=1, figures={"a": 1.0}),
        FiguresReport(attempt=0, step=2, figures={"b": 2.0}),
    ]
    kept = read_steps(written_steps(lines, told, 4) or "")
    assert kept is not None
    assert [one.model_dump(mode="json") for one in kept.steps] == lines
    assert list(kept.figures) == told


def test_of_a_long_run_few_steps_are_kept_and_the_symptoms_of_all() -> None:
    away = [line(n, kl=0.5 if n <= 5 else 0.0) for n in range(1, 2001)]
    told = kept_figures(figures(range(1, 2001), **{"completions/mean_length": 7.0}))
    kept = read_steps(written_steps(away, told, 5000) or "")
    assert kept is not None and kept.symptoms is not None and kept.total == 5000
    assert len(kept.steps) == MOST_STEPS and (kept.steps[0].step, kept.steps[-1].step) == (1, 2000)
    gaps = {after.step - before.step for before, after in zip(kept.steps, kept.steps[1:], strict=False)}
    assert gaps <= {10, 11}
    assert len(kept.figures) == MOST_OF_FIGURES and kept.figures[-1].step == told[-1].step
    assert [one.name for one in kept.symptoms.symptoms] == ["reference_not_start"]
    thin = symptoms_of_history([one.model_dump(mode="json") for one in kept.steps], ())
    assert thin is not None and thin.symptoms == (), "the kept steps alone do not show it"


def worst(length: int = MAX_FIGURE_NAME, most: int = MAX_FIGURES) -> str:
    """The longest that a trainer can have it: every value is long, and every name."""
    long = ["rewards/" + chr(0x1F600 + i) * (length - 8) for i in range(most)]
    steps = range(2**53 - 1000, 2**53)
    told = [
        FiguresReport(
            attempt=2**31 - 1,
            step=step,
            figures={name: -1.2345e-99 * (n if i % 2 else 1000 - n) for i, name in enumerate(long)},
        )
        for n, step in enumerate(steps)
    ]
    lines = [
        line(
            step,
            attempt=2**31 - 1,
            reward=-1.2345e-99,
            kl=1.2345e-99 * n,
            entropy=1.2345e-99,
            reward_std=1.2e-99,
        )
        for n, step in enumerate(steps)
    ]
    text = written_steps(lines, kept_figures(told), 2**53 - 1)
    assert text is not None
    return text


def test_what_is_kept_is_bounded_whatever_a_trainer_reports() -> None:
    text = worst()
    assert MAX_KEPT_STEPS // 2 < size(text) == len(text.encode()) <= MAX_KEPT_STEPS
    kept = read_steps(text)
    assert kept is not None and kept.symptoms is not None and kept.steps[-1].step == 2**53 - 1
    assert len(kept.steps) > 20 and len(kept.figures) > 10


def test_a_run_without_a_step_keeps_nothing() -> None:
    assert written_steps([], figures(range(1, 9), a=1.0), 0) is None


def test_steps_that_were_taken_back_are_not_looked_at() -> None:
    """Those of the first attempt from 21 on, which were cut off, did not lead to the last policy."""
    places = [*((0, n) for n in range(1, 61)), *((1, n) for n in range(21, 61))]
    lines = [line(step, attempt=attempt) for attempt, step in places]
    told = [
        FiguresReport(
            attempt=attempt,
            step=step,
            figures={"completions/clipped_ratio": 0.75 if attempt == 0 and step > 20 else 0.0},
        )
        for attempt, step in places
    ]
    seen = symptoms_of_history(lines, told)
    assert seen is not None and seen.symptoms == ()
    first = symptoms_of_history(lines[:60], told[:60])
    assert first is not None and [one.name for one in first.symptoms] == ["length_at_cap"]


def test_what_has_no_reward_is_no_step() -> None:
    assert symptoms_of_history([line(1) | {"reward": None}], figures(range(1, 9), a=1.0)) is None
    assert symptoms_of_history([], figures(range(1, 9), a=1.0)) is None


def test_which_kind_a_kl_is_that_is_not_looked_at() -> None:
    seen = symptoms_of_history([line(n, kl=0.1, kl_kind="behaviour") for n in range(1, 41)], ())
    assert seen is not None
    assert {one.name: one.why for one in seen.unseen}["kl_above_trend"] == "the KL is behaviour"
    kinds = ["behaviour"] * 20 + ["ref_token_mean"] * 40
    seen = symptoms_of_history([line(n + 1, kl=0.0, kl_kind=kind) for n, kind in enumerate(kinds)], ())
    assert seen is not None and "exactly 0" in {o.name: o.why for o in seen.unseen}["kl_above_trend"]


def test_figures_of_steps_that_are_not_among_the_lines_count() -> None:
    lines = [line(n) for n in range(1, 401, 2)]
    told = figures(range(2, 401, 2), **{"completions/clipped_ratio": 0.75})
    seen = symptoms_of_history(lines, told)
    assert seen is not None and [one.name for one in seen.symptoms] == ["length_at_cap"]


@pytest.mark.parametrize(
    ("named", "whole", "parts"),
    [("rewards/{}/mean", {}, True), ("reward/{}", {}, False), ("reward/{}", {"reward/overall": 1.0}, True)],
    ids=["TRL", "no component", "EasyR1"],
)
def test_which_figures_are_components(named: str, whole: dict[str, float], parts: bool) -> None:
    told = [
        FiguresReport(
            attempt=0,
            step=n,
            figures={named.format("up"): n / 40, named.format("down\x1b"): 1 - n / 40, **whole},
        )
        for n in range(1, 41)
    ]
    seen = symptoms_of_history([line(n) for n in range(1, 41)], told)
    assert seen is not None and [one.name for one in seen.symptoms] == ["components_part"] * parts
    if parts:
        assert "down\N{REPLACEMENT CHARACTER}" in seen.symptoms[0].sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("attempt", "step", "reward", "kl", "kl_kind", "figures", "total", "names", "symptoms", "unseen")
GOOD = {"attempt": 0, "step": 1, "reward": 0.5}
HEAD = {"total": 9, "names": ["a"], "symptoms": [], "unseen": []}


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_whatever_a_file_holds_the_rest_is_read(head: Json, odd: Json) -> None:
    lines = [HEAD | head, GOOD | odd, GOOD | {"step": 2, "figures": [0.25]}]
    kept = read_steps("\n".join([*map(json.dumps, lines), "{", "[" * 99_999, "7"]))
    assert kept is not None and kept.steps[-1].model_dump(exclude_defaults=True).keys() >= {"reward"}
    assert 2 in [one.step for one in kept.steps] and kept.total >= len(kept.steps)
    for one in kept.steps:
        assert all(v is None or (math.isfinite(v) and abs(v) <= 1e15) for v in (one.reward, one.kl))


@pytest.mark.parametrize("text", ["", "{}", "[", "[]\n7", json.dumps(GOOD), json.dumps(HEAD)])
def test_without_a_step_nothing_was_kept(text: str) -> None:
    assert read_steps(text) is None


def test_what_this_release_does_not_know_is_left_out() -> None:
    known = next(iter(TITLES))
    head = HEAD | {
        "total": 10**30,
        "symptoms": [["of_tomorrow", "s", 1, 2], [known, "s" * 9_999, 1, 2], [known, "s"], "s", {}],
        "unseen": [{"name": "of_tomorrow", "why": "w"}, {"name": known, "why": "w", "novelty": 1}, {}, None],
        "names": ["a", 7, *(f"n{i}" for i in range(99))],
    }
    steps = [GOOD | {"novelty": 1}, GOOD | {"step": 2, "reward": 1e300}, GOOD | {"step": 3, "kl": 1e300}]
    told = {"attempt": 0, "step": 1, "figures": [1.0, True, 1e300, "x", *range(99)]}
    kept = read_steps("\n".join(map(json.dumps, (head, *steps, told))))
    assert kept is not None and kept.symptoms is not None
    assert [(one.step, one.reward, one.kl) for one in kept.steps] == [(1, 0.5, None), (3, 0.5, None)]
    assert kept.total == 2
    assert [(one.name, len(one.sentence)) for one in kept.symptoms.symptoms] == [(known, 800)]
    assert [one.why for one in kept.symptoms.unseen] == ["w"]
    assert len(kept.figures) == 1 and len(kept.figures[0].figures) <= MAX_FIGURES


def test_without_a_word_about_symptoms_they_are_not_known() -> None:
    head = {key: value for key, value in HEAD.items() if key != "symptoms"}
    kept = read_steps("\n".join(map(json.dumps, (head, GOOD))))
    assert kept is not None and kept.symptoms is None
