"""Writes the logs of `tests/data/logs` with the frameworks' own writers. Run by hand, once a release.

    python tests/data/record_logs.py SOURCES [NAME ...]

SOURCES holds a folder for each framework, as its wheel or its repository unpacks: `pip download --no-deps`
has verl 0.9.1, openrlhf 0.11.2, ms-swift 4.6.0, tinker-cookbook 0.6.1, torchtune 0.6.1 and skyrl 0.3.0; of
NeMo-RL, slime, ROLL, EasyR1 and prime-rl, which PyPI has not, a checkout of the repository (August 2026).

Of each, the module that writes the log is loaded and nothing else; what that module imports for other
purposes, and is not installed, is an empty stand-in. It is called as the framework's trainer calls it, with
the names that the trainer gives. The values are those of `tests.cli.logs.recorded`.

`logs/NAME/0` is what lies there after the first start of a trainer, `logs/NAME/1` the files that the second
start, which goes on from an earlier step, wrote or changed. TRL writes with the callback of the installed
transformers, so it needs no source.

`logs/trl` is another one: the event file and the trainer_state.json of ten steps of GRPOTrainer (TRL 1.16,
`report_to="tensorboard"`, `logging_steps=1`, `save_steps=5`, `beta=0.1`) on the tiny Llama of
`guard_cli.demo`.
"""

import asyncio
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from types import SimpleNamespace as Namespace
from unittest.mock import MagicMock

import numpy as np

ROOT = Path(__file__).parents[2]
LOGS = Path(__file__).parent / "logs"
sys.path.insert(0, str(ROOT))
from tests.cli.logs.recorded import kl, reward, steps  # noqa: E402


class StandIn(types.ModuleType):
    """A module of which every name is there, and none does anything."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives packages that the modules import and what is called of them does not use."""

    PACKAGES = (
        *("chz", "json_repair", "matplotlib", "megatron", "mlflow", "modelscope", "neptune_scale", "orjson"),
        *("prometheus_client", "ray", "rich", "swanlab", "trackio", "verifiers", "wandb"),
    )

    def find_spec(self, name, path=None, target=None):
        known = name.partition(".")[0] in self.PACKAGES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def load(folder, module, *stand_ins):
    """A module of a source, without the `__init__` of the packages that it lies in.

    Of its own siblings, those of `stand_ins` are not loaded either.
    """
    sys.path.insert(0, str(folder))
    sys.meta_path.append(StandIns())  # asked last: for what is not installed
    packages = [module[: dot.start()] for dot in re.finditer(r"\.", module)]
    for name in [*packages, *stand_ins]:
        if not isinstance(sys.modules.get(name), StandIn):
            sys.modules[name] = StandIn(name)
            sys.modules[name].__path__ = [str(folder / name.replace(".", "/"))]
    return importlib.import_module(module)


