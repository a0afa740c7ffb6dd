"""What a round is, is one thing: the live guard, its store, its status and a replay say the same of it.

Streams are random: several attempts, steps and evaluations out of order and late, steps without a KL, with
one that is 0, NaN or infinite, rewards that are no number, checkpoints without a step. What the live guard
must say is worked out here by the sentence of the documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guard_cli.logs.readers import read_log
from guard_cli.replay.fold import fold_run
from guard_cli.replay.run import load_run
from guard_client.samples import sample_of
from guard_core.codes import Code
from guard_core.judge import Judge
from guard_core.policy import HeldOutGuardPolicy, KlPolicy, Policy
from guard_core.wire import Adapters, CheckpointReport, EvaluationsNeeded, KlKind, StepReport, Verdict
from guard_service.engine import Engine
from guard_service.errors import Problem
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.history import export_history
from guard_service.run import LoggedRun
from tests.service.filled_store import folded

POLICY = Policy(
    detector="heldout_guard",
    heldout_guard=HeldOutGuardPolicy(min_steps=2, ema_alpha=0.5),
    kl=KlPolicy(hard_stop=0.3, min_steps=5),
)

#: ("step", attempt, step, reward, kl, kind), ("save", attempt, step) or ("score", items).
Event = tuple[Any, ...]

attempts, numbers = st.integers(0, 2), st.integers(1, 9)
rewards = st.floats(-1, 1) | st.sampled_from([math.nan, math.inf])
kls = st.sampled_from([None, 0.0, math.nan, math.inf]) | st.floats(0, 1)
kinds = st.sampled_from([KlKind.REF_TOKEN_MEAN] * 3 + [KlKind.BEHAVIOUR, KlKind.ABSENT])
steps = st.tuples(st.just("step"), attempts, numbers, rewards, kls, kinds)
saves = st.tuples(st.just("save"), attempts, numbers) | st.just(("save", 0, 0))
scores = st.tuples(st.just("score"), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3))
streams = st.lists(st.one_of(steps, steps, steps, saves, saves, scores), max_size=40)

TOKENS = KlKind.REF_TOKEN_MEAN
LATE_STEP: list[Event] = [
    *(("step", 0, n, n / 10, n / 100, TOKENS) for n in (1, 2, 4)),
    *(("save", 0, 4), ("score", [0.0, 1.0, 1.0]), ("step", 0, 3, -1.0, 0.5, TOKENS)),
    *(("step", 0, 6, 0.5, 0.2, TOKENS), ("save", 0, 6), ("score", [0.0, 0.0, 1.0])),
]
LATER_CHECKPOINT_FIRST: list[Event] = [
    *(("step", 0, n, n / 10, 0.0, TOKENS) for n in (1, 2, 3, 4)),
    *(("save", 0, 4), ("save", 0, 2), ("score", [1.0, 1.0, 1.0]), ("score", [0.0, 1.0, 1.0])),
]
SECOND_ATTEMPT_BEFORE_THE_SCORE: list[Event] = [
    *(("save", 0, 0), ("step", 0, 1, 0.1, None, TOKENS), ("save", 0, 1), ("step", 1, 1, 0.7, 0.3, TOKENS)),
    *(("score", [0.0, 0.0, 1.0]), ("save", 1, 1)),
]


FIRST_STEP_WITHOUT_A_REWARD: list[Event] = [
    *(("step", 0, 1, float("nan"), None, TOKENS), ("save", 0, 0), ("step", 0, 2, 0.0, None, TOKENS)),
]


FROM_SCRATCH: list[Event] = [
    *(("save", 0, 0), ("score", [0.0, 0.0, 1.0])),
    *(
        event
        for n in (1, 2, 3)
        for event in (
            *(("step", 0, n, n / 4, None, TOKENS), ("save", 0, n), ("score", [1.0, 1.0, float(n > 1)])),
        )
    ),
    *(("step", 1, 1, 0.25, None, TOKENS), ("save", 1, 1), ("score", [0.0, 0.0, 1.0])),
    *(("step", 2, 2, 0.5, None, TOKENS), ("save", 2, 2), ("score", [0.0, 1.0, 1.0])),
]


class Scores:
    """An evaluator that gives the next of the outcomes when it is told to."""

    split_digest = "digest"
    measure = {"scorer": "exact"}  # noqa: RUF012
    adapters: Adapters | None = None
    needed: EvaluationsNeeded | None = None

    def __init__(self) -> None:
        self.given: asyncio.Queue[list[float]] = asyncio.Queue()

    async def start(self) -> None:
        pass

    def unfit(self, checkpoint: Path) -> str:
        return ""

    async def pins(self, request: EvaluationRequest) -> dict[str, str]:
        return {}

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        return EvaluationResult(tuple(await self.given.get()), None, 0.01, None)

    async def close(self) -> None:
        pass


class Live:
    """A guard that was given a stream: what it said after each evaluation, and what it had been told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[tuple[Any, ...]] = []
        self.starts: list[set[str]] = []  # what was said of starts from scratch after each evaluation
        self.expected: list[tuple[float | None, float | None]] = []
        self.history: dict[str, Any] = {}
        self.verdict = Judge(POLICY).verdict()
        self._pending: list[StepReport] = []
        self._moved = False  # whether a KL to the reference other than 0 was seen

    async def play(self, stream: Sequence[Event]) -> None:
        worker = Scores()
        root, state = self.directory / "out", self.directory / "state"
        root.mkdir()
        engine = Engine(LoggedRun(state_dir=state, checkpoint_root=root, policy=POLICY, worker=worker))
        await engine.start()
        for kind, *event in stream:
            if kind == "step":
                await self._step(engine, *event)
            elif kind == "save":
                await self._save(engine, root, *event)
            elif engine.run.queue:
                await self._score(engine, worker, event[0])
        while engine.run.queue:
            await self._score(engine, worker, [1.0, 0.5, 0.0])
        self.history = await engine.thinned_history(1_000)
        self.verdict = engine.run.verdict
        await engine.close()

    async def _step(
        self, engine: Engine, attempt: int, step: int, reward: float, kl: float | None, kind: KlKind
    ) -> None:
        sample = sample_of(step, {"reward": reward, "kl": kl}, kind)
        if sample is None:
            return
        report = StepReport(
            attempt=attempt, step=step, reward=sample.reward, kl=sample.kl, kl_kind=sample.kl_kind
        )
        with contextlib.suppress(Problem):  # it contradicts an earlier one
            for new in (await engine.run.add_steps([report])).new:
                self._moved = self._moved or bool(new.kl_kind is TOKENS and new.kl)
                counts = new.kl if new.kl_kind is TOKENS and self._moved else None
                self._pending.append(new.model_copy(update={"kl": counts}))

    async def _save(self, engine: Engine, root: Path, attempt: int, step: int) -> None:
        path = root / f"{attempt}-{step}"
        path.mkdir(exist_ok=True)
        await engine.add_checkpoint(CheckpointReport(attempt=attempt, step=step, path=str(path)))

    async def _score(self, engine: Engine, worker: Scores, items: list[float]) -> None:
        left = len(engine.run.queue)
        worker.given.put_nowait(items)
        while len(engine.run.queue) == left:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        last = engine.run.verdict.last_evaluation
        assert last is not None
        self.said.append(said(engine.run.verdict))
        told = (c.message for c in engine.run.verdict.conditions if c.code is Code.STARTED_AGAIN)
        self.starts.append({message for message in told if "compared with the baseline" in message})
        self.expected.append(self._round(last.attempt, last.step))

    def _round(self, attempt: int, step: int) -> tuple[float | None, float | None]:
        """Mean reward and median KL of the steps since the last evaluated checkpoint, up to this one's."""
        mine = [p for p in self._pending if p.attempt == attempt and p.step <= step]
        self._pending = [p for p in self._pending if (p.attempt, p.step) > (attempt, step)]
        kls = [p.kl for p in mine if p.kl is not None]
        return fmean(p.reward for p in mine) if mine else None, median(kls) if kls else None


