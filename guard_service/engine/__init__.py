"""The engine: takes reports, appends them to the log, folds them, runs evaluations, says the verdict.

Every event is appended with the fire or halt that it closes, in one transaction; then it is acknowledged.
When the log cannot be written, nothing is acknowledged and the verdict reads `unknown` until it can again; a
fire or halt that was announced stays in force.

`engine` puts the parts together: `ingest` takes what a trainer reports, `evaluations` has its checkpoints
scored, both over `ledger`, which owns log and judge; `fold` says how the one becomes the other. `liveness` is
what the log does not hold, `verdicts` what is said of it all. `adoption` hands a run over from one guard to
the next, `outcomes` takes evaluations from outside, `termination` is what an ended guard leaves behind.

One event loop owns all state here; only the log's calls run in a thread. It knows no HTTP.
"""

from guard_service.engine.adoption import Adoption, RunState
from guard_service.engine.engine import Engine
from guard_service.engine.fold import restored_judge

__all__ = ["Adoption", "Engine", "RunState", "restored_judge"]
