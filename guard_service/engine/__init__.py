"""The engine: takes reports, stores them, folds them into the judge, runs evaluations, says the verdict.

Every event is stored, then folded, then acknowledged. A latch is on disk before it is announced. When the
store fails, nothing is acknowledged and the verdict reads `unknown` until the store works again; a fire or
halt that was announced stays in force.

`engine` puts the parts together: `ingest` takes what a trainer reports, `evaluations` has its checkpoints
scored, both over `ledger`, which keeps store and judge in step and owns all state; `recovery` makes a judge
of a store. `liveness` is what the store does not hold, `verdicts` what is said of it all.

One event loop owns all state here; only the store's calls run in a thread. It knows no HTTP.
"""

from guard_service.engine.engine import Engine
from guard_service.engine.recovery import Elsewhere, restored_judge

__all__ = ["Elsewhere", "Engine", "restored_judge"]
