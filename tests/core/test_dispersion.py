"""How much more evaluations vary than independent items explain, and what the detectors make of it."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from guard_core.detectors import Baseline, CalibratedDetector, fast
from guard_core.detectors.baseline import Outcomes, Strata
from guard_core.detectors.eprocess import Gathered, Reference
from guard_core.detectors.parts import EProcess, certainty
from guard_core.policy import CalibratedPolicy

CONFIG = CalibratedPolicy(bootstrap_runs=100, horizon=40)
N = 128


def passes(rng: np.random.Generator, family: int = 1, count: int = 16) -> np.ndarray:
    """Passes over alike items of which `family` at a time have the same fate, shape (count, N)."""
    return np.repeat(rng.random((count, N // family)) < 0.5, family, axis=1).astype(float)


def design(strata: Strata | None = None) -> fast.Design:
    strata = strata or Strata.from_scores(np.zeros(N, dtype=np.intp), np.array([0.5]), 16)
    return fast.Design.of(strata, CONFIG)


def shown(means: np.ndarray) -> float:
    return float(fast.dispersion(design(), means[None, None, :])[0, 0])


def test_passes_of_independent_items_show_none_and_families_do() -> None:
    rng = np.random.default_rng(0)
    alone = [Baseline.from_passes(passes(rng)).strata.dispersion for _ in range(100)]
    assert np.mean(np.array(alone) == 1.0) > 0.85, "a variance is more only where that is shown"
    for family in (2, 4):
        found = [Baseline.from_passes(passes(rng, family)).strata.dispersion for _ in range(100)]
        assert 0.75 * family < np.mean(found) < 1.25 * family


def test_copies_show_nothing() -> None:
    row = passes(np.random.default_rng(1))[0]
    strata = Baseline.from_passes([row] * 4).strata
    assert (strata.degrees, strata.dispersion) == (0, 1.0)
    strata = Baseline.from_passes(passes(np.random.default_rng(1), 4)).strata
    assert strata.dispersion > 1 and Strata.from_state(strata.to_state()).dispersion == strata.dispersion


def test_a_run_that_wobbles_shows_it_and_a_quiet_one_does_not() -> None:
    rng = np.random.default_rng(2)
    noise = float(np.sqrt(design().noise[0, 0]))
    quiet = [shown(0.5 + noise * rng.standard_normal(60)) for _ in range(200)]
    assert np.mean(np.array(quiet) == 1.0) > 0.75, "of the distances that are looked at, any counts"
    wobbling = [shown(0.5 + np.sqrt(1.5) * noise * rng.standard_normal(60)) for _ in range(200)]
    assert 1.15 < np.mean(wobbling) < 1.4, "1.5, where it is shown, up to the limit of 1.46"


def test_a_decline_does_not_hide_behind_itself() -> None:
    assert shown(np.linspace(0.9, 0.1, 40)) == 1.0, "a steady decline is no movement"
    steady = np.full(40, 0.5)
    assert fast.QUIET == 4
    assert shown(np.append(steady, [0.2, 0.8, 0.2, 0.8])) == 1.0 < shown(np.append(steady, [0.2, 0.8] * 3))
    assert shown(np.append(steady, [0.35] * 20)) == 1.0, "a fall adds a few bends among many"


def test_a_level_that_stays_where_it_went_shows_it() -> None:
    """Neighbours differ little there, and evaluations further apart by what the level moves."""
    rng = np.random.default_rng(2)
    noise = float(np.sqrt(design().noise[0, 0]))
    moved = 1.5 * np.repeat(rng.standard_normal((200, 15)), 4, axis=1)
    stays = 0.5 + noise * (moved + rng.standard_normal((200, 60)))
    far = np.mean([shown(run) > 1 for run in stays])
    with mock.patch.object(fast, "LAGS", (1,)):
        near = np.mean([shown(run) > 1 for run in stays])
    assert far > 0.9 > near + 0.1


def test_movement_counts_up_to_what_is_accepted() -> None:
    wild = 0.5 + 0.2 * (-1.0) ** np.arange(60)
    assert shown(wild) == pytest.approx(1 + CONFIG.max_decline**2 / float(design().noise[0, 0]))


def test_a_wobble_does_not_multiply_the_decline_that_is_accepted() -> None:
    """A plateau that zigzags by three points, of 1,024 items, and then loses twelve for good."""
    many = fast.Design.of(Strata.from_scores(np.zeros(1024, dtype=np.intp), np.array([0.5]), 16), CONFIG)
    history = fast.ScoreHistory.empty()
    for t in range(60):
        level = 0.6 + 0.03 * (-1) ** t - (0.12 if t >= 50 else 0.0)
        history = history.add(many, np.array([[level]]))
    _, plateau = fast.readings(many, history, many.accepted)
    assert fast.dispersion(many, history.means)[0, 0] > 4
    assert plateau[0, 0] > 15, "nats"


def test_what_the_passes_showed_holds_for_the_run() -> None:
    of_families = design(Baseline.from_passes(passes(np.random.default_rng(1), 4)).strata)
    steady = np.full((1, 1, 60), 0.5)
    assert fast.dispersion(of_families, steady) == of_families.dispersion > 1


def test_evidence_counts_for_as_much_less() -> None:
    rng = np.random.default_rng(3)
    baseline = Baseline.from_passes(passes(rng))
    process = EProcess(Reference.of(baseline, 0.05), 0.03)
    low = Outcomes.of((rng.random(N) < 0.3).astype(float))
    once, half = process.fold(low, 0.0, 1.0), process.fold(low, 0.0, 2.0)
    assert np.allclose(half.log_s, once.log_s / 2)
    gathered = Gathered.of(baseline)
    sure, unsure = (Reference.close(gathered, baseline, 0.05, phi) for phi in (1.0, 3.0))
    assert unsure.grid[-1] < sure.grid[-1], "candidates reach as much further"
    expected = gathered.log_evidence(unsure.grid, 0.05) / 3.0
    assert np.allclose(unsure.log_n[unsure.grid >= 0], expected[unsure.grid >= 0])


def test_thresholds_are_simulated_with_the_noise_of_the_passes() -> None:
    strata = Strata.from_scores(np.zeros(N, dtype=np.intp), np.array([0.5]), 16)
    noisier = replace(strata, spread=4.0, degrees=200)
    spreads = [np.diff(fast.null_runs(s, CONFIG), axis=0).var() for s in (strata, noisier)]
    assert spreads[1] / spreads[0] == pytest.approx(noisier.dispersion, rel=0.1) and noisier.dispersion > 3.5


def test_every_part_is_told_what_the_run_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    fold = EProcess.fold

    def recorded(self: EProcess, outcomes: Outcomes, log_weight: float, dispersion: float) -> EProcess:
        told.append(dispersion)
        return fold(self, outcomes, log_weight, dispersion)

    monkeypatch.setattr(EProcess, "fold", recorded)
    detector = CalibratedDetector(CONFIG, Baseline.from_passes(passes(np.random.default_rng(5))))
    for t in range(30):
        count = N // 2 + (16 if t % 2 else -16)
        detector.update(t, (np.arange(N) < count).astype(float), 0.5 + 0.01 * t + 0.001 * (t % 2))
    assert told[0] == 1.0 and len(told) > 60, "of `guaranteed`, `peak` and `gap`"
    most = 1 + CONFIG.max_decline**2 / float(design().noise[0, 0])
    assert told[-3:] == pytest.approx([most] * 3, rel=0.2)


def test_a_wobble_that_would_be_a_fall_of_a_quiet_run_is_none() -> None:
    """The last evaluations of both runs are the same: only what came before them differs."""
    rng = np.random.default_rng(4)
    fresh = CalibratedDetector(CONFIG, Baseline.from_passes(passes(rng))).to_state()
    statistics = []
    for swing in (0, 8):
        detector = CalibratedDetector.from_state(fresh)
        for t in range(30):
            count = N // 2 + (swing if t % 2 else -swing) if t < 26 else N // 2 - 12
            status = detector.update(t, (np.arange(N) < count).astype(float))
        statistics.append([r.statistic for r in status.readings if r.name in ("guaranteed", "fast")])
    assert all(wild < calm for calm, wild in zip(*statistics, strict=True))


def test_a_sentence_ends_with_a_chance_once_there_is_enough_evidence_and_with_a_share_before() -> None:
    assert certainty(3.509, 3.51) == "is not shown (99 % of the evidence for a stop)"
    assert (
        certainty(-np.inf, 3.51) == certainty(np.nan, 3.51) == "is not shown (0 % of the evidence for a stop)"
    )
    assert certainty(np.log(200), np.log(20)) == "is shown (chance alone does that in at most 1 of 200 runs)"
    assert certainty(1e9, 3.51) == "is shown (chance alone does that in at most 1 of 1,000,000 runs)"
