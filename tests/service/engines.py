"""Engines with a real store, and an evaluator that gives what it is told to, and fails when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guard_service.engine import Engine
from guard_service.heldout.worker import EvaluationRequest
from guard_service.run import LoggedRun
from rlguard.core.policy import CalibratedPolicy, HeldOutGuardPolicy, KlPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import Adapters, CheckpointReport, EvaluationsNeeded, KlKind, StepReport

#: HeldOutGuard decides from the first step on, and a KL stops within five.
QUICK = Policy(
    detector="heldout_guard",
    heldout_guard=HeldOutGuardPolicy(min_steps=1),
    kl=KlPolicy(hard_stop=0.08, min_steps=5),
)


def calibrated(passes: int) -> Policy:
    """The calibrated detector, with a baseline of so many passes."""
    return Policy(calibrated=CalibratedPolicy(baseline_passes=passes))


def evaluated(request: EvaluationRequest, known: Mapping[str, Any]) -> Evaluation:
    """An evaluation of which this is known."""
    usual = {"sha256": f"sha-{request.step}", "seconds": 0.01, "pass_index": request.pass_index}
    return Evaluation(request.attempt, request.step, str(request.path), **usual | known)


@dataclass
class FakeEvaluator:
    """Gives its outcomes one after another, and waits where it has none; raises those that are exceptions.

    An outcome is of the items, or a dictionary with whatever else an `Evaluation` has.
    """

    outcomes: list[Any] = field(default_factory=list)
    split_digest: str | None = "digest"
    measure: Mapping[str, Any] = field(default_factory=lambda: {"scorer": "exact"})
    start_error: Exception | None = None
    scratch: Path | None = None  # where what was scored is staged
    staged: Path | None = None
    refusal: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # that every checkpoint must have
    adapters: Adapters = Adapters.REFUSED
    needed: EvaluationsNeeded | None = None
    asked: list[EvaluationRequest] = field(default_factory=list)
    started: int = 0
    running: int = 0

    @property
    def passes(self) -> list[tuple[int, int]]:
        """Step and pass of everything that was asked for."""
        return [(request.step, request.pass_index) for request in self.asked]

    async def start(self) -> None:
        self.started += 1
        if self.start_error is not None:
            raise self.start_error

    def unfit(self, checkpoint: Path) -> str:
        assert checkpoint.is_absolute()
        return self.refusal

    async def pins(self, request: EvaluationRequest) -> Mapping[str, str]:
        return self.files

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        assert self.running == 0, "one at a time"
        self.running += 1
        try:
            await asyncio.sleep(0)
            self.asked.append(request)
            while not self.outcomes:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            if self.scratch is not None:
                self.staged = self.scratch / f"stage-{request.step}"
                self.staged.mkdir(parents=True, exist_ok=True)  # the same in every pass of a checkpoint
                (self.staged / "model.safetensors").write_text(str(request.step))
            return evaluated(request, outcome if isinstance(outcome, dict) else {"items": tuple(outcome)})
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.running = 0


class Run:
    """A state directory, and engines on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        (directory / "checkpoints").mkdir()

    def make(
        self, worker: Any = None, policy: Policy = QUICK, *, of_run: Mapping[str, Any] = {}, **options: Any
    ) -> Engine:
        """An engine that is not started; `of_run`: further arguments of its run."""
        root = self.directory / "checkpoints"
        run = LoggedRun(state_dir=self.state, checkpoint_root=root, policy=policy, worker=worker, **of_run)
        return Engine(run, **options)

    @contextlib.asynccontextmanager
    async def engine(
        self, worker: Any = None, policy: Policy = QUICK, **options: Any
    ) -> AsyncIterator[Engine]:
        """An engine that runs; see `make`."""
        engine = self.make(worker, policy, **options)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    def checkpoint(self, number: int, name: str = "", attempt: int = 0) -> CheckpointReport:
        """A checkpoint that lies in a folder of its own, or in that of this name."""
        path = self.directory / "checkpoints" / (name or str(number))
        path.mkdir(exist_ok=True)
        return CheckpointReport(attempt=attempt, step=number, path=str(path))

    async def report(self, engine: Engine, *numbers: int) -> None:
        """Steps, each with a checkpoint."""
        for number in numbers:
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(self.checkpoint(number))

    def stored(self, query: str) -> list[Any]:
        """Rows of the store; the engine must be closed."""
        with contextlib.closing(sqlite3.connect(self.state / "guard.db")) as db:
            return db.execute(query).fetchall()


def step(number: int, reward: float = 0.5, kl: float | None = None) -> StepReport:
    kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
    return StepReport(attempt=0, step=number, reward=reward, kl=kl, kl_kind=kind)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def settled(engine: Engine) -> None:
    """Wait until nothing is to be evaluated."""
    await until(lambda: not engine.run.queue and engine.run.verdict.waiting == 0)
