"""Plays training-operator and kubelet for the runs of a round, and notes what is seen of them.

Guards are real processes with the settings, rights and token of the injected container. A guard that ends is
started again after a moment; a pod that is to end ends its guard with SIGTERM and is then removed. Pods that
were made once are not made again. Whatever the API server does not answer is done at the next look.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from guard_operator.runtime.client import EVENTS, PODS
from guard_operator.runtime.errors import ApiError, ClusterError
from tests.operator.integration.conftest import sample_job
from tests.operator.integration.controlplane import free_ports
from tests.operator.integration.world import JOBS, PYTORCHJOBS, RUNNING, World, token_for
from tests.service.conftest import Guard, Zygote

from .counts import Facts, Seen, seen_of
from .schedule import Run
from .stored import stored
from .trainer import Trainer

Json = dict[str, Any]

LOOK_SECONDS = 0.3
#: The least that a job may ask for: no guard here may be met as silent.
SILENCE = {"afterSeconds": 30, "action": "Stop"}
GUARD = "rlguard-guard"
#: A rise of the KL is counted from what the first five steps had.
START_STEPS = 10
PREFIX = "RLGUARD_GUARD_CLUSTER__"
#: A container that ended is started again within these seconds.
RESTART_SECONDS = (0.3, 2.0)


class Training:
    """One run as it is played."""

    def __init__(self, run: Run, world: World, zygote: Zygote, directory: Path, rng: random.Random) -> None:
        directory.mkdir()
        (self.port,) = free_ports(1)
        self.run, self.world, self.rng = run, world.another(run.name), rng
        self.guard = Guard(zygote, directory, {"PORT": str(self.port)})
        self.trainer: Trainer | None = None
        self.seen: list[Seen] = []
        self.submitted = self.had_pod = self.done = self.asked_to_end = False
        self.restarts, self.up_again = 0, 0.0
        self.gone_at: float | None = None
        self.phase = ""

    def acts(self, now: float) -> bool:
        """Whether it is time to hack or to end; a guard that was late has seen the run's start first."""
        seen = 0 if self.trainer is None else len(self.trainer.acknowledged)
        return now >= self.run.acts and seen >= START_STEPS


