"""The first line of a replay: what would have happened, or why that cannot be said and what to do. Pure."""

from __future__ import annotations

from statistics import fmean

from rlguard.cli.replay.outcomes import DetectorOutcome, baseline_of
from rlguard.cli.replay.run import Run
from rlguard.core.codes import Level
from rlguard.follow.columns import heldout_candidates


def headline(run: Run, outcome: DetectorOutcome) -> str:
    """One line, of about 100 characters, that says what came of the run."""
    if outcome.fired:
        attempt = f" of attempt {outcome.attempt}" if run.attempts > 1 else ""
        return f"would have stopped at step {outcome.step}{attempt}: {outcome.reason}"
    if not run.evaluations:
        return _without_heldout(run)
    if outcome.level is Level.UNKNOWN:
        return f"cannot judge: {outcome.inert[0] if outcome.inert else outcome.reason}"
    if outcome.level is Level.WARNING:
        return f"would not have stopped, with a warning: {outcome.reason}"
    first, last = _start(run), run.evaluations[-1].score
    scores = f"held-out {last:.2f} ({first:.2f} at the start), {len(run.evaluations)} evaluations"
    return f"would not have stopped: {scores}"


def _without_heldout(run: Run) -> str:
    near = heldout_candidates(run.names)
    if not near:
        return (
            "cannot judge: no held-out column. Score the checkpoints on items that nobody trains on, and log "
            "the mean; or let `rlguard run` do it"
        )
    return f"cannot judge: no held-out column; found `{near[0]}`, try --map heldout={near[0]}"


def _start(run: Run) -> float:
    """The score of the starting policy: of its passes, else of the first evaluation."""
    passes = baseline_of(run)
    return fmean(map(fmean, passes)) if passes else run.evaluations[0].score
