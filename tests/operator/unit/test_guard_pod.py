"""A guard in a pod of its own: what runs it, how its trainer waits for it, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import pytest

from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.certificate import own_certificate
from rlguard.operator.reconcile.guard_pod import guard_objects
from rlguard.operator.reconcile.inject import build_workload
from rlguard.operator.reconcile.review import review
from rlguard.operator.reconcile.snapshot import Job

from . import given
from .given import UID

Json = dict[str, Any]
ADAPTER = given.ADAPTER["Job"]
CONFIG = OperatorConfig(guard_image="guard:1", guard_pull_policy="Never")
LABELS = {"rlguard.dev/job-uid": UID, "rlguard.dev/part": "guard"}
GUARD, WAITER = "rlguard-guard", "wait-for-guard"
GAVE_UP = 75


def template(**pod: Any) -> Json:
    made = given.template("trainer", **pod)
    made["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = "run"
    return {"template": made}


def job(spec: Json | None = None, **guard: Any) -> Job:
    return given.job(spec or template(), "Job", guard={"placement": "Pod", **guard})


def made(of: Job) -> dict[str, Json]:
    own = of.spec.guard.own_pod
    assert own is not None
    return {resource.kind: body for resource, body in guard_objects(of, own, ADAPTER, CONFIG)}


def guard_pod(of: Job) -> Json:
    pod: Json = made(of)["StatefulSet"]["spec"]["template"]["spec"]
    return pod


def waiter(of: Job) -> Json:
    pod = build_workload(of, ADAPTER, CONFIG)["spec"]["template"]["spec"]
    found: Json = pod["initContainers"][-1]
    assert found["name"] == WAITER, "after those of the template"
    return found


# -- what runs it ----------------------------------------------------------------------------------------


def test_one_pod_at_most_runs_and_the_job_owns_all_of_it() -> None:
    found = made(job())
    assert found.keys() == {"StatefulSet", "Service"}
    for body in found.values():
        (owner,) = body["metadata"]["ownerReferences"]
        assert owner["uid"] == UID and owner["controller"] is True
    spec = found["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (1, found["Service"]["metadata"]["name"])
    assert spec["selector"]["matchLabels"] == LABELS
    assert LABELS.items() <= spec["template"]["metadata"]["labels"].items()
    assert [one["name"] for one in spec["template"]["spec"]["containers"]] == [GUARD]
    service = found["Service"]["spec"]
    assert service["clusterIP"] == "None" and service["selector"] == LABELS
    assert service["publishNotReadyAddresses"] is True, "one that comes back takes steps before it is ready"


def test_it_reads_the_checkpoints_where_the_trainer_writes_them_and_writes_none() -> None:
    pod = guard_pod(job())
    (volume,) = (v for v in pod["volumes"] if v["name"] == "ckpt")
    assert volume["persistentVolumeClaim"] == {"claimName": "checkpoints", "readOnly": True}
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "ckpt")
    assert mount == {"name": "ckpt", "mountPath": "/ckpt", "subPath": "run", "readOnly": True}


def test_its_author_says_where_it_runs_and_as_whom() -> None:
    own = {
        "serviceAccountName": "reads-the-split",
        "nodeSelector": {"gpu": "l4"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "tolerationSeconds": 5}],
        "priorityClassName": "high",
    }
    pod = guard_pod(job(pod=own, resources={"limits": {"nvidia.com/gpu": 1}}))
    assert pod.items() >= own.items()
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert not own.keys() & guard_pod(job()).keys()
    secrets = [{"name": "registry"}]
    pulled = guard_pod(job(template(imagePullSecrets=secrets)))
    assert pulled["imagePullSecrets"] == secrets, "its image is pulled as the trainer's is"


def test_it_is_in_the_groups_of_the_trainer_and_never_in_that_of_root() -> None:
    """As a sidecar is: else it could not read what a umask of 027 leaves to the group."""

    def groups(container: Json, **security: Any) -> list[int]:
        given = template(securityContext={"runAsNonRoot": True, **security})
        given["template"]["spec"]["containers"][0]["securityContext"] = container
        found: list[int] = guard_pod(job(given))["securityContext"].get("supplementalGroups", [])
        return found

    assert groups({}) == []
    assert groups({}, fsGroup=7, runAsGroup=5, supplementalGroups=[9, 7]) == [5, 7, 9]
    assert groups({"runAsGroup": 6}, fsGroup=7, runAsGroup=5) == [6, 7]
    assert groups({"runAsGroup": 0}, fsGroup=0, supplementalGroups=[0]) == []


# -- how its trainer waits for it, and how the kubelet asks ----------------------------------------------


def test_who_waits_has_no_token_and_is_nobody() -> None:
    found = waiter(job(imagePullPolicy="Always", pod={"readySeconds": 90}))
    assert {one["name"] for one in found["env"]} == {"RLGUARD_URL", "RLGUARD_CA"}
    assert found["command"][-2:] == ["90", str(GAVE_UP)] and found["imagePullPolicy"] == "Always"
    security = found["securityContext"]
    assert security["runAsUser"] not in (0, 64532) and security["capabilities"] == {"drop": ["ALL"]}


def test_the_folder_of_the_checkpoints_is_made_while_the_trainer_waits() -> None:
    """The kubelet makes a `subPath` when a container starts, and cannot in the guard's read-only volume."""
    mounts = [{"name": "ckpt", "mountPath": "/ckpt", "subPath": "run", "readOnly": True}]
    assert waiter(job())["volumeMounts"] == mounts
    whole = template()
    del whole["template"]["spec"]["containers"][0]["volumeMounts"][0]["subPath"]
    assert "volumeMounts" not in waiter(job(whole)), "there is nothing to make"


