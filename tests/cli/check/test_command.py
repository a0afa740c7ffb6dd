"""`rlguard check` as a user meets it: real worker processes; the policy is an endpoint of the test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import stub_policy
from tests.stub_policy import Policy, Reply, save_checkpoint

Invoke = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def policy() -> Iterator[Policy]:
    with stub_policy.policy(lambda asked: Reply("3")) as served:
        yield served


@pytest.fixture
def held(tmp_path: Path) -> Path:
    path = tmp_path / "held.jsonl"
    path.write_text(
        "".join(f'{{"id": "i{n}", "prompt": "{n} + 1 =", "answer": "{n + 1}"}}\n' for n in range(4))
    )
    return path


@pytest.fixture
def check(
    rlguard: Invoke, held: Path, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Invoke:
    monkeypatch.chdir(tmp_path)
    for name, value in policy.environment.items():
        monkeypatch.setenv(name, value)
    model = save_checkpoint(tmp_path / "model")

    def invoke(*more: object, split: Path = held) -> subprocess.CompletedProcess[str]:
        return rlguard("check", "--heldout", split, "--model", model, *more)

    return invoke


def levels(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Name of each row -> its level."""
    shown = {}
    for line in done.stdout.splitlines():
        for level in ("not checked", "ok", "warn", "refuse"):
            name, found, _ = line.partition(f"  {level} ")
            if found and name.strip():
                shown[name.strip()] = level
                break
    return shown


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "start"
    path.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (path / name).write_text("{}")
    return path


@pytest.mark.nightly
def test_near_duplicates_without_a_group(check: Invoke, tmp_path: Path) -> None:
    story = "the quick brown fox jumps over the lazy dog and then walks home to sleep in his warm den under"
    rows = [f'{{"id": "{i}", "prompt": "{story} {i}", "answer": "1"{{}}}}\n' for i in (1, 2)]
    for group, level in (("", "warn"), (', "group": "a"', "ok")):
        split = tmp_path / "alike.jsonl"
        split.write_text("".join(row.replace("{}", group) for row in rows))
        done = check(split=split)
        assert done.returncode == 0 and levels(done)["held-out split"] == level
        assert "fox" not in done.stdout


def test_a_run_that_may_start(check: Invoke, tmp_path: Path) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "7 + 7 ="}\n')
    figures = ("--save-steps", 10, "--max-steps", 100, "--save-total-limit", 2, "--beta", 0.01)
    timed = ("--time", "--step-seconds", 600, "--temperature", 1)
    (tmp_path / "policy.yaml").write_text("{detector: calibrated, calibrated: {baseline_passes: 2}}")
    given = ("--train-prompts", train, "--policy", "policy.yaml", "--checkpoints", tmp_path / "new" / "out")
    split = tmp_path / "many.jsonl"
    rows = ({"id": f"i{n}", "prompt": f"{n} - 9 =", "answer": "3" if n % 2 else "4"} for n in range(300))
    split.write_text("".join(json.dumps(row) + "\n" for row in rows))
    grader = ("--proxy-scorer", "tests.heldout.odd_scorers:chatty")
    done = check(*given, *figures, *timed, *grader, split=split)
    assert done.returncode == 0, done.stdout + done.stderr
    found = levels(done)
    assert found.pop("sampling") == "not checked", "the trainer says it when it runs"
    assert found.pop("training grader") == "warn", "it pays one half for whatever is said"
    assert set(found.values()) == {"ok"}, done.stdout
    assert "10 checkpoints" in done.stdout and "saves every 6e+03 s" in done.stdout
    assert f"{len(found)} ok" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob("rlguard-*"))


