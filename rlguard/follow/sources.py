"""Where a trainer writes its metrics: a file, or a folder. Gives what is new."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from rlguard.core.frameworks import FILE_FORMATS, FORMATS
from rlguard.core.wording import meant
from rlguard.follow.columns import listing
from rlguard.follow.consoles import ConsoleLines
from rlguard.follow.decoders import (
    AGAIN,
    BOUNDARY,
    CsvLines,
    DamagedError,
    Decoder,
    JsonLines,
    Record,
    flatten,
)
from rlguard.follow.errors import InputError
from rlguard.follow.event_files import (
    EVENTS,
    LOGS,
    event_files,
    preferred,
    require_one_folder,
    written,
)
from rlguard.follow.preexisting import PreexistingFiles
from rlguard.follow.safe_open import named
from rlguard.follow.tail import REMEMBERED, Tail
from rlguard.follow.tensorboard import Events
from rlguard.follow.trainer_state import rows_of, states, without

#: Seconds between two looks for another folder.
LOOK_SECONDS = 10.0


class Source:
    """A log that grows. `note`: what the user should know of it, or ""."""

    note = ""

    @property
    def bad(self) -> int:
        """How many lines or records could not be read."""
        return 0

    def poll(self) -> Iterator[Record]:
        """The records that are new. Never waits.

        Raises:
            InputError: the log cannot be read on.
        """
        raise NotImplementedError

    def rest(self) -> list[Record]:
        """At the end of the log, the record that lacks only its line end."""
        return []


def framework_of(chosen: str) -> str | None:
    """The framework that a `--format` names, or None.

    Raises:
        InputError: there is no such format.
    """
    if chosen not in FORMATS:
        raise InputError(f"--format {chosen:.60}: {meant(chosen, FORMATS)}")
    return None if chosen in FILE_FORMATS else chosen


def decoder_of(path: Path, chosen: str = "auto") -> type[Decoder]:
    """What reads it: as its name says, else as `chosen` does."""
    suffix = path.suffix.lower()
    if EVENTS.rstrip(".") in path.name or chosen == "tensorboard":
        return Events
    if suffix == ".csv" or chosen == "csv":
        return CsvLines
    if suffix in (".jsonl", ".ndjson") or chosen == "jsonl":
        return JsonLines
    return ConsoleLines


class _DamagedFileError(InputError):
    """What follows in a file cannot be found again."""


class FileSource(Source):
    """One file that grows, is cut, or is replaced. `begins` is given where it begins."""

    def __init__(
        self,
        path: Path,
        decoder: Callable[[], Decoder],
        before: PreexistingFiles | None = None,
        begins: Record = AGAIN,
    ) -> None:
        self._tail = Tail(path, None if before is None else before.logs.get(str(path)))
        self._decoder, self._begins = decoder(), begins
        if isinstance(self._decoder, CsvLines):  # what is appended has the header of what is left out
            self._decoder.feed(self._tail.left_out())
        self._head = b""  # with what the file began that was read last
        self._bad = 0

    @property
    def bad(self) -> int:
        """See `Source`."""
        return self._bad + self._decoder.bad

    def poll(self) -> Iterator[Record]:
        """See `Source`."""
        for anew, data in self._tail.read():
            if anew:
                yield self._beginning(data)
                decoder = self._decoder.anew()
                self._bad, self._decoder = self.bad, decoder
            self._head = ((b"" if anew else self._head) + data[:REMEMBERED])[:REMEMBERED]
            try:
                yield from self._decoder.feed(data)
            except DamagedError as error:
                raise _DamagedFileError(f"{self._tail.path}: {error}.") from None

    def _beginning(self, data: bytes) -> Record:
        """What a file is that begins with this: one that was rewritten as a whole begins as it did before."""
        head = self._head[: len(data)]
        return self._begins if not head else AGAIN if data.startswith(head) else BOUNDARY

    def rest(self) -> list[Record]:
        """See `Source`."""
        self._tail.close()
        return self._decoder.rest()


class LogSource(Source):
    """A file or a folder, which need not exist yet: its kind is known when something comes.

    Args:
        path: where it is, or will be.
        chosen: from `--format`.
        before: of another run, and left out; None: nothing is.
        first: nothing of the run has been reported yet, so event files must lie in one folder.

    Raises:
        InputError: it holds several runs, or can be no log.
    """

    def __init__(
        self, path: Path, chosen: str, before: PreexistingFiles | None = None, *, first: bool = True
    ) -> None:
        self._path, self._chosen, self._first = path, chosen, first
        self._before = before or PreexistingFiles()
        self._source = self._find()

    @property
    def bad(self) -> int:
        """See `Source`."""
        return 0 if self._source is None else self._source.bad

    def _find(self) -> Source | None:
        """The log, once there is one."""
        path = self._path
        if not path.is_dir():
            return FileSource(path, decoder_of(path, self._chosen), self._before) if path.exists() else None
        logs = [path / name for name in LOGS if (path / name).is_file()]
        if len(logs) > 1:
            several = listing([log.name for log in logs])
            raise InputError(f"{path} holds several logs: {several}. Name one of them.")
        if logs and self._chosen != "tensorboard":
            return FileSource(logs[0], JsonLines, self._before)
        old = set(map(Path, self._before.files))
        events = event_files(path, old)
        saved = [state for state in states(path) if not self._before.has(state)]
        from_events, note = preferred(events, saved)
        note = f"{path}: {note}" if note else ""
        if from_events:
            if self._first:
                require_one_folder(path, events)
            return EventSource(path, old, note)
        return StateSource(path, self._before.rows, note) if saved else None

    def poll(self) -> Iterator[Record]:
        """See `Source`."""
        if self._source is None:
            self._source = self._find()
        if self._source is not None:
            yield from self._source.poll()
            self.note = self._source.note

    def rest(self) -> list[Record]:
        """See `Source`."""
        return [] if self._source is None else self._source.rest()


class EventSource(Source):
    """The event files of one run: a trainer that starts again begins another file, or another folder.

    Once another folder has some, those of the folder before it are read no more. `old` files are left out.
    """

    def __init__(self, root: Path, old: Collection[Path], note: str = "") -> None:
        self.note = note
        self._root, self._old = root, old
        self._folder: Path | None = None
        self._looked = -math.inf
        self._files: dict[Path, FileSource] = {}
        self._damaged: set[Path] = set()

    @property
    def bad(self) -> int:
        """See `Source`."""
        return sum(file.bad for file in self._files.values()) + len(self._damaged)

    def poll(self) -> Iterator[Record]:
        """See `Source`."""
        if self._folder is not None:
            yield from self._read(self._folder)
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            yield from self._look()

    def rest(self) -> list[Record]:
        """What a folder has that came last; of a record that is not whole there are no values."""
        records = list(self._look())
        for file in self._files.values():
            file.rest()
        return records

    def _look(self) -> Iterator[Record]:
        """The records of folders that are new, the oldest first, by the time in the names of their files."""
        self._looked = time.monotonic()
        read = {path.parent for path in self._files}
        new = [file for file in event_files(self._root, self._old) if file.parent not in read]
        for folder in dict.fromkeys(file.parent for file in sorted(new, key=lambda file: file.name)):
            if self._folder is not None:
                self.note = (
                    f"{folder} has event files beside {self._folder}: they are read as another start of the "
                    "trainer. If they are of another run, name the folder of one"
                )
            self._folder = folder
            yield from self._read(folder)

    def _read(self, folder: Path) -> Iterator[Record]:
        files = [path for path in named(folder, EVENTS) if path not in self._old]
        for path in files:
            if path not in self._files:
                self._files[path] = FileSource(path, Events, begins=BOUNDARY)
        for path in files:
            if path in self._damaged:
                continue
            try:
                yield from self._files[path].poll()
            except _DamagedFileError as error:
                self._damaged.add(path)
                if self._damaged.issuperset(self._files):
                    raise
                self.note = f"{error} No more of it is read; the other event files are"


class StateSource(Source):
    """TRL's trainer_state.json, which comes with each checkpoint and holds the log from its beginning.

    `old`: see `PreexistingFiles.rows`.
    """

    def __init__(self, folder: Path, old: Collection[str], note: str = "") -> None:
        self.note = note
        self._folder, self._old = folder, old
        self._read: tuple[str, int] | None = None

    def poll(self) -> Iterator[Record]:
        """The whole log, if there is a new one; what has been reported is known to the guard."""
        files = sorted(states(self._folder), key=written)
        if not files or (now := (str(files[-1]), written(files[-1]))) == self._read:
            return
        rows = rows_of(files[-1])
        if rows is None:
            return  # it is being written: the next look finds it whole
        self._read = now
        yield AGAIN
        yield from map(flatten, without(rows, self._old))
