"""A step crosses the ten files that docs/concepts/architecture.md lists, from the callback to the verdict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Values, what evaluations have found so far, and what a trainer does with the verdict of an earlier step.
BESIDE = {
    *("guard_core/wire.py", "guard_core/codes.py", "guard_client/samples.py", "guard_core/trainer_view.py"),
    *("guard_core/heldout_guard.py", "guard_core/unscored.py", "guard_core/detectors/run.py"),
    *(
        "guard_client/waiting.py",
        "guard_client/log.py",
        "trainer_image/experiment.py",
        "trainer_image/ranks.py",
    ),
}

PROGRAM = r"""
import asyncio, json, os, sys, threading, time, urllib.request
from pathlib import Path
from types import SimpleNamespace

import uvicorn
from transformers import TrainerControl, TrainerState, TrainingArguments

from guard_core.policy import Policy
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from trainer_image.callback import GuardCallback

root, crossed, listening, ports = Path.cwd(), set(), threading.Event(), []
on = False


def note(frame, event, _argument):
    path = frame.f_code.co_filename
    if on and event == "call" and path.startswith(str(root)) and "/.venv/" not in path:
        crossed.add(os.path.relpath(path, root))


async def serve():
    engine = Engine(state_dir=Path(sys.argv[1]) / "state", checkpoint_root=Path(sys.argv[1]), policy=Policy())
    await engine.start()
    for task in engine_tasks(engine):
        task.cancel()
    app = create_app(engine, Tokens("ingest", "read"))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    ports.append(server.servers[0].sockets[0].getsockname()[1])
    listening.set()
    await serving


def engine_tasks(engine):
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class GRPOConfig(TrainingArguments):
    beta = 0.1


def newest_step():
    url, who = f"http://127.0.0.1:{ports[0]}/v1/verdict", {"Authorization": "Bearer read"}
    asked = urllib.request.Request(url, headers=who)
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["step"]


GRPOConfig.__module__ = "trl.trainer"
threading.setprofile(note)
threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
listening.wait()
args = GRPOConfig(output_dir=sys.argv[1] + "/out", report_to=[], use_cpu=True, save_steps=10)
lists = {"reward": [], "kl": [], "entropy": []}
state = TrainerState(max_steps=100, save_steps=10, is_world_process_zero=True)
trainer = SimpleNamespace(_metrics={"train": lists}, state=state, save_model=lambda *_, **__: None)
callback = GuardCallback(f"http://127.0.0.1:{ports[0]}", "ingest", trainer=trainer, max_lag=None)
callback.on_train_begin(args, state, TrainerControl(), processing_class=object())
for step in range(1, 13):
    if step == 12:
        on = True
        sys.setprofile(note)
    state.global_step = step
    for values in lists.values():
        values.append(0.1 + step / 100)
    callback.on_step_end(args, state, TrainerControl())
    while newest_step() != step:
        time.sleep(0.01)
on = False
print(*sorted(crossed))
os._exit(0)
"""


@pytest.mark.torch
def test_a_step_crosses_the_files_that_the_architecture_lists(tmp_path: Path) -> None:
    page = (ROOT / "docs/concepts/architecture.md").read_text("utf-8")
    walk = page.partition("## A step\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\d+\. `([\w/.]+)`", walk, re.MULTILINE))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.split()) - BESIDE == listed and len(listed) <= 10
