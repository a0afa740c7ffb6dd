"""Disjointness: each rule on its own, what is near but not the same, templates, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guard_service.heldout import disjoint
from guard_service.heldout.disjoint import DisjointReport, check_disjoint
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


@pytest.fixture
def compare(tmp_path: Path):
    """Compare training prompts with held-out ones, named t0, t1 ... and h0, h1 ..."""

    def run(train: list[Prompt], held: list[Prompt], near: bool = True) -> DisjointReport:
        path = tmp_path / "held.jsonl"
        rows = ({"id": f"h{i}", "prompt": p, "answer": "1"} for i, p in enumerate(held))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return check_disjoint(
            ((f"t{i}", p) for i, p in enumerate(train)), HeldoutSplit.load(path).items, near
        )

    return run


def found(report: DisjointReport) -> list[tuple[str, str, str]]:
    return [(o.train_id, o.heldout_id, o.rule) for o in report.overlaps]


def words(text: str, start: int, end: int) -> str:
    return " ".join(text.split()[start:end])


def test_disjoint_prompts(compare) -> None:
    report = compare([LONG, "1+2="], [OTHER, "1+3=", "2+1="])
    assert report.disjoint and report.overlaps == () and (report.train, report.heldout) == (2, 3)
    assert report.summary() == "disjoint: 3 held-out prompts against 2 training prompts"


def test_exact_up_to_case_spaces_and_punctuation(compare) -> None:
    report = compare(["x", LONG.upper() + "?", "12 + 35 ="], [OTHER, LONG, "12+35="])
    assert found(report) == [("t1", "h1", "exact"), ("t2", "h2", "exact")]
    assert [o.value for o in report.overlaps] == [1.0, 1.0] and report.heldout_ids == ("h1", "h2")


def test_exact_through_chat_messages(compare) -> None:
    chat = [{"role": "system", "content": "You are a careful tutor."}, {"role": "user", "content": LONG}]
    assert found(compare([chat], [LONG])) == [("t0", "h0", "exact")]
    both_told = [chat[0], {"role": "user", "content": OTHER}]
    assert compare([chat], [both_told]).disjoint  # the system message alone is no overlap


def system(content: str, question: str = "Solve the task above, in one line.") -> list[dict[str, str]]:
    return [{"role": "system", "content": content}, {"role": "user", "content": question}]


def test_items_that_differ_in_the_system_turn_are_told_apart_by_it(compare) -> None:
    held = [system(LONG), system(OTHER)]
    assert compare([system("Add two and three and tell me what it comes to.")], held).disjoint
    for near in (True, False):
        assert compare([system(OTHER)], held, near).heldout_ids == ("h1",)


def test_a_question_that_one_item_asks_is_the_same_under_another_system_turn(compare) -> None:
    for told in ("3 + 4", system("Think.", "3 + 4")):
        assert compare([told], [system("Be brief.", "3 + 4"), system("Be brief.", "5 + 6")]).pairs == 1


@pytest.mark.parametrize(("end", "overlaps"), [(20, True), (19, False)])
def test_containment_of_half_the_8_grams(compare, end: int, overlaps: bool) -> None:
    # 32 tokens have 25 8-grams; 20 leading tokens have 13 of them, 19 have 12.
    report = compare([f"{words(LONG, 0, end)} {OTHER}"], [LONG])
    assert found(report) == ([("t0", "h0", "containment")] if overlaps else [])
    assert not overlaps or report.overlaps[0].value == pytest.approx(13 / 25)


@pytest.mark.parametrize(
    ("train", "held", "overlaps"),
    [
        ("Compute 12+35= please", "12+35=", True),  # a short prompt quoted in full
        ("112+35=", "12+35=", False),
        ("12+36=", "12+35=", False),
        ("12+35", "12+35=", False),
        ("1 + 2 + 3 =", "1+2", False),  # too short for a quotation to show anything
        ("Name the capital of France in a word", "capital of France, name", False),
        ("Please name the capital of France", "name the capital of France", True),
        ("東京の人口は何人ですか、教えて", "東京の人口は何人", True),
    ],
)
def test_short_prompts(compare, train: str, held: str, overlaps: bool) -> None:
    assert found(compare([train], [held])) == ([("t0", "h0", "containment")] if overlaps else [])


def shuffled(length: int) -> tuple[str, str, float]:
    """Ten sentences of `length` words, the same in reverse order, and the Jaccard similarity of 2-grams."""
    sentences = [" ".join(f"s{chr(97 + i)}w{chr(97 + j)}" for j in range(length)) for i in range(10)]
    one, other = " ".join(sentences), " ".join(sentences[::-1])

    def grams(text: str) -> set[tuple[str, ...]]:
        return set(zip(text.split(), text.split()[1:], strict=False))

    return one, other, len(grams(one) & grams(other)) / len(grams(one) | grams(other))


def test_minhash_finds_sentences_in_another_order(compare) -> None:
    held, train, jaccard = shuffled(11)  # 4 of the 11 8-grams at a sentence's words lie within it
    report = compare([train], [held])
    assert found(report) == [("t0", "h0", "minhash")]
    assert report.overlaps[0].value == pytest.approx(jaccard, abs=0.1)


def test_a_template_alone_is_no_overlap_but_a_repeated_question_in_it_is(compare) -> None:
    def ask(a: int, b: int) -> str:
        return (
            f"You are a careful tutor. Think step by step and answer in a line: what is {a} plus {b}? Thanks."
        )

    held = [ask(i, 2 * i) for i in range(10, 40)]
    assert compare([ask(i, 3 * i) for i in range(100, 400)], held).disjoint
    assert found(compare([ask(12, 24) + " Do it now."], held)) == [("t0", "h2", "containment")]


def test_what_a_short_templated_prompt_has_left_is_no_profile(compare) -> None:
    held = [f"{a}+{10 + a % 3}=" for a in range(30, 60)]  # "+ 10" is a template, "31 +" is not
    train = [f"{a}+{10 + (a + 1) % 3}=" for a in range(30, 60)]
    assert compare(train, held).disjoint
    assert found(compare(["31+11="], held)) == [("t0", "h1", "exact")]


SUM = "State the final answer to the following arithmetic problem: "


def test_what_a_templated_prompt_has_left_must_be_quoted_in_full(compare) -> None:
    """Its own 8-grams are few, and half of them only say how it begins."""
    held = [f"{SUM}{a} + 49 =" for a in range(80, 100)]
    assert compare([f"{SUM}89 + 52 - 18 =", f"{SUM}89 + 48 ="], held).disjoint
    assert found(compare([f"{SUM}89 + 49 = Be brief."], held)) == [("t0", "h9", "containment")]


def test_the_same_prompt_is_an_overlap_whatever_the_setting(compare) -> None:
    train = [LONG.upper(), f"{words(LONG, 0, 31)}, please"]
    assert found(compare(train, [LONG], near=False)) == [("t0", "h0", "exact")]


def test_every_offending_pair_is_counted_and_the_report_is_bounded(
    compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disjoint, "MAX_OVERLAPS", 3)
    report = compare(["1+2="] * 5, ["1+2=", "1+3="])
    assert report.pairs == 5 and len(report.overlaps) == 3 and report.heldout_ids == ("h0",)
    assert report.summary(most=2).splitlines() == [
        "not disjoint: 1 of 2 held-out items overlap with training (5 pairs, 5 training prompts): "
        "remove them from one side",
        "  held-out 'h0' ~ training 't0': exact 1.00",
        "  held-out 'h0' ~ training 't1': exact 1.00",
        "  and 3 more",
    ]


def test_no_training_prompt_is_disjoint(compare) -> None:
    assert compare([], ["1+2="]).disjoint
