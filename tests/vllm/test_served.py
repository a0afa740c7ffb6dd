"""A real vLLM server, into which the guard loads each checkpoint: what is hashed is what is scored."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from guard_core.wire import Sampling
from guard_service.heldout.config import CheckpointEvaluatorSettings, OpenAIEvaluatorSettings
from guard_service.heldout.evaluators import Completions
from guard_service.heldout.evaluators.checkpoint import CheckpointEvaluator
from guard_service.heldout.evaluators.openai import OpenAIEvaluator
from guard_service.heldout.evaluators.served import ServedVllm
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest
from tests.heldout.models import save_tiny_model

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=", answer=str(n * 8)) for n in range(20)]
START_SECONDS = 900.0  # half a minute on a machine that does nothing else


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    return {
        name: save_tiny_model(folder / name, width=128, seed=seed)
        for seed, name in enumerate(("start", "later"))
    }


@pytest.fixture(scope="module")
def server(policies: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. It was started with the starting policy."""
    log = tmp_path_factory.mktemp("server") / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--model", str(policies["start"]), "--served-model-name", "policy"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16", "--max-model-len", "128"]
    environment = os.environ | {
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def by_server(
    url: str, path: Path, scratch: Path, *, loads: bool, trainer: Sampling | None = None
) -> Completions:
    given = {"base_url": url, "model": "policy", "chat": False, "max_new_tokens": 16}
    settings = OpenAIEvaluatorSettings.model_validate({**given, "load_checkpoints": loads})
    served = ServedVllm(settings, scratch) if loads else None
    request = EvaluationRequest(0, 1, path, sampling=trainer)
    return OpenAIEvaluator(settings, served).complete(ITEMS, request)


def by_transformers(path: Path, scratch: Path, trainer: Sampling | None = None) -> Completions:
    settings = CheckpointEvaluatorSettings(max_new_tokens=16, dtype="float32")
    request = EvaluationRequest(0, 1, path, sampling=trainer)
    return CheckpointEvaluator(settings, scratch).complete(ITEMS, request)


@pytest.mark.timeout(1500)
def test_checkpoints_that_the_guard_loads_say_what_a_fresh_load_says(
    server: str, policies: dict[str, Path], tmp_path: Path
) -> None:
    fresh = {name: by_transformers(path, tmp_path) for name, path in policies.items()}
    assert fresh["start"].texts != fresh["later"].texts
    old = by_server(server, policies["start"], tmp_path, loads=False)
    assert old.texts == fresh["start"].texts
    blind = by_server(server, policies["later"], tmp_path, loads=False)
    assert blind.said == old.said, "nobody loaded it, and that is to be seen"
    for name in ("later", "start", "later"):
        made = by_server(server, policies[name], tmp_path, loads=True)
        assert made.texts == fresh[name].texts and made.sha256 == fresh[name].sha256
    assert by_server(server, policies["later"], tmp_path, loads=False).said != old.said


@pytest.mark.timeout(1500)
def test_what_ends_a_completion_for_the_trainer_ends_the_servers_and_stays_in_it(
    server: str, policies: dict[str, Path], tmp_path: Path
) -> None:
    whole = by_transformers(policies["later"], tmp_path).texts
    trainer = Sampling(temperature=0.0, stop=(whole[0][0][2:4], whole[1][0][5:6]))
    ended = by_transformers(policies["later"], tmp_path, trainer)
    assert ended.texts != whole
    spent = [generated(server)]
    for sampling in (None, trainer):
        made = by_server(server, policies["later"], tmp_path, loads=True, trainer=sampling)
        spent.append(generated(server))
    assert made.texts == ended.texts
    assert 0 < spent[2] - spent[1] < spent[1] - spent[0], "it goes no further than that"


def generated(url: str) -> float:
    """Tokens that the server has made so far, by its own count."""
    page = httpx.get(url.removesuffix("/v1") + "/metrics", timeout=5).text
    counts = [line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)
