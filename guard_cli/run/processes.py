"""The trainer as a tree of processes: started in a session of its own, and ended to the last descendant.

On Linux this process becomes a child subreaper, so that a grandchild which forked twice and left the process
group still comes back to it and is found in `/proc`. Elsewhere only the process group is reached.
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
from dataclasses import dataclass
from pathlib import Path

HAS_PROC = Path("/proc/self/stat").exists()
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.05
#: How long SIGKILL may take to show. Longer is a process stuck in the kernel, which is reported.
KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One line of `/proc`. `started` tells a process from a later one with the same number."""

    pid: int
    parent: int
    session: int
    state: str
    started: int


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
        self._strangers = {(p.pid, p.started) for p in descendants(os.getpid())}
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
        if self._popen.returncode is None or not HAS_PROC or any(_group(p.pid) == self.pid for p in rest):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        for process in rest:
            if _group(process.pid) != self.pid:
                _send(process, number)

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
        return [p.pid for p in self.rest()] if self._alive() else []

    def rest(self) -> list[Process]:
        """The trainer and its descendants that still run, zombies left out."""
        return [
            p
            for p in descendants(os.getpid(), self._guard_sessions)
            if (p.pid, p.started) not in self._strangers and p.state not in "ZX"
        ]

    def _alive(self) -> bool:
        if self.poll() is None:
            return True
        return bool(self.rest()) if HAS_PROC else _group_exists(self.pid)

    def _reap_orphans(self) -> None:
        """Take the exit codes of descendants that came back to this process; nobody else will."""
        if not HAS_PROC:
            return  # not a subreaper: orphans go elsewhere
        others = {self.pid, *self._guard_sessions, *(pid for pid, _ in self._strangers)}
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in others:
                    break  # its owner asks for it
                os.waitpid(ended.si_pid, 0)


def descendants(root: int, without: Collection[int] = ()) -> list[Process]:
    """Every process below `root`, parents first; [] where there is no `/proc`.

    Args:
        root: its number.
        without: sessions that are left out with all that is below them, in whatever session: what evaluates
            for a guard has one of its own.
    """
    children: dict[int, list[Process]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [root]
    while parents:
        below = [p for p in children.pop(parents.pop(), []) if p.session not in without]
        found += below
        parents += [p.pid for p in below]
    return found


def _processes() -> list[Process]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended in the meantime
            found.append(_read(int(entry.name)))
    return found


def _read(pid: int) -> Process:
    # The second field is the program's name in brackets, and may hold spaces and brackets itself.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def _send(process: Process, number: int) -> None:
    """Signal exactly this process: through a handle, so that a reused number is never hit."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if _read(process.pid).started == process.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
