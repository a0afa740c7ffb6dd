"""Prometheus metrics of the guard. No per-item data (invariant 8), and no sample for what is not known:
a missing value is absent from the page, never 0 (invariant 2).

`docs/reference/metrics.md` is generated from what `render` writes for a run in which everything is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from guard_core.codes import Code, Level
from guard_core.wire import Verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_EVALUATION_BUCKETS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)


class ObservedFollowing(Protocol):
    """What the page tells of a log that is followed."""

    @property
    def trouble(self) -> str:
        """Why nothing is read; "" if it is."""

    @property
    def bad(self) -> int:
        """Lines, records and values that could not be read."""


class ObservedRun(Protocol):
    """What the page tells of a run."""

    @property
    def verdict(self) -> Verdict:
        """The verdict as it stands."""

    @property
    def store_works(self) -> bool:
        """Whether the store can be read and written."""

    @property
    def store_bytes(self) -> int | None:
        """Size of the store; None if it cannot be used now."""

    @property
    def store_full(self) -> bool | None:
        """Whether the store takes no further steps; None if it cannot be used now."""

    @property
    def queue_length(self) -> int:
        """Checkpoints that wait for their evaluation."""

    @property
    def following(self) -> ObservedFollowing | None:
        """The follower's health; None where nothing is followed."""

    @property
    def silent_for(self) -> float:
        """Seconds since the last sign of the trainer."""


class GuardMetrics:
    """What is counted as it happens; everything else is read from the engine when Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.duplicate_steps = Counter(
            "rlguard_guard_duplicate_steps",
            "Steps that were reported again with the same values since the guard started.",
            registry=self.registry,
        )
        self.conflicts = Counter(
            "rlguard_guard_conflicting_requests",
            "Requests refused because they contradict what is on disk, since the guard started.",
            registry=self.registry,
        )
        self.store_errors = Counter(
            "rlguard_guard_store_errors",
            "Failed calls of the store since the guard started.",
            registry=self.registry,
        )
        self.evaluation_failures = Counter(
            "rlguard_guard_evaluation_failures",
            "Checkpoints given up because their evaluation failed, since the guard started.",
            registry=self.registry,
        )
        self.commit_seconds = Histogram(
            "rlguard_guard_store_commit_seconds",
            "Time to make one group of steps durable, seconds.",
            buckets=_COMMIT_BUCKETS,
            registry=self.registry,
        )
        self.evaluation_seconds = Histogram(
            "rlguard_guard_evaluation_seconds",
            "Wall time of finished held-out evaluations, seconds.",
            buckets=_EVALUATION_BUCKETS,
            registry=self.registry,
        )

        self.evaluation_part_seconds = Counter(
            "rlguard_guard_evaluation_part_seconds",
            "Wall time of the parts of finished held-out evaluations, seconds: stage (copy and hash), load, "
            "generate, score.",
            ["part"],
            registry=self.registry,
        )
        for part in ("stage", "load", "generate", "score"):
            self.evaluation_part_seconds.labels(part)

    def observe(self, engine: ObservedRun) -> None:
        """Report this engine's state with everything else."""
        self.registry.register(_EngineCollector(engine))

    def render(self) -> bytes:
        """The page of `GET /metrics`."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    def __init__(self, engine: ObservedRun) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        engine, verdict = self._engine, self._engine.verdict
        yield CounterMetricFamily(
            "rlguard_guard_steps", "Steps acknowledged over all attempts and restarts.", value=verdict.steps
        )
        yield CounterMetricFamily(
            "rlguard_guard_evaluation_rounds",
            "Evaluation rounds folded into the held-out rule.",
            value=verdict.rounds,
        )
        yield _gauge("fired", "1 if a fire has latched.", verdict.fire)
        yield _gauge(
            "halted",
            "1 if a halt has latched: no rule fired, but a condition whose action is stop held.",
            verdict.halt,
        )
        yield _gauge("store_up", "1 if the store can be read and written.", engine.store_works)
        if (size := engine.store_bytes) is not None:
            yield _gauge("store_bytes", "Size of the store on disk, bytes.", size)
        if (full := engine.store_full) is not None:
            yield _gauge(
                "store_full", "1 if four fifths of the store are used, so that it takes no more steps.", full
            )
        yield _gauge(
            "evaluation_queue_length", "Checkpoints that wait for their evaluation.", engine.queue_length
        )
        yield _gauge(
            "silence_seconds",
            "Time since the last new step, the start, or the last wait for an evaluation.",
            engine.silent_for,
        )
        if (following := engine.following) is not None:
            yield _gauge("follow_up", "1 if what the trainer writes can be read.", not following.trouble)
            yield CounterMetricFamily(
                "rlguard_guard_follow_unreadable",
                "What could not be read of the followed log since the guard started: lines, records, values.",
                value=following.bad,
            )
        yield from _known_numbers(verdict)
        yield _states("verdict_level", "level", "1 for the level of the verdict.", Level, {verdict.level})
        yield _states(
            "condition",
            "code",
            "1 for each condition that holds, advice apart.",
            Code,
            {c.code for c in verdict.conditions if not c.advice},
        )
        yield _states(
            "advice",
            "code",
            "1 for each thing that is said as advice, on which nothing acts.",
            Code,
            {c.code for c in verdict.conditions if c.advice},
        )


def _known_numbers(verdict: Verdict) -> Iterable[Metric]:
    last, best = verdict.last_evaluation, verdict.best_evaluation
    numbers = (
        ("heldout_score", "Mean score of the newest evaluation, in [0, 1].", last.score if last else None),
        (
            "truncated_completions",
            "Share of the newest evaluation's completions that were cut off at the length limit, in [0, 1].",
            last.truncated if last else None,
        ),
        (
            "unanswered_completions",
            "Share of the newest evaluation's completions without an answer, of those whose answer begins "
            "after a mark, in [0, 1].",
            last.unanswered if last else None,
        ),
        (
            "timed_out_completions",
            "Share of the newest evaluation's completions that count as wrong because a scorer, or the "
            "training grader, did not end within its limit, in [0, 1].",
            last.timed_out if last else None,
        ),
        (
            "proxy_score",
            "Mean score that the training grader gives the newest evaluation's completions, in [0, 1].",
            last.proxy_score if last else None,
        ),
        ("best_heldout_score", "Highest mean score so far, in [0, 1].", best.score if best else None),
        ("heldout_ema", "EMA of the held-out score, in [0, 1].", verdict.heldout_ema),
        ("in_loop_reward_ema", "EMA of the in-loop reward, reward units.", verdict.in_loop_ema),
        ("hacking_gap", "Hacking Gap, reward units.", verdict.proxy_real_gap),
        ("kl_ema_nats_per_token", "EMA of the median-of-5 KL to the reference.", verdict.kl_ema),
        ("kl_start_nats_per_token", "KL that limits count from, where it is not 0.", verdict.kl_start),
        ("kl_hard_stop_nats_per_token", "Rise of that EMA that stops the run.", verdict.kl_hard_stop),
        ("attempt", "Newest attempt seen.", verdict.attempt),
        ("step", "Newest step of that attempt.", verdict.step),
    )
    for name, documentation, value in numbers:
        if value is not None:
            yield _gauge(name, documentation, value)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rlguard_guard_{name}", documentation, value=float(value))


def _states(
    name: str, label: str, documentation: str, states: type[Level] | type[Code], now: set[Level] | set[Code]
) -> Metric:
    family = GaugeMetricFamily(f"rlguard_guard_{name}", documentation, labels=[label])
    for state in states:
        family.add_metric([state.value], float(state in now))
    return family
