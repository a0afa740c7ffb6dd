"""A step's durable acknowledgement against a bare echo of the same body, in the same run.

    python tests/bench/bench_ack.py [--seconds 2] [--rounds 3] [--directory DIR]

Both servers are uvicorn with h11 on asyncio, each in a process of its own; the echo is a raw ASGI app
that reads the body and sends it back. The guard checks, stores and flushes the steps, folds them and
answers with the verdict. Rounds of the two alternate, so that other load on the machine hits both; a ratio
above 1 means that the guard is faster. The client speaks plain HTTP/1.1 and shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.trainer.real_guard import INGEST, RealGuard

#: name, connections, steps of one request
CASES = (
    ("one step, 1 connection", 1, 1),
    ("one step, 32 connections", 32, 1),
    ("list of 100, 1 connection", 1, 100),
    ("list of 100, 8 connections", 8, 100),
    ("list of 1000, 1 connection", 1, 1000),
    ("list of 1000, 8 connections", 8, 1000),
)


@dataclass
class Load:
    """What one server did in one case."""

    requests: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def percentile(self, p: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(p * len(self.latencies)))]


def bodies(attempt: int, steps: int) -> Iterator[bytes]:
    """Requests with steps that were never reported before."""
    step = 0
    while True:
        reports = [
            {
                "attempt": attempt,
                "step": step + i,
                "reward": 0.5 + i * 1e-4,
                "kl": 0.0123456789,
                "kl_kind": "ref_token_mean",
                "entropy": 1.2345678,
                "reward_std": 0.2345678,
            }
            for i in range(steps)
        ]
        step += steps
        yield json.dumps(reports if steps > 1 else reports[0]).encode()


async def drive(port: int, connections: int, steps: int, attempt: int, seconds: float, load: Load) -> None:
    # Encoding a list of 1,000 takes longer than answering it: requests are made before the clock starts.
    made = [bodies(attempt + i, steps) for i in range(connections)]
    ready = max(4, int(20_000 * seconds / connections / max(1, steps // 4)))
    queues = [[next(source) for _ in range(ready)] for source in made]
    started = time.perf_counter()
    until = started + seconds
    sources = (itertools.chain(queue, rest) for queue, rest in zip(queues, made, strict=True))
    await asyncio.gather(*(send(port, source, until, load) for source in sources))
    load.seconds += time.perf_counter() - started


async def send(port: int, requests: Iterator[bytes], until: float, load: Load) -> None:
    """One connection that sends the next request as soon as the answer to the last is complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (sent := time.perf_counter()) < until:
        body = next(requests)
        writer.write(
            b"POST /v1/steps HTTP/1.1\r\nhost: guard\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (INGEST.encode(), len(body), body)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.index(b"content-length:") + len("content-length:")
        content = await reader.readexactly(int(head[length:].split(b"\r\n", 1)[0]))
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(content.decode())
        load.requests += 1
        load.latencies.append(time.perf_counter() - sent)
    writer.close()


ECHO = """
import uvicorn
async def app(scope, receive, send):
    chunks = []
    while True:
        message = await receive()
        chunks.append(message["body"])
        if not message.get("more_body"):
            break
    body = b"".join(chunks)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
import socket, sys
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, http="h11", loop="asyncio", lifespan="off", access_log=False,
    log_level="warning", server_header=False, backlog=1024)).run(sockets=[s])
"""


@contextlib.contextmanager
def echo_server() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.terminate()


def flush_ms(directory: Path) -> float:
    """Median time of one `fdatasync` after a write of 4 KiB: what no durable answer can be faster than."""
    times = []
    file = os.open(directory / "flush", os.O_CREAT | os.O_WRONLY)
    for _ in range(50):
        os.pwrite(file, b"x" * 4096, 0)
        started = time.perf_counter()
        os.fdatasync(file)
        times.append(time.perf_counter() - started)
    os.close(file)
    return 1e3 * sorted(times)[len(times) // 2]


@contextlib.contextmanager
def guard_server(parent: Path | None) -> Iterator[int]:
    os.environ["RLGUARD_GUARD_MAX_STORE_MIB"] = "65536"  # what no training sends is refused else
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        print(f"one fdatasync on this disk: {flush_ms(Path(directory)):.2f} ms")
        guard = RealGuard(Path(directory) / "guard", Path(directory))
        yield int(guard.url.rsplit(":", 1)[1])
        guard.close()


def report(name: str, steps: int, guard: Load, echo: Load) -> None:
    ms = [1e3 * load.percentile(p) for p in (0.5, 0.99) for load in (guard, echo)]
    print(
        f"{name:28} guard {guard.rate * steps:9,.0f} steps/s  echo {echo.rate * steps:11,.0f} steps/s  "
        f"throughput ratio {guard.rate / echo.rate:5.2f}   "
        f"p50 {ms[0]:7.2f} / {ms[1]:6.2f} ms = {ms[0] / ms[1]:5.1f}   "
        f"p99 {ms[2]:7.2f} / {ms[3]:6.2f} ms = {ms[2] / ms[3]:5.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each server and case")
    parser.add_argument(
        "--directory", type=Path, help="where the store lies (default: a temporary directory)"
    )
    args = parser.parse_args()
    attempt = 0
    with echo_server() as echo_port, guard_server(args.directory) as guard_port:
        for name, connections, steps in CASES:
            loads = {guard_port: Load(), echo_port: Load()}
            for _ in range(args.rounds):
                for port, load in loads.items():
                    asyncio.run(drive(port, connections, steps, attempt, args.seconds, load))
                    attempt += connections
            report(name, steps, loads[guard_port], loads[echo_port])


if __name__ == "__main__":
    main()
