"""`rlguard baseline` as a user meets it: real worker processes; the policy is an endpoint of the test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_cli.baseline import uninformative
from tests.heldout.faulty_endpoint import Endpoint, Reply, endpoint, says

Invoke = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def policy() -> Iterator[Endpoint]:
    """It adds up if the seed is even, and else says 1; greedy asks come with the same seeds."""

    def answer(body: dict[str, Any], number: int) -> Reply:
        if "+" not in str(body["messages"]):
            return Reply(status=500, body={})
        a, b = body["messages"][-1]["content"].rstrip("=").split("+")
        return says("1" if body["seed"] % 2 and body["temperature"] else str(int(a) + int(b)))

    with endpoint(answer) as server:
        yield server


@pytest.fixture
def held(tmp_path: Path) -> Path:
    rows = ({"id": f"i{n}", "prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(16))
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def baseline(rlguard: Invoke, policy: Endpoint, held: Path, tmp_path: Path) -> Invoke:
    def invoke(*more: object, model: str = "m") -> subprocess.CompletedProcess[str]:
        asked = ("--openai-url", policy.url, "--openai-model", model, "--temperature", 0)
        return rlguard("baseline", "start", "--heldout", held, "--out", tmp_path / "b.jsonl", *asked, *more)

    return invoke


def passes(tmp_path: Path) -> list[list[float]]:
    return [json.loads(line)["items"] for line in (tmp_path / "b.jsonl").read_text().splitlines()]


def test_writes_one_pass_a_line_that_calibrate_reads(
    baseline: Invoke, calibrate: Invoke, tmp_path: Path
) -> None:
    done = baseline("--passes", 3, "--temperature", 1, model="{checkpoint}")
    assert done.returncode == 0, done.stderr
    made = passes(tmp_path)
    assert [len(items) for items in made] == [16] * 3 and made[0] != made[1] != made[2]
    assert (
        "pass 3 of 3: score " in done.stdout and f"Next: rlguard calibrate {tmp_path}/b.jsonl" in done.stdout
    )
    assert (tmp_path / "b.jsonl").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.jsonl", "held.jsonl"]
    read = calibrate(tmp_path / "b.jsonl", "--json", "--horizon", 10)
    assert json.loads(read.stdout)["policy"]["calibrated"]["baseline_passes"] == 3


def test_what_the_training_grader_gives_is_written_beside_it(
    baseline: Invoke, calibrate: Invoke, tmp_path: Path
) -> None:
    grader = ("--proxy-scorer", "tests.heldout.odd_scorers:chatty")
    done = baseline("--passes", 2, "--temperature", 1, "--samples", 2, *grader)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [line["proxy_items"] for line in lines] == [[0.5] * 16] * 2
    assert [line["fooled_items"] for line in lines] == [[0.0] * 16] * 2
    assert calibrate(tmp_path / "b.jsonl", "--json", "--horizon", 10).returncode == 0


def test_greedy_passes_end_when_two_agree(baseline: Invoke, tmp_path: Path) -> None:
    done = baseline("--passes", 9)
    assert done.returncode == 0, done.stderr
    assert passes(tmp_path) == [[1.0] * 16] * 2
    assert "sampling: temperature 0, up to 256 tokens; the run must have the same" in done.stdout
    assert "The passes are the same (temperature 0), so 7 more would add nothing." in done.stdout
    assert "held-out score is 1.0000, above 98%: there is nothing left to gain" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scorer", "json:nothing"], "scorer 'json:nothing' does not import: AttributeError"),
        (["--scorer", "tests.heldout.odd_scorers:too_strict"], "16 of 16 items do not score 1"),
        (["--scorer", "tests.heldout.odd_scorers:returns_nothing"], "returned a NoneType for item"),
        (["--out", "{held}"], "exists already"),
        (["--heldout", "{held}x"], "No such file"),
    ],
)
def test_errors_are_one_line_and_leave_nothing_behind(
    baseline: Invoke, held: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = baseline(*(argument.format(held=held) for argument in arguments))
    assert done.returncode == 2
    assert done.stderr.startswith("rlguard baseline: ") and message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "b.jsonl").exists()


def test_options_say_how_the_policy_is_asked_and_where_its_answer_begins(
    baseline: Invoke, policy: Endpoint, tmp_path: Path
) -> None:
    thinks = ("--system-prompt", "Think.", "--chat-template-kwargs", '{"effort": 1}', "--answer-after", "#")
    thinks += ("--stop", "END", "--stop", "\n?")
    before = len(policy.asked)
    done = baseline("--passes", 1, *thinks)
    assert done.returncode == 0 and passes(tmp_path) == [[0.0] * 16]
    asked = [body for _, _, body in policy.asked[before:]]
    assert "pass 1 of 1: score 0.000, 100% without an answer in " in done.stdout
    assert 'up to 256 tokens or "END" or "\\n?"; the run' in done.stdout
    assert all(body["stop"] == ["END", "\n?"] for body in asked)
    assert asked and all(body["chat_template_kwargs"] == {"effort": 1} for body in asked)
    assert all(body["messages"][0] == {"role": "system", "content": "Think."} for body in asked)


def test_how_the_trainer_samples_must_be_said(rlguard: Invoke, held: Path, tmp_path: Path) -> None:
    done = rlguard("baseline", tmp_path, "--heldout", held, "--out", tmp_path / "b.jsonl")
    assert done.returncode == 2 and not (tmp_path / "b.jsonl").exists()
    assert "give --temperature and --max-new-tokens as the trainer has them" in done.stderr


def test_a_missing_model_is_told(rlguard: Invoke, held: Path, tmp_path: Path) -> None:
    done = rlguard("baseline", tmp_path / "nowhere", "--heldout", held)
    assert done.returncode == 2 and "nowhere: no such directory" in done.stderr


def test_a_worker_that_fails_leaves_its_log_and_says_where(
    baseline: Invoke, tmp_path: Path, held: Path
) -> None:
    """What is no sum is an error of the server."""
    held.write_text(json.dumps({"id": "x", "prompt": "not a sum", "answer": "1"}) + "\n")
    config = tmp_path / "guard.yaml"
    config.write_text("heldout: {evaluator: {retries: 0}}")
    done = baseline("--config", config)
    assert done.returncode == 2 and not (tmp_path / "b.jsonl").exists()
    assert "500" in done.stderr and done.stderr.count("\n") == 1
    log = Path(done.stderr.rsplit("(log: ", 1)[1].rstrip(")\n"))
    assert log.parent.parent == tmp_path and log.stat().st_size


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (0.0, "cannot fall"),
        (0.019, "cannot fall"),
        (0.02, None),
        (0.98, None),
        (0.99, "nothing left to gain"),
    ],
)
def test_a_score_without_room_says_nothing_about_a_change(score: float, said: str | None) -> None:
    told = uninformative(score)
    assert told is None if said is None else said in (told or "")