def trl(source, folder, attempt):
    """TRL has no writer of its own: its trainer hands its values to the callback of transformers' Trainer."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder)
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import TensorBoardCallback

    arguments = TrainingArguments(output_dir="out", report_to="none", use_cpu=True)
    state, control, callback = TrainerState(), TrainerControl(), TensorBoardCallback()
    callback.on_train_begin(arguments, state, control)
    for step in steps(attempt):
        state.global_step = step
        values = {
            "loss": 0.1,
            "grad_norm": 1.0,
            "learning_rate": 1e-6,
            "num_tokens": 4096.0 * step,
            "completions/mean_length": 100.0 + step,
            "completions/max_length": 200.0,
            "completions/clipped_ratio": 0.125,
            "rewards/accuracy/mean": reward(step, attempt),
            "rewards/accuracy/std": 0.1,
            "reward": reward(step, attempt),
            "reward_std": 0.1,
            "frac_reward_zero_std": 0.25,
            "kl": kl(step, attempt),
            "entropy": 0.9 - step / 100,
            "clip_ratio/region_mean": 0.0,
            "step_time": 2.5,
            "epoch": step / 10,
        }
        callback.on_log(arguments, state, control, logs=values)
    callback.on_train_end(arguments, state, control)


def verl(source, folder, attempt):
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "run.jsonl")
    log = load(source, "verl.utils.tracking").FileLogger("project", "run")
    for step, values in verl_rows(attempt):
        log.log(values, step)
    log.finish()


def verl_console(source, folder, attempt):
    console = load(source, "verl.utils.logger.aggregate_logger").LocalLogger()
    with printed_to(folder / "driver.log"):
        for step, values in verl_rows(attempt):
            console.log(values, step)


def verl_rows(attempt):
    for step in steps(attempt):
        yield (
            step,
            {
                "actor/entropy": 0.9 - step / 100,
                "actor/kl_loss": kl(step, attempt),
                "actor/ppo_kl": -step / 5000,
                "critic/score/mean": np.float64(reward(step, attempt)),
                "critic/score/max": 1.0,
                "response_length/mean": 100.0 + step,
                "perf/total_num_tokens": 4096 * step,
                "training/global_step": step,
            },
        )


def openrlhf(source, folder, attempt):
    module = load(source, "openrlhf.utils.logging_utils")
    logger = Namespace(tensorboard_dir=str(folder), wandb=Namespace(run_name="run"))
    log = module.TensorboardLogger(Namespace(logger=logger))
    for step in steps(attempt):
        status = {
            "policy_loss": 0.1,
            "actor_lr": 1e-6,
            "ppo_kl": -step / 5000,
            "reward": reward(step, attempt),
            "response_length": 100.0 + step,
            "kl": kl(step, attempt),
            "logprobs_diff": 0.01,
            "entropy_loss": 0.9 - step / 100,
            "timing/ppo_train": 1.5,
            "rollout/reward_mean": reward(step, attempt),
            "rollout/reward_std": 0.1,
            "rollout/response_length_mean": 100.0 + step,
            "rollout/truncated_rate": 0.125,
            "rollout/num_samples": 64.0,
            "generated_samples": ["What is 1 + 1? 2", 1.0],
        }
        log.log_train(step, status)
        if step % 4 == 0:
            log.log_eval(step, {"eval_math_pass1": 0.5})
    log.close()


def nemo_rl(source, folder, attempt):
    module = load(
        source, "nemo_rl.utils.logger", "nemo_rl.data.interfaces", "nemo_rl.distributed.batched_data_dict"
    )
    enabled = {
        f"{name}_enabled": name == "tensorboard" for name in ("wandb", "swanlab", "tensorboard", "mlflow")
    }
    folder = module.get_next_experiment_dir(str(folder))
    log = module.Logger({"log_dir": folder, **enabled, "tensorboard": {}, "monitor_gpus": False})
    loss = {"token_level_loss": True, "reference_policy_kl_penalty": 0.01, "reference_policy_kl_type": "k3"}
    log.log_hyperparams(
        {
            "policy": {"train_global_batch_size": 32},
            "loss_fn": loss | {"kl_input_clamp_value": 20.0, "use_kl_in_reward": False},
            "grpo": {"num_prompts_per_step": 8, "adv_estimator": {"name": "grpo"}},
        }
    )
    for step in steps(attempt):
        if step % 4 == 1:
            log.log_metrics({"accuracy": 0.5}, step - 1, prefix="validation")
        metrics = {
            "loss": np.float32(0.1),
            "grad_norm": 1.0,
            "reward": reward(step, attempt),
            "mean_prompt_length": 40.0,
            "advantages/mean": 0.0,
            "probs_ratio": 1.0,
            "kl_penalty": kl(step, attempt),
            "gen_kl_error": 0.001,
            "policy_kl_error": 0.001,
            "approx_entropy": 0.9 - step / 100,
            "truncation_rate": 0.125,
            "mean_gen_tokens_per_sample": 100.0 + step,
            "gen_tokens_per_sample/max": 200.0,
            "generation_logger_metrics": {"inflight": [1, 2]},
        }
        log.log_metrics({"tokens_per_sec_per_gpu": 1000.0}, step, prefix="performance")
        log.log_metrics(metrics, step, prefix="train")
        log.log_metrics({"total_step_time": 2.5}, step, prefix="timing/train")
    log.loggers[0].writer.close()


def torchtune(source, folder, attempt):
    log = load(source, "torchtune.training.metric_logging", "torchtune.utils")
    log.get_world_size_and_rank = lambda: (1, 0)
    writer = log.TensorBoardLogger(str(folder))
    for step in steps(attempt):
        values = {
            "rewards": reward(step, attempt),
            "successes": 0.5,
            "num_stop_tokens": 60,
            "loss": 0.1,
            "policy_loss": 0.1,
            "kl_loss": kl(step, attempt),
            "clipfrac": 0.0,
            "ratios": 1.0,
            "approx_policy_kl": 0.001,
            "response_lengths": 100.0 + step,
        }
        writer.log_dict(values, step=step)
    writer.close()


def skyrl(source, folder, attempt):
    os.environ["TENSORBOARD_DIR"] = str(folder)
    module = load(source, "skyrl.train.utils.tracking", "skyrl.train.config")
    log = module.Tracking("project", "run", backend="tensorboard", config=None)
    for step in steps(attempt):
        values = {
            "policy/final_loss": 0.1,
            "policy/policy_loss": 0.1,
            "policy/policy_entropy": 0.9 - step / 100,
            "policy/policy_kl": kl(step, attempt),
            "reward/avg_pass_at_8": 0.5,
            "reward/avg_raw_reward": reward(step, attempt),
            "reward/mean_positive_reward": 0.6,
            "loss/avg_final_rewards": 0.4,
            "generate/avg_num_tokens": 100.0 + step,
            "trainer/epoch": 0,
            "trainer/global_step": step,
            "timing/step": 2.5,
        }
        log.log(values, step=step, commit=True)
    log.finish()


def slime(source, folder, attempt):
    """Two of its processes log, into an event file of each: the one that samples, and the one that trains."""
    os.environ["TENSORBOARD_DIR"] = str(folder)
    for write in (slime_rollouts, slime_training):
        if (child := os.fork()) == 0:
            write(source, attempt)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


SLIME = Namespace(use_wandb=False, use_tensorboard=True, tb_project_name="p", tb_experiment_name="run")


def slime_rollouts(source, attempt):
    module = load(source, "slime.observability.logging_utils")
    for step in steps(attempt):
        rollout = {
            "rollout/response_len/mean": 100.0 + step,
            "rollout/response_len/max": 200.0,
            "rollout/zero_std/count_0.0": 2,
            "rollout/repetition_frac": 0.0,
            "rollout/truncated_ratio": 0.125,
            "perf/rollout_time": 2.5,
        }
        module.log(SLIME, {**rollout, "rollout/step": step}, step_key="rollout/step")
    module._TensorboardAdapter(SLIME).finish()


def slime_training(source, attempt):
    module = load(source, "slime.observability.logging_utils")
    for step in steps(attempt):
        rollout = {
            "rollout/raw_reward": reward(step, attempt),
            "rollout/rewards": 0.0,
            "rollout/response_lengths": 100.0 + step,
            "rollout/truncated": 0.125,
            "rollout/log_probs": -0.5,
            "rollout/advantages": 0.0,
        }
        module.log(SLIME, {**rollout, "rollout/step": step}, step_key="rollout/step")
        for optimizer_step in (2 * step, 2 * step + 1):  # two of them a rollout
            values = {"train/loss": 0.1, "train/kl_loss": kl(step, attempt), "train/ppo_kl": 0.001}
            module.log(SLIME, {**values, "train/step": optimizer_step}, step_key="train/step")
        module.log(SLIME, {"perf/step_time": 2.5, "rollout/step": step}, step_key="rollout/step")
    module._TensorboardAdapter(SLIME).finish()


def roll_values(attempt):
    for step in steps(attempt):
        yield (
            step,
            {
                "system/global_step": step,
                "critic/score/mean": reward(step, attempt),
                "critic/rewards/mean": reward(step, attempt) - 0.01,
                "critic/entropy/mean": 0.9 - step / 100,
                "token/response_length/mean": 100.0 + step,
                "actor/pg_loss@sum": 0.1,
                "actor/kl_loss@sum": 3.0,
                "math_rule/critic/kl": kl(step, attempt),
                "math_rule/critic/kl_coef": 0.001,
                "math_rule/critic/score/mean": reward(step, attempt),
                "time/step_total": 2.5,
            },
        )


def roll(source, folder, attempt):
    os.environ["ROLL_LOG_DIR"] = str(folder / "logs")
    with printed_to(folder / "output.log"):
        log = load(source, "roll.utils.tracking").create_tracker("stdout", {})
        for step, values in roll_values(attempt):
            log.log(values, step)
    shutil.rmtree(folder / "logs")  # the same lines again


def roll_tensorboard(source, folder, attempt):
    os.environ["ROLL_LOG_DIR"] = tempfile.mkdtemp()
    module = load(source, "roll.utils.tracking")
    log = module.create_tracker("tensorboard", {"seed": 42, "kl_penalty": "kl"}, log_dir=str(folder))
    for step, values in roll_values(attempt):
        log.log(values, step)
    log.finish()


def easyr1(source, folder, attempt):
    module = load(source, "verl.utils.logger.logger")
    config = {
        "trainer": {"save_checkpoint_path": str(folder)},
        "algorithm": {"kl_penalty": "low_var_kl", "use_kl_loss": True},
        "worker": {"actor": {"loss_avg_mode": "token", "strategy": "fsdp"}},
    }
    log = module.FileLogger(config)
    for step in steps(attempt):
        values = {
            "reward/overall": reward(step, attempt),
            "reward/format": 1.0,
            "actor/kl_loss": kl(step, attempt),
            "actor/kl_coef": 0.01,
            "actor/ppo_kl": -0.001,
            "actor/entropy_loss": 0.9 - step / 100,
            "actor/lr": 1e-6,
            "critic/score/mean": reward(step, attempt),
            "critic/rewards/mean": reward(step, attempt),
            "response_length/mean": 100.0 + step,
            "response_length/clip_ratio": 0.125,
        }
        log.log(values, step)
    config = folder / "experiment_config.json"
    config.write_text(config.read_text().replace(str(folder), "checkpoints"))


def grpo_values(step, attempt):
    """Of TRL's trainer and those that follow it."""
    return {
        "loss": 0.1,
        "grad_norm": 1.0,
        "learning_rate": 1e-6,
        "completions/mean_length": 100.0 + step,
        "completions/max_length": 200.0,
        "completions/clipped_ratio": 0.125,
        "rewards/Accuracy/mean": reward(step, attempt),
        "rewards/Accuracy/std": 0.1,
        "reward": reward(step, attempt),
        "reward_std": 0.1,
        "frac_reward_zero_std": 0.25,
        "kl": kl(step, attempt),
        "epoch": step / 500,
    }


