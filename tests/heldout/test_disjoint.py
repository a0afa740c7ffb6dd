"""Disjointness: each rule on its own, what is near but not the same, templates, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from guard_service.heldout.disjoint import MAX_OVERLAPS, DisjointReport, check_disjoint
from guard_service.heldout.split import HeldoutSplit
from guard_service.heldout.text import Prompt

LONG = (
    "Natalia sold clips to 48 of her friends in April and then she sold half as many clips in May "
    "so how many clips did Natalia sell altogether in April and May"
)  # 32 tokens
OTHER = (
    "A robe takes two bolts of blue fiber and half that much white fiber now tell me how many bolts "
    "does it take to make seven such robes for the whole choir"
)
Compare = Callable[..., DisjointReport]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compare training prompts with held-out ones, named t0, t1 ... and h0, h1 ..."""

    def run(train: Sequence[Prompt], held: Sequence[Prompt], near: bool = True) -> DisjointReport:
        path = tmp_path / "held.jsonl"
        rows = ({"id": f"h{i}", "prompt": p, "answer": "1"} for i, p in enumerate(held))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        prompts = ((f"t{i}", p) for i, p in enumerate(train))
        return check_disjoint(prompts, HeldoutSplit.load(path).items, near)

    return run


def found(report: DisjointReport) -> list[tuple[str, str, str]]:
    return [(o.train_id, o.heldout_id, o.rule) for o in report.overlaps]


def words(text: str, start: int, end: int) -> str:
    return " ".join(text.split()[start:end])


def system(content: str, question: str = "Solve the task above, in one line.") -> list[dict[str, str]]:
    return [{"role": "system", "content": content}, {"role": "user", "content": question}]


def sums(start: int, end: int, other: int) -> list[str]:
    """A question in a template."""
    ask = "You are a careful tutor. Think step by step and answer in a line: what is {} plus {}? Thanks."
    return [ask.format(a, other * a) for a in range(start, end)]


def short_sums(shift: int) -> list[str]:
    """Of which "+ 10" is a template, and "31 +" is not."""
    return [f"{a}+{10 + (a + shift) % 3}=" for a in range(30, 60)]


STATED = "State the final answer to the following arithmetic problem: {} ="
STATED_SUMS = [STATED.format(f"{a} + 49") for a in range(80, 100)]
SENTENCES = [" ".join(f"s{chr(97 + i)}w{chr(97 + j)}" for j in range(11)) for i in range(10)]


@pytest.mark.parametrize(
    ("train", "held"),
    [
        ([LONG, "1+2="], [OTHER, "1+3=", "2+1="]),
        ([], ["1+2="]),
        ([system("You are a tutor.", LONG)], [system("You are a tutor.", OTHER)]),
        ([system("Add two and three and tell me what it comes to.")], [system(LONG), system(OTHER)]),
        ([f"{words(LONG, 0, 19)} {OTHER}"], [LONG]),  # 12 of its 25 8-grams
        (["112+35=", "12+36=", "12+35"], ["12+35="]),
        (["1 + 2 + 3 ="], ["1+2"]),  # too short for a quotation to show anything
        (["Name the capital of France in a word"], ["capital of France, name"]),
        (sums(100, 400, 3), sums(10, 40, 2)),
        (short_sums(1), short_sums(0)),
        ([STATED.format("89 + 52 - 18"), STATED.format("89 + 48")], STATED_SUMS),
    ],
)
def test_what_is_disjoint(compare: Compare, train: list[Prompt], held: list[Prompt]) -> None:
    report = compare(train, held)
    assert report.disjoint and report.overlaps == ()
    told = f"disjoint: {len(held)} held-out prompts against {len(train)} training prompts"
    assert report.summary() == told


@pytest.mark.parametrize(
    ("train", "held", "item", "rule"),
    [
        (LONG.upper() + "?", [OTHER, LONG], "h1", "exact"),
        ("12 + 35 =", ["12+36=", "12+35="], "h1", "exact"),
        (system("You are a careful tutor.", LONG), [LONG], "h0", "exact"),
        (system(OTHER), [system(LONG), system(OTHER)], "h1", "exact"),
        ("3 + 4", [system("Be brief.", "3 + 4"), system("Be brief.", "5 + 6")], "h0", "exact"),
        (
            system("Think.", "3 + 4"),
            [system("Be brief.", "3 + 4"), system("Be brief.", "5 + 6")],
            "h0",
            "exact",
        ),
        ("31+11=", short_sums(0), "h1", "exact"),
        (f"{words(LONG, 0, 20)} {OTHER}", [LONG], "h0", "containment"),  # 13 of its 25 8-grams
        ("Compute 12+35= please", ["12+35="], "h0", "containment"),  # a short prompt quoted in full
        ("Please name the capital of France", ["name the capital of France"], "h0", "containment"),
        ("東京の人口は何人ですか、教えて", ["東京の人口は何人"], "h0", "containment"),
        (sums(12, 13, 2)[0] + " Do it now.", sums(10, 40, 2), "h2", "containment"),
        (STATED.format("89 + 49") + " Be brief.", STATED_SUMS, "h9", "containment"),
        (" ".join(SENTENCES[::-1]), [" ".join(SENTENCES)], "h0", "jaccard"),  # 4 of 11 8-grams are in one
    ],
)
def test_what_overlaps(compare: Compare, train: Prompt, held: list[Prompt], item: str, rule: str) -> None:
    assert found(compare(["something else", train], held)) == [("t1", item, rule)]
    exact = compare(["something else", train], held, near=False)
    assert found(exact) == ([("t1", item, rule)] if rule == "exact" else [])


def test_every_offending_pair_is_counted_and_the_report_is_bounded(compare: Compare) -> None:
    report = compare(["1+2="] * (MAX_OVERLAPS + 1), ["1+2=", "1+3="])
    assert report.pairs == MAX_OVERLAPS + 1 == len(report.overlaps) + 1 and report.heldout_ids == ("h0",)
    assert report.summary(most=2).splitlines() == [
        "not disjoint: 1 of 2 held-out items overlap with training (10001 pairs, 10001 training prompts): "
        "remove them from one side",
        "  held-out 'h0' ~ training 't0': exact 1.00",
        "  held-out 'h0' ~ training 't1': exact 1.00",
        "  and 9999 more",
    ]
