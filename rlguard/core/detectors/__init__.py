"""The calibrated detector: one statistic for every question, beside `HeldOutGuard`. Pure: no I/O, no clock.

Import from here:
    Baseline.from_passes(array of shape (R, n), samples=1)
    CalibratedDetector(policy.calibrated, baseline).update(step, items, in_loop_reward) -> DetectorStatus
This package needs numpy; `rlguard.core` itself does not import it.
"""

from rlguard.core.detectors.baseline import Baseline
from rlguard.core.detectors.calibrated import CalibratedDetector, DetectorStatus

__all__ = ["Baseline", "CalibratedDetector", "DetectorStatus"]
