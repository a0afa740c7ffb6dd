"""The trainer as a tree of processes: started in a session of its own, and ended to the last descendant.

On Linux this process becomes a child subreaper, so that a grandchild which forked twice and left the process
group still comes back to it. Elsewhere such a one is out of reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import psutil

IS_LINUX = sys.platform == "linux"
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.05
#: How long SIGKILL may take to show. Longer is a process stuck in the kernel, which is reported.
KILL_SECONDS = 10.0


class TrainerProcess:
    """A running trainer. Only one may exist in this process: every new descendant counts as its own.

    Args:
        command: program and arguments; no shell.
        environment: all of it.
        log: file that gets its standard output and error. A file, so that a slow terminal never holds it up.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        _become_subreaper()
        self._strangers = descendants()
        self._guard_sessions: set[int] = set()
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process number, which is also its group and session."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Its exit code as a shell tells it (128+N after signal N), or None while it runs."""
        code = self._popen.poll()
        self._reap_orphans()
        return 128 - code if code is not None and code < 0 else code

    def leave_alone(self, session: int) -> None:
        """Processes of this session, and what they started, are not the trainer's: the guard runs there."""
        self._guard_sessions.add(session)

    def signal(self, number: int) -> None:
        """Send a signal to the process group and to every descendant outside it."""
        rest = self.rest()
        # A number stays taken while it is somebody's group; otherwise it may be a stranger's by now.
        if self._popen.returncode is None or any(_group(one) == self.pid for one in rest):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        for process in rest:
            if _group(process) != self.pid:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def stop(self, number: int, grace: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """Send `number`, wait up to `grace` seconds, then SIGKILL, until no descendant is left.

        Args:
            hurry: asked again and again; true ends the grace at once.

        Returns:
            Processes that even SIGKILL did not end; [] as a rule.
        """
        self.signal(number)
        end = time.monotonic() + grace
        while self._alive() and time.monotonic() < end and not hurry():
            time.sleep(POLL_SECONDS)
        end = time.monotonic() + KILL_SECONDS
        while self._alive() and time.monotonic() < end:
            self.signal(signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        return [one.pid for one in self.rest()] if self._alive() else []

    def rest(self) -> list[psutil.Process]:
        """The trainer and its descendants that still run, zombies left out."""
        return [one for one in descendants(self._guard_sessions) - self._strangers if not _is_zombie(one)]

    def _alive(self) -> bool:
        return self.poll() is None or bool(self.rest())

    def _reap_orphans(self) -> None:
        """Take the exit codes of descendants that came back to this process; nobody else will."""
        if not IS_LINUX:
            return  # not a subreaper: orphans go elsewhere
        others = {self.pid, *self._guard_sessions, *(one.pid for one in self._strangers)}
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in others:
                    break  # its owner asks for it
                os.waitpid(ended.si_pid, 0)


def descendants(without: Collection[int] = ()) -> set[psutil.Process]:
    """Every process below this one.

    Args:
        without: sessions that are left out with all that is below them, in whatever session: what evaluates
            for a guard has one of its own.
    """
    found = set(psutil.Process().children(recursive=True))
    for process in [one for one in found if _session(one) in without]:
        with contextlib.suppress(psutil.Error):
            found -= set(process.children(recursive=True))
        found.discard(process)
    return found


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return True


def _session(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


def _group(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None


def _become_subreaper() -> None:
    if IS_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