class Cluster:
    """See the module. `look` once in a while, from one thread."""

    def __init__(
        self, world: World, zygote: Zygote, guards_url: str, runs: tuple[Run, ...], seed: str
    ) -> None:
        self._world, self._guards_url = world, guards_url
        self._directory = world.directory
        self.runs = [
            Training(run, world, zygote, self._directory / run.name, random.Random(f"{seed}/{run.name}"))
            for run in runs
        ]
        self.training_operator_away = False
        self._began, self._acts = time.monotonic(), False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True)

    def start(self) -> None:
        """Runs begin, and none hacks or ends before `begin`."""
        self._began = time.monotonic()
        self._thread.start()

    def begin(self) -> None:
        """The times at which runs act count from now."""
        self._began, self._acts = time.monotonic(), True

    def close(self) -> None:
        """Nothing is done any more, and nothing of it is left."""
        self._over.set()
        self._thread.join()
        for one in self.runs:
            if one.trainer is not None:
                one.trainer.end()
            if one.guard.pid:
                one.guard.end(signal.SIGKILL)

    def reports(self) -> bool:
        """Whether every run is called one whose guard reports."""
        return all(one.phase == "Running" for one in self.runs)

    def settled(self) -> bool:
        """Whether every run is called what it must be called in the end."""
        return all(one.phase == ("Stopped" if one.run.hacks else "Succeeded") for one in self.runs)

    def _look_again(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            with suppress(ClusterError):
                self._look()

    def _look(self) -> None:
        client, namespace = self._world.client, self._world.namespace
        jobs, workloads, pods = (
            {raw["metadata"]["name"]: raw for raw in client.list(resource, namespace, {})["items"]}
            for resource in (JOBS, PYTORCHJOBS, PODS)
        )
        for one in self.runs:
            name = one.run.name
            job, workload, pod = jobs.get(name), workloads.get(name), pods.get(f"{name}-master-0")
            if job is not None:
                one.submitted = True
                self._note(one, job, workload)
            with suppress(ClusterError):
                self._act(one, workload, pod)

    def _note(self, one: Training, job: Json, workload: Json | None) -> None:
        one.phase = (job.get("status") or {}).get("phase") or ""
        seen = seen_of(job, _is_told(workload))
        if one.seen[-1:] != [seen]:
            one.seen.append(seen)

    def _act(self, one: Training, workload: Json | None, pod: Json | None) -> None:
        """The next thing that training-operator or kubelet would do for this run."""
        now = time.monotonic() - self._began
        if not one.submitted:
            if now >= one.run.begins:
                self._submit(one)
        elif pod is None:
            self._without_pod(one, workload)
        elif "deletionTimestamp" in pod["metadata"]:
            one.had_pod = True
            if self._ended(one):
                one.world.kubelet_ends(pod)
        elif workload is None or (_is_told(workload) and not self.training_operator_away):
            one.world.delete(pod)  # without its owner, the garbage collector does it
        elif not one.run.hacks and self._acts and one.acts(now):
            self._succeed(one)
        elif (pod.get("status") or {}).get("phase") != "Running":
            one.had_pod = True
            one.world.pod_status(RUNNING)
            one.world.workload_condition("Running")
        else:
            self._keep_running(one, pod)
            if one.trainer is not None and one.run.hacks and self._acts and one.acts(now):
                one.trainer.hack()

    def _submit(self, one: Training) -> None:
        job = sample_job(one.run.name, self._world.namespace)
        job["spec"]["onSilence"] = SILENCE
        with suppress(ApiError):  # it was made, and the answer was lost
            one.world.submit(job)

    def _without_pod(self, one: Training, workload: Json | None) -> None:
        if one.had_pod and one.gone_at is None:
            one.gone_at = time.monotonic()
        if workload is None or self.training_operator_away:
            return
        if not _is_told(workload):
            if not one.had_pod:
                one.world.start_pod()
        elif not _is_over(workload):
            one.world.workload_condition("Failed")

    def _ended(self, one: Training) -> bool:
        """Whether trainer and guard have ended; they are asked to, once."""
        if one.trainer is not None:
            one.trainer.end()
        if one.guard.pid and not one.guard.is_alive():
            one.guard.wait()
        elif one.guard.pid and not one.asked_to_end:
            os.kill(one.guard.pid, signal.SIGTERM)
        one.asked_to_end = True
        return not one.guard.pid

    def _succeed(self, one: Training) -> None:
        """The trainer has finished: its guard ends after it, then its pod, then the workload."""
        if self._ended(one) and not one.done:
            one.world.pod_status({"phase": "Succeeded", "initContainerStatuses": None})
            one.world.workload_condition("Succeeded")
            one.done = True

    def _keep_running(self, one: Training, pod: Json) -> None:
        """The guard runs, or is started again; the trainer starts with it."""
        if one.guard.pid and one.guard.is_alive():
            return
        if one.guard.pid:
            one.guard.wait()
            one.restarts += 1
            one.up_again = time.monotonic() + one.rng.uniform(*RESTART_SECONDS)
            one.world.pod_status(_status(one.restarts, running=False))
        elif time.monotonic() >= one.up_again:
            self._start_guard(one, pod)
            one.trainer = one.trainer or Trainer(one.port, one.rng)
            one.world.pod_status(_status(one.restarts, running=True))

    def _start_guard(self, one: Training, pod: Json) -> None:
        spec, token = pod["spec"], one.guard.directory / "token"
        if not token.exists():
            token.write_text(token_for(self._world.client, self._world.namespace, spec["serviceAccountName"]))
        (container,) = (c for c in spec["initContainers"] if c["name"] == GUARD)
        injected = {
            variable["name"].removeprefix("RLGUARD_GUARD_"): variable["value"]
            for variable in container["env"]
            if variable["name"].startswith(PREFIX) and "value" in variable
        }
        one.guard.settings |= injected | {
            "CLUSTER__URL": self._guards_url,
            "CLUSTER__CA_FILE": str(self._world.plane.ca_file),
            "CLUSTER__TOKEN_FILE": str(token),
        }
        one.guard.launch()

    def facts(self) -> tuple[Facts, ...]:
        """What was seen, once it is closed."""
        client, namespace = self._world.client, self._world.namespace
        pods = [raw["metadata"]["name"] for raw in client.list(PODS, namespace, {})["items"]]
        events = client.list(EVENTS, namespace, {})["items"]
        return tuple(
            self._facts(
                one,
                sum(name == f"{one.run.name}-master-0" for name in pods),
                [raw for raw in events if raw["involvedObject"]["name"] == one.run.name],
            )
            for one in self.runs
        )

    def _facts(self, one: Training, pods: int, events: list[Json]) -> Facts:
        steps, latched = stored(one.guard.state, one.guard.directory / "copy")
        trainer = one.trainer
        fired_at = None if trainer is None else trainer.fired_at
        return Facts(
            run=one.run,
            verdicts=() if trainer is None else tuple(trainer.verdicts),
            seen=tuple(one.seen),
            acknowledged={} if trainer is None else trainer.acknowledged,
            stored=steps,
            stored_latch=latched,
            phase=one.phase,
            pods=pods,
            events=tuple((raw["reason"], raw["message"]) for raw in events),
            stop_seconds=None if fired_at is None or one.gone_at is None else one.gone_at - fired_at,
            refused=0 if trainer is None else trainer.refused,
        )


def _is_told(workload: Json | None) -> bool:
    """Whether it was told to end: it is being deleted, or gone."""
    return workload is None or "deletionTimestamp" in workload["metadata"]


def _is_over(workload: Json) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(c["type"] in {"Succeeded", "Failed"} and c["status"] == "True" for c in conditions)


def _status(restarts: int, running: bool) -> Json:
    """The pod's status with its guard running, or down after it ended."""
    status = deepcopy(RUNNING)
    (guard,) = status["initContainerStatuses"]
    guard["restartCount"] = restarts
    if running:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        guard["state"] = {"running": {"startedAt": since if restarts else "2025-01-01T00:00:00Z"}}
    else:
        guard |= {"ready": False, "started": False}
        guard["state"] = {"terminated": {"exitCode": 137, "reason": "Error"}}
    return status
