"""The best checkpoint is kept from rotation wherever a framework puts its model: real staging and scoring."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guard_core.policy import Policy
from guard_core.wire import CheckpointReport
from guard_service.engine import Engine
from guard_service.heldout.config import HeldoutSettings, HfEvaluatorSettings
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from tests.cli.follow.followed import Followed
from tests.cli.follow.test_checkpoints import LAID_OUT, LONG_AGO, save
from tests.heldout.models import save_tiny_model

pytestmark = pytest.mark.torch

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=", answer="") for n in range(12)]
SETTINGS = {"max_new_tokens": 6, "device": "cpu", "score_truncated": True}


def a_checkpoint(root: Path, key: str, step: int, model: Path) -> CheckpointReport:
    """This model as the framework lays it out, announced by a follower beside a log that has come so far."""
    path = save(root, key, step)
    for file in model.iterdir():
        shutil.copy(file, path)
        os.utime(path / file.name, (LONG_AGO, LONG_AGO))
    log = root.parent / f"{key}.jsonl"
    log.write_text(json.dumps({"step": step, "reward": 0.5}) + "\n")
    followed = Followed(log, "jsonl", root, layout=key)
    followed.finish()
    (attempt, _, place) = next(one for one in followed.guard.checkpoints if one[1] == step)
    assert Path(place) == path
    return CheckpointReport(attempt=attempt, step=step, path=place)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.nightly
def test_the_best_checkpoint_of_every_layout_outlives_its_rotation(tmp_path: Path) -> None:
    """Of each framework a better and then a worse one, of which the trainer deletes both."""
    better, worse = (save_tiny_model(tmp_path / f"{seed}", seed=seed) for seed in (0, 1))
    local = HfEvaluator(HfEvaluatorSettings(**SETTINGS), tmp_path)
    says = [text for (text,) in local.complete(ITEMS, EvaluationRequest(0, 1, better)).texts]
    rows = [
        {"id": item.id, "prompt": item.prompt, "answer": text}
        for item, text in zip(ITEMS, says, strict=True)
        if text.strip()
    ]
    (tmp_path / "split.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    heldout = HeldoutSettings.model_validate({"split": tmp_path / "split.jsonl", "evaluator": SETTINGS})
    state, root = tmp_path / "state", tmp_path / "checkpoints"
    kept = state / "best"
    worker = EvaluationWorker(heldout, state / "scratch")
    engine = Engine(
        state_dir=state,
        checkpoint_root=root,
        policy=Policy(detector="heldout_guard"),
        worker=worker,
        keep_best=True,
    )

    async def score(folder: Path, key: str, step: int, model: Path) -> None:
        await engine.add_checkpoint(a_checkpoint(folder, key, step, model))
        await until(lambda: engine.run.queue_length == 0)
        last = engine.run.verdict.last_evaluation
        assert last is not None and (last.step, engine.run.verdict.failed) == (step, 0)

    async def act() -> None:
        await engine.start()
        try:
            for number, key in enumerate(LAID_OUT):
                folder = root / key
                folder.mkdir(parents=True)
                await score(folder, key, 10 * number + 1, better)
                await score(folder, key, 10 * number + 2, worse)
                shutil.rmtree(folder)
                best = engine.run.verdict.best_evaluation
                assert best is not None and best.step == 10 * number + 1, key
                for file in better.iterdir():
                    if file.suffix in (".safetensors", ".json"):
                        assert (kept / file.name).read_bytes() == file.read_bytes(), (key, file.name)
                again = local.complete(ITEMS, EvaluationRequest(0, 1, kept)).texts
                assert [text for (text,) in again] == says, f"{key}: a run can start from it"
                shutil.rmtree(kept)
        finally:
            await engine.close()

    asyncio.run(act())
