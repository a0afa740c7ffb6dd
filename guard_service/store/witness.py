"""Two small files beside the store that say what it must hold, so that a loss is noticed.

`guard.head`   how many events were acknowledged, and the digest of their chain. It is written over in place
               after each transaction and not flushed: what ends the process does not lose it. After a power
               failure it may be behind, never ahead.
`guard.latch`  every latch that has closed. It is on disk before the store has the latch, so a latch that is
               in either of them is one.

Each ends in a digest of its own content. A file that is not there says nothing; a damaged one is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from guard_core.judge import Latch
from guard_service.errors import StoreError, damaged

HEAD_NAME = "guard.head"
LATCH_NAME = "guard.latch"


@dataclass(frozen=True, slots=True)
class Head:
    """What was acknowledged: the number of the newest event, and the digest of the chain up to it."""

    seq: int
    digest: str

    def encoded(self) -> bytes:
        """Always of one length, so that it is written over in place."""
        return _signed(f"{self.seq:020} {self.digest}")


class HeadFile:
    """`guard.head` for writing. It stays open: a network file system flushes whatever is closed."""

    def __init__(self, state_dir: Path, head: Head) -> None:
        """Open it and remember what was acknowledged; only a new file is flushed."""
        path = state_dir / HEAD_NAME
        if not path.exists():
            replace(path, head.encoded())
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self.write(head)

    def write(self, head: Head) -> None:
        """Remember what was acknowledged."""
        os.pwrite(self._file, head.encoded(), 0)

    def close(self) -> None:
        """Close it. If that flushes and fails, the file may be behind, as after a power failure."""
        with suppress(OSError):
            os.close(self._file)


def read_head(state_dir: Path) -> Head | None:
    """What was acknowledged; None if nobody has noted it.

    Raises:
        StoreCorruptError: the file is damaged.
    """
    path = state_dir / HEAD_NAME
    text = _read(path)
    if text is None:
        return None
    seq, digest = text.split()
    return Head(int(seq), digest)


def read_latches(state_dir: Path) -> tuple[Latch, ...]:
    """The latches that have closed, as far as this file knows.

    Raises:
        StoreCorruptError: the file is damaged.
    """
    text = _read(state_dir / LATCH_NAME)
    return () if text is None else tuple(Latch(**latch) for latch in json.loads(text))


def write_latches(state_dir: Path, latches: Sequence[Latch]) -> None:
    """Keep these latches; they are on disk when this returns."""
    replace(state_dir / LATCH_NAME, _signed(json.dumps([asdict(latch) for latch in latches])))


def replace(path: Path, content: bytes) -> None:
    """Give a file new content in one step: a crash leaves the former or the new one, whole and flushed."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush the names in a directory."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _signed(text: str) -> bytes:
    return f"{text} {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}\n".encode()


def _read(path: Path) -> str | None:
    """The text of a file, without its digest; None if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    text = content.decode(errors="replace").rpartition(" ")[0]
    if content != _signed(text):
        raise damaged(path, "its digest does not fit")
    return text
