"""Scorers that hang, end their process, meet one another or wait: what they do is what the completion says.

They leave what they did in the folder that `meta` names. Each of their processes imports this file, so it
takes little with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SECRET = "xyzzy"
HANGS = 60.0  # seconds: for longer than any test waits, and not for ever, should a limit be broken
SECONDS = 24.0  # for what takes much less


def note(meta: Mapping[str, Any], name: str, text: str) -> None:
    """Append to a file, in one call, so that lines of several processes do not mix."""
    handle = os.open(Path(meta["room"]) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, text.encode())
    os.close(handle)


def noted(meta: Mapping[str, Any], name: str) -> list[str]:
    path = Path(meta["room"]) / name
    return path.read_text().split() if path.exists() else []


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def plain(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    note(meta, "pids", f"{os.getpid()}\n")
    match completion:
        case "hang":
            with subprocess.Popen(["sleep", str(HANGS)]) as started:
                note(meta, "hanging", f"{started.pid}\n")
        case "fork away":
            if not os.fork():
                os.setsid()
                note(meta, "away", f"{os.getpid()}\n")
                time.sleep(HANGS)
                os._exit(0)
            wait_for(lambda: noted(meta, "away"))
        case "fork and return":
            if not os.fork():
                wait_for(lambda: noted(meta, "next"))
                note(meta, "returned", "one\n")
        case "after the copy":
            note(meta, "next", "one\n")
            wait_for(lambda: noted(meta, "returned"))
            time.sleep(1)  # in which a copy that goes on would answer
        case "write everywhere":
            for number in range(3, 64):
                with contextlib.suppress(OSError):
                    os.write(number, b'x\n{"number": 7, "result": [0.5, "", "", false]}\n[]\n')
        case "name":
            raise type("x" * 100_000, (ValueError,), {})
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "system exit":
            raise SystemExit(SECRET)
        case "raise":
            raise ValueError(SECRET)
        case "raise after the other hangs":
            wait_for(lambda: noted(meta, "hanging"))
            raise ValueError(SECRET)
        case "say":
            print('{"number": 2, "result": [1.0]}', flush=True)
            os.write(1, b'{"number": 2, "result": [1.0]}\n')
        case "meet":
            note(meta, "met", "one\n")
            wait_for(lambda: len(noted(meta, "met")) >= meta["together"])
    return float(completion == answer)


async def judge(completion: str, answer: str, meta: Mapping[str, Any]) -> float:
    if completion == "cancelled":
        raise asyncio.CancelledError
    if completion == "nothing":
        return None  # type: ignore[return-value]
    if completion == "wait":
        await asyncio.sleep(HANGS)
    return plain(completion, answer, meta)


for _scorer in (plain, judge):
    _scorer.check_answers = False  # type: ignore[attr-defined]  # tests say what is scored
