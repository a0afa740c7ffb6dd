"""What a trainer wrote, opened and listed without being led elsewhere, and never for long.

No link is followed where a name ends, nothing but a regular file is read, nothing is waited for, and of a
tree only so many entries are looked at.

A process that may read what the trainer may not, such as one in a guard's container, confines itself first:
from then on nothing outside one folder is opened, whatever links lie on the way. The kernel says where an
open file is, so nobody can exchange it between the check and the use.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rlguard.follow.errors import InputError

#: Entries of one folder, or of one tree, that are looked at.
MAX_ENTRIES = 10_000

_root: Path | None = None


def restrict_to(root: Path) -> None:
    """Let this process open nothing of a trainer's outside `root`, for as long as it runs."""
    global _root  # noqa: PLW0603  # it is the process that is confined, not a call: nothing can forget it
    _root = Path(os.path.realpath(root))


def open_regular(path: Path) -> int:
    """A descriptor of a regular file; never waits, and follows no link.

    Raises:
        FileNotFoundError: there is none yet.
        InputError: it is something else, or lies outside.
        OSError: it cannot be opened.
    """
    try:
        handle = _open(path, os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{path} is a symbolic link: name the file that it leads to.") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputError(f"{path} is not a regular file.")
    return handle


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, up to MAX_ENTRIES, by their names. Nothing where it cannot be read."""
    try:
        handle = _open(folder, os.O_DIRECTORY)
    except (OSError, InputError):
        return
    try:
        with os.scandir(handle) as found:
            for _, entry in zip(range(MAX_ENTRIES), found, strict=False):
                yield entry
    except OSError:
        return  # it goes while it is looked at
    finally:
        os.close(handle)


def named(folder: Path, prefix: str) -> list[Path]:
    """What in a folder begins with this, sorted."""
    return sorted(folder / entry.name for entry in entries(folder) if entry.name.startswith(prefix))


def named_below(folder: Path, prefix: str) -> list[Path]:
    """What in a folder, or below it, begins with this and is no folder; of MAX_ENTRIES, the nearest ones."""
    found, waiting, left = [], deque([folder]), MAX_ENTRIES
    while waiting and left > 0:
        here = waiting.popleft()
        for entry in entries(here):
            left -= 1
            if entry.is_dir(follow_symlinks=False):
                waiting.append(here / entry.name)
            elif entry.name.startswith(prefix):
                found.append(here / entry.name)
    return found


def _open(path: Path, flags: int) -> int:
    """A descriptor of what lies there, for reading.

    Raises:
        InputError: it lies outside.
        OSError: it cannot be opened.
    """
    # A folder that a user names may be a link; below that, folders are found by what is no link.
    flags |= os.O_RDONLY | os.O_CLOEXEC | (0 if flags & os.O_DIRECTORY and _root is None else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    if _root is not None and not _place(handle).is_relative_to(_root):
        os.close(handle)
        raise InputError(f"{path} leads out of {_root}: what lies there is not read.")
    return handle


def _place(handle: int) -> Path:
    """Where the kernel has what is open; / where it does not say, which is outside."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except OSError:
        return Path("/")
