"""What outlives a run's pods: few steps, the symptoms of all, in a bounded number of bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.core.display import kept_figures
from rlguard.core.guard_log import symptoms_of_history
from rlguard.core.kept_steps import MAX_KEPT_STEPS, MOST_OF_FIGURES, MOST_STEPS, read_steps, written_steps
from rlguard.core.thinning import size
from rlguard.core.wire import MAX_FIGURE_NAME, MAX_FIGURES, FiguresReport, StepReport

Json = dict[str, Any]


def line(step: int, attempt: int = 0, **values: Any) -> Json:
    """A line of a guard's history."""
    kind = {"kl_kind": "ref_token_mean"} if "kl" in values else {}
    report = StepReport.model_validate({"attempt": attempt, "step": step, "reward": 0.5} | kind | values)
    return report.model_dump(mode="json")


def figures(steps: range, **values: float) -> list[FiguresReport]:
    return [FiguresReport(attempt=0, step=step, figures=values) for step in steps]


def names(lines: list[Json], told: list[FiguresReport]) -> list[str]:
    seen = symptoms_of_history(lines, told)
    assert seen is not None
    return [one.name for one in seen.symptoms]


def test_a_short_run_comes_back_as_it_was() -> None:
    """Missing is not 0, and another kind of KL is none to the reference."""
    lines = [line(n, kl=n / 100, entropy=1.5, reward_std=0.25) for n in range(1, 38)]
    lines += [line(38), line(39, kl=0.5, kl_kind="behaviour"), line(40, kl_kind="not_finite")]
    told = figures(range(1, 40), **{"rewards/form/mean": 0.75, "completions/clipped_ratio": 0.5})
    told += figures(range(40, 41), another=1.0)
    kept = read_steps(written_steps(lines, told, 40) or "")
    assert kept is not None and kept.total == 40 and kept.symptoms is not None
    assert [one.model_dump(mode="json") for one in kept.steps] == lines and list(kept.figures) == told
    seen = symptoms_of_history(lines, told)
    assert seen is not None and [o.name for o in seen.symptoms] == ["length_at_cap"] and seen.unseen
    assert [o.sentence for o in kept.symptoms.symptoms] == [o.sentence for o in seen.symptoms]
    assert kept.symptoms.unseen == seen.unseen


def test_of_a_long_run_few_steps_are_kept_and_the_symptoms_of_all() -> None:
    away = [line(n, kl=0.5 if n <= 5 else 0.0) for n in range(1, 2001)]
    told = kept_figures(figures(range(1, 2001), **{"rewards/form/mean": 7.0}))
    kept = read_steps(written_steps(away, told, 5000) or "")
    assert kept is not None and kept.symptoms is not None and kept.total == 5000
    assert len(kept.steps) == MOST_STEPS and (kept.steps[0].step, kept.steps[-1].step) == (1, 2000)
    assert len(kept.figures) == MOST_OF_FIGURES and kept.figures[-1].step == told[-1].step
    assert [one.name for one in kept.symptoms.symptoms] == ["reference_not_start"]
    assert names([one.model_dump(mode="json") for one in kept.steps], []) == [], "few steps do not show it"


def test_what_is_kept_is_bounded_whatever_a_trainer_reports() -> None:
    """Every value is long, and every name."""
    long = ["rewards/" + chr(0x1F600 + i) * (MAX_FIGURE_NAME - 8) for i in range(MAX_FIGURES)]
    steps, last = range(2**53 - 1000, 2**53), 2**31 - 1
    told = [
        FiguresReport(
            attempt=last, step=s, figures={name: -1.2345e-99 * (s % 7 + i) for i, name in enumerate(long)}
        )
        for s in steps
    ]
    odd = {"reward": -1.2345e-99, "entropy": 1.2345e-99, "reward_std": 1.2e-99}
    lines = [line(s, attempt=last, kl=1.2345e-99 * (s % 9), **odd) for s in steps]
    text = written_steps(lines, kept_figures(told), 2**53 - 1)
    assert text is not None and MAX_KEPT_STEPS // 2 < size(text) == len(text.encode()) <= MAX_KEPT_STEPS
    kept = read_steps(text)
    assert kept is not None and kept.symptoms is not None and kept.steps[-1].step == 2**53 - 1
    assert len(kept.steps) > 20 and len(kept.figures) > 10


def test_what_has_no_reward_is_no_step() -> None:
    told = figures(range(1, 9), a=1.0)
    assert written_steps([], told, 0) is None
    assert symptoms_of_history([line(1) | {"reward": None}], told) is symptoms_of_history([], told) is None


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
    assert names(lines, told) == [] and names(lines[:60], told[:60]) == ["length_at_cap"]


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
    assert not parts or "down\N{REPLACEMENT CHARACTER}" in seen.symptoms[0].sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("attempt", "step", "reward", "kl", "kl_kind", "figures")
GOOD = {"attempt": 0, "step": 1, "reward": 0.5}
HEAD = {"total": 9, "names": ["a"]}


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_a_line_that_cannot_be_read_is_left_out(odd: Json) -> None:
    lines = [HEAD, GOOD | odd, GOOD | {"step": 2}]
    kept = read_steps("\n".join([*map(json.dumps, lines), "{", "[" * 99_999, "7"]))
    assert kept is not None and 2 in [one.step for one in kept.steps] and kept.symptoms is None


@pytest.mark.parametrize("text", ["", "{}", "[", "[]\n7", json.dumps(GOOD), json.dumps(HEAD), f"7\n{GOOD}"])
def test_without_a_step_nothing_was_kept(text: str) -> None:
    assert read_steps(text) is None
