"""`python -m rlguard.train`: real runs, resuming, exit codes, and errors that name the key."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.core.codes import Code, Level
from rlguard.core.wire import Condition
from rlguard.rewards import exact_match, last_number
from rlguard.train import main
from tests.trainer.faulty_guard import FIRED, HEALTHY, STOPPED, FaultyGuard
from trainer_image.config import load_config

GRPO = {
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 4,
    "max_steps": 2,
    "save_steps": 1,
    "beta": 0.04,
    "disable_tqdm": True,
}


def test_as_the_first_process_of_a_container_it_ends_on_sigterm() -> None:
    """The kernel would keep the signal from it; here it is kept away by ignoring it beforehand."""
    program = (
        "import os, signal, time; me = os.getpid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "os.getpid = lambda: 1; from trainer_image import train; train.obey_sigterm(); "
        "os.kill(me, signal.SIGTERM); time.sleep(30)"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert ended.returncode == 143


@pytest.fixture(autouse=True)
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RLGUARD_URL",
        "RLGUARD_TOKEN",
        "RLGUARD_STRICT",
        "RLGUARD_RESUME_FROM",
        "RLGUARD_RUN",
        "RANK",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Write a configuration that works, changed by the keywords; `None` removes a key."""
    data = tmp_path / "train.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"{a}+1=", "answer": str(a + 1)}) + "\n" for a in range(10))
    )

    def write(grpo: dict[str, Any] | None = None, **changes: Any) -> Path:
        content: dict[str, Any] = {
            "model": "no-model",
            "dataset": str(data),
            "reward_functions": ["rlguard.rewards:exact_match"],
            "output_dir": str(tmp_path / "out"),
            "grpo": GRPO | (grpo or {}),
        }
        content = {k: v for k, v in (content | changes).items() if v is not None}
        (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(content))
        return tmp_path / "grpo.yaml"

    return write


def run(path: Path, *more: str) -> int:
    return main(["--config", str(path), *more])


# -- real runs -------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_run_trains_saves_and_resumes(config: Any, tiny_model: Path, tmp_path: Path, capfd: Any) -> None:
    out = tmp_path / "out"
    assert run(config(model=str(tiny_model))) == 0
    assert (out / "final" / "model.safetensors").exists() and (out / "checkpoint-2").is_dir()

    shutil.copytree(out / "checkpoint-2", out / "checkpoint-9")
    (out / "checkpoint-9" / "trainer_state.json").write_text('{"global_st')  # killed while it saved
    assert run(config(model=str(tiny_model), grpo={"max_steps": 3})) == 0
    state = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["global_step"] == 3

    shutil.rmtree(out / "checkpoint-9")
    assert run(config(model=str(tiny_model), resume=False, grpo={"max_steps": 1})) == 0
    state = json.loads((out / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["global_step"] == 1


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.parametrize(
    ("lora", "weights"),
    [(None, "model.safetensors"), ({"r": 2, "target_modules": "all-linear"}, "adapter_model.safetensors")],
)
def test_a_resumed_run_goes_on_where_it_was(
    config: Any,
    tiny_model: Path,
    tmp_path: Path,
    guard: FaultyGuard,
    monkeypatch: Any,
    lora: Any,
    weights: str,
) -> None:
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    assert run(config(model=str(tiny_model), lora=lora)) == 0
    assert run(config(model=str(tiny_model), lora=lora, grpo={"max_steps": 4})) == 0
    assert [report.step for report in guard.steps] == [1, 2, 3, 4]
    assert [report.step for report in guard.checkpoints] == [1, 2, 3, 4]
    assert {path.name for path in (tmp_path / "out").rglob("*.safetensors")} == {weights}


@pytest.mark.nightly
@pytest.mark.torch
def test_a_run_goes_on_from_a_checkpoint_of_another_one(
    config: Any, tiny_model: Path, tmp_path: Path, guard: FaultyGuard, monkeypatch: Any
) -> None:
    """It starts there and not at the other's newest, counts from 0, and goes on itself after a restart."""
    out = tmp_path / "out"
    path = config(model=str(tiny_model))
    assert run(path) == 0
    good = out / "checkpoint-1"
    make_other_weights(good / "model.safetensors")
    before = {one: one.stat().st_mtime_ns for one in out.rglob("*")}
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    monkeypatch.setenv("RLGUARD_RESUME_FROM", str(good))
    monkeypatch.setenv("RLGUARD_RUN", "run-2")
    waiting = Condition(code=Code.NO_BASELINE, level=Level.UNKNOWN, message="no baseline yet")
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"conditions": (waiting,)})
    assert run(path) == 0
    assert [report.step for report in guard.steps] == [1, 2]
    assert {Path(report.path).parent for report in guard.checkpoints} == {out / "run-2"}
    start = out / "run-2" / "_rlguard-start" / "model.safetensors"
    assert same_weights(start, good / "model.safetensors")
    assert not same_weights(start, out / "checkpoint-2" / "model.safetensors")
    assert all(one.stat().st_mtime_ns == then for one, then in before.items() if one != out)

    assert run(config(model=str(tiny_model), grpo={"max_steps": 3})) == 0
    assert [report.step for report in guard.steps] == [1, 2, 3]


def make_other_weights(file: Path) -> None:
    """Of a tiny model that learns nothing in two steps."""
    from safetensors.numpy import load_file, save_file

    save_file({key: 0.5 * value for key, value in load_file(file).items()}, file, {"format": "pt"})


def same_weights(one: Path, other: Path) -> bool:
    from safetensors.numpy import load_file

    first, second = load_file(one), load_file(other)
    return first.keys() == second.keys() and all((first[key] == second[key]).all() for key in first)


