"""Which files of a folder are the log of one run. Event files in several folders are never merged."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

from rlguard.follow.columns import is_reward, listing
from rlguard.follow.decoders import DamagedError, Record
from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import FRAMEWORKS
from rlguard.follow.safe_open import named, named_below, open_regular
from rlguard.follow.tail import CHUNK
from rlguard.follow.tensorboard import Events

#: Files of lines that a framework writes into its own folder, which may be given instead of them.
LOGS = tuple(dict.fromkeys(name for framework in FRAMEWORKS for name in framework.files))
EVENTS = "events.out.tfevents."
#: Of a file, that is read to find its first scalar.
MAX_CHUNKS = 64
#: Scalars of a file by which it is known what it holds: those of its first steps.
MAX_SCALARS = 20_000


def written(file: Path) -> int:
    """When a file was written, ns; 0 where there is none."""
    try:
        return os.lstat(file).st_mtime_ns
    except OSError:
        return 0


def event_files(path: Path, old: Collection[Path] = ()) -> list[Path]:
    """Event files of the folder itself, else of those folders below it that look most like a run.

    Those with a reward, else those with any scalar: `add_hparams` writes a folder of its own into that of the
    run, and each process of a trainer may make one. A folder below another one with event files is left out.

    Args:
        path: the folder.
        old: files that are left out.
    """
    here = [file for file in named(path, EVENTS) if file not in old]
    if here:
        return here
    files = [file for file in named_below(path, EVENTS) if file not in old]
    folders = {file.parent for file in files}
    files = [file for file in files if folders.isdisjoint(file.parent.parents)]
    if len({file.parent for file in files}) <= 1:
        return files
    likeness: dict[Path, int] = defaultdict(int)
    for file in files:
        likeness[file.parent] = max(likeness[file.parent], _likeness(file))
    most = max(likeness.values())
    return [file for file in files if likeness[file.parent] == most > 0]


def _likeness(file: Path) -> int:
    """2 for a file with a reward, 1 for one with any scalar, else 0."""
    tags = set(_tags(file))
    return 2 if any(map(is_reward, tags)) else int(bool(tags))


def require_one_folder(path: Path, files: Sequence[Path]) -> None:
    """Raise if these event files lie in several folders.

    Raises:
        InputError: naming the folders.
    """
    folders = sorted({file.parent for file in files})
    if len(folders) > 1:
        several = listing([str(folder.relative_to(path)) for folder in folders])
        raise InputError(f"{path} holds the event files of several runs: {several}. Name the folder of one.")


def preferred(events: Collection[Path], states: Collection[Path], *, ended: bool = False) -> tuple[bool, str]:
    """Whether event files are read where a folder has TRL's states, too; and what is left out, for people.

    A state has nothing after its checkpoint. Of a run that has ended it has the whole history, where event
    files in several folders may be of several runs. A follower that starts again reads what it has read
    before: the numbers in a state are not those of an event file to the last digit.

    Args:
        events: event files of a folder.
        states: its states.
        ended: nothing more is written.
    """
    if not (events and states):
        return bool(events), ""
    if ended and len({file.parent for file in events}) > 1:
        return False, "the event files, which lie in several folders, are not read: trainer_state.json is"
    return True, "trainer_state.json, which ends at its checkpoint, is not read: the event files are"


def _tags(path: Path) -> Iterator[str]:
    """Tags of the first scalars, each as often as it is there."""
    for record in islice(_scalars(path), MAX_SCALARS):
        yield from record.keys() - {"step"}


def _scalars(path: Path) -> Iterator[Record]:
    """The records at the beginning of a file, as far as they can be read."""
    events = Events()
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            for data in islice(iter(lambda: file.read(CHUNK), b""), MAX_CHUNKS):
                yield from events.feed(data)
    except (OSError, DamagedError, InputError):
        return
