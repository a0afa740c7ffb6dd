"""Gauges of the jobs as they are cached, and of what their guards say; the chart's alerts read them."""

from __future__ import annotations

import time
from collections import Counter as TallyOf
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from guard_core.codes import Level
from guard_operator.api.types import Phase
from guard_operator.guards.reading import Reading

#: The jobs as they are cached; (namespace, whether it can be read) of everything that is watched; and
#: (namespace, kind, whether it can be listed; None: there is none) of what jobs are made of.
Jobs = Callable[[], Iterable[dict[str, Any]]]
Namespaces = Callable[[], Iterable[tuple[str, bool]]]
Kinds = Callable[[], Iterable[tuple[str, str, bool | None]]]
#: What was read of the guard of a job, by its UID.
Readings = Callable[[str], Reading | None]

#: What is told of the verdict of each guard that is asked: what is unknown is absent.
_FIGURES = {
    "rlguard_job_step": ("Newest training step that the guard has seen.", "step"),
    "rlguard_job_reward_ema": ("EMA of the in-loop reward, reward units.", "in_loop_ema"),
    "rlguard_job_heldout_ema": ("EMA of the held-out score.", "heldout_ema"),
    "rlguard_job_kl_ema": ("EMA of the KL to the reference, nats/token.", "kl_ema"),
    "rlguard_job_gap": ("The Hacking Gap, reward units.", "proxy_real_gap"),
}
_LEVELS = {Level.HEALTHY: 0.0, Level.UNKNOWN: 1.0, Level.WARNING: 2.0, Level.FIRED: 3.0}
_CHECKPOINTS = ("announced", "evaluated", "failed", "waiting")
#: Conditions that need a hand if they last, with the status that they have then.
_TROUBLE = {"Waiting": "True", "GuardSilent": "True", "Stopped": "False"}
_OF_A_JOB = ["namespace", "name"]

#: Phases in which a trainer or a guard may run, and those in which a trainer does.
_ALIVE = {Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.JUDGING, Phase.SUSPENDED, Phase.STOPPING}
_RUNS = {Phase.STARTING, Phase.RUNNING}


class JobGauges(Collector):
    """See the module."""

    def __init__(self, jobs: Jobs, namespaces: Namespaces, kinds: Kinds, reading: Readings) -> None:
        self._jobs = jobs
        self._reading = reading
        self._namespaces = namespaces
        self._kinds = kinds

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        counts, used, verdicts = TallyOf[str](), set[str](), _Verdicts()
        trouble = GaugeMetricFamily(
            "rlguard_job_condition_seconds",
            "For how long a job that is not over has Waiting or GuardSilent True, or Stopped False.",
            labels=[*_OF_A_JOB, "type", "reason"],
        )
        evaluated = GaugeMetricFamily(
            "rlguard_evaluation_age_seconds",
            "Time since a running job's last held-out evaluation, or since it runs under its guard without "
            "one; the time in a queue does not count.",
            labels=_OF_A_JOB,
        )
        for raw in self._jobs():
            status, labels = raw.get("status") or {}, [raw["metadata"][name] for name in _OF_A_JOB]
            if (reading := self._reading(raw["metadata"]["uid"])) is not None:
                verdicts.add(labels, reading)
            phase = status.get("phase", "Pending")
            counts[phase] += 1
            if phase in _ALIVE:
                used.add((status.get("workloadRef") or {}).get("kind", ""))
                for one in status.get("conditions") or []:
                    lasted = _seconds_since(one["lastTransitionTime"])
                    if _TROUBLE.get(one["type"]) == one["status"] and lasted is not None:
                        trouble.add_metric([*labels, one["type"], one["reason"]], lasted)
            if phase in _RUNS and (age := _evaluation_age(status)) is not None:
                evaluated.add_metric(labels, age)
        yield from (_phases(counts), trouble, evaluated, *verdicts.gauges(), *self._synced(used))

    def _synced(self, used: Set[str]) -> Iterator[Metric]:
        """`used`: the kinds of runs that go on. One of them that is not there at all cannot be listed."""
        gauge = GaugeMetricFamily(
            "rlguard_namespace_synced",
            "1 while jobs and pods of a watched namespace can be read, else 0; an empty label means all.",
            labels=["namespace"],
        )
        for namespace, done in self._namespaces():
            gauge.add_metric([namespace], float(done))
        yield gauge
        gauge = GaugeMetricFamily(
            "rlguard_kind_synced",
            "1 while a kind that runs are made of can be listed, else 0.",
            labels=["namespace", "kind"],
        )
        for namespace, kind, listed in self._kinds():
            gauge.add_metric([namespace, kind], float(kind not in used if listed is None else listed))
        yield gauge


class _Verdicts:
    """Gauges of what the guards say."""

    def __init__(self) -> None:
        level = "0 healthy, 1 unknown, 2 warning, 3 fired: the level of the guard's verdict."
        self._level = GaugeMetricFamily("rlguard_job_level", level, labels=_OF_A_JOB)
        away = "For how long the operator cannot reach the guard; 0 while it can."
        self._away = GaugeMetricFamily("rlguard_job_guard_unreachable_seconds", away, labels=_OF_A_JOB)
        counts = "Checkpoints by what became of them."
        self._counts = GaugeMetricFamily("rlguard_job_checkpoints", counts, labels=[*_OF_A_JOB, "state"])
        self._figures = {
            name: GaugeMetricFamily(name, text, labels=_OF_A_JOB) for name, (text, _) in _FIGURES.items()
        }

    def add(self, job: list[str], reading: Reading) -> None:
        """Tell what was read of the guard of this job: (namespace, name)."""
        since, verdict = reading.unreached_since, reading.verdict
        self._away.add_metric(job, 0.0 if since is None else time.monotonic() - since)
        if verdict is None:
            return
        self._level.add_metric(job, _LEVELS[verdict.level])
        for state in _CHECKPOINTS:
            self._counts.add_metric([*job, state], float(getattr(verdict, state)))
        for name, (_, field) in _FIGURES.items():
            if (value := getattr(verdict, field)) is not None:
                self._figures[name].add_metric(job, float(value))

    def gauges(self) -> Iterator[Metric]:
        """All of them."""
        yield from (self._level, self._away, self._counts, *self._figures.values())


def _phases(counts: TallyOf[str]) -> Metric:
    gauge = GaugeMetricFamily("rlguard_jobs", "Jobs by phase.", labels=["phase"])
    for phase, count in sorted(counts.items()):
        gauge.add_metric([phase], count)
    return gauge


def _evaluation_age(status: Mapping[str, Any]) -> float | None:
    """Seconds since the last evaluation. None: the run does not run under a guard that has reported.

    Both conditions are Unknown while rank 0 does not run, as in a queue. `Fired` is so at each start of the
    guard, too: the one that has said something for longer counts.
    """
    heard = (one for one in status.get("conditions") or [] if one["type"] in {"Fired", "GuardSilent"})
    known = (_seconds_since(one["lastTransitionTime"]) for one in heard if one["status"] != "Unknown")
    runs = max((age for age in known if age is not None), default=None)
    evaluated = (status.get("guard") or {}).get("lastEvaluationTime")
    age = runs if evaluated is None else _seconds_since(evaluated)
    return None if runs is None or age is None else min(runs, age)


def _seconds_since(text: str) -> float | None:
    """Seconds since this time; None for what the API server takes for a time and is none (30 February).

    One job must not take the gauges of all others from the page.
    """
    try:
        return max(0.0, time.time() - datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None
