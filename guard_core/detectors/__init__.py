"""Detectors with a stated false-stop rate, beside `HeldOutGuard`. Pure: numpy, no I/O, no clock.

Import from here:
    Baseline.from_passes(array of shape (R, n), samples=1)
    CalibratedDetector(policy.calibrated, baseline).update(step, items, in_loop_reward, kl) -> DetectorStatus
    build_detector(name, policy, baseline) with a name of DETECTORS, for replay
This package needs numpy; `guard_core` itself does not import it.
"""

from guard_core.detectors.baseline import Baseline
from guard_core.detectors.calibrated import (
    PARTS,
    CalibratedDetector,
    DetectorStatus,
    evaluations_to_detect,
    split_alpha,
)
from guard_core.detectors.heldout import (
    DETECTORS,
    BothDetectors,
    Detector,
    HeldOutGuardDetector,
    build_detector,
)

__all__ = [
    "DETECTORS",
    "PARTS",
    "Baseline",
    "BothDetectors",
    "CalibratedDetector",
    "Detector",
    "DetectorStatus",
    "HeldOutGuardDetector",
    "build_detector",
    "evaluations_to_detect",
    "split_alpha",
]
