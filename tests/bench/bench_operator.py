"""The operator with many running jobs, on a real kube-apiserver and etcd, with guards over HTTPS.

    python tests/bench/bench_operator.py [--jobs 1000] [--pods 16] [--fires 100] [--seconds 30]

The jobs, their workloads and pods (`fleet.py`) are written into etcd, and an operator comes upon them, as
after a change of the leader. Their guards are real servers with a key each, in one process (`guards.py`); the
pods are objects without a kubelet. Shown: how long it takes to lead, to have polled every guard and to have
looked at everything; memory; processor time while every run trains (a guard says nothing of a step), and
while each guard has evaluated a checkpoint every five minutes; the time from a fire until the delete request
is on the workload, as a watch sees it, and until no pod is left. This program plays the training-operator and
the garbage collector. API server, etcd, guards and operator share the machine with it, so the latencies are
upper bounds.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import yaml
from fleet import (
    POD,
    PORT,
    ROOT,
    TEAMS,
    Json,
    a_job,
    a_kept_secret,
    a_key,
    a_pod,
    a_workload,
    address,
    host,
    uid,
)
from processes import PATIENCE_SECONDS, Process, share

sys.path.insert(0, str(ROOT / "tests" / "operator"))

from integration.conftest import NAMESPACES, install
from integration.controlplane import ControlPlane, control_plane
from integration.waiting import eventually
from integration.world import JOBS, PYTORCHJOBS

from rlguard.operator.api.schema import crd
from rlguard.operator.runtime.client import (
    MERGE,
    PODS,
    SECRETS,
    Client,
    Resource,
    load_configuration,
)
from rlguard.operator.runtime.errors import ApiError, ClusterError, TransportError

#: Between two evaluations of one guard.
EVALUATION_SECONDS = 300.0
#: Of one transaction of etcd, whose requests may have 1.5 MiB.
BATCH_BYTES = 1 << 20


class Etcd:
    """Writes objects past the API server, which reads JSON as well as what it writes itself."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v3/kv/txn"

    def put(self, objects: Iterable[tuple[bytes, bytes]]) -> int:
        """Write them (key, JSON), as many at once as a transaction takes; how many there were."""
        batch: list[Json] = []
        size = count = 0
        for key, value in objects:
            if batch and (size + len(value) > BATCH_BYTES or len(batch) == 128):
                self._send(batch)
                batch, size = [], 0
            batch.append({"request_put": {"key": _text(key), "value": _text(value)}})
            size, count = size + len(value), count + 1
        if batch:
            self._send(batch)
        return count

    def _send(self, batch: list[Json]) -> None:
        request = urllib.request.Request(self._url, json.dumps({"success": batch}).encode())
        for left in reversed(range(10)):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    assert json.load(answer).get("succeeded")
                    return
            except OSError:  # on a machine that is too busy etcd does not answer in its own time
                if not left:
                    raise
                time.sleep(1.0)


def stored(resource: Resource, raw: Json) -> tuple[bytes, bytes]:
    """Under which key etcd has it, and what it has there."""
    of, group = raw["metadata"], f"{resource.group}/" if resource.group else ""
    key = f"/registry/{group}{resource.plural}/{of['namespace']}/{of['name']}"
    return key.encode(), json.dumps(raw).encode()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def a_fleet(jobs: int, pods: int) -> Iterator[tuple[bytes, bytes]]:
    """Everything of so many jobs, as etcd has it."""
    for number in range(jobs):
        job = a_job(number)
        workload = a_workload(job, number)
        yield stored(JOBS, job)
        yield stored(PYTORCHJOBS, workload)
        yield stored(PODS, a_pod(workload, number, 0))
        if pods > 1:
            yield from workers(*stored(PODS, a_pod(workload, number, 1)), number, pods)


def workers(key: bytes, value: bytes, number: int, pods: int) -> Iterator[tuple[bytes, bytes]]:
    """The first Worker and, in its words, the others: making each anew would take far longer."""
    name, node, index = b"-worker-%d", b"ip-10-0-%d-", b'replica-index": "%d"'
    for n in range(1, pods):
        changed = value.replace(uid(POD + 1, number).encode(), uid(POD + n, number).encode())
        for part, first, other in ((name, 1, n), (node, 1, n), (index, 0, n - 1)):
            changed = changed.replace(part % first, part % other)
        yield key.replace(name % 1, name % n), changed


