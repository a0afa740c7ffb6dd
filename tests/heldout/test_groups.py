"""Items that succeed or fail together count as one, and their labels stay where the split is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.errors import SplitError
from guard_service.heldout.evaluators.completions import Completion
from guard_service.heldout.make_split import is_heldout, make_split
from guard_service.heldout.split import HeldoutSplit
from tests.heldout.evaluated import evaluate

STORY = "the quick brown fox jumps over the lazy dog and then walks home to sleep in his warm den under {}"


def split_of(path: Path, *groups: str | None) -> HeldoutSplit:
    """A split whose items have these groups and the answers 0, 1, …"""
    rows = [{"id": f"i{n}", "prompt": f"{n}+0=", "answer": str(n)} for n in range(len(groups))]
    rows = [
        row | ({} if group is None else {"group": group}) for row, group in zip(rows, groups, strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HeldoutSplit.load(path)


def test_items_of_one_group_are_one_outcome(tmp_path: Path) -> None:
    split = split_of(tmp_path / "s", None, "a", "b", "a", None, "a")
    assert split.groups == ((0,), (1, 3, 5), (2,), (4,)) and len(split) == 6
    assert split.by_group([1.0, 0.0, 0.5, 1.0, 0.0, 0.5]) == [1.0, 0.5, 0.5, 0.0]
    alone = split_of(tmp_path / "s", None, None)
    assert alone.by_group([0.25, 1.0]) == [0.25, 1.0]
    with pytest.raises(SplitError, match="group"):
        split_of(tmp_path / "s", "")


def test_the_evaluation_gives_one_outcome_a_group_and_no_label(tmp_path: Path) -> None:
    items = [{"answer": str(n)} | ({"group": "xyzzy"} if n % 2 else {}) for n in range(4)]
    made = [[Completion(text, text, truncated=False)] for text in ("0", "1", "1", "1")]
    response = evaluate(tmp_path, items, made)
    assert response["items"] == [1.0, 0.5, 0.0] and response["ready"]["items"] == 3
    assert "xyzzy" not in json.dumps(response)


def test_a_split_that_is_made_has_its_families_in_groups(tmp_path: Path) -> None:
    prompts = [STORY.format("ground"), STORY.format("leaves"), "2+2=", "3+3=", "4+4="]
    sides = [True, True, False, True, True]
    salt = next(s for s in map(str, range(1000)) if [is_heldout(p, 0.5, s) for p in prompts] == sides)
    rows: list[dict[str, Any]] = [{"id": f"r{n}", "prompt": p, "answer": "1"} for n, p in enumerate(prompts)]
    rows[3]["group"] = 7
    (tmp_path / "all").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = make_split(tmp_path / "all", tmp_path / "train", tmp_path / "held", fraction=0.5, salt=salt)
    held = {item.id: item.group for item in HeldoutSplit.load(tmp_path / "held").items}
    assert held == {"r0": "r0", "r1": "r0", "r3": "7", "r4": None} and made.grouped == 3
    rows[0]["group"] = "mine"
    (tmp_path / "all").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_split(tmp_path / "all", tmp_path / "t2", tmp_path / "h2", fraction=0.5, salt=salt)
    assert {i.id: i.group for i in HeldoutSplit.load(tmp_path / "h2").items}["r0"] == "mine"
