"""Gauges of the jobs as they are cached; alerts read them (the chart's rules)."""

from __future__ import annotations

import time
from collections import Counter as TallyOf
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from guard_core.codes import Level
from guard_operator.api.reasons import Reason
from guard_operator.api.types import OnFire, Phase
from guard_operator.guards.reading import Reading

#: The jobs as they are cached; (namespace, whether it can be read) of everything that is watched; and
#: (namespace, kind, whether it can be listed; None: there is none) of what jobs are made of.
Jobs = Callable[[], Iterable[dict[str, Any]]]
Namespaces = Callable[[], Iterable[tuple[str, bool]]]
Kinds = Callable[[], Iterable[tuple[str, str, bool | None]]]
#: What was read of the guard of a job, by its UID.
Readings = Callable[[str], Reading | None]

#: What is measured of each job for which it is due, seconds.
_AGES = {
    "rlguard_unstopped_seconds": "Time since it was noted that a run must stop, until it is stopped.",
    "rlguard_stop_blocked_seconds": "The same, while something keeps the workload or a pod.",
    "rlguard_first_evaluation_pending_seconds": "For how long a job has run, of which nothing was evaluated "
    "yet; the time in a queue does not count.",
    "rlguard_waiting_seconds": "Time since which a pod of a run, or its guard, cannot start, without that in "
    "a queue.",
    "rlguard_evaluation_age_seconds": "Time since a running job's last held-out evaluation, if any, or since "
    "it runs again after a queue, if that is later.",
}


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


class JobGauges(Collector):
    """See the module."""

    def __init__(self, jobs: Jobs, namespaces: Namespaces, kinds: Kinds, reading: Readings) -> None:
        self._jobs = jobs
        self._reading = reading
        self._namespaces = namespaces
        self._kinds = kinds

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        ages = {
            name: GaugeMetricFamily(name, text, labels=["namespace", "name"]) for name, text in _AGES.items()
        }
        counts: TallyOf[str] = TallyOf()
        silences: TallyOf[str] = TallyOf()
        used = set[str]()
        now, verdicts = time.time(), _Verdicts()
        for raw in self._jobs():
            status, metadata = raw.get("status") or {}, raw["metadata"]
            if (reading := self._reading(metadata["uid"])) is not None:
                verdicts.add([metadata["namespace"], metadata["name"]], reading)
            phase = status.get("phase", "Pending")
            counts[phase] += 1
            if phase in _ALIVE:
                used.add((status.get("workloadRef") or {}).get("kind", ""))
            silent = _condition(status, "GuardSilent")
            if phase in _ALIVE and silent.get("status") == "True":
                silences[silent.get("reason", "")] += 1
            only_reported = (raw.get("spec") or {}).get("onFire") == OnFire.REPORT
            for name, since in _ages(status, phase, only_reported):
                if since is not None:
                    labels = [metadata["namespace"], metadata["name"]]
                    ages[name].add_metric(labels, max(0.0, now - since))
        gauges = (_phases(counts), *_silent(silences), *ages.values(), *verdicts.gauges())
        yield from (*gauges, *self._synced(used))

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
        of = ["namespace", "name"]
        level = "0 healthy, 1 unknown, 2 warning, 3 fired: the level of the guard's verdict."
        self._level = GaugeMetricFamily("rlguard_job_level", level, labels=of)
        away = "For how long the operator cannot reach the guard; 0 while it can."
        self._away = GaugeMetricFamily("rlguard_job_guard_unreachable_seconds", away, labels=of)
        counts = "Checkpoints by what became of them."
        self._counts = GaugeMetricFamily("rlguard_job_checkpoints", counts, labels=[*of, "state"])
        self._figures = {
            name: GaugeMetricFamily(name, text, labels=of) for name, (text, _) in _FIGURES.items()
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


def _silent(by_reason: TallyOf[str]) -> Iterator[Metric]:
    for name, text, count in (
        (
            "rlguard_guards_silent",
            "Guards that are silent, of jobs that are not over.",
            by_reason.total(),
        ),
        (
            "rlguard_guards_silent_at_once",
            "Of these, guards that fell silent together with most others: no run is stopped for that.",
            by_reason[Reason.MOST_SILENT],
        ),
    ):
        gauge = GaugeMetricFamily(name, text)
        gauge.add_metric([], count)
        yield gauge


#: Phases in which a trainer or a guard may run, and those in which a trainer does.
_ALIVE = {
    Phase.PENDING,
    Phase.STARTING,
    Phase.RUNNING,
    Phase.JUDGING,
    Phase.SUSPENDED,
    Phase.STOPPING,
}
_RUNS = {Phase.STARTING, Phase.RUNNING}


def _ages(status: dict[str, Any], phase: str, only_reported: bool) -> Iterator[tuple[str, float | None]]:
    """What of one job is measured as the time since when: (metric, Unix time, None if that is no time).

    `only_reported`: a fire stops nothing.
    """
    guard, stopped = status.get("guard") or {}, _condition(status, "Stopped")
    latched = _latched(status, only_reported)
    if latched and stopped.get("status") != "True":
        yield "rlguard_unstopped_seconds", _moment(latched)
        if stopped.get("reason") == Reason.STOP_BLOCKED:
            yield "rlguard_stop_blocked_seconds", _moment(latched)
    waiting = _condition(status, "Waiting")
    queued = waiting.get("reason") == Reason.QUEUED  # for as long as the queue takes: nobody is called
    if phase in _ALIVE and waiting.get("status") == "True" and not queued:
        yield "rlguard_waiting_seconds", _moment(waiting["lastTransitionTime"])
    if phase in _RUNS and (runs := _runs_since(status)) is not None:
        if evaluated := guard.get("lastEvaluationTime"):
            at = _moment(evaluated)
            yield "rlguard_evaluation_age_seconds", None if at is None else max(at, runs)
        else:
            yield "rlguard_first_evaluation_pending_seconds", runs


def _runs_since(status: dict[str, Any]) -> float | None:
    """Since when, at least, it has run under a guard that has reported. None: it does not, as in a queue.

    Both conditions are Unknown while rank 0 does not run. `Fired` is so at each start of the guard, too, and
    `GuardSilent` while the API server shows nothing: the one that has said something for longer counts.
    """
    both = (_condition(status, kind) for kind in ("Fired", "GuardSilent"))
    known = (one for one in both if one.get("status") in {"True", "False"})
    return min(filter(None, (_moment(one["lastTransitionTime"]) for one in known)), default=None)


def _latched(status: dict[str, Any], only_reported: bool) -> str | None:
    """Since when a run must stop, as the operator noted it: the clock of a guard may be days off.

    Only until the operator has noted the fire, as the guard says, if that is a time at all.
    """
    fired = _condition(status, "Fired")
    if only_reported:
        return _condition(status, "Halted").get("lastTransitionTime")
    if fired.get("status") == "True":
        return str(fired["lastTransitionTime"])
    said = ((status.get("guard") or {}).get("fire") or {}).get("at")
    if said and _moment(said) is not None:
        return str(said)
    return _condition(status, "Halted").get("lastTransitionTime")


def _moment(text: str) -> float | None:
    """Unix time; None for what the API server takes for a time, which a guard may have written, and is none.

    One job must not take the gauges of all others from the page.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})
