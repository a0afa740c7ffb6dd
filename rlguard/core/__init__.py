"""The decisions of RLGuard: HeldOutGuard, the judge, and what travels on the wire.

Pure: no clock, no I/O, no threads; nothing here imports another package of the project.
"""

from rlguard.core._version import __version__
from rlguard.core.heldout_guard import (
    CollapseStopError,
    HeldOutGuard,
    TripwireStatus,
    kl_token_trust_filter,
)

__all__ = [
    "CollapseStopError",
    "HeldOutGuard",
    "TripwireStatus",
    "__version__",
    "kl_token_trust_filter",
]
