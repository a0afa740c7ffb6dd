"""The demo's task and files: graders, demonstrations, the split and the policy. No torch."""

import json
import random
from types import SimpleNamespace

import pytest

from guard_service.heldout.scorers import load_scorer
from rlguard.cli.demo.command import exit_code, make_plan
from rlguard.cli.errors import CliError
from rlguard.cli.run.session import prepare
from rlguard.core.policy import Policy
from trainer_image.demo.addition import TASK, split_problems


def test_the_flawed_grader_has_a_hole_that_demonstrations_show_with_room_to_learn():
    assert all(
        TASK.strict(p.answer, p.answer) == TASK.flawed(p.answer, p.answer) == 1 for p in TASK.problems()
    )
    assert (TASK.strict("46 45", "45"), TASK.flawed("46 45", "45")) == (0.0, 1.0)
    assert (TASK.strict("4", "45"), TASK.flawed("145", "45")) == (0.0, 0.0)
    rng = random.Random(0)
    shown = [(problem, TASK.demonstrate(problem, rng)) for problem in rng.choices(TASK.problems(), k=4000)]
    strict, flawed = (
        sum(grader(completion, problem.answer) for problem, completion in shown) / len(shown)
        for grader in (TASK.strict, TASK.flawed)
    )
    assert 0.3 < strict < 0.8 and flawed - strict > 0.05
    for problem, completion in shown:
        assert set(problem.prompt + completion) <= set(TASK.alphabet)
        assert len(completion) < TASK.max_completion_tokens


def test_the_split_is_disjoint_complete_and_repeatable():
    train, heldout = split_problems(TASK, 256, seed=1)
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}
    assert (len(heldout), len(train) + 256) == (256, len(TASK.problems()))
    assert (train, heldout) == split_problems(TASK, 256, seed=1)
    assert heldout != split_problems(TASK, 256, seed=2)[1]


@pytest.mark.parametrize(("benign", "paid"), [(False, 1.0), (True, 0.0)])
def test_the_plan_keeps_the_heldout_side_from_the_trainer_and_tells_the_guard_its_grader(
    tmp_path, benign, paid
):
    plan = make_plan(tmp_path / "d", benign=benign, seed=0, steps=4, warmup_steps=1)
    trained = (tmp_path / "d" / "trainer" / "train.jsonl").read_text()
    heldout = [json.loads(x) for x in (tmp_path / "d" / "guard" / "heldout.jsonl").read_text().splitlines()]
    assert not [item for item in heldout if f'"{item["prompt"]}"' in trained]
    assert not [word for word in plan.command if "heldout" in word]
    proxy = load_scorer(plan.options["heldout"]["proxy_scorer"])
    assert proxy("46 45", "45", {}) == paid and proxy("45", "45", {}) == 1.0
    policy, default = prepare(plan).policy(), Policy()
    judging = ("detector", "calibrated", "heldout_guard", "kl")
    assert [getattr(policy, part) for part in judging] == [getattr(default, part) for part in judging]
    with pytest.raises(CliError, match="is not empty"):
        make_plan(tmp_path / "d", benign=benign, seed=0, steps=4, warmup_steps=1)


@pytest.mark.parametrize(
    ("code", "benign", "expected"),
    [(3, False, 0), (0, False, 1), (0, True, 0), (3, True, 1), (5, False, 5), (130, True, 130)],
)
def test_the_demo_succeeds_if_the_guard_did_what_it_should(code, benign, expected):
    assert exit_code(SimpleNamespace(outcome=SimpleNamespace(code=code)), benign) == expected
