"""What the tests of this folder share: most of them replay a log with one and the same baseline."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from guard_core.detectors import fast
from guard_core.detectors.baseline import Strata
from guard_core.policy import CalibratedPolicy

_known: dict[bytes, tuple[float, float]] = {}


@pytest.fixture(autouse=True)
def thresholds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thresholds of one baseline, two seconds of simulation, are not simulated again for each replay."""
    simulate: Callable[..., tuple[float, float]] = fast.thresholds

    def thresholds(strata: Strata, config: CalibratedPolicy, alpha: float) -> tuple[float, float]:
        asked = pickle.dumps((strata, config.model_dump(), alpha))
        if asked not in _known:
            _known[asked] = simulate(strata, config, alpha)
        return _known[asked]

    monkeypatch.setattr(fast, "thresholds", thresholds)
