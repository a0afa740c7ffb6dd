"""The operator with many jobs, on a real kube-apiserver and etcd; pods are API objects without a kubelet.

    python tests/bench/bench_operator.py [--jobs 1000] [--fires 100] [--seconds 30]

Shown: start-up, memory, processor time when idle and while every job's guard reports every 15 s, and the time
from a fire (its write answered) to the stop request on the workload, as a watch sees it, and to the
confirmation that no pod is left. This program plays the training-operator. It shares the machine with API
server, etcd and operator, so the latencies are upper bounds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "operator"))

from integration.conftest import install, sample_job  # noqa: E402
from integration.controlplane import ControlPlane, control_plane  # noqa: E402
from integration.waiting import eventually  # noqa: E402
from integration.world import JOBS, PYTORCHJOBS, RUNNING, apply_guard  # noqa: E402

from guard_operator.api.schema import crd  # noqa: E402
from guard_operator.runtime.client import CLAIMS, MERGE, PODS, Client, load_configuration  # noqa: E402
from guard_operator.runtime.errors import ClusterError  # noqa: E402

NAMESPACE = "default"
HEARTBEAT_SECONDS = 15.0
PATIENCE_SECONDS = 1200.0


class Process:
    """The operator under measurement."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self.started = time.monotonic()
        self._log = log
        command = [
            sys.executable, "-m", "guard_operator", f"--kubeconfig={kubeconfig}", "--guard-image=guard:1",
            f"--lease-namespace={NAMESPACE}", "--lease-seconds=30", "--bind=127.0.0.1", "--port=0",
        ]  # fmt: skip
        self._popen = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, cwd=ROOT)

    def leading_after(self) -> float:
        """Seconds from the start of the process until it leads."""
        eventually(lambda: "leading as" in self._log.read_text(), "it leads", within=120)
        return time.monotonic() - self.started

    def memory(self) -> float:
        """Resident memory, MiB."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self._popen.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def processor(self) -> float:
        """Processor time used so far, seconds."""
        fields = Path(f"/proc/{self._popen.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._popen.terminate()
        self._popen.wait(60)


def everywhere(work: Callable[[str], Any], names: Iterable[str], threads: int = 8) -> None:
    """Do it for every job, a few at a time; an error ends the benchmark."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, names))


def submit(client: Client, name: str) -> None:
    client.create(JOBS, NAMESPACE, sample_job(name, NAMESPACE), "bench")


def start_pod(client: Client, name: str) -> None:
    """The workload's pod, running, and the guard's first report."""
    workload = client.get(PYTORCHJOBS, NAMESPACE, name)
    assert workload is not None
    template = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    replica = {"training.kubeflow.org/replica-index": "0", "training.kubeflow.org/replica-type": "master"}
    labels = template["metadata"]["labels"] | replica
    owner = {"apiVersion": PYTORCHJOBS.api_version, "kind": PYTORCHJOBS.kind, "name": name}
    owners = [{**owner, "uid": workload["metadata"]["uid"], "controller": True}]
    meta = {"name": f"{name}-master-0", "labels": labels, "ownerReferences": owners}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
    client.create(PODS, NAMESPACE, {**pod, "spec": {**template["spec"], "nodeName": "node"}}, "bench")
    path = PODS.path(NAMESPACE, f"{name}-master-0", "status")
    client.request("PATCH", path, body={"status": RUNNING}, content_type=MERGE)
    running = {"type": "Running", "status": "True", "message": "running"}
    path = PYTORCHJOBS.path(NAMESPACE, name, "status")
    client.request("PATCH", path, body={"status": {"conditions": [running]}}, content_type=MERGE)
    heartbeat(client, name)


def now() -> str:
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def heartbeat(client: Client, name: str, **more: Any) -> None:
    apply_guard(client, NAMESPACE, name, {"heartbeat": now(), "step": 1, **more})


def phases(client: Client, phase: str) -> int:
    items = client.list(JOBS, NAMESPACE, {"resourceVersion": "0"}).get("items") or []
    return sum((raw.get("status") or {}).get("phase") == phase for raw in items)


def settle(client: Client, phase: str, jobs: int) -> None:
    eventually(lambda: phases(client, phase) == jobs, f"{jobs} jobs are {phase}", PATIENCE_SECONDS)


