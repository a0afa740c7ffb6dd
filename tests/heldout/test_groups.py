"""Items that succeed or fail together count as one, and their labels stay where the split is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guard_core.wire import EvaluationSampling, SamplingSource
from guard_service.heldout import child
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.disjoint import families
from guard_service.heldout.errors import SplitError
from guard_service.heldout.evaluators import Completion, Completions
from guard_service.heldout.making import is_heldout, make_split
from guard_service.heldout.split import HeldoutSplit
from guard_service.heldout.worker import EvaluationRequest

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


SAMPLING = EvaluationSampling(temperature=0.0, max_new_tokens=8, samples=1, source=SamplingSource.SETTINGS)


def test_the_evaluation_gives_one_outcome_a_group_and_no_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_of(tmp_path / "s", None, "xyzzy", None, "xyzzy")
    settings: dict[str, Any] = {"split": tmp_path / "s", "scorer": "exact"}
    settings["evaluator"] = {"kind": "openai", "base_url": "http://127.0.0.1:9", "model": "m"}
    evaluation = child.HeldoutEvaluation(HeldoutSettings.model_validate(settings), tmp_path, first=False)

    class Threes:
        def complete(self, items: Any, request: EvaluationRequest) -> Any:
            made = [[Completion(text, text, truncated=None)] for text in ("0", "3", "3", "3")]
            return Completions(made, SAMPLING)

    monkeypatch.setattr(evaluation, "_evaluator", Threes())
    answer = evaluation.run(EvaluationRequest(attempt=0, step=1, path=tmp_path))
    assert answer["items"] == [1.0, 0.5, 0.0] and evaluation.ready()["items"] == 3
    assert "xyzzy" not in json.dumps(answer) + json.dumps(evaluation.ready())


def test_near_duplicates_in_the_split_are_a_family(tmp_path: Path) -> None:
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(50)]
    chain = [" ".join(words[start : start + 30]) for start in (10, 0, 20)]  # the first links the others
    prompts = ["2+2=", chain[0], STORY.format("ground"), chain[1], STORY.format("leaves"), chain[2]]
    rows = [{"id": f"i{n}", "prompt": prompt, "answer": "1"} for n, prompt in enumerate(prompts)]
    (tmp_path / "s").write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = HeldoutSplit.load(tmp_path / "s").items
    assert families(items) == ((1, 3, 5), (2, 4))
    assert families(items, None) == ()


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