def said(verdict: Verdict) -> tuple[Any, ...]:
    """What a verdict says of its rounds."""
    last = verdict.last_evaluation
    place = None if last is None else (last.attempt, last.step, last.score)
    averages = (verdict.in_loop_ema, verdict.heldout_ema, verdict.proxy_real_gap, verdict.kl_ema)
    latch = (verdict.fire, verdict.latch_attempt, verdict.latch_step)
    return place, verdict.rounds, averages, verdict.steps_since_evaluation, latch


def stored(live: Live) -> list[tuple[Any, ...]]:
    """What the store keeps of each evaluation, in the order in which they were made."""
    names = ("rounds", "in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema")
    return [tuple(body[name] for name in names) for body in live.history["evaluations"]]


def check_replay(live: Live, source: Path) -> None:
    """A replay of `source` says after each evaluation what the live guard said."""
    run = load_run(read_log(source), str(source), {})
    told: list[tuple[Any, ...]] = []
    judge = fold_run(run, POLICY, lambda _, judge: told.append(said(judge.verdict())))
    assert told == live.said[len(live.said) - len(told) :]
    assert said(judge.verdict()) == said(live.verdict)
    assert len(told) == len(live.said) - len(run.baseline)


@pytest.mark.nightly
@settings(max_examples=40, deadline=None)
@given(streams, st.integers(0, 100))
@example(LATE_STEP, 0)
@example(LATER_CHECKPOINT_FIRST, 0)
@example(SECOND_ATTEMPT_BEFORE_THE_SCORE, 0)
@example(FIRST_STEP_WITHOUT_A_REWARD, 0)
@example(FROM_SCRATCH, 0)
def test_live_store_status_and_replay_have_the_same_rounds(stream: list[Event], shuffle: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Path(folder))
        asyncio.run(live.play(stream))
        state = live.directory / "state"

        # live: the round is what the documentation says, and so are the averages that are made of it
        guard, before = POLICY.heldout_guard.build(), set[str]()
        every = zip(live.expected, live.said, live.starts, strict=True)
        for (reward, _), (place, count, averages, *_), starts in every:
            if starts - before:
                guard.begin_again()
            before = starts
            if reward is not None:
                guard.update(place[1], reward, place[2])
            after = guard.last_status
            known = (after.in_loop_ema, after.heldout_ema, after.proxy_real_gap) if after else (None,) * 3
            assert (guard.count, *known) == (count, *averages[:3])

        # store: each evaluation has its round beside it, and folding it all again gives the live verdict
        bodies = live.history["evaluations"]
        assert [(body["reward"], body["kl"]) for body in bodies] == live.expected
        assert stored(live) == [(count, *averages) for _, count, averages, *_ in live.said]

        if not live.history["steps"]:
            return  # a log without a reward is no log
        lines = [json.dumps(line) for line in export_history(state)]
        random.Random(shuffle).shuffle(lines)
        exported = live.directory / "history.jsonl"
        exported.write_text("\n".join(lines) + "\n")
        for source in (state, exported):
            check_replay(live, source)
        if stream is FROM_SCRATCH:
            assert [bool(starts) for starts in live.starts] == [False] * 4 + [True] * 2
        assert said(folded(state, POLICY).verdict()) == said(live.verdict)