def ms_swift(source, folder, attempt):
    module = load(source, "swift.trainers.patcher", "swift.utils", "swift.trainers.arguments")
    callback = module.PrinterCallbackNew()
    writes = load(
        source, "swift.utils.io_utils", "swift.utils.env", "swift.utils.logger", "swift.utils.utils"
    )
    module.append_to_jsonl, module.is_pai_training_job = writes.append_to_jsonl, lambda: False
    writes.is_master, writes.check_json_format = (lambda: True), (lambda obj: obj)
    module.get_max_reserved_memory, module.format_time = (lambda: 4.2), (lambda seconds: f"{seconds:.0f}s")
    args, first = Namespace(output_dir=str(folder)), next(iter(steps(attempt))) - 1
    state = Namespace(global_step=first, max_steps=500, is_world_process_zero=True, log_history=[])
    callback.on_train_begin(args, state, None)
    for step in steps(attempt):
        state.global_step = step
        callback.on_log(args, state, None, logs=(logs := grpo_values(step, attempt)))
        state.log_history.append({**logs, "step": step})
    ended = {
        "last_model_checkpoint": None,
        "global_step": state.global_step,
        "log_history": state.log_history,
    }
    module.append_to_jsonl(str(folder / "logging.jsonl"), ended, strict=False)


