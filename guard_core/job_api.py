"""The API of a `GuardedTrainingJob` as far as its guard and the operator both speak it."""

from __future__ import annotations

GROUP = "rlguard.dev"
VERSION = "v1alpha1"
KIND = "GuardedTrainingJob"
PLURAL = "guardedtrainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"

#: Field manager of `status.guard`, which the guard alone applies.
GUARD_MANAGER = "rlguard-guard"

#: Conditions by which the operator says that the trainer has ended.
ENDS = ("Succeeded", "Failed", "Disrupted")
#: The reason with which the first of them is open: the guard, in a pod of its own, judges what is left.
GUARD_JUDGES = "GuardJudges"
