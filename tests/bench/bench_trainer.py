"""A training step with `GuardCallback` against without, and against TensorBoard's callback, in the same run.

    python tests/bench/bench_trainer.py [--rounds 5] [--steps 20] [--batch 64]

Real TRL GRPO on a tiny Llama, one thread, `logging_steps=1`, against a real guard process, which shares the
machine. The variants alternate in short blocks, in an order that turns round by round, so that other load
hits all of them. Figures are medians over blocks; `without` is measured twice, and the difference between
its two halves says how much of a ratio is noise. The callback's own time on the training thread is measured
too: it is the overhead that a longer step would dilute.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback
from trl import GRPOTrainer

from tests.trainer.real_guard import INGEST, LOOSE_KL, RealGuard
from tests.trainer.tiny import digit_share, grpo_config, make_model, prompts
from trainer_image.callback import GuardCallback

VARIANTS = ("without", "GuardCallback", "without again", "TensorBoard")


class Stopwatch(TrainerCallback):
    """Seconds of every step but the first of a run, from the end of a step to the end of the next."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._last = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


class TimedGuardCallback(GuardCallback):
    """GuardCallback that measures itself: seconds on the training thread, per step."""

    own: list[float]

    def _timed(self, event: str, *arguments: Any, **keywords: Any) -> Any:
        began = time.perf_counter()
        result = getattr(GuardCallback, event)(self, *arguments, **keywords)
        self.own[-1] += time.perf_counter() - began
        return result

    def on_step_end(self, *arguments: Any, **keywords: Any) -> Any:
        self.own.append(0.0)
        return self._timed("on_step_end", *arguments, **keywords)

    def on_log(self, *arguments: Any, **keywords: Any) -> Any:
        return self._timed("on_log", *arguments, **keywords) if self.own else None


def block(
    variant: str, model: Path, directory: Path, guard: RealGuard, steps: int, batch: int, own: list[float]
) -> float:
    """Train `steps` + 1 steps; the median seconds of a step."""
    arguments = grpo_config(
        directory / "out",
        max_steps=steps + 1,
        per_device_train_batch_size=batch,
        num_generations=8,
        max_completion_length=16,
        learning_rate=1e-5,
    )
    trainer = GRPOTrainer(str(model), reward_funcs=digit_share, args=arguments, train_dataset=prompts(100))
    trainer.remove_callback(PrinterCallback)
    stopwatch = Stopwatch()
    trainer.add_callback(stopwatch)
    if variant == "GuardCallback":
        callback = TimedGuardCallback(guard.url, INGEST)
        callback.own = own
        trainer.add_callback(callback)
    elif variant == "TensorBoard":
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(directory / "tensorboard")
        trainer.add_callback(TensorBoardCallback())
    trainer.train()
    return statistics.median(stopwatch.seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    seconds: dict[str, list[float]] = defaultdict(list)
    own: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = make_model(directory / "model")
        guard = RealGuard(directory / "guard", directory / "out", LOOSE_KL)
        try:
            block("without", model, directory, guard, 3, options.batch, [])  # warm-up
            for turn in range(options.rounds):
                for offset in range(len(VARIANTS)):
                    variant = VARIANTS[(turn + offset) % len(VARIANTS)]
                    seconds[variant].append(
                        block(variant, model, directory, guard, options.steps, options.batch, own)
                    )
            reported = len(guard.history())
        finally:
            guard.close()
    assert reported == options.rounds * (options.steps + 1), "the guard lacks steps: nothing was measured"
    report(seconds, own)


def report(seconds: dict[str, list[float]], own: list[float]) -> None:
    """Ratios within a round, then their median: load that lasts a round cancels."""
    base = [min(pair) for pair in zip(seconds["without"], seconds["without again"], strict=True)]
    print(f"step without a callback: {1e3 * statistics.median(seconds['without']):.1f} ms (median of blocks)")
    for variant in VARIANTS[1:]:
        ratios = [a / b for a, b in zip(seconds[variant], seconds["without"], strict=True)]
        print(
            f"{variant + ' / without':28s} {statistics.median(ratios):.4f}   "
            f"(per round {min(ratios):.4f} to {max(ratios):.4f})"
        )
    share = statistics.median(own) / statistics.median(base)
    print(
        f"GuardCallback on the training thread: {1e6 * statistics.median(own):.0f} us a step (p99 "
        f"{1e6 * sorted(own)[int(0.99 * (len(own) - 1))]:.0f} us), {100 * share:.3f} % of this step"
    )


if __name__ == "__main__":
    main()
