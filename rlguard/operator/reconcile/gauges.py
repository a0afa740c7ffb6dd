"""Gauges of the jobs as they are cached, and of what their guards say; the chart's alerts read them."""

from __future__ import annotations

import time
from collections import Counter as TallyOf
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlguard.operator.api.status import Phase
from rlguard.operator.guards.reading import Reading

#: The jobs as they are cached; (namespace, whether it can be read) of everything that is watched; and
#: (namespace, kind, whether it can be listed; None: there is none) of what jobs are made of.
Jobs = Callable[[], Iterable[dict[str, Any]]]
Namespaces = Callable[[], Iterable[tuple[str, bool]]]
Kinds = Callable[[], Iterable[tuple[str, str, bool | None]]]
#: What was read of the guard of a job, by its UID.
Readings = Callable[[str], Reading | None]

_JOB = ("namespace", "name")
#: What each gauge says, and its labels.
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "rlguard_jobs": ("Jobs by phase.", ("phase",)),
    "rlguard_job_condition_seconds": (
        "For how long a job that is not over has Waiting or GuardSilent True, or Stopped False.",
        (*_JOB, "type", "reason"),
    ),
    "rlguard_evaluation_age_seconds": (
        "Time since a running job's last held-out evaluation, or since it runs under its guard without one; "
        "the time in a queue does not count.",
        _JOB,
    ),
    "rlguard_job_level": (
        "0 healthy, 1 unknown, 2 warning, 3 fired: the level of the guard's verdict.",
        _JOB,
    ),
    "rlguard_job_guard_unreachable_seconds": (
        "For how long the operator cannot reach the guard; 0 while it can.",
        _JOB,
    ),
    "rlguard_job_checkpoints": ("Checkpoints by what became of them.", (*_JOB, "state")),
    "rlguard_job_step": ("Newest training step that the guard has seen.", _JOB),
    "rlguard_job_reward_ema": ("EMA of the in-loop reward, reward units.", _JOB),
    "rlguard_job_heldout_ema": ("EMA of the held-out score.", _JOB),
    "rlguard_job_kl_ema": ("EMA of the KL to the reference, nats/token.", _JOB),
    "rlguard_job_gap": ("The Hacking Gap, reward units.", _JOB),
    "rlguard_namespace_synced": (
        "1 while jobs and pods of a watched namespace can be read, else 0; an empty label means all.",
        ("namespace",),
    ),
    "rlguard_kind_synced": (
        "1 while a kind that runs are made of can be listed, else 0.",
        ("namespace", "kind"),
    ),
}
#: What is told of the verdict of each guard that is asked: what is unknown is absent.
_FIGURES = {
    "rlguard_job_step": "step",
    "rlguard_job_reward_ema": "in_loop_ema",
    "rlguard_job_heldout_ema": "heldout_ema",
    "rlguard_job_kl_ema": "kl_ema",
    "rlguard_job_gap": "proxy_real_gap",
}
#: Conditions that need a hand if they last, with the status that they have then.
_TROUBLE = {"Waiting": "True", "GuardSilent": "True", "Stopped": "False"}

#: Phases in which a trainer or a guard may run, and those in which a trainer does.
_ALIVE = {Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.JUDGING, Phase.SUSPENDED, Phase.STOPPING}
_RUNS = {Phase.STARTING, Phase.RUNNING}
#: Name, values of the labels, and value of a sample.
Sample = tuple[str, tuple[str, ...], float]


class JobGauges(Collector):
    """See the module."""

    def __init__(self, jobs: Jobs, namespaces: Namespaces, kinds: Kinds, reading: Readings) -> None:
        self._jobs, self._namespaces, self._kinds, self._reading = jobs, namespaces, kinds, reading

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        families = {
            name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _GAUGES.items()
        }
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        phases, used = TallyOf[str](), set[str]()
        for raw in self._jobs():
            status, job = raw.get("status") or {}, (raw["metadata"]["namespace"], raw["metadata"]["name"])
            phase = status.get("phase", "Pending")
            phases[phase] += 1
            if phase in _ALIVE:
                used.add((status.get("workloadRef") or {}).get("kind", ""))
                yield from _trouble(job, status)
            if phase in _RUNS and (age := _evaluation_age(status)) is not None:
                yield "rlguard_evaluation_age_seconds", job, age
            if (reading := self._reading(raw["metadata"]["uid"])) is not None:
                yield from _of_guard(job, reading)
        yield from (("rlguard_jobs", (phase,), float(count)) for phase, count in sorted(phases.items()))
        for namespace, synced in self._namespaces():
            yield "rlguard_namespace_synced", (namespace,), float(synced)
        for namespace, kind, listed in self._kinds():
            # One that is not there at all is missed by the runs that go on.
            synced = kind not in used if listed is None else listed
            yield "rlguard_kind_synced", (namespace, kind), float(synced)


def _trouble(job: tuple[str, str], status: Mapping[str, Any]) -> Iterator[Sample]:
    for one in status.get("conditions") or []:
        lasted = _seconds_since(one["lastTransitionTime"])
        if _TROUBLE.get(one["type"]) == one["status"] and lasted is not None:
            yield "rlguard_job_condition_seconds", (*job, one["type"], one["reason"]), lasted


def _of_guard(job: tuple[str, str], reading: Reading) -> Iterator[Sample]:
    since, verdict = reading.unreached_since, reading.verdict
    away = 0.0 if since is None else time.monotonic() - since
    yield "rlguard_job_guard_unreachable_seconds", job, away
    if verdict is None:
        return
    yield "rlguard_job_level", job, float(verdict.level.severity)
    for state in ("announced", "evaluated", "failed", "waiting"):
        yield "rlguard_job_checkpoints", (*job, state), float(getattr(verdict, state))
    for name, field in _FIGURES.items():
        if (value := getattr(verdict, field)) is not None:
            yield name, job, float(value)


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