def test_everything_that_would_be_refused_is_said_at_once(check: Invoke, held: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = check(
        *(
            "--train-prompts",
            held,
            "--checkpoints",
            tmp_path / "taken",
            "--save-steps",
            200,
            "--max-steps",
            100,
        ),
        *("--scorer", "tests.heldout.odd_scorers:too_strict", "--beta", 0),
    )
    assert done.returncode == 2 and done.stderr == ""
    refused = {name for name, level in levels(done).items() if level == "refuse"}
    assert refused == {"overlap with training", "scorer and answers", "checkpoints folder", "evaluations"}
    assert "4 of 4 items overlap" in done.stdout and "3 of 4 items do not score 1" in done.stdout
    assert "4 refuse" in done.stdout.splitlines()[-1]


def test_items_of_one_group_are_counted_as_the_guard_counts_them(check: Invoke, tmp_path: Path) -> None:
    grouped = tmp_path / "grouped.jsonl"
    lines = ({"id": f"i{n}", "prompt": f"{n}+1=", "answer": f"{n + 1}", "group": "g"} for n in range(3))
    alone = {"id": "alone", "prompt": "5 + 5 =", "answer": "10"}
    grouped.write_text("".join(json.dumps(line) + "\n" for line in (*lines, alone)))
    assert "4 items in 2 groups" in check(split=grouped).stdout


ODD = "tests.heldout.odd_scorers"


@pytest.mark.parametrize(
    ("arguments", "rows", "said"),
    [
        (
            ["--heldout", "nowhere.jsonl"],
            {"held-out split": "refuse", "scorer and answers": "not checked"},
            "",
        ),
        (["--train-prompts", "nowhere.jsonl"], {"overlap with training": "refuse"}, "No such file"),
        (["--scorer", f"{ODD}:ends_the_process"], {"scorer and answers": "refuse"}, "ended (status 7)"),
        (["--scorer", "regex"], {"scorer and answers": "ok"}, "there are no answers to try"),
        (
            ["--proxy-scorer", f"{ODD}:impatient", "--time"],
            {"training grader": "refuse", "scorer and answers": "ok"},
            "",
        ),
    ],
)
def test_what_cannot_be_used_or_tried_is_a_row(
    check: Invoke, arguments: list[str], rows: dict[str, str], said: str
) -> None:
    done = check(*arguments)
    assert rows.items() <= levels(done).items() and said in done.stdout
    assert done.returncode == (2 if "refuse" in rows.values() else 0)


def test_an_evaluation_that_fails_is_a_row(check: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stub_policy.URL, "http://127.0.0.1:1")
    done = check("--time")
    assert done.returncode == 2 and levels(done)["evaluation time"] == "refuse"
    assert levels(done)["scorer and answers"] == "ok"


@pytest.mark.nightly
@pytest.mark.parametrize(("inside", "level"), [(True, "ok"), (False, "refuse")])
def test_the_root_of_the_file_is_what_counts(check: Invoke, tmp_path: Path, inside: bool, level: str) -> None:
    (tmp_path / "real" / "out").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    root = "real" if inside else "other"
    (tmp_path / "guard.yaml").write_text(f"checkpoint_root: {tmp_path / root}")
    done = check("--config", "guard.yaml", "--checkpoints", tmp_path / "linked" / "out")
    assert levels(done)["checkpoints folder"] == level


@pytest.mark.nightly
def test_a_log_that_is_to_be_followed_is_looked_at(check: Invoke, tmp_path: Path) -> None:
    config = {
        "checkpoint_root": str(tmp_path),
        "metrics": {"follow": {"path": "log.jsonl", "format": "verl"}, "checkpoints": {"path": "saved"}},
    }
    (tmp_path / "guard.yaml").write_text(json.dumps(config))
    for saves, level in (("saved", "ok"), ("out", "warn")):
        done = check("--config", "guard.yaml", "--checkpoints", tmp_path / saves)
        assert levels(done)["followed log"] == level and done.returncode == 0
    (tmp_path / "log.jsonl").symlink_to("real.jsonl")
    done = check("--config", "guard.yaml")
    assert levels(done)["followed log"] == "refuse" and done.returncode == 2
    assert "followed log" not in levels(check())


@pytest.mark.nightly
def test_a_checkpoint(rlguard: Invoke, held: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(held.parent)
    shown = levels(rlguard("check", "--heldout", held, "--model", checkpoint))
    assert shown["checkpoint layout"] == shown["tokenizer"] == "ok"
    for name in ("model.safetensors", "tokenizer.json"):
        (checkpoint / name).unlink()
    (checkpoint / "tokenizer_config.json").write_text("{}")
    assert levels(rlguard("check", "--heldout", held, "--model", checkpoint))["tokenizer"] == "ok"
    (checkpoint / "tokenizer_config.json").unlink()
    (checkpoint / "adapter_config.json").write_text("{}")
    done = rlguard("check", "--heldout", held, "--model", checkpoint)
    assert done.returncode == 2
    assert levels(done)["checkpoint layout"] == levels(done)["tokenizer"] == "refuse"
    assert "PEFT adapter" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no held-out split"),
        (["--heldout", "{held}", "--time"], "give --model DIR"),
        (["--heldout", "{held}", "--save-steps", "0"], "--save-steps 0: must be above 0"),
        (["--heldout", "{held}", "--step-seconds", "nan"], "--step-seconds nan: must be above 0"),
        (["--heldout", "{held}", "--policy", "{held}x"], "cannot be read"),
    ],
)
def test_wrong_use_is_one_line(rlguard: Invoke, held: Path, arguments: list[str], message: str) -> None:
    done = rlguard("check", *(a.format(held=held) for a in arguments))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("rlguard check: ") and message in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_prompt_and_no_answer_is_printed(check: Invoke, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    rows = [{"id": f"i{n}", "prompt": f"xyzzy {n}", "answer": "plugh"} for n in range(3)]
    secret.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for scorer in ("exact", "numeric", "math"):
        done = check("--train-prompts", secret, "--scorer", scorer, "--time", split=secret)
        assert "xyzzy" not in done.stdout + done.stderr and "plugh" not in done.stdout + done.stderr