def ms_swift_megatron(source, folder, attempt):
    module = load(source, "swift.megatron.callbacks.print", "swift.utils", "swift.megatron.utils")
    writes = load(
        source, "swift.utils.io_utils", "swift.utils.env", "swift.utils.logger", "swift.utils.utils"
    )
    writes.is_last_rank, writes.check_json_format = (lambda: True), (lambda obj: obj)
    module.JsonlWriter, module.is_last_rank = writes.JsonlWriter, lambda: True
    module.format_time = lambda seconds: f"{seconds:.0f}s"
    module.reduce_max_stat_across_model_parallel_group = lambda value: 4.2
    trainer = Namespace(args=Namespace(output_dir=str(folder), train_iters=500), state=Namespace(iteration=0))
    callback = module.PrintCallback(trainer)
    callback.state.iteration = next(iter(steps(attempt))) - 1
    callback.on_train_begin()
    for step in steps(attempt):
        callback.state.iteration = step
        callback.on_log(grpo_values(step, attempt))
    while callback.jsonl_writer._queue.qsize():
        time.sleep(0.01)
    time.sleep(0.1)


def prime_rl(source, folder, attempt):
    module = load(
        source / "src",
        "prime_rl.monitors.file",
        "prime_rl.configs",
        "prime_rl.configs.monitors",
        "prime_rl.utils.config",
        "prime_rl.utils.logger",
    )

    async def log():
        monitor = module.FileMonitor(Namespace(path=Path("metrics.jsonl")))
        await monitor.init(folder)
        for step in steps(attempt):
            await monitor.log(prime_rl_values(step, attempt), step=step)
            if step % 4 == 0:
                await monitor.log({"eval/gsm8k/agent/avg@1": 0.5, "step": step}, step=step)
        await monitor.finalize()

    asyncio.run(log())


