"""Reads a file that somebody else writes: from where it was left, also after it was cut or replaced.

The file is hostile: only a regular file is read, never through a link, and never more than a chunk at once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from rlguard.follow.errors import InputError
from rlguard.follow.safe_open import open_regular

CHUNK = 1 << 20
#: Bytes before the place reached that must still be there; else the file is another one.
REMEMBERED = 256


class Mark(NamedTuple):
    """How far a file went: `size` in bytes, and a digest of what stands right before it."""

    size: int
    last: str


def mark_of(path: Path) -> Mark | None:
    """How far a file goes now; None where there is none that can be read."""
    try:
        handle = open_regular(path)
    except (OSError, InputError):
        return None
    try:
        return _mark(handle, os.fstat(handle).st_size)
    finally:
        os.close(handle)


def _mark(handle: int, size: int) -> Mark:
    start = max(0, size - REMEMBERED)
    return Mark(size, sha256(os.pread(handle, size - start, start)).hexdigest())


class Tail:
    """One file, by its name.

    A name that leads to another file, a file that is shorter than it was, and one that no longer holds what
    was read last begin anew; what a renamed file still held is read first. While the other file is empty the
    renamed one is read on: whoever has it open may write there for ever.

    Args:
        path: of the file, which need not exist yet.
        before: how far it went before; what is up to there is left out, if it still stands there.
    """

    def __init__(self, path: Path, before: Mark | None = None) -> None:
        self.path = path
        self._file: int | None = None
        self._offset = 0
        self._last = b""
        self._anew = True  # what is read next is the beginning of a file
        if self._opened() and before is not None and _mark(self._fd, before.size) == before:
            self._anew = False
            self._offset = before.size
            start = max(0, before.size - REMEMBERED)
            self._last = os.pread(self._fd, before.size - start, start)

    def left_out(self) -> bytes:
        """PreexistingFiles anything is read: the first line of what is left out, b"" where nothing is."""
        if self._anew:
            return b""
        first, end, _ = os.pread(self._fd, min(self._offset, CHUNK), 0).partition(b"\n")
        return first + end

    def read(self) -> Iterator[tuple[bool, bytes]]:
        """What is new, in chunks; True beside the first chunk of a file that begins anew.

        Raises:
            InputError: it is no regular file, or cannot be read.
        """
        try:
            yield from self._read()
        except OSError as error:
            raise self._unreadable(error) from None

    def close(self) -> None:
        """Give up the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def _fd(self) -> int:
        assert self._file is not None
        return self._file

    def _read(self) -> Iterator[tuple[bool, bytes]]:
        if self._file is None:
            if self._open():
                yield from self._chunks()
            return
        yield from self._chunks()
        if self._is_replaced():
            self.close()
            self._offset, self._last, self._anew = 0, b"", True
            if self._open():
                yield from self._chunks()

    def _chunks(self) -> Iterator[tuple[bool, bytes]]:
        if not self._continues():
            self._offset, self._last, self._anew = 0, b"", True
        while data := os.pread(self._fd, CHUNK, self._offset):
            anew, self._anew = self._anew, False
            self._offset += len(data)
            self._last = (self._last + data)[-REMEMBERED:]
            yield anew, data

    def _continues(self) -> bool:
        """Whether what was read last still stands there."""
        start = self._offset - len(self._last)
        return os.pread(self._fd, len(self._last), start) == self._last if self._last else True

    def _is_replaced(self) -> bool:
        try:
            now = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False  # being renamed: the next one comes
        if stat.S_ISREG(now.st_mode) and now.st_size == 0:
            return False
        here = os.fstat(self._fd)
        return (now.st_dev, now.st_ino) != (here.st_dev, here.st_ino)

    def _opened(self) -> bool:
        """Open it if it is there, before anything of it is read."""
        try:
            return self._open()
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: cannot be read: {error.strerror or error}.")

    def _open(self) -> bool:
        """Open it if it is there."""
        try:
            self._file = open_regular(self.path)
        except FileNotFoundError:
            return False
        return True
