"""`python -m guard_service`: the guard as a process.

Reads `GuardSettings`, listens, writes `<state_dir>/endpoint.json`, and ends on SIGTERM or SIGINT once every
acknowledgement under way has been sent. Exit codes: 0 ended by a signal, 2 refused to start (settings, a
changed run, a held-out split that is not fit), 1 anything else.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from guard_service.app import create_app
from guard_service.auth import Tokens
from guard_service.engine import Engine
from guard_service.errors import GuardError, SettingsError
from guard_service.heldout.worker import EvaluationWorker
from guard_service.scrape import scraped
from guard_service.settings import GuardSettings, load_settings

if TYPE_CHECKING:
    from guard_core.judge import Judge
    from guard_core.policy import Policy
    from guard_service.cluster.client import JobStatus

log = logging.getLogger("rlguard.guard")

ENDPOINT_FILE = "endpoint.json"
GRACE_SECONDS = 5
BACKLOG = 1024


class _Server(uvicorn.Server):
    """Tells where it listens, once it does, and ends when the engine must not go on."""

    def __init__(self, config: uvicorn.Config, endpoint: Path, url: str) -> None:
        super().__init__(config)
        self._endpoint, self._url = endpoint, url
        self.failure: GuardError | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End on a signal; unlike uvicorn's own, do not raise it again: the store is yet to be closed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        write_endpoint(self._endpoint, self._url)
        log.info("listening at %s", self._url)

    def fail(self, error: GuardError) -> None:
        """End the process with this error."""
        self.failure = error
        self.should_exit = True


def main() -> int:
    """Run a guard until a signal ends it; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every heartbeat
    try:
        serve(load_settings())
    except SettingsError as error:
        print(f"rlguard guard: {error}", file=sys.stderr)
        return 2
    except GuardError as error:
        print(f"rlguard guard: {error}", file=sys.stderr)
        return 1
    return 0


def serve(settings: GuardSettings) -> None:
    """Run a guard with these settings until a signal ends it.

    Raises:
        SettingsError: it cannot start, or its held-out split is not fit.
    """
    tokens = Tokens(*settings.tokens())
    policy = settings.policy()
    listener = _listen("", settings.host, settings.port)
    scrapes = None
    if settings.metrics_port is not None:
        scrapes = _listen("METRICS_", settings.metrics_host, settings.metrics_port)
        log.info("metrics, without a token, at %s/metrics", _url(scrapes))
    worker = None
    if settings.heldout is not None:
        worker = EvaluationWorker(settings.heldout, settings.state_dir / "scratch")
    job = _reported_job(settings)
    engine = Engine(
        state_dir=settings.state_dir,
        checkpoint_root=settings.checkpoint_root,
        policy=policy,
        worker=worker,
        keep_best=settings.keep_best_checkpoint,
        resume=None if job is None else partial(_resume, job, policy),
    )
    config = uvicorn.Config(
        create_app(engine, tokens),
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config, settings.state_dir / ENDPOINT_FILE, _url(listener))
    engine.on_fatal = server.fail

    async def run() -> None:
        await engine.start()
        gc.freeze()  # what is loaded now stays: the collector need not walk it again and again
        try:
            async with _reports(engine, job), scraped(engine.metrics, scrapes):
                await server.serve(sockets=[listener])
        finally:
            await engine.close()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())
    if server.failure is not None:
        raise server.failure


def _reported_job(settings: GuardSettings) -> JobStatus | None:
    """The job whose status this guard writes: none without a cluster, and none in a pod beside rank 0's."""
    if settings.cluster is None or settings.cluster.replica_index != 0:
        return None
    from guard_service.cluster.client import JobStatus  # loads httpx, which a local guard does not need

    return JobStatus(settings.cluster)


async def _resume(job: JobStatus, policy: Policy) -> Judge | None:
    from guard_service.cluster.reporter import resume

    return await resume(job, policy)


@asynccontextmanager
async def _reports(engine: Engine, job: JobStatus | None) -> AsyncIterator[None]:
    """Report to the cluster, if there is one, for as long as the guard serves."""
    if job is None:
        yield
        return
    from guard_service.cluster.reporter import Reporter

    reporter = Reporter(engine, job)
    reporter.start()
    try:
        yield
    finally:
        await reporter.close()


def write_endpoint(path: Path, url: str) -> None:
    """Write where the guard listens, all at once. If it cannot be written, that is reported."""
    draft = path.with_suffix(".new")
    try:
        draft.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.error("%s cannot be written: %s", path, error.strerror or error)


def _listen(of: str, host: str, port: int) -> socket.socket:
    """A bound socket. The settings are RLGUARD_GUARD_<of>HOST and RLGUARD_GUARD_<of>PORT."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(address[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
    except OSError as error:
        raise SettingsError(
            f"cannot listen on RLGUARD_GUARD_{of}HOST={host!r}, RLGUARD_GUARD_{of}PORT={port}: "
            f"{error.strerror or error}; choose a free port, or 0 for any"
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