class TrainingOperator(threading.Thread):
    """Notes when each workload is first seen with its deadline, and ends it as training-operator would."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._pool = ThreadPoolExecutor(4)
        self.seen: dict[str, float] = {}

    def run(self) -> None:
        version = self._client.list(PYTORCHJOBS, NAMESPACE, {"limit": "1"})["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
        path = PYTORCHJOBS.path(NAMESPACE)
        # The API server ends before this thread does.
        with suppress(ClusterError), self._client.stream(path, query, 3600) as events:
            for event in events:
                policy = event["object"].get("spec", {}).get("runPolicy", {})
                name = event["object"]["metadata"]["name"]
                if policy.get("activeDeadlineSeconds") == 1 and name not in self.seen:
                    self.seen[name] = time.monotonic()
                    self._pool.submit(self._end, name)

    def _end(self, name: str) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self._client.request("DELETE", PODS.path(NAMESPACE, f"{name}-master-0"), body=options)
        failed = {"type": "Failed", "status": "True", "message": "DeadlineExceeded"}
        path = PYTORCHJOBS.path(NAMESPACE, name, "status")
        self._client.request("PATCH", path, body={"status": {"conditions": [failed]}}, content_type=MERGE)


def stopped_seconds(client: Client, name: str) -> float:
    """From the guard's latch until no pod was left, by the times in the status."""
    status = (client.get(JOBS, NAMESPACE, name) or {})["status"]
    start, end = status["guard"]["fire"]["at"], status["stop"]["emptySince"]
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def fire(client: Client, name: str, fired: dict[str, float]) -> None:
    latch = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 1, "at": now()}
    heartbeat(client, name, fire=latch)
    fired[name] = time.monotonic()


def heartbeats(client: Client, names: list[str], seconds: float) -> float:
    """Every guard reports every 15 s, spread evenly, for this long; reports per second that were reached."""
    started, sent = time.monotonic(), 0

    def send(name: str) -> None:
        try:
            heartbeat(client, name)
        except ClusterError as error:
            print(f"heartbeat of {name}: {error}", file=sys.stderr)

    with ThreadPoolExecutor(8) as pool:
        while (elapsed := time.monotonic() - started) < seconds:
            due = int(elapsed * len(names) / HEARTBEAT_SECONDS)
            for number in range(sent, due):
                pool.submit(send, names[number % len(names)])
            sent = max(sent, due)
            time.sleep(0.05)
    return sent / (time.monotonic() - started)


def percentile(values: list[float], p: float) -> float:
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


def measure(plane: ControlPlane, directory: Path, jobs: int, fires: int, seconds: float) -> None:
    kubeconfig = plane.kubeconfig(directory / "kubeconfig")
    client = Client(load_configuration(str(kubeconfig)))
    install(client, crd())
    install(client, yaml.safe_load((plane.crds / "kubeflow.org_pytorchjobs.yaml").read_text()))
    claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "heldout"},
        "spec": claim,
    }
    client.create(CLAIMS, NAMESPACE, body, "bench")
    names = [f"job-{number}" for number in range(jobs)]
    everywhere(lambda name: submit(client, name), names)

    operator = Process(kubeconfig, directory / "operator.log")
    print(f"start-up to leading                  {operator.leading_after():6.2f} s")
    settle(client, "Pending", jobs)
    created = time.monotonic() - operator.started
    print(f"{jobs} jobs guarded                    {created:6.1f} s  ({jobs / created:.0f} jobs/s)")
    everywhere(lambda name: start_pod(client, name), names)
    settle(client, "Running", jobs)
    time.sleep(3)

    before = operator.processor()
    time.sleep(seconds)
    print(f"processor, idle                      {(operator.processor() - before) / seconds:6.1%} of a core")
    before, started = operator.processor(), time.monotonic()
    rate = heartbeats(client, names, seconds)
    used = (operator.processor() - before) / (time.monotonic() - started)
    print(f"processor, {rate:5.1f} heartbeats/s        {used:6.1%} of a core")
    print(f"memory with {jobs} jobs                {operator.memory():6.1f} MiB")

    training, fired = TrainingOperator(client), dict[str, float]()
    training.start()
    time.sleep(1)
    for name in names[:: max(1, jobs // fires)][:fires]:
        fire(client, name, fired)
        time.sleep(0.05)
    settle(client, "Stopped", len(fired))
    requested = [training.seen[name] - at for name, at in fired.items()]
    confirmed = [stopped_seconds(client, name) for name in fired]
    for what, took in (("stop request", requested), ("no pod left ", confirmed)):
        print(
            f"fire to {what}, {len(took)} fires        "
            f"p50 {percentile(took, 0.5):.3f} s, p99 {percentile(took, 0.99):.3f} s"
        )
    operator.end()

    again = Process(kubeconfig, directory / "again.log")
    print(f"start-up to leading with {jobs} jobs   {again.leading_after():6.2f} s")
    again.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--fires", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        measure(plane, Path(name), options.jobs, options.fires, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
