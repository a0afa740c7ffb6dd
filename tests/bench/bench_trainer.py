"""A training step with `GuardCallback` against without, and against TensorBoard's callback, in one training.

    python tests/bench/bench_trainer.py [--blocks 60] [--batch 64]

Real TRL GRPO at the size of `rlguard demo` (3 layers, width 96, 64 completions of 16 tokens), one thread,
`logging_steps=1`, against a real guard process on the same machine. The callbacks take turns in blocks of
five steps of one training, so that other load hits all of them; the first step of a block is left out,
because the guard's reporter thread may still be busy with the block before. `without` takes two turns: the
ratio of its halves shows the noise. CPU seconds are those of the whole process, so they hold the reporter's
and TensorBoard's threads too; wall seconds also hold whatever else ran on the machine. Last come the seconds
that the callback itself spends on the training thread, and the CPU seconds of its reporter's thread, which
need no comparison and so hold next to no noise.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import PrinterCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback
from trl import GRPOTrainer

from rlguard import GuardCallback
from tests.trainer.real_guard import INGEST, LOOSE_KL, RealGuard
from tests.trainer.tiny import digit_share, grpo_config, make_model, prompts

VARIANTS = ("without", "GuardCallback", "without again", "TensorBoard")
BLOCK = 5


@dataclass
class Turns(TrainerCallback):
    """Whose turn it is, and what its steps cost: wall and CPU seconds from one step's begin to the next's."""

    active: str = VARIANTS[0]
    wall: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _began: tuple[float, float] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.perf_counter(), time.process_time()
        done = state.global_step - 1  # index of the step that just ended
        if self._began is not None and done % BLOCK:
            self.wall[self.active].append(now[0] - self._began[0])
            self.cpu[self.active].append(now[1] - self._began[1])
        self._began = now
        self.active = VARIANTS[state.global_step // BLOCK % len(VARIANTS)]


class TakesTurns:
    """Mixin: lets the events of a step through only when it is the callback's turn, and times them."""

    def __init__(self, name: str, turns: Turns, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.name, self.turns = name, turns
        self.own: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.own.append(0.0)

    def on_step_end(self, *arguments: Any, **keywords: Any) -> Any:
        return self._take(super().on_step_end, *arguments, **keywords)

    def on_log(self, *arguments: Any, **keywords: Any) -> Any:
        return self._take(super().on_log, *arguments, **keywords)

    def _take(self, event: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.turns.active != self.name:
            return None
        began = time.perf_counter()
        result = event(*arguments, **keywords)
        self.own[-1] += time.perf_counter() - began
        return result

    def own_seconds(self) -> list[float]:
        """Seconds on the training thread of every step that was this callback's."""
        return sorted(seconds for seconds in self.own if seconds > 0.0)


class Guarded(TakesTurns, GuardCallback):
    """GuardCallback, when it is its turn; also reads the CPU clock of its reporter's thread."""

    reporter_cpu = 0.0

    def on_train_end(self, *arguments: Any, **keywords: Any) -> Any:
        (thread,) = (one for one in threading.enumerate() if one.name == "rlguard-reporter")
        self.reporter_cpu = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return super().on_train_end(*arguments, **keywords)


class TensorBoard(TakesTurns, TensorBoardCallback):
    """TensorBoard's callback, when it is its turn."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=60, help=f"of {BLOCK} steps, over all variants")
    parser.add_argument("--batch", type=int, default=64, help="completions per step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    turns = Turns()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(directory / "tensorboard")
        arguments = grpo_config(
            directory / "out",
            max_steps=options.blocks * BLOCK,
            per_device_train_batch_size=options.batch,
            num_generations=8,
            max_completion_length=16,
            learning_rate=1e-5,
        )
        trainer = GRPOTrainer(
            str(make_model(directory / "model", layers=3, width=96)),
            reward_funcs=digit_share,
            args=arguments,
            train_dataset=prompts(100),
        )
        trainer.remove_callback(PrinterCallback)
        guard = RealGuard(directory / "guard", directory / "out", LOOSE_KL)
        try:
            guarded = Guarded("GuardCallback", turns, guard.url, INGEST, trainer=trainer)
            board = TensorBoard("TensorBoard", turns)
            for callback in (turns, guarded, board):
                trainer.add_callback(callback)
            trainer.train()
            reported = len(guard.history())
        finally:
            guard.close()
    assert reported == len(guarded.own_seconds()) > 0, "the guard lacks steps: nothing was measured"
    report(turns, guarded, board)


def report(turns: Turns, guarded: Guarded, board: TakesTurns) -> None:
    """Medians over the steps of each variant, as ratios to `without`."""
    cpu = {name: statistics.median(seconds) for name, seconds in turns.cpu.items()}
    wall = {name: statistics.median(seconds) for name, seconds in turns.wall.items()}
    steps = len(turns.cpu["without"])
    step = f"{1e3 * cpu['without']:.1f} ms CPU, {1e3 * wall['without']:.1f} ms wall"
    print(f"{steps} steps each; a step without a callback: {step}")
    print(f"{'ratio to without':24s} {'CPU':>8s} {'wall':>8s}")
    for name in VARIANTS[1:]:
        print(f"{name:24s} {cpu[name] / cpu['without']:8.4f} {wall[name] / wall['without']:8.4f}")
    for callback in (guarded, board):
        own = callback.own_seconds()
        median, tail = statistics.median(own), own[int(0.99 * (len(own) - 1))]
        share = 100 * median / wall["without"]
        print(
            f"{callback.name} on the training thread: median {1e6 * median:.0f} us, p99 {1e6 * tail:.0f} us; "
            f"median / step = {share:.3f} %"
        )
    thread = guarded.reporter_cpu / len(guarded.own_seconds())
    share = 100 * thread / cpu["without"]
    print(f"the reporter's thread: {1e6 * thread:.0f} us CPU a step (idle polls included); {share:.3f} %")


if __name__ == "__main__":
    main()
