"""The guard's store: an append-only SQLite log of everything that was reported, evaluated and decided.

Schema 6, `application_id` "RLGD", version in `user_version`; another schema is refused:

    meta       policy, split digest and evaluation of the run: a changed one is another run and is refused;
               the last step that the trainer said it made, and the evaluation that was begun last
    events     every event in the order in which it was folded; triggers refuse UPDATE and DELETE. `pass` is
               above 0 for the further evaluations of one checkpoint, and for a refusal after it was taken
    outcomes   per-item outcomes of an evaluation, and what the training grader gave. They stay here and in
               `export_history` (invariant 8)
    snapshot   the judge's state after event `seq`, so that a restart replays only the tail
    head       the digest of all of this (`chain`), written in every transaction

`events` appends (`Store`) to what `history` reads, in the file that `database` opens and seals; `terms` says
what makes it another run, `records` what a row means. A latch is kept a second time (`witness`).

What people alone are shown, rollouts and further figures of the training, is in files of its own (`shown`):
it is no evidence.

A `Store` is used from one thread at a time and knows neither the network nor the judge.
"""

from guard_service.store.database import FILE_NAME, SCHEMA_VERSION, lost, open_ended
from guard_service.store.events import Store
from guard_service.store.history import BEFORE_ALL, STAYS_HERE, export_history, thinned_history
from guard_service.store.records import Appended, Begun, Conflict, Failure, RefusedCheckpoint, StoredEvent
from guard_service.store.shown import FIGURES, ROLLOUTS
from guard_service.store.terms import stored_policy

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
    "Failure",
    "RefusedCheckpoint",
    "Store",
    "StoredEvent",
    "export_history",
    "lost",
    "open_ended",
    "stored_policy",
    "thinned_history",
]
