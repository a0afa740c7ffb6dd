"""Plays training-operator and kubelet for the runs of a round, and notes what is seen of them.

Guards are real processes that speak TLS with the key of the job's Secret, each at an address of its own.
Operators reach them through the `network`. A guard that ends is started again after a moment, and its trainer
starts once it is ready. A pod that is to end ends its guard with SIGTERM and is then removed. Pods that were
made once are not made again. Whatever the API server does not answer is done at the next look.
"""

from __future__ import annotations

import base64
import http.client
import os
import random
import signal
import ssl
import threading
import time
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from rlguard.operator.api import names
from rlguard.operator.runtime.client import EVENTS, PODS, SECRETS
from rlguard.operator.runtime.errors import ApiError, ClusterError
from tests.operator.integration.conftest import sample_job
from tests.operator.integration.world import GUARD_PORT, JOBS, PYTORCHJOBS, RUNNING, World
from tests.service.conftest import Guard, Zygote

from .counts import Facts, Seen, seen_of
from .network import Network
from .schedule import Run
from .stored import stored
from .trainer import Trainer

Json = dict[str, Any]

LOOK_SECONDS = 0.3
#: The least that a job may ask for: no guard here may be met as silent.
SILENCE = {"afterSeconds": 30, "action": "Stop"}
#: A rise of the KL is counted from what the first five steps had.
START_STEPS = 10
#: Where operators ask a guard, and where it listens behind the network.
PORT = GUARD_PORT
BEHIND = PORT + 1
PROBE_SECONDS = 2.0
#: A container that ended is started again within these seconds.
RESTART_SECONDS = (0.3, 2.0)
#: An address for each guard, which no other process that plays has.
_ADDRESSES = (f"127.{128 + os.getpid() % 100}.{n // 250}.{n % 250 + 1}" for n in range(62_500))


class Played(World):
    """Its pods have addresses at which the network passes on to a guard, once there is one."""

    network: Network
    address = ""

    def with_guard(self, status: Json) -> Json:
        """The status of a pod whose guard is not started yet."""
        self.network.relay(self.address, PORT, BEHIND)
        waiting = guard_status(0, {"waiting": {"reason": "PodInitializing"}})
        return status | waiting | {"podIP": self.address, "podIPs": [{"ip": self.address}]}


class Training:
    """One run as it is played."""

    def __init__(
        self, run: Run, world: Played, zygote: Zygote, directory: Path, rng: random.Random, address: str
    ) -> None:
        directory.mkdir()
        self.run, self.world, self.rng = run, world.another(run.name), rng
        self.world.address = address
        files = {
            "TLS_CERTIFICATE": names.CERTIFICATE_KEY,
            "TLS_KEY": names.PRIVATE_KEY_KEY,
            "SUPERVISOR_TOKEN_FILE": names.SUPERVISOR_TOKEN_KEY,
            "TERMINATION_MESSAGE": "termination-log",
        }
        settings = {name: str(directory / file) for name, file in files.items()}
        self.guard = Guard(zygote, directory, {"HOST": address, "PORT": str(BEHIND)} | settings)
        self.trainer: Trainer | None = None
        self.seen: list[Seen] = []
        self.submitted = self.had_pod = self.done = self.asked_to_end = self.ready = False
        self.restarts, self.up_again = 0, 0.0
        self.gone_at: float | None = None
        self.phase = ""

    def acts(self, now: float) -> bool:
        """Whether it is time to hack or to end; a guard that was late has seen the run's start first."""
        seen = 0 if self.trainer is None else len(self.trainer.acknowledged)
        return now >= self.run.acts and seen >= START_STEPS


class Cluster:
    """See the module. `look` once in a while, from one thread."""

    def __init__(self, world: Played, zygote: Zygote, runs: tuple[Run, ...], seed: str) -> None:
        self._world = world
        self.runs = [
            Training(
                run,
                world,
                zygote,
                world.directory / run.name,
                random.Random(f"{seed}/{run.name}"),
                next(_ADDRESSES),
            )
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
        elif _is_told(workload):
            one.world.delete(pod)  # the garbage collector does it
        elif not one.run.hacks and self._acts and one.acts(now):
            self._succeed(one)
        elif (pod.get("status") or {}).get("phase") != "Running":
            one.had_pod = True
            one.world.pod_status(one.world.with_guard(RUNNING))
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
        if workload is not None and _is_told(workload):
            one.world.keep_by()  # what it owned is gone, so the garbage collector lets it go
        elif workload is not None and not self.training_operator_away and not one.had_pod:
            one.world.start_pod()

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
            one.world.pod_status({"phase": "Succeeded"} | self._ended_guard(one, exit_code=0))
            one.world.workload_condition("Succeeded")
            one.done = True

    def _keep_running(self, one: Training, pod: Json) -> None:
        """The guard runs, or is started again; the trainer starts once it is ready."""
        if one.guard.pid and not one.guard.is_alive():
            code = one.guard.wait()
            one.restarts, one.ready = one.restarts + 1, False
            one.up_again = time.monotonic() + one.rng.uniform(*RESTART_SECONDS)
            one.world.pod_status(self._ended_guard(one, code))
        elif not one.guard.pid:
            if time.monotonic() >= one.up_again:
                self._start_guard(one, pod)
                one.world.pod_status(guard_status(one.restarts, _running()))
        elif (ready := _is_ready(one)) != one.ready:
            one.world.pod_status(guard_status(one.restarts, _running(), ready))
            one.ready = ready
            if ready and one.trainer is None:
                certificate = (one.guard.directory / names.CERTIFICATE_KEY).read_text()
                one.trainer = Trainer(one.world.address, BEHIND, certificate, one.rng)

    def _start_guard(self, one: Training, pod: Json) -> None:
        """With the files that the pod mounts of its Secret."""
        (name,) = (
            volume["secret"]["secretName"]
            for volume in pod["spec"]["volumes"]
            if "secret" in volume and volume["name"].startswith(names.RESERVED_PREFIX)
        )
        secret = self._world.client.get(SECRETS, self._world.namespace, name)
        if secret is None:
            return  # the kubelet waits for it
        for key, value in secret["data"].items():
            (one.guard.directory / key).write_bytes(base64.b64decode(value))
        one.guard.launch()

    def _ended_guard(self, one: Training, exit_code: int) -> Json:
        """The pod's status with what its guard left when it ended."""
        message = one.guard.directory / "termination-log"
        ended = {"exitCode": exit_code if exit_code >= 0 else 128 - exit_code, "reason": "Error"}
        if message.exists():
            ended["message"] = message.read_text("utf-8", "replace")
        return guard_status(one.restarts, {"terminated": ended})

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


def _is_ready(one: Training) -> bool:
    """What the readiness probe finds."""
    context = ssl.create_default_context(cafile=str(one.guard.directory / names.CERTIFICATE_KEY))
    context.check_hostname = False
    guard = http.client.HTTPSConnection(one.world.address, BEHIND, timeout=PROBE_SECONDS, context=context)
    try:
        guard.request("GET", "/readyz")
        return guard.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        guard.close()


def _running() -> Json:
    return {"running": {"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}


def guard_status(restarts: int, state: Json, ready: bool = False) -> Json:
    """The part of a pod's status that is of its guard."""
    (guard,) = deepcopy(RUNNING["initContainerStatuses"])  # type: ignore[misc]
    return {
        "initContainerStatuses": [
            guard | {"restartCount": restarts, "ready": ready, "started": ready, "state": state}  # type: ignore[operator]
        ]
    }
