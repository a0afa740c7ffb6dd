"""The guard's log: one append-only SQLite table of everything that can change a verdict. It is the state.

A guard appends an event, folds it and responds; one that starts again folds the log. A fire is an event of
its own, appended in the transaction of its cause, and stored nowhere else. A few notes (`NoteKind`) stand
among the events and are not folded: with another policy, or another held-out split, it is another run, which
is refused.

`log` appends to what `history` reads, in the file that `database` opens, locks and checks; `records` says
what a row means. Another schema version is refused.

What people alone are shown, rollouts and further figures of the training, is in files of its own (`shown`):
it is no evidence.
"""

from guard_service.store.database import FILE_NAME, SCHEMA_VERSION, open_ended
from guard_service.store.history import BEFORE_ALL, STAYS_HERE, export_history, thinned_history
from guard_service.store.log import EventLog, stored_policy
from guard_service.store.records import (
    Appended,
    Begun,
    Conflict,
    Failure,
    Note,
    NoteKind,
    RefusedCheckpoint,
    StepRun,
    StoredEvent,
)
from guard_service.store.shown import FIGURES, ROLLOUTS

__all__ = [
    "BEFORE_ALL",
    "FIGURES",
    "FILE_NAME",
    "ROLLOUTS",
    "SCHEMA_VERSION",
    "STAYS_HERE",
    "Appended",
    "Begun",
    "Conflict",
    "EventLog",
    "Failure",
    "Note",
    "NoteKind",
    "RefusedCheckpoint",
    "StepRun",
    "StoredEvent",
    "export_history",
    "open_ended",
    "stored_policy",
    "thinned_history",
]
