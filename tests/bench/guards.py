"""Many guards in one process, over HTTPS: each has an address, a key and a token of its own.

    python tests/bench/guards.py FOLDER PORT

FOLDER has `NUMBER.pem` (certificate and key) for each guard, and guards.jsonl: number, address, host, token.
What is real is the wire. A line of standard input is an order, and a line of standard output its answer:

    fire NUMBER        the guard fires; the monotonic time
    evaluate NUMBER    it has evaluated another checkpoint
    polled             how many guards were polled
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import json
import os
import ssl
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]

# As in the operator: asyncio fills a buffer of 256 KiB for each TLS connection.
asyncio.sslproto.SSLProtocol.max_size = 16 * 1024


def verdict(number: int, evaluated: int = 50) -> Json:
    """Of a healthy run."""
    evaluation = {"attempt": 0, "step": 40, "score": 0.6, "items": 128, "path": "/ckpt/40"}
    evaluation |= {"sha256": "0" * 64, "truncated": 0.01}
    return {
        "level": "healthy", "code": "ok", "reason": f"{evaluated} checkpoints judged, held-out 0.60",
        "fire": False, "halt": False, "stop": False, "attempt": 0, "step": number, "steps": number,
        "rounds": evaluated, "announced": evaluated, "evaluated": evaluated, "in_loop_ema": 0.512345,
        "heldout_ema": 0.498765, "kl_ema": 0.0123, "proxy_real_gap": 0.0135, "kl_start": 0.01,
        "last_evaluation": evaluation, "best_evaluation": evaluation,
    }  # fmt: skip


@dataclass
class Guard:
    """One guard, which was told of its run already."""

    number: int
    token: str
    context: ssl.SSLContext
    verdict: Json
    revision: int = 1
    polled: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def says(self, **change: Any) -> None:
        """Say this from now on, also to whoever waits."""
        self.verdict |= change
        self.revision += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def fire(self) -> float:
        """Latch; the monotonic time."""
        now, latch = time.monotonic(), {"latch_attempt": 0, "latch_step": self.number}
        self.says(
            level="fired", code="hacking_gap", reason="gap 0.3", fire=True, stop=True,
            latched_at=datetime.now(UTC).isoformat(), **latch,
        )  # fmt: skip
        return now

    def evaluate(self) -> None:
        """One checkpoint more."""
        self.says(**verdict(self.number, self.verdict["evaluated"] + 1))

    async def respond(self, method: str, target: str, token: str) -> tuple[int, Json]:
        """Status and content of a response."""
        url = urlsplit(target)
        query = {key: value[-1] for key, value in parse_qs(url.query).items()}
        if token != f"Bearer {self.token}":
            return 401, {}
        if url.path == "/v1/verdict":
            self.polled = True
            if query.get("since") == str(self.revision):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), float(query["wait"]))
            return 200, self.verdict
        if url.path == "/v1/evidence":
            return 200, {"verdict.json": json.dumps(self.verdict), "history.jsonl": "x" * 4096}
        if method == "PUT":
            return 200, {"adopted": False}
        lines = [[n, [0.5, 0.25], [0.1, 0.1], 0.5, 0.01] for n in range(50)]
        return 200, {"sequence": self.revision, "state": {"lines": lines}, "latches": [], "lost": ""}


class Guards:
    """All of them."""

    def __init__(self, folder: Path) -> None:
        self.by_number, self.by_address, self.by_host = {}, {}, {}
        for line in (folder / "guards.jsonl").read_text().splitlines():
            known = json.loads(line)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / f"{known['number']}.pem")
            guard = Guard(known["number"], known["token"], context, verdict(known["number"]))
            self.by_number[guard.number] = guard
            self.by_address[known["address"]] = self.by_host[known["host"]] = guard

    def choose(self, wire: Any, host: str | None, _context: ssl.SSLContext) -> None:
        """Present the certificate of the guard that was asked for."""
        if host in self.by_host:
            wire.context = self.by_host[host].context

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        guard = self.by_address[writer.get_extra_info("sockname")[0]]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
                await reader.readexactly(int(headers.get("content-length", "0")))
                method, target, _ = first.split()
                status, content = await guard.respond(method, target, headers["authorization"])
                body = json.dumps(content).encode()
                head = (
                    f'HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\nETag: "{guard.revision}"\r\n\r\n'
                )
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    async def obey(self, order: str) -> str:
        """Do an order; the answer."""
        word, *number = order.split()
        if word == "fire":
            return str(self.by_number[int(number[0])].fire())
        if word == "evaluate":
            self.by_number[int(number[0])].evaluate()
        return str(sum(guard.polled for guard in self.by_number.values()))

    async def run(self, port: int) -> None:
        """Serve, and obey until there are no more orders."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self.choose  # type: ignore[assignment]
        await asyncio.start_server(self.serve, "0.0.0.0", port, ssl=context, backlog=4096)
        print("ready", flush=True)
        while order := await asyncio.to_thread(sys.stdin.readline):
            print(await self.obey(order), flush=True)
        os._exit(0)  # nobody is there any more who would read how each connection ends


if __name__ == "__main__":
    asyncio.run(Guards(Path(sys.argv[1])).run(int(sys.argv[2])))