def prime_rl_values(step, attempt):
    values = {}
    for pool in ("agg", "gsm8k"):
        for subset in ("all", "effective"):
            agent = f"train/{pool}/{subset}/agent"
            values |= {
                f"train/{pool}/{subset}/num_total_tokens/mean": 140.0 + step,
                f"{agent}/reward/mean": reward(step, attempt),
                f"{agent}/reward/max": 1.0,
                f"{agent}/num_output_tokens/mean": 100.0 + step,
                f"{agent}/is_truncated/mean": 0.125,
                f"{agent}/rewards/correct/mean": reward(step, attempt),
            }
    return values | {"progress/tokens": 4096 * step, "off_policy/mean": float("nan"), "step": step}


def tinker(source, folder, attempt):
    module = load(source, "tinker_cookbook.utils.ml_log")
    log = module.JsonLogger(folder)
    if attempt:
        log.store.truncate_metrics(next(iter(steps(attempt))))
    log.log_summary({"cost/total_usd": 0.5})
    for step in steps(attempt):
        values = {
            "progress/batch": step,
            "optim/lr": 1e-5,
            "env/all/reward/total": reward(step, attempt),
            "env/all/total_episodes": 64,
            "env/all/ac_tokens_per_turn": 100.0 + step,
            "env/all/by_group/frac_mixed": 0.75,
            "kl_sample_train_v1": 0.001,
            "kl_policy_base": kl(step, attempt),
            "optim/entropy": 0.9 - step / 100,
        }
        log.log_metrics(values, step=step)
        if step % 4 == 0:  # an evaluation of earlier weights, which ended just now
            log.log_metrics_event({"test/env/all/reward/total": 0.5}, step - 2, "eval/snapshot/training_step")
    for aside in folder.glob("metrics.jsonl.pre_resume_*"):
        aside.unlink()


#: Name: (folder of its source in SOURCES, what writes one start).
WRITERS = {
    "trl-tensorboard": ("trl", trl),
    "verl": ("verl", verl),
    "verl-console": ("verl", verl_console),
    "openrlhf": ("openrlhf", openrlhf),
    "nemo-rl": ("nemo-rl", nemo_rl),
    "torchtune": ("torchtune", torchtune),
    "skyrl": ("skyrl", skyrl),
    "slime": ("slime", slime),
    "roll": ("roll", roll),
    "roll-tensorboard": ("roll", roll_tensorboard),
    "easyr1": ("easyr1", easyr1),
    "ms-swift": ("ms-swift", ms_swift),
    "ms-swift-megatron": ("ms-swift", ms_swift_megatron),
    "prime-rl": ("prime-rl", prime_rl),
    "tinker": ("tinker-cookbook", tinker),
}


@contextlib.contextmanager
def printed_to(file):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    with file.open("a") as log:
        log.write(printed.getvalue())


def record(sources, name, attempt, folder):
    """One start of a trainer; in a process of its own, since two sources have packages of one name."""
    source, write = WRITERS[name]
    socket.gethostname = lambda: "host"
    write(sources / source, folder, attempt)


def main(sources, *names):
    for name in names or WRITERS:
        shutil.rmtree(LOGS / name, ignore_errors=True)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "log"
            folder.mkdir()
            for attempt in (0, 1):
                start = [sys.executable, __file__, "--one", str(sources), name, str(attempt), str(folder)]
                before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
                subprocess.run(start, check=True)
                for file in folder.rglob("*"):
                    if file.is_file() and before.get(file) != file.read_bytes():
                        target = LOGS / name / str(attempt) / file.relative_to(folder)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(file, target)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        record(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))
    else:
        main(Path(sys.argv[1]).absolute(), *sys.argv[2:])