@contextmanager
def guard_at(directory: Path, statuses: list[int]) -> Iterator[int]:
    """A guard that answers with these statuses, the last one from then on; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()
            self.wfile.write(f"{self.path}: the split is not checked yet".encode())

        def log_message(self, *_: Any) -> None:
            pass

    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "crt", directory / "key")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def certificate(tmp_path: Path) -> str:
    """Of the guard; beside the file `other`, a certificate of another one."""
    certificate, key = own_certificate("run.ns.svc", datetime.now(UTC))
    for name, text in (
        ("crt", certificate),
        ("key", key),
        ("other", own_certificate("run.ns.svc", datetime.now(UTC))[0]),
    ):
        (tmp_path / name).write_text(text)
    return certificate


def execute(command: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    command = [sys.executable, *command[1:]]
    done = subprocess.run(
        command, env=environment or {}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_is_satisfied_by_this_guard_alone(tmp_path: Path, certificate: str, probe: str) -> None:
    command = guard_pod(job())["containers"][0][probe]["exec"]["command"]
    *program, _, page, _ = command
    # A guard that cannot work for a while is not restarted: that would not help it.
    assert page == ("healthz" if probe == "livenessProbe" else "readyz")
    with guard_at(tmp_path, [200, 503]) as port:
        assert execute([*program, str(port), page, str(tmp_path / "crt")]) == (0, "")
        code, said = execute([*program, str(port), page, str(tmp_path / "crt")])
        assert (code, said) == (1, f"/{page}: the split is not checked yet")
        code, said = execute([*program, str(port), page, str(tmp_path / "other")])
        assert code == 1 and "CERTIFICATE_VERIFY_FAILED" in said
    code, said = execute([*program, str(port), page, str(tmp_path / "crt")])
    assert code == 1 and "no guard responds" in said


def test_the_trainer_starts_once_this_guard_is_ready_and_else_says_what_was_missing(
    tmp_path: Path, certificate: str
) -> None:
    def wait(port: int, seconds: str, authority: str) -> tuple[int, str]:
        environment = {"RLGUARD_URL": f"https://127.0.0.1:{port}", "RLGUARD_CA": authority}
        return execute([*waiter(job())["command"][:-2], seconds, str(GAVE_UP)], environment)

    with guard_at(tmp_path, [503, 200]) as port:
        assert wait(port, "40", certificate) == (0, ""), "it was asked twice"
    with guard_at(tmp_path, [503]) as port:
        late = "the guard was not ready after 0.1 s: /readyz: the split is not checked yet"
        assert wait(port, "0.1", certificate) == (GAVE_UP, late)
        code, said = wait(port, "0.1", (tmp_path / "other").read_text())
        assert code == GAVE_UP and "CERTIFICATE_VERIFY_FAILED" in said, "it is not this job's guard"
    code, said = wait(port, "0.1", certificate)
    assert code == GAVE_UP and "no guard responds" in said


# -- what stands in the way ------------------------------------------------------------------------------

POD = "spec.template.spec.template.spec"
ACCOUNT = {"serviceAccountName": "reads"}
LABELLED = {"template": template()["template"] | {"metadata": {"labels": {"rlguard.dev/part": "x"}}}}
REFUSED: dict[str, tuple[Job, str, str]] = {
    "its account": (job(template(**ACCOUNT), pod=ACCOUNT), f"{POD}.serviceAccountName", "cloud role"),
    "the account of whoever names none": (
        job(pod={"serviceAccountName": "default"}), "spec.guard.pod.serviceAccountName",
        "must not be default",
    ),
    "its label": (
        job(LABELLED), "spec.template.spec.template.metadata.labels['rlguard.dev/part']",
        "whose pod it is",
    ),
    "no name in the cluster": (
        job(template(dnsPolicy="Default")), f"{POD}.dnsPolicy", "must be ClusterFirst",
    ),
    "no name in the cluster, on the node's network": (
        job(template(hostNetwork=True)), f"{POD}.dnsPolicy", "must be ClusterFirstWithHostNet",
    ),
    "no claim": (
        job(template(volumes=[{"name": "ckpt", "emptyDir": {}}])), f"{POD}.volumes (ckpt)",
        "must be a persistentVolumeClaim",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_two_pods_make_impossible_is_refused(case: tuple[Job, str, str]) -> None:
    of, field, words = case
    said = review(ADAPTER, of, CONFIG)
    [finding] = said.findings
    assert said.reason == "TemplateRefused" and finding.startswith(field) and words in finding


def test_nothing_else_is() -> None:
    for of in (
        job(),
        job(template(serviceAccountName="x"), pod=ACCOUNT),
        job(template(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.10"]})),
        job(template(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")),
    ):
        assert review(ADAPTER, of, CONFIG).reason is None
