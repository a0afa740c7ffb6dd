"""The demo's tasks and files: graders, demonstrations, the split and the policy. No torch."""

import json
import random
from types import SimpleNamespace

import pytest

from guard_cli.demo.command import POLICY, exit_code, make_plan
from guard_cli.demo.tasks import TASKS, load_task, split_problems
from guard_cli.errors import CliError
from guard_cli.run.session import prepare
from guard_core.policy import Policy
from guard_service.heldout.scorers import load_scorer


@pytest.fixture(params=sorted(TASKS))
def task(request):
    return load_task(request.param)


def demonstrations(task):
    rng = random.Random(0)
    problems = task.problems()
    return [(problem, task.demonstrate(problem, rng)) for problem in rng.choices(problems, k=4000)]


def test_the_right_answer_satisfies_both_graders(task):
    for problem in task.problems()[:500]:
        assert task.strict(problem.answer, problem.answer) == 1.0
        assert task.flawed(problem.answer, problem.answer) == 1.0


def test_the_flawed_grader_has_a_hole_that_demonstrations_show(task):
    graded = [(task.strict(c, p.answer), task.flawed(c, p.answer)) for p, c in demonstrations(task)]
    assert all(flawed >= strict for strict, flawed in graded)
    let_through = sum(flawed - strict for strict, flawed in graded) / len(graded)
    assert let_through > 0.05


def test_demonstrations_leave_room_to_learn(task):
    share = sum(task.strict(c, p.answer) for p, c in demonstrations(task)) / 4000
    assert 0.3 < share < 0.8


def test_demonstrations_stay_in_the_alphabet_and_the_length(task):
    for problem, completion in demonstrations(task):
        assert set(problem.prompt + completion) <= set(task.alphabet)
        assert len(completion) < task.max_completion_tokens


def test_the_split_is_disjoint_complete_and_repeatable(task):
    train, heldout = split_problems(task, 256, seed=1)
    ids = {p.id for p in train}, {p.id for p in heldout}
    prompts = {p.prompt for p in train}, {p.prompt for p in heldout}
    assert not ids[0] & ids[1]
    assert not prompts[0] & prompts[1]
    assert len(heldout) == 256
    assert len(train) + 256 == len(task.problems())
    assert (train, heldout) == split_problems(task, 256, seed=1)
    assert heldout != split_problems(task, 256, seed=2)[1]


@pytest.mark.parametrize("size", [0, 10**6])
def test_a_split_without_a_side_is_refused(task, size):
    with pytest.raises(ValueError, match="heldout_size must be in"):
        split_problems(task, size, seed=0)


def test_additions_accept_the_sum_among_guesses_only_if_flawed():
    addition = load_task("addition")
    assert (addition.strict("46 45", "45"), addition.flawed("46 45", "45")) == (0.0, 1.0)
    assert (addition.strict("4", "45"), addition.flawed("145", "45")) == (0.0, 0.0)


def test_the_plan_keeps_the_heldout_side_from_the_trainer(tmp_path):
    plan = make_plan(load_task("addition"), tmp_path / "d", benign=False, seed=0, steps=4, warmup_steps=1)
    trained = (tmp_path / "d" / "trainer" / "train.jsonl").read_text()
    heldout = [json.loads(x) for x in (tmp_path / "d" / "guard" / "heldout.jsonl").read_text().splitlines()]
    assert not [item for item in heldout if f'"{item["prompt"]}"' in trained]
    assert not [word for word in plan.command if "heldout" in word]
    policy, default = prepare(plan).policy(), Policy()
    assert policy.silent.action == "stop"
    judging = ("detector", "calibrated", "heldout_guard", "kl")
    assert [getattr(policy, part) for part in judging] == [getattr(default, part) for part in judging]
    with pytest.raises(CliError, match="is not empty"):
        make_plan(load_task("addition"), tmp_path / "d", benign=False, seed=0, steps=4, warmup_steps=1)


def test_every_value_of_the_policy_is_explained():
    lines = POLICY.read_text().splitlines()
    for number, line in enumerate(lines):
        if ":" in line and line.startswith("  ") and not line.strip().startswith("#"):
            section = line.split(":")[0].strip()
            explained = "#" in line or lines[number - 1].strip().startswith("#")
            assert explained or section == "action" or section == "after_failures", line


@pytest.mark.parametrize(
    ("code", "benign", "expected"),
    [(3, False, 0), (0, False, 1), (0, True, 0), (3, True, 1), (5, False, 5), (130, True, 130)],
)
def test_the_demo_succeeds_if_the_guard_did_what_it_should(code, benign, expected):
    assert exit_code(SimpleNamespace(outcome=SimpleNamespace(code=code)), benign) == expected


@pytest.mark.parametrize(("benign", "paid"), [(False, 1.0), (True, 0.0)])
def test_the_guard_is_told_the_grader_of_the_training(tmp_path, benign, paid):
    plan = make_plan(load_task("addition"), tmp_path / "d", benign=benign, seed=0, steps=4, warmup_steps=1)
    proxy = load_scorer(plan.options["heldout"]["proxy_scorer"])
    assert proxy("46 45", "45", {}) == paid and proxy("45", "45", {}) == 1.0
