"""Names that a trainer chose: what nothing can pass on is refused, and no response fails of it."""

from __future__ import annotations

import os

import httpx
import pytest

from guard_service.app import Tokens, create_app
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.worker import EvaluationWorker
from tests.service.engines import Run, step

ROUTES = ("verdict", "run", "history", "history?max_points=9", "rollouts", "figures")
FILES = (b"config.json", b"tokenizer.json", b"model.safetensors")
NOT_UTF8 = "a name that is not UTF-8: rename it"


@pytest.mark.parametrize(
    ("directory", "file", "announced", "said"),
    [
        # It is announced by a link, for no JSON can name it.
        (b"checkpoint-\x80", b"a", "link", rf"checkpoint-\x80', {NOT_UTF8}"),
        (b"checkpoint-1", b"tokenizer\x80.json", "checkpoint-1", rf"b'tokenizer\x80.json', {NOT_UTF8}"),
        (b"\x1b[31m\n", b"tokenizer\x07.json", "\x1b[31m\n", ""),
        *((b"c", b"a", name, "422") for name in ("\0", "a\0b", "\x1b[31m\n", "\u202e", "a/" * 2_000)),
    ],
)
@pytest.mark.asyncio
async def test_a_name_is_refused_in_words_or_taken_and_breaks_no_response(
    run: Run, directory: bytes, file: bytes, announced: str, said: str
) -> None:
    path = os.fsencode(run.directory / "checkpoints") + b"/" + directory
    os.mkdir(path)
    for name in (*FILES, file):
        os.mknod(path + b"/" + name)
    (run.directory / "checkpoints" / "link").symlink_to(os.fsdecode(path))
    worker = EvaluationWorker(HeldoutSettings(split=run.directory / "split.jsonl"), run.directory / "scratch")
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(1)])
        transport = httpx.ASGITransport(create_app(engine, Tokens(None, None)))
        async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:
            content = {"attempt": 0, "step": 1, "path": announced}
            answer = await client.post("/v1/checkpoints", json=content)
            read = [await client.get(f"/v1/{route}") for route in ROUTES]
    assert answer.status_code == (422 if said else 200) and said in answer.text.replace(r"\\", "\\")
    assert {one.status_code for one in read} == {200}
