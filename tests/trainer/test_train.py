"""`python -m rlguard.train`: real runs, resuming, exit codes, and errors that name the key."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_client.errors import GuardConfigError
from guard_client.samples import let_the_guard_read
from guard_core.codes import Code, Level
from guard_core.wire import Condition
from tests.trainer.faulty_guard import FIRED, HEALTHY, STOPPED, FaultyGuard
from trainer_image import train as entrypoint
from trainer_image.checkpoints import incomplete_because, latest_complete
from trainer_image.config import load_config
from trainer_image.rewards import exact_match, last_number
from trainer_image.train import main, read_rows

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
def test_a_lora_run_saves_adapters_and_resumes(
    config: Any, tiny_model: Path, tmp_path: Path, guard: FaultyGuard, monkeypatch: Any
) -> None:
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    lora = {"r": 2, "target_modules": "all-linear"}
    assert run(config(model=str(tiny_model), lora=lora)) == 0
    assert run(config(model=str(tiny_model), lora=lora, grpo={"max_steps": 3})) == 0
    assert [report.step for report in guard.checkpoints] == [1, 2, 3]
    saved = list((tmp_path / "out").rglob("*.safetensors"))
    assert saved and {path.name for path in saved} == {"adapter_model.safetensors"}


@pytest.mark.nightly
@pytest.mark.torch
def test_a_resumed_run_goes_on_where_it_was(
    config: Any, tiny_model: Path, guard: FaultyGuard, monkeypatch: Any
) -> None:
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    assert run(config(model=str(tiny_model))) == 0
    assert run(config(model=str(tiny_model), grpo={"max_steps": 4})) == 0
    assert [report.step for report in guard.steps] == [1, 2, 3, 4]
    assert [report.step for report in guard.checkpoints] == [1, 2, 3, 4]


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


def test_a_start_is_given_by_option_or_environment_and_the_option_wins(
    config: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(entrypoint, "train", started.append)
    path = config()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("RLGUARD_RUN", "run-2")
    assert run(path, "--resume-from", str(tmp_path / "one")) == 0
    monkeypatch.setenv("RLGUARD_RESUME_FROM", str(tmp_path / "other"))
    assert run(path, "--resume-from", str(tmp_path / "one")) == 0
    assert run(path) == 0
    assert [one.model for one in started] == [str(tmp_path / name) for name in ("one", "one", "other")]
    assert {Path(one.output_dir).name for one in started} == {"run-2"}
    for wrong, said in (("", "no directory ''"), (str(tmp_path / "absent"), "no directory .*absent")):
        assert run(path, "--resume-from", wrong) == 2
        assert re.search(f"--resume-from: there is {said}", capsys.readouterr().err)
    monkeypatch.delenv("RLGUARD_RUN")
    assert run(path, "--resume-from", str(tmp_path / "one")) == 2
    assert "saves into a directory of that name" in capsys.readouterr().err
    assert len(started) == 3


@pytest.mark.torch
@pytest.mark.parametrize("strict", ["1", "0"])
@pytest.mark.parametrize(("verdict", "code"), [(FIRED, 3), (STOPPED, 4)])
def test_a_stop_by_the_guard_has_its_own_exit_code(
    config: Any,
    tiny_model: Path,
    guard: FaultyGuard,
    monkeypatch: Any,
    capfd: Any,
    tmp_path: Path,
    strict: str,
    verdict: Any,
    code: int,
) -> None:
    guard.verdict_after = lambda acknowledged: verdict if acknowledged else HEALTHY
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    monkeypatch.setenv("RLGUARD_STRICT", strict)
    assert run(config(model=str(tiny_model), grpo={"max_steps": 2000, "save_steps": 2000})) == code
    assert verdict.reason in capfd.readouterr().err
    assert not (tmp_path / "out" / "final").exists(), "a stopped run has no final model"


@pytest.mark.nightly
@pytest.mark.torch
def test_a_run_that_could_never_be_scored_is_a_wrong_configuration(
    config: Any, tiny_model: Path, guard: FaultyGuard, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    assert run(config(model=str(tiny_model), grpo={"max_steps": 40, "save_steps": 500})) == 2
    assert "set save_steps to 4 or less" in capfd.readouterr().err and guard.requests == []


@pytest.mark.torch
def test_no_guard_is_exit_code_5(config: Any, tiny_model: Path, guard: FaultyGuard, monkeypatch: Any) -> None:
    guard.close()
    monkeypatch.setenv("RLGUARD_URL", guard.url)
    monkeypatch.setenv("RLGUARD_UNREACHABLE_SECONDS", "0.2")
    assert run(config(model=str(tiny_model))) == 5


@pytest.mark.torch
@pytest.mark.parametrize(
    ("weight", "column"), [("alpha_sdpo", "privileged_prompt"), ("beta_replay", "replay_prompt")]
)
def test_an_auxiliary_loss_without_its_column_is_named(
    config: Any, capsys: Any, weight: str, column: str
) -> None:
    assert run(config(**{weight: 0.1})) == 2
    assert f"{weight} > 0 needs the data column '{column}'" in capsys.readouterr().err


# -- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": "x"}, "modle: Extra inputs are not permitted"),
        ({"model": None}, "model: Field required"),
        ({"model": "./nowhere"}, "model: there is no directory ./nowhere"),
        ({"resume": "later"}, "resume: Input should be a valid boolean"),
        ({"alpha_sdpo": -1.0}, "alpha_sdpo: Input should be greater than or equal to 0 (got -1.0)"),
        ({"reward_functions": []}, "reward_functions: List should have at least 1 item"),
        ({"reward_functions": ["exact_match"]}, "'exact_match' must look like module:function"),
        ({"reward_functions": ["no.such:thing"]}, "cannot import 'no.such'"),
        ({"reward_functions": ["trainer_image.rewards:nothing"]}, "has no attribute 'nothing'"),
        ({"dataset": "nowhere.jsonl"}, "dataset: there is no file nowhere.jsonl"),
        ({"lora": {"lora_alfa": 8}}, "lora.lora_alfa is not a setting: did you mean lora_alpha?"),
        ({"lora": {"task_type": "GUESSING"}}, "lora: Invalid task type"),
        ({"lora": 8}, "lora: Input should be a valid dictionary"),
    ],
)
def test_a_mistake_is_named_without_a_traceback(config: Any, capsys: Any, changes: Any, message: str) -> None:
    assert run(config(**changes)) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.torch
@pytest.mark.parametrize(
    ("grpo", "message"),
    [
        ({"learning_rat": 1.0}, "grpo.learning_rat is not a setting: did you mean learning_rate?"),
        ({"output_dir": "x"}, "grpo.output_dir: set output_dir at the top level"),
        ({"num_generations": 3}, "grpo: "),
        ({"save_strategy": "sometimes"}, "grpo: sometimes is not a valid SaveStrategy"),
    ],
)
def test_a_mistake_in_the_grpo_section_is_named(config: Any, capsys: Any, grpo: Any, message: str) -> None:
    assert run(config(grpo=grpo)) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", "is not YAML"), ("- a", "must be a YAML mapping"), ("", "must be a YAML mapping")],
)
def test_a_file_that_is_no_configuration_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(GuardConfigError, match=message):
        load_config(tmp_path / "c.yaml")


def test_a_learning_rate_without_a_point_is_a_number(config: Any) -> None:
    path = config()
    path.write_text(path.read_text().replace("beta: 0.04", "beta: 0.04\n  learning_rate: 1e-6"))
    assert load_config(path).grpo["learning_rate"] == 1e-6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt"', "line 2 is not JSON"),
        ('\n{"question": "a"}', "line 2 must be an object with a 'prompt'"),
        ('{"promt": "a"}', "line 1 must be an object with a 'prompt': is it 'promt'?"),
        ("[1]", "line 1 must be an object"),
        ("\n", "has no rows"),
    ],
)
def test_a_bad_line_of_the_data_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.jsonl").write_text(text)
    with pytest.raises(GuardConfigError, match=message):
        read_rows(tmp_path / "d.jsonl")


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.slow
def test_the_module_runs_and_a_mistake_costs_no_import_of_torch(config: Any) -> None:
    code = (
        "import sys; from trainer_image.train import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    arguments = ["--config", str(config(modle="x"))]
    for start in (["-c", code], ["-m", "rlguard.train"]):
        process = subprocess.run(
            [sys.executable, *start, *arguments], capture_output=True, text=True, check=False, env=os.environ
        )
        assert process.returncode == entrypoint.EXIT_CONFIG, process.stderr
        assert process.stderr.startswith("error: ")


# -- checkpoints and rewards -----------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    directory = tmp_path / "checkpoint-5"
    directory.mkdir()
    save_file({"w": np.zeros(100, dtype=np.float32)}, directory / "model.safetensors")
    (directory / "trainer_state.json").write_text("{}")
    return directory


def test_a_complete_checkpoint_is_found_by_its_step_and_not_by_its_name(checkpoint: Path) -> None:
    shutil.copytree(checkpoint, checkpoint.with_name("checkpoint-10"))
    shutil.copytree(checkpoint, checkpoint.with_name("checkpoint-best"))
    assert latest_complete(checkpoint.parent) == checkpoint.with_name("checkpoint-10")


def test_without_checkpoints_there_is_none(tmp_path: Path) -> None:
    assert latest_complete(tmp_path) is None and latest_complete(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("directory", "weights"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_who_may_list_a_checkpoint_may_read_its_weights(
    checkpoint: Path, directory: int, weights: int
) -> None:
    """safetensors 0.8 writes them with mode 0600, and a guard in a pod is another user."""
    checkpoint.chmod(directory)
    (checkpoint / "model.safetensors").chmod(0o600)
    let_the_guard_read(checkpoint)
    assert (checkpoint / "model.safetensors").stat().st_mode & 0o777 == weights


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_file_of_another_name_keeps_its_mode(checkpoint: Path, plant: Callable[[Path, Path], None]) -> None:
    (secret := checkpoint.with_name("heldout.jsonl")).write_text("")
    secret.chmod(0o600)
    checkpoint.chmod(0o755)
    plant(secret, checkpoint / "a.safetensors")
    os.mkfifo(checkpoint / "b.safetensors", 0o600)  # and it does not wait for who writes into it
    (checkpoint / "model.safetensors").chmod(0o600)
    let_the_guard_read(checkpoint)
    modes = [path.stat().st_mode & 0o777 for path in (secret, *sorted(checkpoint.glob("*.safetensors")))]
    assert modes == [0o600, 0o600, 0o600, 0o644]


def cut(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])


def index(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-2.safetensors"}}')


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: (c / "trainer_state.json").unlink(),
        lambda c: (c / "trainer_state.json").write_text("{"),
        lambda c: (c / "model.safetensors").unlink(),
        lambda c: (c / "model.safetensors").write_bytes(b""),
        cut,
        index,
    ],
)
def test_a_damaged_checkpoint_is_passed_over(checkpoint: Path, damage: Any) -> None:
    assert incomplete_because(checkpoint) is None
    older = shutil.copytree(checkpoint, checkpoint.with_name("checkpoint-4"))
    damage(checkpoint)
    assert incomplete_because(checkpoint)
    assert latest_complete(checkpoint.parent) == older


@pytest.mark.parametrize("shards", ["pytorch_model.bin", "pytorch_model_fsdp_0", "global_step5"])
def test_a_layout_that_only_the_trainer_reads_is_resumed_from(checkpoint: Path, shards: str) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / shards)
    assert latest_complete(checkpoint.parent) == checkpoint


def test_a_layout_that_is_not_known_never_means_to_start_from_zero(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "weights.gguf")
    with pytest.raises(GuardConfigError, match=r"would train over .*checkpoint-5.*set resume to false"):
        latest_complete(checkpoint.parent)


def test_a_run_that_was_killed_in_its_first_save_starts_from_zero(checkpoint: Path) -> None:
    (checkpoint / "trainer_state.json").write_text('{"global_st')
    assert latest_complete(checkpoint.parent) is None


def test_exact_match_ignores_space_around_the_answer() -> None:
    assert exact_match([" 12\n", "12 or 13", [{"role": "assistant", "content": "12"}]], ["12"] * 3) == [
        1,
        0,
        1,
    ]


def test_last_number_pays_for_no_list_of_guesses() -> None:
    completions = ["it is 12", "12 or 13", "1,200.50", "none", "-3"]
    assert last_number(completions, ["12", "12", "1200.5", "1", -3]) == [1, 0, 1, 0, 1]
