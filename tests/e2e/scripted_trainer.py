"""A trainer that does what it is told, one order a line. It runs in the trainer image, with the real guard.

It stands for a GRPO run where a test is about the cluster and not about training: it reports steps through
the project's own reporter, so everything from the reporter on is real. First it does the orders of its
command line, then those that a test appends to /scratch/orders, until it is told to end.

    steps N [KL [REWARD]]   report N steps and wait until the guard has acknowledged them
    checkpoint [SEED]       save a tiny model with random weights of this seed (the step's without it), and
                            report it
    note                    append to a file beside the checkpoints what was acknowledged, and if it fires
    sleep SECONDS           (the test may then take something away and need not come back)
    fire                    report steps whose KL is far beyond every KL stop
    eat                     take memory until the kernel ends it
    exit CODE               end

As the real callback does, it ends with exit code 3 when the guard says that training must stop; with DEAF=1
it goes on, so that whoever stops it is the cluster.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rlguard.client.client import GuardClient
from rlguard.client.reporter import Reporter
from rlguard.client.samples import StepSample, let_the_guard_read
from rlguard.core.wire import CheckpointReport, KlKind

ORDERS = Path("/scratch/orders")
CHECKPOINTS = Path("/checkpoints")
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 300.0
STOPPED_BY_GUARD = 3
TERMINATED = 143
DEAF = os.environ.get("DEAF") == "1"


class Trainer:
    """Steps are counted from 1 in each attempt."""

    def __init__(self) -> None:
        ca = os.environ.get("RLGUARD_CA")
        client = GuardClient(os.environ["RLGUARD_URL"], os.environ["RLGUARD_TOKEN"], ca=ca)
        self.reporter = Reporter(client, unreachable_seconds=PATIENCE_SECONDS)
        self.reporter.connect(PATIENCE_SECONDS)
        self.step = 0
        self.reported: list[dict[str, float]] = []
        print(f"attempt {self.reporter.attempt}", flush=True)

    def obey(self, order: str) -> None:
        """Do one order."""
        word, *values = shlex.split(order)
        if word == "steps":
            count, kl, reward = [*map(float, values), *(8.0, 0.01, 0.5)[len(values) :]]
            self.report(int(count), kl, reward)
        elif word == "fire":
            self.report(1, 0.01, 0.5)  # limits on the KL count from where it starts
            self.report(10, 1000.0, 0.9)
        elif word == "checkpoint":
            self.save(int(values[0]) if values else self.step)
        elif word == "note":
            self.note()
        elif word == "sleep":
            self.wait(float(values[0]))
        elif word == "eat":
            eaten = []
            while True:
                eaten.append(bytearray(os.urandom(1 << 20)) * 16)
        elif word == "exit":
            sys.exit(int(values[0]))
        else:
            raise SystemExit(f"unknown order: {order!r}")
        print(f"done: {order}", flush=True)

    def report(self, count: int, kl: float, reward: float) -> None:
        for _ in range(count):
            self.step += 1
            self.reporter.submit(StepSample(self.step, reward, kl, KlKind.REF_TOKEN_MEAN).report(0))
            self.reported.append({"step": self.step, "reward": reward, "kl": kl})
        delivery = self.reporter.delivery
        while delivery.steps + delivery.duplicates + delivery.refused + delivery.dropped < self.step:
            self.wait(POLL_SECONDS)

    def note(self) -> None:
        delivery, stop = self.reporter.delivery, self.reporter.state.stop
        lost = delivery.refused + delivery.dropped
        line = {"steps": [] if lost else self.reported, "lost": lost, "fire": stop is not None and stop.fire}
        with (CHECKPOINTS / f"{os.environ['HOSTNAME']}.notes").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.reported = []

    def save(self, seed: int) -> None:
        import tiny_llama  # of rlguard/cli/demo; it loads torch

        directory = CHECKPOINTS / f"attempt-{self.reporter.attempt}" / f"checkpoint-{self.step}"
        tokenizer = tiny_llama.build_tokenizer("0123456789+= ")
        tiny_llama.save(tiny_llama.build_model(tokenizer, seed=seed), tokenizer, directory)
        let_the_guard_read(directory)
        self.reporter.submit(CheckpointReport(attempt=0, step=self.step, path=str(directory)))

    def wait(self, seconds: float) -> None:
        """Wait, and end if the guard says so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.reporter.state.stop is not None and not DEAF:
                print(f"stopped: {self.reporter.state.stop.code}", flush=True)
                sys.exit(STOPPED_BY_GUARD)
            time.sleep(POLL_SECONDS)


def orders(trainer: Trainer) -> Iterator[str]:
    """Those of the command line, then those of the file, which is empty again after a restart."""
    ORDERS.write_text("")
    yield from sys.argv[1:]
    done = 0
    while True:
        lines = ORDERS.read_text().splitlines()
        yield from lines[done:]
        done = len(lines)
        trainer.wait(POLL_SECONDS)


def main() -> None:
    # Process 1 of a container ignores what it has no handler for, and the kubelet would wait 30 s for it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    trainer = Trainer()
    for order in orders(trainer):
        trainer.obey(order)


if __name__ == "__main__":
    main()
