"""The guard as a child process: started, asked, started again if it dies, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from rlguard.cli.errors import CliError, ExitCode
from rlguard.cli.guard_settings import to_environment
from rlguard.core.wire import Verdict

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings

POLL_SECONDS = 0.05
REQUEST_SECONDS = 5.0
#: A guard that lives but gives no response for this long is treated like one that died.
UNRESPONSIVE_SECONDS = 60.0
#: A guard resumes from its store, so a crash costs nothing; one that keeps crashing cannot be relied on.
MAX_RESTARTS = 3
STOP_SECONDS = 20.0
#: Connections that wait for a guard that is being started.
BACKLOG = 1024
REFUSED = 2  # exit code of a guard that does not accept its settings


class GuardProcessLostError(CliError):
    """The guard is gone for good; the run is no longer guarded."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.NOT_PASSED)


class GuardProcess:
    """One guard of one run.

    The socket is opened here and stays open while no guard runs: the trainer knows its address, nobody else
    can take the port, and who connects meanwhile is served by the next guard.

    Args:
        settings: with an IPv4 host, port 0 and token files.
        log: file that gets its output, over restarts.
        ready_seconds: how long a start may take, the check of the held-out split included.
        cancelled: asked while waiting for the start; true gives up.
    """

    def __init__(
        self,
        settings: GuardSettings,
        log: Path,
        *,
        ready_seconds: float,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._log = log
        self._ready_seconds = ready_seconds
        self._cancelled = cancelled
        self.restarts = 0
        self._last_answer = time.monotonic()
        self._read_token = settings.tokens().read
        self._client: httpx.Client | None = None
        self._listener = socket.create_server((settings.host, settings.port), backlog=BACKLOG)
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        if died := self._start():
            self.stop()
            raise GuardProcessLostError(f"{died}: see {self._log}")

    @property
    def session(self) -> int:
        """The session in which the guard and its evaluation worker run."""
        return self._popen.pid

    # -- asking ------------------------------------------------------------------------------------------

    def verdict(self) -> Verdict | None:
        """The verdict now, or None if the guard did not respond this time; starts a dead guard again.

        Raises:
            GuardProcessLostError: it died more often than it may.
        """
        if self._popen.poll() is not None:
            self._restart(f"the guard died ({_exit_words(self._popen.returncode)})")
        try:
            response = self._get("/v1/verdict")
        except httpx.HTTPError as error:
            if self._popen.poll() is None and time.monotonic() - self._last_answer > UNRESPONSIVE_SECONDS:
                self._end()
                self._restart(f"the guard gave no response for {UNRESPONSIVE_SECONDS:.0f} s ({error})")
            return None
        self._last_answer = time.monotonic()
        return Verdict.model_validate_json(response.content)

    def _get(self, path: str) -> httpx.Response:
        assert self._client is not None
        return self._client.get(path).raise_for_status()

    # -- life --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the guard: it finishes what it acknowledges, and closes its store."""
        self._listener.close()  # from the guard's end on a trainer that is left is refused at once
        self._end(signal.SIGTERM)

    def _start(self) -> str:
        """Start a guard and wait until it is ready.

        Returns:
            How it died before it was; "" if it is ready.

        Raises:
            CliError: it refused its settings.
            GuardProcessLostError: it lives, and did not become ready.
        """
        descriptor = self._listener.fileno()
        settings = self._settings.model_copy(update={"listen_fd": descriptor})
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RLGUARD_")}
        with self._log.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "guard_service"],
                env=inherited | to_environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[descriptor],
            )
        end = time.monotonic() + self._ready_seconds
        try:
            while not self._ready():
                if self._popen.poll() is not None:
                    return self._death()
                if self._cancelled():
                    raise GuardProcessLostError("interrupted while the guard was starting")
                if time.monotonic() > end:
                    raise GuardProcessLostError(
                        f"the guard was not ready after {self._ready_seconds:g} s: see {self._log}"
                    )
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._listener.close()
            self._end()
            raise
        self._last_answer = time.monotonic()
        return ""

    def _ready(self) -> bool:
        if self._client is None and not self._connect():
            return False
        assert self._client is not None
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/readyz").is_success
        return False

    def _connect(self) -> bool:
        try:
            endpoint = json.loads((self._settings.state_dir / "endpoint.json").read_text())
        except (OSError, ValueError):
            return False
        if endpoint["pid"] != self._popen.pid:  # of the guard before this one
            return False
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._read_token}"},
            timeout=REQUEST_SECONDS,
            trust_env=False,  # a proxy of the environment does not know this loopback port
        )
        return True

    def _restart(self, why: str) -> None:
        """Start another guard, and one more if that dies while it starts, as long as restarts are left."""
        while why:
            if self.restarts == MAX_RESTARTS:
                self.stop()
                raise GuardProcessLostError(f"{why}, after {MAX_RESTARTS} restarts: see {self._log}")
            self.restarts += 1
            self._end()
            why = self._start()

    def _end(self, number: int = signal.SIGKILL) -> None:
        """End the guard, then whatever is left of its session."""
        if self._client is not None:
            self._client.close()
            self._client = None
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.session, signal.SIGKILL)
        self._popen.wait()

    def _death(self) -> str:
        """How the guard died that was being started.

        Raises:
            CliError: it refused its settings, and so will the next.
        """
        code = self._popen.returncode
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line.removeprefix("rlguard guard: ") for line in lines if line.startswith("rlguard guard: ")]
        if code == REFUSED:
            raise CliError(told[-1] if told else f"see {self._log}")
        return f"the guard did not start ({_exit_words(code)})" + "".join(f": {said}" for said in told[-1:])


def _exit_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
