"""Which files of a folder are the log of one run. Event files of several runs are never merged."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path

from guard_follow.beneath import named, named_below, open_regular
from guard_follow.errors import InputError
from guard_follow.names import is_judged, is_reward, listing
from guard_follow.records import DamagedError, Events, Record
from guard_follow.tail import CHUNK

#: Files that a framework writes into its own folder, which may be given instead of them.
LOGS = ("experiment_log.jsonl", "logging.jsonl", "metrics.jsonl")
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
    """Event files of the folder itself, else of those below it.

    A folder below another one with event files is left out, and one without a scalar where others have some:
    `add_hparams` writes such a folder into that of the run. So is one without the reward where another has
    it: slime has several processes that log, and each of them may make a folder.

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
    if len({file.parent for file in files}) > 1:
        files = [file for file in files if first_step(file) is not None]
    if len({file.parent for file in files}) > 1:
        with_reward = {file.parent for file in files if _has_reward(file)}
        files = [file for file in files if file.parent in with_reward or not with_reward]
    return files


def _has_reward(file: Path) -> bool:
    return any(map(is_reward, _tags(file)))


def one_folder(path: Path, files: Sequence[Path]) -> Path | None:
    """The folder of these event files, None without any.

    Raises:
        InputError: there are several, so they are of several runs.
    """
    folders = sorted({file.parent for file in files})
    if len(folders) > 1:
        several = listing([str(folder.relative_to(path)) for folder in folders])
        raise InputError(f"{path} holds the event files of several runs: {several}. Name the folder of one.")
    return folders[0] if folders else None


def preferred(events: Collection[Path], states: Collection[Path], *, ended: bool = False) -> tuple[bool, str]:
    """Whether event files are read where a folder has TRL's states, too; and what is left out, for people.

    A state has nothing after its checkpoint. Of a run that has ended it has the whole history, where event
    files of several starts, each in a folder of its own, may be of several runs. A follower that starts again
    reads what it has read before: the numbers in a state are not those of an event file to the last digit.

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


def refuse_several(folder: Path) -> None:
    """Raise if the event files of one folder are of several runs.

    A trainer that goes on from a checkpoint begins after the first step; several may go on from the same one.
    Several processes of one run may log, but not the same.

    Raises:
        InputError: naming the files.
    """
    begun = {file: step for file in named(folder, EVENTS) if (step := first_step(file)) is not None}
    start = min(begun.values(), default=None)
    at_the_start = [path for path, first in begun.items() if first == start]
    told = {path: _told_by(path) for path in at_the_start} if len(at_the_start) > 1 else {}
    for one, other in combinations(told, 2):
        if not told[one].isdisjoint(told[other]):
            raise InputError(
                f"{folder} holds the event files of several runs: {one.name} and {other.name} both "
                "begin at the start. Name the file of one, or give each run a folder of its own."
            )


def _told_by(path: Path) -> set[str]:
    """What tells two runs apart from two processes of one: what is judged, or all where nothing is known."""
    tags = set(_tags(path))
    return set(filter(is_judged, tags)) or tags


def first_step(path: Path) -> int | None:
    """The first step with a scalar; None without any, and of a file that is refused when it is read."""
    return next((int(record["step"]) for record in _scalars(path)), None)


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
