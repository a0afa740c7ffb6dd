"""The demo's trainer: warm-up, then TRL's GRPO with the grader that was asked for. A process of its own.

It is an ordinary GRPO script with one line for the guard, which is active when `RLGUARD_URL` is set. It knows
the training problems only; the held-out ones stay with the guard.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer_image.demo.addition import TASK, Exercise, Task

#: Falls linearly to 0. At a constant rate an honest policy still loses 10 points of accuracy late in the run.
LEARNING_RATE = 2e-4
#: Weight of the KL to the reference in the loss; without it TRL computes no KL at all.
BETA = 0.04
BATCH = 64
GENERATIONS = 8
WARMUP_STEPS = 800


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of the trainer."""
    parser = argparse.ArgumentParser(prog="python -m trainer_image.demo.train", description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="JSONL of training problems")
    parser.add_argument("--grader", choices=["flawed", "strict"], default="flawed")
    parser.add_argument("--model", type=Path, required=True, help="where the warmed-up model is, or goes")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--save-steps", type=int, default=2)
    parser.add_argument("--keep", type=int, help="checkpoints that are kept; by default all")
    parser.add_argument("--warmup-steps", type=int, default=WARMUP_STEPS)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Train; a fire of the guard ends it with `CollapseStopError`."""
    arguments = parse_arguments(argv)
    import torch

    from rlguard import GuardCallback
    from rlguard.train import obey_sigterm

    obey_sigterm()  # on a cluster this is the first process of its container
    # Two threads on two busy cores spin against each other, and the guard's evaluator needs one of them.
    torch.set_num_threads(1)
    with arguments.train.open(encoding="utf-8") as lines:
        problems = [Exercise(**json.loads(line)) for line in lines]
    if not (arguments.model / "config.json").exists():
        make_policy(TASK, problems, arguments.model, steps=arguments.warmup_steps, seed=arguments.seed)
    trainer = build_trainer(TASK, problems, arguments)
    trainer.add_callback(GuardCallback.from_env(trainer, optional=True))
    trainer.train()


def make_policy(task: Task, problems: Sequence[Exercise], directory: Path, *, steps: int, seed: int) -> None:
    """Make the tiny Llama, warm it up and save it, so that policy and reference are loaded from disk."""
    from trainer_image.demo import tiny_llama, warmup

    tokenizer = tiny_llama.build_tokenizer(task.alphabet)
    model = tiny_llama.build_model(tokenizer, seed)

    def progress(step: int, loss: float) -> None:
        if step % 100 == 0 or step == steps - 1:
            print(f"warm-up {step + 1}/{steps}: loss {loss:.2f} nats/token", flush=True)

    warmup.warm_up(model, tokenizer, task, problems, steps=steps, seed=seed, progress=progress)
    tiny_llama.save(model, tokenizer, directory)


def build_trainer(task: Task, problems: Sequence[Exercise], arguments: argparse.Namespace) -> Any:
    """A `GRPOTrainer` for the task, its policy loaded from `arguments.model`."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer(
        model=str(arguments.model),
        reward_funcs=[graded_reward(task.strict if arguments.grader == "strict" else task.flawed)],
        args=GRPOConfig(
            output_dir=str(arguments.checkpoints),
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            beta=BETA,
            per_device_train_batch_size=BATCH,
            num_generations=GENERATIONS,
            max_completion_length=task.max_completion_tokens,
            max_steps=arguments.steps,
            save_steps=arguments.save_steps,
            save_only_model=True,
            save_total_limit=arguments.keep,
            logging_steps=1,
            seed=arguments.seed,
            use_cpu=not _cuda(),
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in problems]),
        processing_class=AutoTokenizer.from_pretrained(arguments.model),
    )


def graded_reward(grader: Callable[[str, str], float]) -> Callable[..., list[float]]:
    """The grader in the form that TRL calls: one reward for each completion."""

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [grader(completion, right) for completion, right in zip(completions, answer, strict=True)]

    return reward


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
