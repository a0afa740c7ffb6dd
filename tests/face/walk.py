"""Report a step and then a checkpoint, from a callback to a real guard's verdict; write what they cross.

`trace` is put into every process by `sitecustomize`. It writes lines of `step` or `checkpoint` and a file.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

#: One byte of it, which all processes share: what is walked now.
FLAG, CROSSED = "WALK_FLAG", "WALK_CROSSED"
OFF, STEP, CHECKPOINT = b"0", b"s", b"c"


def trace() -> None:
    """Write down each file of ours in which something is called while a walk is on."""
    with open(os.environ[FLAG], "r+b") as file:
        shared = mmap.mmap(file.fileno(), 1)
    root, seen = f"{Path.cwd()}/", set[tuple[int, str]]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or shared[0] == OFF[0]:
            return
        path = frame.f_code.co_filename
        if (shared[0], path) not in seen and path.startswith(root) and "/.venv/" not in path:
            seen.add((shared[0], path))
            walk = "step" if shared[0] == STEP[0] else "checkpoint"
            with open(os.environ[CROSSED], "a") as out:
                out.write(f"{walk} {path.removeprefix(root)}\n")

    sys.setprofile(note)
    threading.setprofile(note)


def main(folder: Path) -> None:
    """Train a step and save a checkpoint in `folder`, which has a held-out split."""
    import uvicorn
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from guard_service import engine as engine_module
    from guard_service.app import Tokens, create_app
    from guard_service.engine import Engine
    from guard_service.heldout.config import HeldoutSettings
    from guard_service.heldout.worker import EvaluationWorker
    from guard_service.run import LoggedRun
    from rlguard.core.policy import Policy
    from tests.heldout.models import save_tiny_model
    from trainer_image.callback import GuardCallback

    engine_module.TICK_SECONDS = 3600.0  # what the guard does by itself is no part of a walk
    listening, urls = threading.Event(), []

    async def serve() -> None:
        heldout = HeldoutSettings.model_validate(
            {"split": folder / "split.jsonl", "evaluator": {"max_new_tokens": 4}}
        )
        policy = Policy.model_validate({"calibrated": {"baseline_passes": 1}})
        worker = EvaluationWorker(heldout, folder / "scratch", policy)
        run = LoggedRun(state_dir=folder / "state", checkpoint_root=folder, policy=policy, worker=worker)
        engine = Engine(run)
        await engine.start()
        while engine.not_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        config = uvicorn.Config(
            create_app(engine, Tokens("ingest", "read")), port=0, log_level="error", lifespan="off"
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        urls.append(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        listening.set()
        await serving

    def verdict() -> dict[str, Any]:
        who = {"Authorization": "Bearer read"}
        with urllib.request.urlopen(urllib.request.Request(f"{urls[0]}/v1/verdict", headers=who)) as answer:
            return dict(json.load(answer))

    def walk(what: bytes) -> None:
        with open(os.environ[FLAG], "r+b") as flag:  # in place: it is mapped
            flag.write(what)

    class GRPOConfig(TrainingArguments):
        beta = 0.1

    GRPOConfig.__module__ = "trl.trainer"
    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    listening.wait()
    args = GRPOConfig(output_dir=f"{folder}/out", report_to=[], use_cpu=True, save_steps=10)
    lists: dict[str, list[float]] = {"reward": [], "kl": [], "entropy": []}
    state = TrainerState(max_steps=100, save_steps=10, is_world_process_zero=True)
    trainer = SimpleNamespace(_metrics={"train": lists}, state=state, save_model=lambda *_, **__: None)
    callback = GuardCallback(urls[0], "ingest", trainer=trainer, max_lag=None)
    callback.on_train_begin(args, state, TrainerControl(), processing_class=object())
    for step in range(1, 13):
        if step == 12:
            walk(STEP)
        state.global_step = step
        for values in lists.values():
            values.append(0.1 + step / 100)
        callback.on_step_end(args, state, TrainerControl())
        while verdict()["step"] != step:
            time.sleep(0.01)
    walk(OFF)
    save_tiny_model(folder / "out" / "checkpoint-12")
    walk(CHECKPOINT)
    callback.on_save(args, state, TrainerControl())
    while not (found := verdict())["evaluated"]:
        assert not found["failed"] and not found["skipped"], found
        time.sleep(0.1)
    walk(OFF)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