@pytest.mark.parametrize(
    ("name", "run_name", "said"),
    [
        ("absent", "run-2", "there is no directory .*absent: its trainer may have deleted it"),
        ("adapter", "run-2", "adapter is an adapter.*merge it"),
        ("whole", "", "RLGUARD_RUN must be a name"),
        ("whole", "../run", "RLGUARD_RUN must be a name"),
        ("whole", "..", "RLGUARD_RUN must be a name"),
        ("whole", "r" * 129, "RLGUARD_RUN must be a name"),
    ],
)
def test_a_start_that_cannot_be_one_is_said(
    config: Any, tmp_path: Path, capsys: Any, monkeypatch: Any, name: str, run_name: str, said: str
) -> None:
    for kind in ("adapter", "whole"):
        (tmp_path / kind).mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    monkeypatch.setenv("RLGUARD_RESUME_FROM", str(tmp_path / name))
    monkeypatch.setenv("RLGUARD_RUN", run_name)
    assert run(config()) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.torch
@pytest.mark.parametrize(("verdict", "code", "strict"), [(FIRED, 3, "1"), (STOPPED, 4, "0")])
def test_a_stop_by_the_guard_has_its_own_exit_code(
    config: Any,
    tiny_model: Path,
    guard: FaultyGuard,
    monkeypatch: Any,
    capfd: Any,
    tmp_path: Path,
    verdict: Any,
    code: int,
    strict: str,
) -> None:
    guard.verdict_after = lambda acknowledged: verdict if acknowledged else HEALTHY
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    monkeypatch.setenv("RLGUARD_STRICT", strict)
    assert run(config(model=str(tiny_model), grpo={"max_steps": 2000, "save_steps": 2000})) == code
    assert verdict.reason in capfd.readouterr().err
    assert not (tmp_path / "out" / "final").exists(), "a stopped run has no final model"


@pytest.mark.torch
def test_no_guard_is_exit_code_5(config: Any, tiny_model: Path, guard: FaultyGuard, monkeypatch: Any) -> None:
    guard.close()
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    monkeypatch.setenv("RLGUARD_UNREACHABLE_SECONDS", "0.2")
    assert run(config(model=str(tiny_model))) == 5


# -- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": "x"}, "modle: Extra inputs are not permitted"),
        ({"model": None}, "model: Field required"),
        ({"model": "./nowhere"}, "model: there is no directory ./nowhere"),
        ({"resume": "later"}, "resume: Input should be a valid boolean"),
        ({"reward_functions": ["exact_match"]}, "'exact_match' must look like module:function"),
        ({"reward_functions": ["no.such:thing"]}, "cannot import 'no.such'"),
        ({"reward_functions": ["rlguard.rewards:nothing"]}, "has no attribute 'nothing'"),
        ({"reward_functions": ["rlguard.rewards:re"]}, "is not a function"),
        ({"dataset": "nowhere.jsonl"}, "dataset: there is no file nowhere.jsonl"),
        ({"lora": {"lora_alfa": 8}}, "lora.lora_alfa is not a setting: did you mean lora_alpha?"),
        ({"lora": {"task_type": "GUESSING"}}, "lora: Invalid task type"),
        ({"alpha_sdpo": 0.1}, "alpha_sdpo > 0 needs the data column 'privileged_prompt'"),
        ({"grpo": {"learning_rat": 1.0}}, "grpo.learning_rat is not a setting: did you mean learning_rate?"),
        ({"grpo": {"output_dir": "x"}}, "grpo.output_dir: set output_dir at the top level"),
        ({"grpo": {"save_strategy": "sometimes"}}, "grpo: sometimes is not a valid SaveStrategy"),
    ],
)
def test_a_mistake_is_named_without_a_traceback(config: Any, capsys: Any, changes: Any, message: str) -> None:
    assert run(config(**changes)) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", "is not YAML"), ("- a", "must be a YAML mapping"), ("", "must be a YAML mapping")],
)
def test_a_file_that_is_no_configuration_is_an_error(
    tmp_path: Path, capsys: Any, content: str, message: str
) -> None:
    (tmp_path / "c.yaml").write_text(content)
    assert run(tmp_path / "c.yaml") == 2 and run(tmp_path / "absent.yaml") == 2
    assert message in (said := capsys.readouterr().err) and "cannot read the configuration" in said


def test_a_learning_rate_without_a_point_is_a_number(config: Any) -> None:
    path = config()
    path.write_text(path.read_text().replace("beta: 0.04", "beta: 0.04\n  learning_rate: 1e-6"))
    assert load_config(path).grpo["learning_rate"] == 1e-6


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt"', "line 2 is not JSON"),
        ('\n{"promt": "a"}', "line 2 must be an object with a 'prompt': is it 'promt'?"),
        ("[1]", "line 1 must be an object"),
        ("\n", "has no rows"),
    ],
)
def test_a_bad_line_of_the_data_is_named(
    config: Any, tmp_path: Path, capsys: Any, text: str, message: str
) -> None:
    (tmp_path / "d.jsonl").write_text(text)
    assert run(config(dataset=str(tmp_path / "d.jsonl"))) == 2
    assert message in capsys.readouterr().err


def test_exact_match_ignores_space_around_the_answer() -> None:
    completions = [" 12\n", "12 or 13", [{"role": "assistant", "content": "12"}]]
    assert exact_match(completions, ["12"] * 3) == [1, 0, 1]


def test_last_number_pays_for_no_list_of_guesses() -> None:
    completions = ["it is 12", "12 or 13", "1,200.50", "none", "-3"]
    assert last_number(completions, ["12", "12", "1200.5", "1", -3]) == [1, 0, 1, 0, 1]