def name_of(number: int) -> tuple[str, str]:
    return f"team-{number % TEAMS}", f"grpo-run-{number}"


class Guards:
    """The process with all guards."""

    def __init__(self, folder: Path, jobs: int) -> None:
        folder.mkdir()
        self.keys = list[tuple[bytes, bytes]]()
        with (folder / "guards.jsonl").open("w") as known:
            for number in range(jobs):
                job = a_job(number)
                key = a_key(job)
                (folder / f"{number}.pem").write_text(key["tls.crt"] + key["tls.key"])
                self.keys.append(stored(SECRETS, a_kept_secret(job, number, key)))
                one = {"number": number, "address": address(number), "host": host(job)}
                known.write(json.dumps({**one, "token": key["supervisor-token"]}) + "\n")
        command = [sys.executable, str(Path(__file__).with_name("guards.py")), str(folder), str(PORT)]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lock = threading.Lock()
        assert self._popen.stdout is not None and self._popen.stdout.readline() == "ready\n"

    def ask(self, order: str) -> float:
        """Give an order; its answer."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        with self._lock:
            self._popen.stdin.write(order + "\n")
            self._popen.stdin.flush()
            return float(self._popen.stdout.readline())

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()


class Evaluations(threading.Thread):
    """Each of these guards evaluates a checkpoint in `EVALUATION_SECONDS`, spread evenly, until it ends."""

    def __init__(self, guards: Guards, numbers: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._guards, self._numbers = guards, numbers
        self.over = threading.Event()

    def run(self) -> None:
        for number in itertools.cycle(self._numbers):
            if self.over.wait(EVALUATION_SECONDS / len(self._numbers)):
                return
            self._guards.ask(f"evaluate {number}")


class GarbageCollector(threading.Thread):
    """Notes when each workload is first seen on its way out, and collects what it owns, then itself."""

    def __init__(self, client: Client, pods: int) -> None:
        super().__init__(daemon=True)
        self._client, self._pods = client, pods
        self._pool = ThreadPoolExecutor(4)
        self.seen: dict[str, float] = {}

    def run(self) -> None:
        while True:  # the API server ends before this thread does; one as busy as here also ends watches
            with suppress(ClusterError):
                listed = self._client.list(PYTORCHJOBS, None, {"resourceVersion": "0"})
                for raw in listed["items"]:
                    self._note(raw["metadata"])
                query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
                with self._client.stream(PYTORCHJOBS.path(), query, 3600) as events:
                    for event in events:
                        if event["type"] == "ERROR":
                            break
                        self._note(event["object"]["metadata"])
            time.sleep(1)

    def _note(self, of: Json) -> None:
        if of["name"] not in self.seen and "deletionTimestamp" in of:
            self.seen[of["name"]] = time.monotonic()
            self._pool.submit(self._end, of["namespace"], of["name"])

    def _end(self, namespace: str, name: str) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        for index in range(self._pods):
            path = PODS.path(namespace, f"{name}-{'worker' if index else 'master'}-{index}")
            taken(lambda path=path: self._client.request("DELETE", path, body=options))
        path, body = PYTORCHJOBS.path(namespace, name), {"metadata": {"finalizers": []}}
        taken(lambda: self._client.request("PATCH", path, body=body, content_type=MERGE))


def taken(request: Callable[[], object]) -> None:
    """Ask until the API server takes it; busy as it is here it may not answer in time."""
    while True:
        try:
            request()
        except ApiError as error:
            if error.status == 404:  # the try before had its effect
                return
        except TransportError:
            pass
        else:
            return
        time.sleep(0.2)


def stopped_seconds(client: Client, number: int) -> float | None:
    """From the guard's latch until no pod was left, by the times in the status; None: not yet."""
    status = (client.get(JOBS, *name_of(number)) or {})["status"]
    end = (status.get("stop") or {}).get("stoppedAt")
    if status["phase"] != "Stopped" or end is None:
        return None
    start = datetime.fromisoformat(status["guard"]["fire"]["at"])
    return (datetime.fromisoformat(end) - start).total_seconds()


