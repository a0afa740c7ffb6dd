"""The API of a `GuardedTrainingJob` as far as its guard and the operator both speak it."""

from __future__ import annotations

GROUP = "rlguard.dev"
VERSION = "v1alpha1"
KIND = "GuardedTrainingJob"
PLURAL = "guardedtrainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"

#: Field manager of `status.guard`, which the guard alone applies.
GUARD_MANAGER = "rlguard-guard"
