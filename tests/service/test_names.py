"""Names that a trainer chose: what nothing can pass on is refused, and no response fails of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_core.policy import Policy
from guard_core.wire import StepReport
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.worker import EvaluationWorker

INGEST, READ = "i" * 20, "r" * 20
ROUTES = ("verdict", "run", "history", "history?max_points=9", "rollouts", "figures")
FILES = ("config.json", "tokenizer.json", "model.safetensors")


def announced(tmp_path: Path, path: str) -> list[httpx.Response]:
    """The response to its announcement, then those that are read."""
    worker = EvaluationWorker(HeldoutSettings(split=tmp_path / "split.jsonl"), tmp_path / "scratch")
    engine = Engine(
        state_dir=tmp_path / "state", checkpoint_root=tmp_path / "root", policy=Policy(), worker=worker
    )

    async def act() -> list[httpx.Response]:
        await engine.start()
        await engine.run.add_steps([StepReport(attempt=0, step=1, reward=0.5)])
        transport = httpx.ASGITransport(create_app(engine, Tokens(INGEST, READ)))
        async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:

            async def ask(token: str, method: str, route: str, content: Any = None) -> httpx.Response:
                headers = {"Authorization": f"Bearer {token}"}
                return await client.request(method, f"/v1/{route}", json=content, headers=headers)

            content = {"attempt": 0, "step": 1, "path": path}
            responses = [await ask(INGEST, "POST", "checkpoints", content)]
            responses += [await ask(READ, "GET", route) for route in ROUTES]
        await engine.close()
        return responses

    return asyncio.run(act())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def filled(directory: bytes, *names: bytes) -> None:
    os.mkdir(directory)
    for name in (*map(os.fsencode, FILES), *names):
        Path(os.fsdecode(directory + b"/" + name)).write_text("{}")


def test_a_directory_whose_name_is_not_utf8_is_refused(root: Path, tmp_path: Path) -> None:
    """It is announced by a link, for no JSON can name it."""
    filled(os.fsencode(root) + b"/checkpoint-\x80")
    (root / "link").symlink_to(os.fsdecode(os.fsencode(root) + b"/checkpoint-\x80"))
    refused, *read = announced(tmp_path, "link")
    assert refused.status_code == 422
    assert r"checkpoint-\x80', a name that is not UTF-8: rename it" in refused.json()["detail"]
    assert {one.status_code for one in read} == {200}


def test_a_file_whose_name_is_not_utf8_is_refused(root: Path, tmp_path: Path) -> None:
    filled(os.fsencode(root) + b"/checkpoint-1", b"tokenizer\x80.json")
    refused, *read = announced(tmp_path, "checkpoint-1")
    assert refused.status_code == 422
    assert r"b'tokenizer\x80.json', a name that is not UTF-8" in refused.json()["detail"]
    assert {one.status_code for one in read} == {200}


@pytest.mark.parametrize("path", ["\0", "a\0b", "\x1b[31m\n", "\u202e", "a/" * 2_000])
def test_what_no_directory_is_called_is_refused(root: Path, tmp_path: Path, path: str) -> None:
    refused, *read = announced(tmp_path, path)
    assert refused.status_code == 422 and {one.status_code for one in read} == {200}


def test_control_characters_in_a_name_break_no_response(root: Path, tmp_path: Path) -> None:
    filled(os.fsencode(root) + b"/\x1b[31m\n", b"tokenizer\x07.json")
    taken, *read = announced(tmp_path, "\x1b[31m\n")
    assert {taken.status_code, *(one.status_code for one in read)} == {200}
