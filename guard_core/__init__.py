"""The class by its first name, for those who import it so. Everything else is in `rlguard`."""

from rlguard.core import CollapseStopError, HeldOutGuard, TripwireStatus

__all__ = ["CollapseStopError", "HeldOutGuard", "TripwireStatus"]
