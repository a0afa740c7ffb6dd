"""The guard's reporter against a real API server: a real guard process writes `status.guard`, and comes back.

The guard has the rights of the injected Role and a real token of its service account, and nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guard_cli.report.command import _page
from guard_cli.report.evidence import read_evidence
from guard_core.kept_steps import read_steps
from guard_operator.api.names import GUARD_MANAGER
from guard_operator.api.schema import crd
from guard_operator.runtime.client import (
    CONFIG_MAPS,
    MERGE,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Client,
    load_configuration,
)

from .conftest import install, sample_job
from .controlplane import ControlPlane, control_plane
from .faults import Answer, Cut, fault_proxy
from .waiting import eventually
from .world import JOBS, World, is_deleted, token_for, world

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
START_SECONDS = 60.0
#: KL far above the default hard stop of 0.08 nats/token: fires as soon as the median of 5 shows it.
HIGH_KL = 2.0


@dataclass
class GuardProcess:
    """`python -m guard_service` for one job. Its state directory survives unless a test removes it."""

    directory: Path
    environment: dict[str, str]
    state: str = "state"
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def token_file(self) -> Path:
        return self.directory / "token"

    @property
    def log(self) -> str:
        return (self.directory / "guard.log").read_text()

    def start(self) -> GuardProcess:
        endpoint = self.directory / self.state / "endpoint.json"
        endpoint.unlink(missing_ok=True)
        (self.directory / "checkpoints").mkdir(exist_ok=True)
        policy = self.directory / "policy.yaml"
        policy.write_text("kl: {hard_stop: 0.08}")  # by default a KL stops nothing
        values = {
            "PORT": "0",
            "POLICY_FILE": str(policy),
            "STATE_DIR": str(self.directory / self.state),
            "CHECKPOINT_ROOT": str(self.directory / "checkpoints"),
            "ALLOW_UNAUTHENTICATED_LOOPBACK": "true",
            **{f"CLUSTER__{name}": value for name, value in self.environment.items()},
            "CLUSTER__TOKEN_FILE": str(self.token_file),
            **self.settings,
        }
        env = {k: v for k, v in os.environ.items() if not k.startswith("RLGUARD_")}
        env |= {f"RLGUARD_GUARD_{name}": value for name, value in values.items()}
        with (self.directory / "guard.log").open("ab") as log:
            command = [sys.executable, "-m", "guard_service"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        until = time.monotonic() + START_SECONDS
        while not endpoint.exists():
            assert self.process.poll() is None and time.monotonic() < until, self.log
            time.sleep(0.02)
        self.url = json.loads(endpoint.read_text())["url"]
        return self

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
        return text if path == "/metrics" else json.loads(text)

    def steps(self, first: int, count: int, kl: float, attempt: int = 0, **more: Any) -> Json:
        """Report steps one after another; the last verdict. Two at most have rollouts, for the room."""
        reports = [
            {
                **{name: value for name, value in more.items() if name != "rollouts" or n <= first + 1},
                "attempt": attempt,
                "step": n,
                "reward": 0.5,
                "kl": kl if n > 1 else 0.0,
                "kl_kind": "ref_token_mean",
            }
            for n in range(first, first + count)
        ]
        verdict: Json = self.ask("/v1/steps", reports)["verdict"]
        return verdict

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            self.process.wait(40)
            self.process = None


class Cluster:
    """A namespace with one job and the rights that the operator gives to its guard."""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str, directory: Path) -> None:
        self.plane, self.client, self.namespace, self.directory = plane, client, namespace, directory
        self.guards: list[GuardProcess] = []
        self.uid = self.submit()

    def submit(self) -> str:
        """Make the job and its guard's rights; the job's UID."""
        self.client.create(JOBS, self.namespace, sample_job("run", self.namespace), "test")
        found = self.client.get(JOBS, self.namespace, "run")
        assert found is not None
        return str(found["metadata"]["uid"])

    def grant(self) -> None:
        mine = {"apiGroups": [JOBS.group], "resourceNames": ["run"]}
        rules = [
            {**mine, "resources": [JOBS.plural], "verbs": ["get"]},
            {**mine, "resources": [f"{JOBS.plural}/status"], "verbs": ["get", "patch"]},
        ]
        subject = {"kind": "ServiceAccount", "name": "guard", "namespace": self.namespace}
        reference = {"apiGroup": ROLES.group, "kind": "Role", "name": "guard"}
        for resource, body in (
            (SERVICE_ACCOUNTS, {}),
            (ROLES, {"rules": rules}),
            (ROLE_BINDINGS, {"roleRef": reference, "subjects": [subject]}),
        ):
            typed = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "guard"}}
            self.client.create(resource, self.namespace, typed | body, "test")

    def guard(self, url: str | None = None, uid: str | None = None, name: str = "guard") -> GuardProcess:
        """A guard of the job, not started yet."""
        directory = self.directory / name
        directory.mkdir()
        environment = {
            "NAMESPACE": self.namespace,
            "NAME": "run",
            "UID": uid or self.uid,
            "URL": url or self.plane.url,
            "CA_FILE": str(self.plane.ca_file),
        }
        made = GuardProcess(directory, environment)
        made.token_file.write_text(token_for(self.client, self.namespace, "guard"))
        self.guards.append(made)
        return made

    def job(self) -> Json:
        found = self.client.get(JOBS, self.namespace, "run")
        assert found is not None
        return found

    def status(self) -> Json:
        """`status.guard`, {} if there is none."""
        guard: Json = (self.job().get("status") or {}).get("guard") or {}
        return guard

    def fire(self) -> Json | None:
        return self.status().get("fire")


@pytest.fixture
def cluster(plane: ControlPlane, client: Client, namespace: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(plane, client, namespace, tmp_path)
    made.grant()
    yield made
    for guard in made.guards:
        guard.end()


def test_what_the_guard_knows_is_in_the_status_and_it_beats(cluster: Cluster) -> None:
    guard = cluster.guard().start()
    first = eventually(cluster.status, "the guard has reported")
    assert first["level"] == "unknown" and first["code"] == "no_steps" and "step" not in first
    guard.steps(1, 8, kl=0.01)
    status = eventually(lambda: (s := cluster.status()).get("step") == 8 and s, "step 8 is reported")
    assert status["steps"] == 8 and status["klEma"] == pytest.approx(0.01)
    assert "heldoutEma" not in status and "fire" not in status  # unknown is absent
    managers = {m["manager"] for m in cluster.job()["metadata"]["managedFields"] if "status" in str(m)}
    assert GUARD_MANAGER in managers
    eventually(lambda: cluster.status()["heartbeat"] > status["heartbeat"], "it beats", within=25)
    assert "rlguard_guard_report_failures_total 0.0" in guard.ask("/metrics")
    assert "rlguard_guard_last_report_timestamp_seconds" in guard.ask("/metrics")
    for _ in range(5):
        with pytest.raises(urllib.error.HTTPError):
            guard.ask("/v1/steps", {"a \U0001f600": 1})  # what JSON escapes it to is no YAML
    status = eventually(lambda: (s := cluster.status())["code"] == "reports_refused" and s, "it is reported")
    assert "a \U0001f600" in status["reason"] and status["steps"] == 8


@pytest.mark.always
def test_a_fire_is_reported_at_once_and_stays_after_kill_and_an_empty_store(cluster: Cluster) -> None:
    guard = cluster.guard().start()
    eventually(cluster.status, "the guard has reported")
    assert guard.steps(1, 60, kl=HIGH_KL)["fire"]
    fire = eventually(cluster.fire, "the fire is in the status", within=4)
    assert fire["code"] == "kl_hard_stop" and fire["attempt"] == 0
    guard.end(signal.SIGKILL)

    guard.state = "another-node"  # an emptyDir does not follow the pod
    guard.start()
    verdict = guard.ask("/v1/verdict")
    assert verdict["fire"] and verdict["stop"] and verdict["code"] == "kl_hard_stop"
    assert verdict["steps"] == 60 and verdict["attempt"] == 0
    before = cluster.status()["heartbeat"]
    after = eventually(lambda: (s := cluster.status())["heartbeat"] != before and s, "it reports again")
    assert after["fire"] == fire

    guard.end(signal.SIGKILL)  # and the resumed state is in the store now
    cluster.client.request("DELETE", JOBS.path(cluster.namespace, "run"))
    assert guard.start().ask("/v1/verdict")["fire"]


def test_the_detector_goes_on_from_the_status_where_the_lost_store_left_it(cluster: Cluster) -> None:
    guard = cluster.guard().start()
    guard.steps(1, 9, kl=0.03)
    kl = eventually(lambda: (s := cluster.status()).get("step") == 9 and s["klEma"], "step 9 is reported")
    guard.end()
    guard.state = "another-node"
    guard.start()
    verdict = guard.ask("/v1/verdict")
    assert (verdict["steps"], verdict["attempt"], verdict["kl_ema"]) == (9, 0, kl) and not verdict["fire"]
    assert guard.steps(1, 1, kl=0.03, attempt=1)["steps"] == 10


def test_a_fire_while_the_api_server_is_away_is_reported_when_it_is_back(
    cluster: Cluster, plane: ControlPlane
) -> None:
    with fault_proxy(plane) as proxy:
        guard = cluster.guard(proxy.url).start()
        eventually(cluster.status, "the guard has reported")
        proxy.inject(lambda _method, _path: Cut())
        assert guard.steps(1, 60, kl=HIGH_KL)["fire"]  # the trainer hears of it all the same
        eventually(lambda: "status.guard was not written" in guard.log, "the failure is told")
        assert cluster.fire() is None
        failures = [
            line
            for line in guard.ask("/metrics").splitlines()
            if line.startswith("rlguard_guard_report_fail")
        ]
        assert float(failures[0].split()[-1]) > 0
        proxy.heal()
        assert eventually(cluster.fire, "the fire is reported", within=25)["code"] == "kl_hard_stop"
        eventually(lambda: "takes reports" in guard.log, "the recovery is told")


@pytest.mark.slow
def test_a_fire_while_the_api_server_is_down_is_reported_when_it_was_started_again(tmp_path: Path) -> None:
    """A control plane of its own: the process is killed, and started again on the same etcd."""
    directory = tmp_path / "control-plane"
    directory.mkdir()
    with control_plane(directory) as plane, ExitStack() as stack:
        client = Client(load_configuration(str(plane.kubeconfig(tmp_path / "kubeconfig"))))
        install(client, crd())
        cluster = Cluster(plane, client, "default", tmp_path)
        cluster.grant()
        guard = cluster.guard().start()
        stack.callback(guard.end)
        eventually(cluster.status, "the guard has reported")

        plane.api_server.kill()
        assert guard.steps(1, 60, kl=HIGH_KL)["fire"]
        eventually(lambda: "status.guard was not written" in guard.log, "the failure is told")

        plane.api_server.start()
        fire = eventually(cluster.fire, "the fire is reported", within=START_SECONDS)
        assert fire["code"] == "kl_hard_stop"


@pytest.mark.always
def test_an_empty_store_without_the_status_is_unknown_and_never_healthy(
    cluster: Cluster, plane: ControlPlane
) -> None:
    with fault_proxy(plane) as proxy:
        proxy.inject(lambda _method, _path: Answer(503))
        guard = cluster.guard(proxy.url).start()
        verdict = guard.ask("/v1/verdict")
        assert verdict["level"] == "unknown" and "may hold a fire" in verdict["reason"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            guard.steps(1, 1, kl=0.01)
        assert refused.value.code == 503
        proxy.heal()
        eventually(lambda: guard.ask("/v1/verdict")["code"] == "no_steps", "it has read the status")
        assert guard.steps(1, 1, kl=0.01)["steps"] == 1


@pytest.mark.always
def test_another_job_of_the_same_name_is_neither_resumed_from_nor_written(cluster: Cluster) -> None:
    guard = cluster.guard(uid="7a0a3dd5-27bb-4f3c-9c5a-000000000000").start()
    eventually(lambda: "another one took its name" in guard.log, "it is said")
    assert guard.ask("/v1/verdict")["level"] == "unknown"
    assert cluster.status() == {}


def test_a_job_that_is_replaced_under_a_running_guard_is_not_written(cluster: Cluster) -> None:
    guard = cluster.guard().start()
    guard.steps(1, 3, kl=0.01)
    eventually(lambda: cluster.status().get("step") == 3, "step 3 is reported")
    cluster.client.request("DELETE", JOBS.path(cluster.namespace, "run"))
    assert cluster.submit() != cluster.uid
    guard.steps(4, 60, kl=HIGH_KL)
    eventually(lambda: "another one took its name" in guard.log, "it is said")
    assert cluster.status() == {}


def test_a_renewed_token_is_read_again(cluster: Cluster) -> None:
    guard = cluster.guard()
    good = guard.token_file.read_text()
    guard.token_file.write_text("expired")
    guard.start()
    eventually(lambda: "with 401" in guard.log, "the old token is refused")
    guard.token_file.write_text(good)
    eventually(cluster.status, "the new token is used")


def test_the_last_word_is_said_on_exit(cluster: Cluster) -> None:
    guard = cluster.guard().start()
    eventually(cluster.status, "the guard has reported")
    guard.steps(1, 7, kl=0.01)
    guard.end(signal.SIGTERM)
    assert cluster.status()["step"] == 7


def test_the_steps_come_once_the_operator_says_that_the_trainer_has_ended(cluster: Cluster) -> None:
    """A trainer that is followed tells its guard nothing, and evidence is written before that guard ends."""
    guard = cluster.guard().start()
    guard.steps(1, 7, kl=0.01)
    eventually(lambda: cluster.status().get("step") == 7, "it has reported")
    assert "keptSteps" not in cluster.status()
    condition = {
        "type": "Succeeded",
        "status": "Unknown",
        "reason": "GuardJudges",
        "message": "it judges",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    path = JOBS.path(cluster.namespace, "run", "status")
    body = {"status": {"conditions": [condition]}}
    cluster.client.request("PATCH", path, body=body, content_type=MERGE)
    kept = read_steps(eventually(lambda: cluster.status().get("keptSteps"), "its steps", 60))
    assert kept is not None and [one.step for one in kept.steps] == list(range(1, 8))


def test_a_fire_of_the_guard_ends_the_run(
    plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    with world(plane, client, namespace, tmp_path) as made:
        _fire_to_stopped(made, tmp_path)


def _fire_to_stopped(made: World, directory: Path) -> None:
    """The real operator injects a guard; a real guard process with its environment and rights fires."""
    made.claim()
    made.submit(sample_job("run", made.namespace))
    made.operator()
    made.workload()
    made.start_pod()
    guard = _injected_guard(made, directory)
    try:
        guard.start()
        worst = "\0\x1b\x85\u202e\u2028\ufffe\U0010ffff</a>\r\n" * 150
        rollout = {"prompt": worst, "completion": f"hack {worst}", "reward": -1e100}
        odd = "</script>\0\x1b\x85\u202e\u2028\ufffe\U0010ffff\r\n"
        figures = {f"rewards/{n}{odd}": 1.0 for n in range(16)}
        shown = {"rollouts": [rollout] * 4, "figures": figures}
        assert guard.steps(1, 60, kl=HIGH_KL, **shown)["fire"]
        made.expect("Fired", "True", "KlHardStop")
        made.expect_workload(is_deleted, "the workload is deleted")
        made.ends()
        evidence = made.evidence()
        assert "kl_hard_stop" in evidence["verdict.json"]
        kept = read_steps(evidence["steps.jsonl"])
        assert kept is not None and kept.symptoms is not None and kept.total == 60
        assert [(one.step, one.kl) for one in kept.steps] == [(n, HIGH_KL * (n > 1)) for n in range(1, 61)]
        assert [one.figures for one in kept.figures] == [figures] * 60
        page = _page(
            read_evidence(made.client.get(CONFIG_MAPS, made.namespace, made.job()["status"]["evidence"]))
        )
        assert "Symptoms</h2>" in page and "evaluation rounds and its steps" in page
        shown = json.loads(evidence["rollouts.json"])
        assert [one["moments"] for one in shown] == [["start"], ["fire"]]
        assert all(one["completion"].startswith("hack \ufffd\ufffd\ufffd\u202e\u2028") for one in shown)
    finally:
        guard.end()


def _injected_guard(made: World, directory: Path) -> GuardProcess:
    """A guard process with the cluster settings of the injected container, and its service account."""
    spec = made.workload()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (container,) = (c for c in spec["initContainers"] if c["name"] == "rlguard-guard")
    prefix = "RLGUARD_GUARD_CLUSTER__"
    environment = {
        one["name"].removeprefix(prefix): one["value"]
        for one in container["env"]
        if one["name"].startswith(prefix) and "value" in one
    }
    environment |= {"URL": made.plane.url, "CA_FILE": str(made.plane.ca_file)}
    (directory / "injected").mkdir()
    guard = GuardProcess(directory / "injected", environment)
    guard.token_file.write_text(token_for(made.client, made.namespace, spec["serviceAccountName"]))
    return guard
