"""Splits that are made: by hash of the prompt, near-duplicates on one side, and without what overlaps."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.disjoint import check_disjoint
from guard_service.heldout.errors import SplitError
from guard_service.heldout.make_split import drop_overlapping, is_heldout, make_split
from guard_service.heldout.split import HeldoutSplit, read_train_prompts
from tests.heldout.test_split import write

STORY = "the quick brown fox jumps over the lazy dog and then walks home to sleep in his warm den under {}"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def salt_for(prompts: list[str], sides: list[bool]) -> str:
    """A salt with which half of the hashes hold out these of the prompts."""
    return next(s for s in map(str, range(1000)) if [is_heldout(p, 0.5, s) for p in prompts] == sides)


def test_makes_a_split_that_loads_and_keeps_training_rows_as_they_are(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+{i}=", "answer": str(2 * i), "level": i} for i in range(400)]
    source = write(tmp_path / "all.jsonl", *rows, *rows[:4])
    made = make_split(source, tmp_path / "train", tmp_path / "held", fraction=0.25, salt="s")
    held = HeldoutSplit.load(tmp_path / "held")
    train = rows_of(tmp_path / "train")
    assert made.train == len(train) and made.heldout == len(held)
    assert made.train + made.heldout + made.repeated == 404 and 70 <= made.heldout <= 130
    assert all(row in rows for row in train)
    assert {item.prompt for item in held.items}.isdisjoint(row["prompt"] for row in train)
    assert held.items[0].meta == {"level": int(str(held.items[0].answer)) // 2}
    assert all(item.id.startswith("h-") for item in held.items)


def test_no_prompt_changes_sides_when_rows_come_and_go(tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(200)]

    def held(name: str, rows: list[dict[str, str]], **options: Any) -> set[str]:
        source = write(tmp_path / name, *rows)
        make_split(source, tmp_path / f"{name}-t", tmp_path / f"{name}-h", **options)
        return {row["id"] for row in rows_of(tmp_path / f"{name}-h")}

    first = held("a", rows, fraction=0.2)
    assert held("b", rows[:100:-1], fraction=0.2) <= first < held("c", rows, fraction=0.4)
    assert held("d", rows, fraction=0.2, salt="other") != first


def test_refuses_to_make_what_cannot_be(tmp_path: Path) -> None:
    source = write(tmp_path / "all", *({"prompt": f"p{i}", "answer": "1"} for i in range(20)))
    same = write(tmp_path / "same", *({"id": "x", "prompt": f"p{i}", "answer": "1"} for i in range(40)))
    alike = write(tmp_path / "alike", *({"prompt": STORY.format(i), "answer": "1"} for i in range(40)))
    train, held = tmp_path / "train", tmp_path / "held"
    for data, fraction, told in (
        (source, 0.0, "fraction"),
        (source, 1.0, "fraction"),
        (source, float("nan"), "fraction"),
        (source, 1e-12, "no row is left for the held-out side"),
        (same, 0.5, "already on line"),
        # So many share the story that it would be a template, were they all held out.
        (alike, 0.05, "no row is left for the held-out side"),
    ):
        with pytest.raises(SplitError, match=told):
            make_split(data, train, held, fraction=fraction)
        assert not train.exists() and not held.exists()
    with pytest.raises(SplitError, match="cannot be both sides"):
        make_split(source, train, tmp_path / ".." / tmp_path.name / "train", fraction=0.5)
    held.write_text("precious")
    with pytest.raises(SplitError, match="held exists"):
        make_split(source, train, held, fraction=0.5)
    assert held.read_text() == "precious"


# -- near-duplicates ---------------------------------------------------------------------------------------


def sums(count: int) -> list[dict[str, str]]:
    """Sums of two to four numbers in a template, some in two wordings: as a public generator makes them."""
    rng = random.Random(7)
    rows = []
    for _ in range(count):
        terms = " ".join(f"{rng.choice('+-')} {rng.randint(10, 99)}" for _ in range(rng.randint(1, 3)))
        ask = f"State the final answer to the following arithmetic problem: {rng.randint(10, 99)} {terms} ="
        rows.append({"prompt": ask, "answer": "1"})
        if rng.random() < 0.2:
            rows.append({"prompt": f"{ask} Answer with the number alone.", "answer": "1"})
    return rows


@pytest.mark.parametrize("fraction", [0.05, 0.5])
def test_what_is_made_is_accepted_by_the_check(tmp_path: Path, fraction: float) -> None:
    source = write(tmp_path / "all", *sums(1000))
    made = make_split(source, tmp_path / "train", tmp_path / "held", fraction=fraction)
    held = HeldoutSplit.load(tmp_path / "held")
    assert check_disjoint(read_train_prompts(tmp_path / "train"), held.items).disjoint
    assert made.near > 0, "nothing had to move: this proves nothing"
    assert rows_of(tmp_path / "train") == [
        row for row in rows_of(source) if row["prompt"] not in {item.prompt for item in held.items}
    ]
    # What moved are the other wordings, and hardly a sum because of its template.
    moved = [r["prompt"] for r in rows_of(tmp_path / "train") if is_heldout(r["prompt"], fraction, "rlguard")]
    worded = {r["prompt"].split(" =")[0] for r in rows_of(source) if r["prompt"].endswith("alone.")}
    assert len(moved) == made.near
    assert sum(prompt.split(" =")[0] not in worded for prompt in moved) <= 0.03 * made.heldout


def test_what_moves_takes_its_own_near_duplicates_with_it(tmp_path: Path) -> None:
    """Only the middle of a chain is like the training prompt; once it moved, the end is like it."""
    stream = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(50)]
    chain = [" ".join(stream[start : start + 30]) for start in (0, 10, 20)]
    prompts = [*chain, "2+2="]
    salt = salt_for(prompts, [False, True, True, True])
    source = write(tmp_path / "all", *({"prompt": p, "answer": "1"} for p in prompts))
    made = make_split(source, tmp_path / "train", tmp_path / "held", fraction=0.5, salt=salt)
    assert (made.train, made.near) == (3, 2)
    assert [item.prompt for item in HeldoutSplit.load(tmp_path / "held").items] == ["2+2="]


def test_near_duplicates_part_if_they_may_and_the_same_prompt_never_does(tmp_path: Path) -> None:
    source = write(tmp_path / "all", *sums(1000), *sums(1000))
    made = make_split(source, tmp_path / "train", tmp_path / "held", fraction=0.2, near=False)
    held = HeldoutSplit.load(tmp_path / "held").items
    assert made.near == 0 and made.repeated > 0
    assert not check_disjoint(read_train_prompts(tmp_path / "train"), held).disjoint
    assert check_disjoint(read_train_prompts(tmp_path / "train"), held, False).disjoint


def test_families_are_groups_unless_they_have_one(tmp_path: Path) -> None:
    prompts = [STORY.format("ground"), STORY.format("leaves"), "2+2=", "3+3=", "4+4="]
    salt = salt_for(prompts, [True, True, False, True, True])
    rows: list[dict[str, Any]] = [{"id": f"r{n}", "prompt": p, "answer": "1"} for n, p in enumerate(prompts)]
    rows[3]["group"] = 7
    made = make_split(write(tmp_path / "a", *rows), tmp_path / "t", tmp_path / "h", fraction=0.5, salt=salt)
    groups = {item.id: item.group for item in HeldoutSplit.load(tmp_path / "h").items}
    assert groups == {"r0": "r0", "r1": "r0", "r3": "7", "r4": None} and made.grouped == 3
    rows[0]["group"] = "mine"
    make_split(write(tmp_path / "a", *rows), tmp_path / "t2", tmp_path / "h2", fraction=0.5, salt=salt)
    assert HeldoutSplit.load(tmp_path / "h2").items[0].group == "mine"


# -- columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"problem": "p", "answer": "1"}, "(there are: problem, answer): name it with --prompt-column pro"),
        ({"question": "p", "prompt": "q", "answer": "1"}, "columns prompt and question are both there"),
        ({"question": "p", "solution": "1"}, "name it with --answer-column solution"),
        ({"question": "p", "answr": "1"}, "name it with --answer-column answr"),
        ({"question": "p"}, "no column answer (there are: question): name it with --answer-column COLUMN"),
        ({"question": "p", "answer": {}}, "line 1: answer must be a text"),
    ],
)
def test_a_column_that_is_not_there_is_told(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    source, outputs = write(tmp_path / "a", row), (tmp_path / "t", tmp_path / "h")
    with pytest.raises(SplitError) as caught:
        make_split(source, *outputs, fraction=0.999, prompt_column="question")
    assert told in str(caught.value)


# -- without what overlaps ---------------------------------------------------------------------------------


def test_drops_what_overlaps_and_nothing_else(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "1+2=", "answer": "3"},
        {"id": "b", "prompt": [{"role": "user", "content": "2+2="}], "answer": "4", "meta": {"n": 1.5}},
        {"id": "c", "prompt": "Compute 12+35= now", "answer": "47", "scorer": "numeric"},
    ]
    held = write(tmp_path / "held", *rows)
    train = write(tmp_path / "train", {"q": "1 + 2 ="}, {"q": "Please compute 12+35= now"})
    written = drop_overlapping(train, held, tmp_path / "out", prompt_column="q")
    assert written == (1, 2) and rows_of(tmp_path / "out") == [rows[1]]
    exact = drop_overlapping(train, held, tmp_path / "exact", prompt_column="q", near=False)
    assert exact == (2, 1) and rows_of(tmp_path / "exact") == rows[1:]
    with pytest.raises(SplitError, match="exact exists"):
        drop_overlapping(train, held, tmp_path / "exact", prompt_column="q")
    with pytest.raises(SplitError, match="every item overlaps"):
        drop_overlapping(held, held, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_dropping_goes_on_until_nothing_overlaps(tmp_path: Path) -> None:
    """Six prompts share a sentence, so it is their template; once one of them is out, it is a quotation."""
    held = [{"id": f"h{i}", "prompt": STORY.format("x" * i), "answer": "1"} for i in range(1, 7)]
    train = write(tmp_path / "train", {"prompt": STORY.format("x")})
    other = {"id": "other", "prompt": "2+2=", "answer": "4"}
    split = write(tmp_path / "held", *held, other)
    first = check_disjoint(read_train_prompts(train), HeldoutSplit.load(split).items)
    assert first.heldout_ids == ("h1",)
    assert drop_overlapping(train, split, tmp_path / "out") == (1, 6)
    assert rows_of(tmp_path / "out") == [other]
