"""Then: what a user must see. Each waits for it within a named time-out, or fails with what it saw."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from rlguard.core.codes import Code
from rlguard.operator.api.reasons import FIRE_REASONS
from rlguard.operator.runtime.client import CONFIG_MAPS, EVENTS
from rlguard.operator.runtime.errors import ClusterError

from . import timeouts
from .kube import Job, Json

T = TypeVar("T")

POLL_SECONDS = 0.25
#: Phases that no run leaves by itself.
ENDS = {"Stopped", "Succeeded", "Failed", "Disrupted"}


class NeverError(Exception):
    """What is waited for cannot come any more."""


def eventually(probe: Callable[[], T], what: str, within: float) -> T:
    """The first truthy value of `probe`; an error of the cluster or a failed assertion counts as not yet."""
    deadline = time.monotonic() + within
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = probe()
        except (ClusterError, AssertionError) as error:
            last = error
        else:
            if last:
                return last
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not within {within:g} s: {what}; last seen: {last!r}")


# -- the job ---------------------------------------------------------------------------------------------


def the_condition_is(
    job: Job,
    kind: str,
    status: str,
    reason: str | None = None,
    within: float = timeouts.DECISION,
    says: str = "",
) -> str:
    """Wait for a condition of the job, with a message that has `says`; the message."""

    ended: list[float] = []

    def there() -> Json | None:
        found: Json = job.conditions.get(kind) or {}
        is_it = found.get("status") == status and reason in (None, found.get("reason"))
        if is_it and says in found["message"]:
            return found
        if job.status.get("phase") in ENDS:  # what is not there soon will never be
            ended.append(time.monotonic())
            if ended[-1] > ended[0] + timeouts.REPORT:
                raise NeverError(f"{kind}={status}: the job has ended")
        return None

    what = f"{kind}={status}" + (f" ({reason})" if reason else "") + (f": {says}" if says else "")
    try:
        return str(eventually(there, what, within)["message"])
    except (AssertionError, NeverError) as error:
        raise AssertionError(f"{error}\nstatus: {json.dumps(job.status, indent=1)}") from None


def the_phase_is(job: Job, phase: str, within: float = timeouts.DECISION) -> None:
    """Wait for the phase that `kubectl get gtj` shows."""
    eventually(
        lambda: job.status.get("phase") == phase, f"phase {phase}, not {job.status.get('phase')}", within
    )


def the_job_has_fired(job: Job, reason: str | None = None, within: float = timeouts.REPORT) -> Json:
    """The latch is in the status and the operator says Fired; the latch."""
    the_condition_is(job, "Fired", "True", reason, within)
    fire: Json = job.guard["fire"]
    return fire


def the_job_is_stopped(job: Job, within: float = timeouts.STOP) -> None:
    """Stopped=True, and neither the workload nor a pod of the run is left."""
    the_condition_is(job, "Stopped", "True", "NoPodsLeft", within)
    assert job.status["phase"] == "Stopped"
    assert job.pods == [], [pod["metadata"]["name"] for pod in job.pods]
    assert job.workload is None


def the_job_never_fired(job: Job) -> None:
    """Neither latch nor condition nor Event."""
    assert "fire" not in job.guard and "halt" not in job.guard, job.guard
    # Unknown while no guard runs, as between two pods of a run.
    assert job.conditions["Fired"]["status"] in {"False", "Unknown"}
    assert not events(job).keys() & set(FIRE_REASONS.values())


# -- what the guard reports ------------------------------------------------------------------------------


def the_guard_has_counted(job: Job, steps: int, within: float = timeouts.REPORT) -> Json:
    """At least so many steps are in the status; `status.guard`."""
    eventually(lambda: (job.guard.get("steps") or 0) >= steps, f"{steps} steps in status.guard", within)
    return job.guard


def the_guard_has_evaluated(job: Job, rounds: int = 1, within: float = timeouts.EVALUATION) -> Json:
    """At least so many evaluation rounds are in the status; `status.guard`."""
    eventually(lambda: (job.guard.get("rounds") or 0) >= rounds, f"{rounds} rounds in status.guard", within)
    return job.guard


def the_log_says(job: Job, container: str, *lines: str, within: float = timeouts.RESTART) -> None:
    """Each of these lines stands in the log of a container."""
    eventually(
        lambda: set(lines) <= set(job.log(container).splitlines()),
        f"{lines} in the log of {container}",
        within,
    )


def a_container_runs(job: Job, name: str, within: float = timeouts.REPORT) -> None:
    """The kubelet says that a container of that name runs."""
    eventually(lambda: "running" in job.container(name)["state"], f"container {name} runs", within)


def a_container_runs_again(job: Job, name: str, killed: str, within: float = timeouts.RESTART) -> None:
    """Another container of that name than the one that was killed runs."""

    def again() -> bool:
        now = job.container(name)
        return killed not in now.get("containerID", killed) and "running" in now["state"]

    eventually(again, f"container {name} runs again", within)


def the_pod_was_replaced(job: Job, lost: str, within: float = timeouts.REPLACE) -> None:
    """The pod of rank 0 is another one than the lost one (by UID), and runs."""

    def another() -> bool:
        pod = job.pod
        return pod["metadata"]["uid"] != lost and pod["status"].get("phase") == "Running"

    eventually(another, "another pod of rank 0 runs", within)


# -- what is left behind ---------------------------------------------------------------------------------


def events(job: Job) -> Counter[str]:
    """How often each reason was told about this job, repetitions included."""
    items = job.client.list(EVENTS, job.namespace.name, {}).get("items") or []
    told: Counter[str] = Counter()
    for event in items:
        if event["involvedObject"].get("uid") == job.uid:
            told[event["reason"]] += event.get("count") or 1
    return told


def it_was_told_once(job: Job, *reasons: str, within: float = timeouts.DECISION) -> None:
    """Each of these Events is there, exactly once."""
    eventually(
        lambda: set(reasons) <= events(job).keys(), f"Events {reasons}; there are {events(job)}", within
    )
    assert {reason: events(job)[reason] for reason in reasons} == dict.fromkeys(reasons, 1)


def it_fired_for_its_score(fire: Json) -> None:
    """The latch is evidence that the policy hacks, or a fall of the held-out score, and not the KL."""
    assert Code(fire["code"]).finding is not None and fire["code"] != "kl_hard_stop", fire


def evidence(job: Job, within: float = timeouts.DECISION) -> dict[str, str]:
    """The files of the evidence ConfigMap that the status names."""
    name = eventually(lambda: job.status.get("evidence"), "the status names evidence", within)
    found = job.client.get(CONFIG_MAPS, job.namespace.name, name)
    assert found is not None, f"there is no ConfigMap {name}"
    data: dict[str, str] = found["data"]
    return data