def percentile(values: list[float], p: float) -> float:
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


def show(what: str, value: float, unit: str) -> None:
    print(f"{what:<44} {value:8.2f} {unit}")


def prepared(plane: ControlPlane, directory: Path, jobs: int, pods: int) -> tuple[Path, Client, Etcd]:
    """A cluster with so many jobs that run."""
    kubeconfig = plane.kubeconfig(directory / "kubeconfig")
    client = Client(load_configuration(str(kubeconfig)))
    install(client, crd())
    install(client, yaml.safe_load((plane.crds / "kubeflow.org_pytorchjobs.yaml").read_text()))
    for team in range(TEAMS):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{team}"}}
        client.request("POST", NAMESPACES.path(), body=body)
    etcd, started = Etcd(plane.etcd_url), time.monotonic()
    written = etcd.put(a_fleet(jobs, pods))
    show(f"{jobs} jobs of {pods} pods: {written} objects written in", time.monotonic() - started, "s")
    return kubeconfig, client, etcd


def measure(plane: ControlPlane, directory: Path, options: argparse.Namespace) -> None:
    jobs, fires, seconds = options.jobs, min(options.fires, options.jobs // 2), options.seconds
    kubeconfig, client, etcd = prepared(plane, directory, jobs, options.pods)
    guards = Guards(directory / "guards", jobs)
    etcd.put(guards.keys)
    operator = Process(kubeconfig, directory / "operator.log")
    show("start to leading", operator.leading_after(), "s")
    led = time.monotonic()
    polled = lambda: operator.works() and guards.ask("polled") == jobs  # noqa: E731
    eventually(polled, "every guard is polled", PATIENCE_SECONDS)
    show("from leading to the first poll of every guard", time.monotonic() - led, "s")
    show("start until all was looked at", operator.settled_after(), "s")
    show("processor time until then", operator.processor(), "s")
    show("memory", operator.memory(), "MiB")
    show("memory, the most until then", operator.memory("VmHWM"), "MiB")
    time.sleep(3)
    show("processor, every run trains", share(operator, seconds), "% of a core")

    firing = [number for number in range(0, jobs, max(1, jobs // fires))][:fires]
    evaluations = Evaluations(guards, sorted(set(range(jobs)) - set(firing)))
    evaluations.start()
    time.sleep(3)
    rate = jobs / EVALUATION_SECONDS
    show(f"processor, {rate:.1f} evaluations a second", share(operator, seconds), "% of a core")
    fires_are_met(client, guards, operator, firing, options.pods)
    evaluations.over.set()
    show("memory at the end", operator.memory(), "MiB")
    phases = Counter(
        raw["status"]["phase"] for raw in client.list(JOBS, None, {"resourceVersion": "0"})["items"]
    )
    assert phases == Counter(Running=jobs - len(firing), Stopped=len(firing)), phases
    operator.end()
    guards.end()


def fires_are_met(client: Client, guards: Guards, operator: Process, firing: list[int], pods: int) -> None:
    """These fire, twenty in a second: what came of it when."""
    training = GarbageCollector(client, pods)
    training.start()
    time.sleep(1 + len(firing) / 50)  # it has listed
    fired: dict[int, float] = {}
    for number in firing:
        fired[number] = guards.ask(f"fire {number}")
        time.sleep(0.05)
    eventually(
        lambda: operator.works() and len(training.seen) == len(fired), "all are deleted", PATIENCE_SECONDS
    )
    confirmed = []
    for number in fired:
        eventually(lambda n=number: stopped_seconds(client, n) is not None, "it is stopped", PATIENCE_SECONDS)
        confirmed.append(stopped_seconds(client, number) or 0.0)
    requested = [max(0.0, training.seen[name_of(number)[1]] - at) for number, at in fired.items()]
    for what, took in (("delete request", requested), ("no pod left", confirmed)):
        show(f"{len(took)} fires, to {what}: p50", percentile(took, 0.5), "s")
        show(f"{len(took)} fires, to {what}: p99", percentile(took, 0.99), "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=16)
    parser.add_argument("--fires", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        measure(plane, Path(name), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
