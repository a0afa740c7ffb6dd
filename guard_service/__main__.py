"""`python -m guard_service`: the guard as a process.

Reads `GuardSettings`, listens, writes `<state_dir>/endpoint.json`, and ends on SIGTERM or SIGINT once every
acknowledgement under way has been sent.

Exit codes:
    0  a signal ended it
    1  it failed: the last line of its log says why
    2  it refused to start: a missing package, a wrong setting, a changed run, or an unfit held-out split
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from guard_core import log_lines
from guard_core.extras import missing_extra
from guard_service.errors import GuardError, SettingsError

if TYPE_CHECKING:  # what the extra `guard` brings is looked for before it is loaded
    from guard_core.judge import Judge
    from guard_core.policy import Policy
    from guard_service.cluster.client import JobStatus
    from guard_service.engine import Engine
    from guard_service.settings import GuardSettings

log = logging.getLogger("rlguard.guard")

ENDPOINT_FILE = "endpoint.json"
GRACE_SECONDS = 5
BACKLOG = 1024


def main() -> int:
    """Run a guard until a signal ends it; returns the exit code."""
    if (missing := missing_extra("python -m guard_service", ["guard"])) is not None:
        print(missing, file=sys.stderr)
        return 2
    from guard_service.settings import load_settings

    try:
        settings = load_settings()
        log_as(settings.log_format)
        serve_guard(settings)
    except SettingsError as error:
        print(f"rlguard guard: {error}", file=sys.stderr)
        return 2
    except GuardError as error:
        print(f"rlguard guard: {error}", file=sys.stderr)
        return 1
    return 0


def log_as(form: Literal["text", "json"]) -> None:
    """Log to standard error, as text or as one JSON object a line."""
    lines = log_lines.handler(form, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every heartbeat


def serve_guard(settings: GuardSettings, listening: Callable[[str], None] = lambda _: None) -> None:
    """Run a guard with these settings until a signal ends it; `listening` is told its URL, once it listens.

    Raises:
        SettingsError: it cannot start, or its held-out split is not fit.
    """
    import uvicorn

    from guard_service.app import create_app
    from guard_service.auth import Tokens
    from guard_service.engine import Engine
    from guard_service.heldout.worker import EvaluationWorker
    from guard_service.protocol import Protocol
    from guard_service.scrape import scraped
    from guard_service.server import GuardServer, listen, url_of

    tokens = Tokens(*settings.tokens())
    policy = settings.policy()
    listener = listen("", settings.host, settings.port)
    scrapes = None
    if settings.metrics_port is not None:
        scrapes = listen("METRICS_", settings.metrics_host, settings.metrics_port)
        log.info("metrics, without a token, at %s/metrics", url_of(scrapes))
    worker = None
    if settings.heldout is not None:
        worker = EvaluationWorker(settings.heldout, settings.state_dir / "scratch", policy)
    job = _reported_job(settings)
    engine = Engine(
        state_dir=settings.state_dir,
        checkpoint_root=settings.checkpoint_root,
        policy=policy,
        worker=worker,
        keep_best=settings.keep_best_checkpoint,
        max_store_bytes=settings.max_store_mib << 20,
        resume=None if job is None else partial(_resume, job, policy),
    )
    config = uvicorn.Config(
        create_app(engine, tokens, settings.name),
        http=Protocol,
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
    server = GuardServer(config, settings.state_dir / ENDPOINT_FILE, url_of(listener), listening)
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
    from guard_service.cluster.reporter import StatusReporter

    reporter = StatusReporter(engine, job)
    reporter.start()
    try:
        yield
    finally:
        await reporter.close()


if __name__ == "__main__":
    sys.exit(main())
