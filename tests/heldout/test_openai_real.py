"""The OpenAI evaluator against a real server, `transformers serve`, with a tiny model made on the spot.

Its greedy completions must be those of the checkpoint evaluator on the same weights.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_service.heldout.config import CheckpointEvaluatorSettings, OpenAIEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.checkpoint import CheckpointEvaluator
from guard_service.heldout.evaluators.openai import OpenAIEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest
from tests.heldout.models import save_tiny_model

pytestmark = [pytest.mark.nightly, pytest.mark.torch, pytest.mark.slow]

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=", answer=str(n * 8)) for n in range(8)]


@dataclass
class Server:
    url: str
    model: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    model = save_tiny_model(folder / "checkpoint-10")
    generation = json.loads((model / "generation_config.json").read_text())
    # This server samples only models whose own configuration does, whatever the temperature of a request.
    (model / "generation_config.json").write_text(json.dumps(generation | {"do_sample": True}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).parent / "transformers"),
        *("serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", str(model)),
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        wait_for(process, f"http://127.0.0.1:{port}/health", folder / "server.log")
        yield Server(f"http://127.0.0.1:{port}/v1", model)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended:\n{log.read_text()[-2000:]}"
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"the server did not come up:\n{log.read_text()[-2000:]}")


def ask(server: Server, pass_index: int = 0, **settings: Any) -> Any:
    config = {"base_url": server.url, "model": str(server.model), "max_new_tokens": 10, **settings}
    evaluator = OpenAIEvaluator(OpenAIEvaluatorSettings.model_validate(config))
    return evaluator.complete(ITEMS, EvaluationRequest(0, 10, server.model, pass_index)).texts


@pytest.mark.parametrize("chat", [True, False])
def test_greedy_completions_are_those_of_the_checkpoint_evaluator(
    server: Server, tmp_path: Path, chat: bool
) -> None:
    local = CheckpointEvaluator(CheckpointEvaluatorSettings(max_new_tokens=10, chat=chat), tmp_path)
    expected = local.complete(ITEMS, EvaluationRequest(0, 10, server.model)).texts
    assert ask(server, chat=chat, model=str(server.model.parent / "checkpoint-{step}")) == expected


def test_a_pass_repeats_and_another_pass_differs(server: Server) -> None:
    options = {"temperature": 1.0, "samples": 2, "concurrency": 1}
    first = ask(server, **options)
    assert ask(server, **options) == first != ask(server, pass_index=1, **options)


def test_a_model_that_is_not_served_fails_the_evaluation(server: Server) -> None:
    with pytest.raises(EvaluationError, match=r"responded status 4.. for item 'i.': check"):
        ask(server, model="checkpoint-{step}", retries=0)
