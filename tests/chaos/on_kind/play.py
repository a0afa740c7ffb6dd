"""Plays one round on a kind cluster with the chart installed, and notes what is seen of its runs.

Trainers are scripted and deaf: whoever stops them is the cluster. What a guard acknowledged is noted by its
trainer beside the checkpoints; notes and stores lie in claims, and are read on the node when pods are gone.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rlguard.operator.runtime.client import CLAIMS, EVENTS, Resource
from rlguard.operator.runtime.errors import ClusterError
from tests.e2e import given, jobs
from tests.e2e.kube import JOBS, PYTORCHJOBS, Cluster, CommandError, Job, Namespace

from ..counts import Facts, Seen, seen_of
from ..schedule import Run
from ..stored import stored
from .plan import PARTITION_SECONDS, Fault, Round, Strike

Json = dict[str, Any]

LOOK_SECONDS, SUBMIT_SECONDS = 1.0, 90.0
#: For how long runs may take to their end after the last strike, and it is then watched whether it stays so.
SETTLE_SECONDS, LATER_SECONDS = 300.0, 60.0
#: Steps between two notes of a trainer.
STEPS_A_NOTE = 4
#: What a shell on the node finds them by; the API server's also stands in the arguments of others.
_PROCESS = {
    Fault.GUARDS: "^python -m guard_service$",
    Fault.OPERATORS: "^python -m rlguard.operator ",
    Fault.TRAINING_OPERATOR: "^/manager --enable-scheme",
    Fault.API_SERVER: "^kube-apiserver ",
    Fault.ETCD: "^etcd ",
}
#: Half of the guards, and one operator or both; there is one of everything else.
_SHARE = {Fault.GUARDS: 0.5, Fault.OPERATORS: 0.7}
_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume")
_PODS_TO_API_SERVER = ("INPUT", "-s", "10.244.0.0/16", "-p", "tcp", "--dport", "6443", "-j", "DROP")


@dataclass
class Training:
    """One run as it is played."""

    run: Run
    job: Job
    submitted: bool = False
    seen: list[Seen] = field(default_factory=list)
    phase: str = ""

    @property
    def settled(self) -> bool:
        return self.phase == ("Stopped" if self.run.hacks else "Succeeded")


def play(cluster: Cluster, namespace: Namespace, planned: Round, directory: Path) -> tuple[Facts, ...]:
    """One round, to its end; what was seen of its runs."""
    given.objects(namespace, [jobs.claim("checkpoints"), jobs.claim("state")])
    runs = [Training(run, namespace.job(run.name)) for run in planned.runs]
    with _watched(runs):
        began = time.monotonic()
        coming = list(planned.strikes)
        while coming or not all(one.submitted for one in runs):
            now = time.monotonic() - began
            _submit(namespace, runs, now)
            while coming and coming[0].at <= now:
                strike(cluster, coming.pop(0))
            time.sleep(0.2)
        _wait(lambda: all(one.settled for one in runs), SETTLE_SECONDS)
        time.sleep(LATER_SECONDS)
    return tuple(_facts(one, namespace, directory) for one in runs)


def _submit(namespace: Namespace, runs: list[Training], now: float) -> None:
    """Whatever is due is applied, and again while nobody answers."""
    for one in runs:
        if not one.submitted and one.run.begins <= now:
            with suppress(CommandError, subprocess.TimeoutExpired):
                given.objects(namespace, _manifests(one.run, namespace.cluster))
                one.submitted = True


def _manifests(run: Run, cluster: Cluster) -> list[Json]:
    orders, pause = [], 2.0
    for _ in range(max(1, round(run.acts / pause))):
        orders += [f"steps {STEPS_A_NOTE}", "note", f"sleep {pause}"]
    orders += ["fire", "note", "sleep 3600"] if run.hacks else ["exit 0"]
    made = jobs.scripted(
        run.name,
        cluster.images["trainer"],
        orders,
        deaf=True,
        checkpoints={"persistentVolumeClaim": {"claimName": "checkpoints"}},
        state={"claimName": "state"},
    )
    return list(made)


# -- strikes ---------------------------------------------------------------------------------------------


def strike(cluster: Cluster, planned: Strike) -> None:
    """SIGKILL on the node, or a partition that ends by itself."""
    if planned.fault is Fault.PARTITION:
        shortest, longest = PARTITION_SECONDS
        seconds = shortest + planned.pick * (longest - shortest)
        _on_node(cluster, "iptables", "-I", *_PODS_TO_API_SERVER)
        threading.Timer(seconds, lambda: _on_node(cluster, "iptables", "-D", *_PODS_TO_API_SERVER)).start()
        return
    rng = random.Random(planned.pick)
    found = _on_node(cluster, "pgrep", "-f", _PROCESS[planned.fault]).split()
    share = _SHARE.get(planned.fault, 1.0)
    hit = [pid for pid in found if rng.random() < share] or found[:1]
    if hit:
        _on_node(cluster, "kill", "-KILL", *hit)


def _on_node(cluster: Cluster, *command: str) -> str:
    """What it printed; a process that is gone before it is hit is no error."""
    node = f"{cluster.name}-control-plane"
    done = subprocess.run(["docker", "exec", node, *command], capture_output=True, text=True, check=False)
    return done.stdout


# -- what is seen ----------------------------------------------------------------------------------------


@contextmanager
def _watched(runs: list[Training]) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            with suppress(ClusterError):
                _look(runs)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look(runs: list[Training]) -> None:
    namespace = runs[0].job.namespace
    client = namespace.cluster.client
    made, workloads = (
        {raw["metadata"]["name"]: raw for raw in client.list(resource, namespace.name, {})["items"]}
        for resource in (JOBS, PYTORCHJOBS)
    )
    for one in runs:
        if (raw := made.get(one.run.name)) is not None:
            one.phase = (raw.get("status") or {}).get("phase") or ""
            seen = seen_of(raw, _is_told(workloads.get(one.run.name)))
            if one.seen[-1:] != [seen]:
                one.seen.append(seen)


def _is_told(workload: Json | None) -> bool:
    """Whether it was told to end: it is being deleted, or gone."""
    return workload is None or "deletionTimestamp" in workload["metadata"]


def _wait(over: Callable[[], bool], within: float) -> None:
    deadline = time.monotonic() + within
    while not over() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _facts(one: Training, namespace: Namespace, directory: Path) -> Facts:
    notes = _notes(namespace, f"{one.job.pod_name}.notes")
    copied = directory / f"{namespace.name}-{one.run.name}"
    _copy(namespace, "state", one.job.uid, copied)
    steps, latched = stored(copied, copied / "copy")
    events = namespace.cluster.client.list(EVENTS, namespace.name, {})["items"]
    return Facts(
        run=one.run,
        verdicts=tuple(note["fire"] for note in notes),
        seen=tuple(one.seen),
        acknowledged={step["step"]: step for note in notes for step in note["steps"]},
        stored=steps,
        stored_latch=latched,
        phase=one.phase,
        pods=len(one.job.pods),
        events=tuple(
            (raw["reason"], raw["message"])
            for raw in events
            if raw["involvedObject"].get("uid") == one.job.uid
            for _ in range(raw.get("count") or 1)
        ),
        stop_seconds=_stop_seconds(one.job),
        refused=max((note["lost"] for note in notes), default=0),
    )


def _stop_seconds(job: Job) -> float | None:
    """From the latch to Stopped, by the job's own status; None if either is not there."""
    stopped, fire = job.conditions.get("Stopped"), job.guard.get("fire")
    if fire is None or stopped is None or stopped["status"] != "True":
        return None
    until, since = (datetime.fromisoformat(at) for at in (stopped["lastTransitionTime"], fire["at"]))
    return (until - since).total_seconds()


def _notes(namespace: Namespace, name: str) -> list[Json]:
    text = _on_node(namespace.cluster, "cat", f"{_folder(namespace, 'checkpoints')}/{name}")
    return [json.loads(line) for line in text.splitlines()]


def _copy(namespace: Namespace, claim: str, folder: str, to: Path) -> None:
    to.mkdir(parents=True)
    node = f"{namespace.cluster.name}-control-plane"
    source = f"{node}:{_folder(namespace, claim)}/{folder}/."
    subprocess.run(["docker", "cp", "--quiet", source, str(to)], check=False, capture_output=True)


def _folder(namespace: Namespace, claim: str) -> str:
    """Where a claim of the default storage lies on the node."""
    client = namespace.cluster.client
    bound = client.get(CLAIMS, namespace.name, claim) or {}
    volume = client.get(_VOLUMES, None, bound["spec"]["volumeName"]) or {}
    spec = volume["spec"]
    return str((spec.get("hostPath") or spec.get("local"))["path"])
