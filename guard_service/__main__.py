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
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal

if __name__ == "__main__" and os.getpid() == 1:
    # The kernel keeps signals without a handler from the first process of a container: a guard that is told
    # to end while it still loads, which takes seconds, would hold up its pod for the grace period.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))

from guard_service.errors import GuardError, SettingsError
from rlguard.core import log_lines
from rlguard.core.extras import missing_extra

if TYPE_CHECKING:  # what the extra `guard` brings is looked for before it is loaded
    import socket

    import uvicorn
    from starlette.types import ASGIApp

    from guard_service.engine import Engine
    from guard_service.feed import FollowerProcess
    from guard_service.heldout.worker import EvaluationWorker
    from guard_service.run import LoggedRun
    from guard_service.settings import GuardSettings
    from rlguard.core.policy import Policy

log = logging.getLogger("rlguard.guard")

ENDPOINT_FILE = "endpoint.json"
GRACE_SECONDS = 5  # for requests under way at the end
HANDOVER_SECONDS = 5.0  # for the supervisor to fetch the state of a run whose guard ends


def main() -> int:
    """Run a guard until a signal ends it; returns the exit code."""
    if (missing := missing_extra("python -m guard_service", ["guard"])) is not None:
        print(missing, file=sys.stderr)
        return 2
    from guard_service.settings import load_settings

    try:
        settings = load_settings()
        log_as(settings.log_format)
        _serve(settings)
    except SettingsError as error:
        print(f"rlguard guard: {error}", file=sys.stderr)
        return 2
    except GuardError as error:
        print(f"rlguard guard: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(settings: GuardSettings) -> None:
    """Serve; an error is left in the termination message, too."""
    from guard_service.termination import leave_error

    try:
        serve_guard(settings)
    except GuardError as error:
        leave_error(settings.termination_message, error)
        raise


def log_as(form: Literal["text", "json"]) -> None:
    """Log to standard error, as text or as one JSON object a line."""
    lines = log_lines.handler(form, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.basicConfig(level=logging.INFO, handlers=[lines])


def serve_guard(settings: GuardSettings, listening: Callable[[str], None] = lambda _: None) -> None:
    """Run a guard with these settings until a signal ends it; `listening` is told its URL, once it listens.

    Raises:
        SettingsError: it cannot start, or its held-out split is not fit.
    """
    from guard_service.app import Tokens, create_app
    from guard_service.server import GuardServer, tls_options, url_here, url_of, write_endpoint

    tokens = Tokens(*settings.tokens())
    tls = tls_options(settings.tls_certificate, settings.tls_key)
    engine = _engine(settings)
    listener = _listener(settings)
    url = url_of(listener, bool(tls))
    follower = _follower(settings, url_here(listener, bool(tls)), engine.run)

    async def before_end() -> None:
        """Answer what a client waits for, while the guard still listens."""
        if follower is not None:
            await follower.finish()
        engine.run.published.close()
        await engine.hand_over(HANDOVER_SECONDS)

    config = _config(create_app(engine, tokens, settings.name), tls)
    server = GuardServer(config, before_end)
    engine.on_fatal = server.fail

    async def serve() -> None:
        server.end_on_signals()
        await engine.start()
        gc.freeze()  # what is loaded now stays: the collector need not walk it again and again
        try:
            async with AsyncExitStack() as served:
                if follower is not None:
                    await follower.start()
                    served.push_async_callback(follower.close)
                write_endpoint(settings.state_dir / ENDPOINT_FILE, url)
                log.info("listening at %s", url)
                listening(url)
                await server.serve(sockets=[listener])
        finally:
            await engine.close()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())
    if server.failure is not None:
        raise server.failure


def _engine(settings: GuardSettings) -> Engine:
    """The engine of this run.

    Raises:
        SettingsError: the policy cannot be read, or the trainer could exchange the base model.
    """
    from guard_service.engine import Engine
    from guard_service.run import LoggedRun

    policy = settings.policy()
    run = LoggedRun(
        state_dir=settings.state_dir,
        checkpoint_root=settings.checkpoint_root,
        policy=policy,
        worker=_worker(settings, policy),
        takes_outcomes=settings.takes_outcomes,
        max_store_bytes=settings.max_store_mib << 20,
        has_supervisor=settings.has_supervisor,
        termination_message=settings.termination_message,
    )
    return Engine(
        run,
        elsewhere=_elsewhere(settings),
        keep_best=settings.keep_best_checkpoint,
        newest_only=settings.heldout is not None and settings.heldout.backlog == "newest",
    )


def _worker(settings: GuardSettings, policy: Policy) -> EvaluationWorker | None:
    """What scores checkpoints; None where nobody set that, or where another guard of the run does it.

    Raises:
        SettingsError: the trainer could exchange the base model.
    """
    from guard_service.heldout.base_model import why_the_trainers
    from guard_service.heldout.worker import EvaluationWorker

    if settings.heldout is None or _elsewhere(settings):
        return None
    base = settings.heldout.base_model
    if base is not None and (why := why_the_trainers(base, settings.checkpoint_root)):
        raise SettingsError(why)
    return EvaluationWorker(settings.heldout, settings.state_dir / "scratch", policy)


def _listener(settings: GuardSettings) -> socket.socket:
    """Where the trainer reports.

    Raises:
        SettingsError: it cannot be had.
    """
    from guard_service.server import inherited, listen

    if settings.listen_fd is not None:
        return inherited(settings.listen_fd)
    return listen(settings.host, settings.port)


def _config(app: ASGIApp, tls: dict[str, Any]) -> uvicorn.Config:
    """How the app is served."""
    import uvicorn

    from guard_service.server import BACKLOG, Protocol

    return uvicorn.Config(
        app,
        http=Protocol,
        loop="asyncio",  # of which a `Listener` is understood
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # no line for a bad request: a client could fill the disk
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **tls,
    )


def _follower(settings: GuardSettings, url: str, run: LoggedRun) -> FollowerProcess | None:
    """What follows the trainer; None where it reports, or another guard of the run follows it."""
    if settings.metrics is None or _elsewhere(settings):
        return None
    from guard_service.feed import FollowerHealth, FollowerProcess
    from rlguard.core.feed import FollowOrder

    tokens = settings.tokens()
    order = FollowOrder(
        root=settings.checkpoint_root.absolute(),
        feed=settings.metrics,
        state=settings.state_dir.absolute(),
        url=url,
        token=tokens.ingest,
        read_token=tokens.read,
        ca=None if settings.tls_certificate is None else settings.tls_certificate.read_text("ascii"),
    )
    run.following = FollowerHealth()
    return FollowerProcess(order, run.following)


def _elsewhere(settings: GuardSettings) -> str:
    """Where checkpoints are scored, if this guard is beside another rank than 0.

    Its verdict is told to nobody, so whoever may report to it could ask it about the held-out split for as
    long as they like.
    """
    if settings.replica_index == 0:
        return ""
    return (
        f"this guard is in the pod of replica {settings.replica_index}, and only that of replica 0 scores "
        "checkpoints: announce them on rank 0"
    )


if __name__ == "__main__":
    sys.exit(main())
