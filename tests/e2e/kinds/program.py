"""A program that trains with TRL's GRPO, and knows of no guard.

    python program.py here FORM TRAIN MODEL OUT   in this process
    python program.py ray FORM TRAIN MODEL OUT    in an actor on a worker, for which a driver waits

It is the project's demo without a line for a guard: a tiny Llama is warmed up, then paid by a grader with a
hole, and goes on until somebody ends it. In OUT it writes what any framework does: metrics.jsonl with a line
for each step, and a folder for each checkpoint, the starting policy's first. FORM is whose: trl or verl.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

ENDLESS = 1_000_000
SAVE_STEPS = 2
#: TRL's marker of a checkpoint that is complete.
MARKER = "trainer_state.json"


#: What the Trainer saves beside a model, and verl does not.
NOT_VERLS = ("*.pt", "*.pth", "*.bin", MARKER)


class AsTrl:
    """Checkpoints as TRL saves them, and lines as `rlguard follow` reads them by default."""

    def __init__(self, model: Path, out: Path) -> None:
        self._model, self._out = model, out
        self.saves = out

    def line(self, step: int, reward: float, kl: float, entropy: float) -> dict[str, Any]:
        """Of the log, for a step."""
        return {"step": step, "reward": reward, "kl": kl, "entropy": entropy, "kl_kind": "ref_token_mean"}

    def start(self) -> None:
        """The starting policy is the checkpoint of step 0."""
        start = self._out / "checkpoint-0"
        shutil.copytree(self._model, start)
        readable(start)
        (start / MARKER).write_text("{}")

    def saved(self, step: int) -> None:
        """The trainer has saved this checkpoint."""
        readable(self._out / f"checkpoint-{step}")


class AsVerl:
    """Checkpoints and lines as verl 0.9 writes them, with `hf_model` among its `save_contents`.

    Its file logger's lines, and a folder for each step, which is complete once the number beside it says so.
    """

    def __init__(self, model: Path, out: Path) -> None:
        self._model, self._out = model, out
        self.saves = model.with_name("saved")

    def line(self, step: int, reward: float, kl: float, entropy: float) -> dict[str, Any]:
        """Of the log, for a step."""
        figures = {"critic/score/mean": reward, "actor/reward_kl_penalty": kl, "actor/entropy": entropy}
        return {"step": step, "data": {**figures, "training/global_step": step}}

    def start(self) -> None:
        """The starting policy is the checkpoint of step 0."""
        self._put(self._model, 0)

    def saved(self, step: int) -> None:
        """The trainer has saved this checkpoint."""
        self._put(self.saves / f"checkpoint-{step}", step)

    def _put(self, model: Path, step: int) -> None:
        actor = self._out / f"global_step_{step}" / "actor"
        shutil.copytree(model, actor / "huggingface", ignore=shutil.ignore_patterns(*NOT_VERLS))
        readable(actor / "huggingface")
        (actor / "model_world_size_1_rank_0.pt").write_bytes(b"a shard of FSDP")
        (self._out / "latest_checkpointed_iteration.txt").write_text(str(step))


FORMS = {"trl": AsTrl, "verl": AsVerl}


class Trainer:
    """The training of one policy."""

    def __init__(self, form: str, train: str, model: str, out: str) -> None:
        from trainer_image.demo import train as demo

        self._written = FORMS[form](Path(model), Path(out))
        self._arguments = demo.parse_arguments(
            [
                *("--train", train, "--model", model, "--checkpoints", str(self._written.saves)),
                *("--steps", str(ENDLESS), "--save-steps", str(SAVE_STEPS)),
            ]
        )
        self._log = Path(out) / "metrics.jsonl"

    def warm_up(self) -> None:
        """Make the starting policy, and save it as the checkpoint of step 0."""
        import torch

        from trainer_image.demo import train as demo

        torch.set_num_threads(1)
        arguments = self._arguments
        task, problems = demo.TASK, self._problems()
        demo.make_policy(task, problems, arguments.model, steps=arguments.warmup_steps, seed=arguments.seed)
        self._written.start()

    def train(self) -> None:
        """GRPO, for as long as it is let."""
        from transformers import TrainerCallback

        from trainer_image.demo import train as demo

        written, log = self._written, self._log

        class Log(TrainerCallback):  # type: ignore[misc]
            def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, float], **___: Any) -> None:
                if "reward" in logs:
                    figures = {name: logs[name] for name in ("reward", "kl", "entropy")}
                    with log.open("a") as file:
                        file.write(json.dumps(written.line(state.global_step, **figures)) + "\n")

            def on_save(self, _: Any, state: Any, __: Any, **___: Any) -> None:
                written.saved(state.global_step)

        arguments = self._arguments
        trainer = demo.build_trainer(demo.TASK, self._problems(), arguments)
        trainer.add_callback(Log())
        trainer.train()

    def _problems(self) -> list[Any]:
        from trainer_image.demo.addition import Exercise

        lines = self._arguments.train.read_text().splitlines()
        return [Exercise(**json.loads(line)) for line in lines]


def readable(folder: Path) -> None:
    """safetensors writes weights that only their owner may read; whoever reads these is another user."""
    for file in folder.iterdir():
        file.chmod(0o644)


def train_here(*arguments: str) -> None:
    """In this process."""
    trainer = Trainer(*arguments)
    trainer.warm_up()
    print("the policy is warmed up", flush=True)
    trainer.train()


def train_in_an_actor(*arguments: str) -> None:
    """On a worker of the Ray cluster that this process belongs to."""
    import ray

    ray.init()
    trainer = ray.remote(num_cpus=1)(Trainer).remote(*arguments)
    ray.get(trainer.warm_up.remote())
    print("the policy is warmed up", flush=True)
    ray.get(trainer.train.remote())


if __name__ == "__main__":
    {"here": train_here, "ray": train_in_an_actor}[sys.argv[1]](*sys.argv[2:])
