"""What Hugging Face's trainer prints is read where nothing else in the log has a reward."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard_cli.errors import CliError
from guard_cli.logs.readers import read_log
from guard_cli.replay.run import Run, load_run
from guard_follow.errors import InputError

#: As transformers 4 prints it, in the line of its progress bar, and as transformers 5 does.
OLD = (
    "  1%| | {n}/9 [00:0{n}<00:09]\r{{'loss': 0.1, 'lr': 1e-06, 'reward': {n}.5, 'kl': {n}e-05, 'epoch': 1}}"
)
NEW = "{{'loss': '0.1', 'lr': '1e-06', 'reward': '{n}.5', 'kl': '{n}e-05', 'epoch': '0.1'}}"
#: Its summary at the end repeats the last reward.
SUMMARY = "{'train_runtime': 9.5, 'train_loss': 0.01, 'reward': 7.5}"


def log(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "train.log"
    path.write_text("\n".join(("loading the model", *lines, SUMMARY)) + "\n", newline="")
    return path


def replayed(path: Path) -> Run:
    return load_run(read_log(path), str(path), {})


@pytest.mark.parametrize("shape", [OLD, NEW], ids=["transformers 4", "transformers 5"])
def test_what_it_logged_is_counted_for_want_of_a_step(tmp_path: Path, shape: str) -> None:
    run = replayed(log(tmp_path, *(shape.format(n=n) for n in range(1, 4))))
    assert (run.columns.framework, run.format) == ("TRL", "console")
    assert run.step.tolist() == [1, 2, 3]
    assert run.reward.tolist() == [1.5, 2.5, 3.5]
    assert run.kl.tolist() == pytest.approx([1e-5, 2e-5, 3e-5])
    [note] = run.notes
    assert "counted from 1 to 3" in note and "trainer_state.json" in note


def test_several_in_one_line(tmp_path: Path) -> None:
    run = replayed(log(tmp_path, OLD.format(n=1) + "\r" + OLD.format(n=2), OLD.format(n=3)))
    assert run.step.tolist() == [1, 2, 3]


def test_json_without_a_reward_beside_it_is_not_the_log(tmp_path: Path) -> None:
    settings = '{"peft_type": "LORA", "r": 16, "step": 7}'
    assert replayed(log(tmp_path, settings, OLD.format(n=1))).reward.tolist() == [1.5]


def test_a_log_with_a_reward_of_another_form_is_read_as_that(tmp_path: Path) -> None:
    run = replayed(log(tmp_path, OLD.format(n=1), "step:4 - critic/score/mean:0.25"))
    assert (run.step.tolist(), run.reward.tolist()) == ([4], [0.25])
    assert run.notes == ()


def test_one_without_an_end_is_named_and_nothing_is_judged(tmp_path: Path) -> None:
    path = log(tmp_path, OLD.format(n=1), "{'loss': 0.01, 'rew", OLD.format(n=2))
    path.write_bytes(path.read_bytes() + b"{'loss': 0.01, 'reward")
    with pytest.raises(CliError) as error:
        read_log(path)
    said = str(error.value)
    assert "line 3: what its trainer logged has no end: {'loss': 0.01, 'rew; line 6: " in said
    assert "cut short while it was written?" in said and "line 2" not in said
    assert said.endswith("Nothing was judged: repair or remove these lines.")


@pytest.mark.parametrize("value", ["nan", "'NaN'", "inf"])
def test_a_reward_that_is_no_finite_number_is_left_out(tmp_path: Path, value: str) -> None:
    broken = OLD.format(n=2).replace("2.5", value)
    assert replayed(log(tmp_path, OLD.format(n=1), broken, OLD.format(n=3))).step.tolist() == [1, 3]


@pytest.mark.parametrize("value", ["high", "[1", "\xff"])
def test_a_reward_that_is_no_number_is_named(tmp_path: Path, value: str) -> None:
    path = log(tmp_path, OLD.format(n=1), OLD.format(n=2).replace("2.5", value))
    with pytest.raises(CliError, match="line 3: `reward` is "):
        replayed(path)


def test_nothing_is_evaluated(tmp_path: Path) -> None:
    made = tmp_path / "made"
    code = f"__import__('pathlib').Path('{made}').touch()"
    run = replayed(log(tmp_path, OLD.format(n=1), OLD.format(n=2).replace("2.5", code)))
    assert run.step.tolist() == [1] and not made.exists()
    assert any("1 of 2 steps have no reward" in note for note in run.notes)


def test_without_a_reward_the_columns_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column is known to be the reward.*found: .*`loss`"):
        replayed(log(tmp_path, "{'loss': 0.5, 'epoch': 0.1}"))
