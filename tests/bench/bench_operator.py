"""The operator with many running jobs, on a real kube-apiserver and etcd; pods are objects without a kubelet.

    python tests/bench/bench_operator.py [--jobs 1000] [--pods 16] [--fires 100] [--seconds 30] [--code DIR]

The jobs, their workloads and pods (`fleet.py`) are written into etcd, and an operator comes upon them. Shown:
how long it takes to lead and to have looked at everything; memory; processor time while nothing happens, and
while every guard reports every 15 s, written into etcd as well, so that the reports come at their rate
however busy the API server is; and, while they do, the time from a fire (its write answered) to the stop
request on the workload, as a watch sees it, and until no pod is left. This program plays the
training-operator. API server, etcd and operator share the machine with it, so the latencies are upper bounds.
`--code` is another checkout, whose operator is measured to compare with.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import yaml
from fleet import IMAGE, POD, ROOT, TEAMS, Json, a_job, a_pod, a_workload, report, uid

sys.path.insert(0, str(ROOT / "tests" / "operator"))

from integration.conftest import NAMESPACES, install
from integration.controlplane import ControlPlane, control_plane
from integration.waiting import eventually
from integration.world import JOBS, PYTORCHJOBS, apply_guard

from guard_operator.api.schema import crd
from guard_operator.runtime.client import MERGE, PODS, Client, Resource, load_configuration
from guard_operator.runtime.errors import ApiError, ClusterError, TransportError

HEARTBEAT_SECONDS = 15.0
PATIENCE_SECONDS = 300.0
#: Of one transaction of etcd, whose requests may have 1.5 MiB.
BATCH_BYTES = 1 << 20


class Process:
    """The operator under measurement."""

    def __init__(self, kubeconfig: Path, log: Path, code: Path) -> None:
        self.started = time.monotonic()
        self._log = log
        command = [
            sys.executable, "-m", "guard_operator", f"--kubeconfig={kubeconfig}", f"--guard-image={IMAGE}",
            "--lease-namespace=default", "--lease-seconds=30", "--bind=127.0.0.1", "--port=0",
        ]  # fmt: skip
        self._popen = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, cwd=code)

    def leading_after(self) -> float:
        """Seconds from the start of the process until it leads."""
        eventually(lambda: "leading as" in self._log.read_text(), "it leads", within=PATIENCE_SECONDS)
        return time.monotonic() - self.started

    def settled_after(self) -> float:
        """Seconds from the start until it has looked at everything."""

        def idle() -> bool:
            queue = self.state()["queue"]
            return not queue["waiting"] and not queue["working"]

        eventually(idle, "its queue is empty", within=PATIENCE_SECONDS)
        return time.monotonic() - self.started

    def state(self) -> Json:
        found = re.search(r"probes and metrics on port (\d+)", self._log.read_text())
        assert found, self._log.read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/debug/state", timeout=60) as answer:
            state: Json = json.load(answer)
            return state

    def works(self) -> bool:
        """Whether the process is there: one that lost its Lease ends, and nobody starts another here."""
        if (code := self._popen.poll()) is not None:
            end = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"the operator ended with {code}; its log ends so:\n{end}")
        return True

    def memory(self, field: str = "VmRSS") -> float:
        """Resident memory, MiB; `VmHWM`: the most there has been."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self._popen.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def processor(self) -> float:
        """Processor time used so far, seconds."""
        fields = Path(f"/proc/{self._popen.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._popen.terminate()
        self._popen.wait(60)


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


class Guards(threading.Thread):
    """Every guard of these jobs reports every 15 s, spread evenly, until it is told to end."""

    def __init__(self, etcd: Etcd, numbers: list[int]) -> None:
        super().__init__(daemon=True)
        self._etcd, self._raw = etcd, [a_job(number) for number in numbers]
        self.sent, self.over = 0, threading.Event()

    def run(self) -> None:
        started = time.monotonic()
        while not self.over.is_set():
            due = int((time.monotonic() - started) * len(self._raw) / HEARTBEAT_SECONDS)
            self._etcd.put(stored(JOBS, self._reports(number)) for number in range(self.sent, due))
            self.sent = max(self.sent, due)
            self.over.wait(0.05)

    def _reports(self, number: int) -> Json:
        raw = self._raw[number % len(self._raw)]
        raw["status"]["guard"] |= {"heartbeat": now(), "step": number}
        return raw


def now() -> str:
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


class TrainingOperator(threading.Thread):
    """Notes when each workload is first seen with its deadline, and ends it as training-operator would."""

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
                    self._note(raw)
                query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
                with self._client.stream(PYTORCHJOBS.path(), query, 3600) as events:
                    for event in events:
                        if event["type"] == "ERROR":
                            break
                        self._note(event["object"])
            time.sleep(1)

    def _note(self, raw: Json) -> None:
        of, policy = raw["metadata"], raw["spec"].get("runPolicy", {})
        if policy.get("activeDeadlineSeconds") == 1 and of["name"] not in self.seen:
            self.seen[of["name"]] = time.monotonic()
            self._pool.submit(self._end, of["namespace"], of["name"])

    def _end(self, namespace: str, name: str) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        for index in range(self._pods):
            path = PODS.path(namespace, f"{name}-{'worker' if index else 'master'}-{index}")
            taken(lambda path=path: self._client.request("DELETE", path, body=options))
        failed = {"status": {"conditions": [{"type": "Failed", "status": "True", "message": "Deadline"}]}}
        path = PYTORCHJOBS.path(namespace, name, "status")
        taken(lambda: self._client.request("PATCH", path, body=failed, content_type=MERGE))


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


def fire(client: Client, number: int) -> float:
    """The guard of this job fires; when its write was answered."""
    namespace, name = name_of(number)
    latch = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": number, "at": now()}
    taken(lambda: apply_guard(client, namespace, name, report(number) | {"heartbeat": now(), "fire": latch}))
    return time.monotonic()


def stopped_seconds(client: Client, number: int) -> float | None:
    """From the guard's latch until no pod was left, by the times in the status; None: not yet."""
    status = (client.get(JOBS, *name_of(number)) or {})["status"]
    end = (status.get("stop") or {}).get("emptySince")
    if status["phase"] != "Stopped" or end is None:
        return None
    start = datetime.fromisoformat(status["guard"]["fire"]["at"])
    return (datetime.fromisoformat(end) - start).total_seconds()


def percentile(values: list[float], p: float) -> float:
    return sorted(values)[min(len(values) - 1, int(p * len(values)))]


def show(what: str, value: float, unit: str) -> None:
    print(f"{what:<44} {value:8.2f} {unit}")


def share(operator: Process, seconds: float) -> float:
    """Of one core, in these seconds, percent."""
    before, started = operator.processor(), time.monotonic()
    time.sleep(seconds)
    return 100 * (operator.processor() - before) / (time.monotonic() - started)


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
    operator = Process(kubeconfig, directory / "operator.log", options.code)
    show("start to leading", operator.leading_after(), "s")
    show("start until all was looked at", operator.settled_after(), "s")
    show("processor time until then", operator.processor(), "s")
    show("memory", operator.memory(), "MiB")
    show("memory, the most until then", operator.memory("VmHWM"), "MiB")
    time.sleep(3)
    show("processor, nothing happens", share(operator, seconds), "% of a core")

    firing = [number for number in range(0, jobs, max(1, jobs // fires))][:fires]
    guards = Guards(etcd, sorted(set(range(jobs)) - set(firing)))
    guards.start()
    time.sleep(3)
    sent, started = guards.sent, time.monotonic()
    used = share(operator, seconds)
    rate = (guards.sent - sent) / (time.monotonic() - started)
    show(f"processor, {rate:.0f} reports a second", used, "% of a core")
    show("of it for each report", 10 * used / rate, "ms")
    show("memory", operator.memory(), "MiB")

    training = TrainingOperator(client, options.pods)
    training.start()
    time.sleep(1)
    fired: dict[int, float] = {}
    for number in firing:
        fired[number] = fire(client, number)
        time.sleep(0.05)
    eventually(
        lambda: operator.works() and len(training.seen) == len(fired),
        "all are told to stop",
        PATIENCE_SECONDS,
    )
    guards.over.set()
    confirmed = []
    for number in fired:
        eventually(lambda n=number: stopped_seconds(client, n) is not None, "it is stopped", PATIENCE_SECONDS)
        confirmed.append(stopped_seconds(client, number) or 0.0)
    requested = [max(0.0, training.seen[name_of(number)[1]] - at) for number, at in fired.items()]
    for what, took in (("stop request", requested), ("no pod left", confirmed)):
        show(f"{len(took)} fires, to {what}: p50", percentile(took, 0.5), "s")
        show(f"{len(took)} fires, to {what}: p99", percentile(took, 0.99), "s")
    show("memory at the end", operator.memory(), "MiB")
    phases = Counter(
        raw["status"]["phase"] for raw in client.list(JOBS, None, {"resourceVersion": "0"})["items"]
    )
    assert phases == Counter(Running=jobs - len(fired), Stopped=len(fired)), phases
    operator.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=16)
    parser.add_argument("--fires", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--code", type=Path, default=ROOT)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as name, control_plane(Path(name)) as plane:
        measure(plane, Path(name), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
