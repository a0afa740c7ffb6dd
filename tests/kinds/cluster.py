"""What a cluster does that has no process here: pods run, and what lost its owner is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rlguard.operator.api.names import GUARD_CONTAINER, JOB_LABEL
from rlguard.operator.runtime.client import BATCH_JOBS, PODS, STATEFUL_SETS, Resource, controller_of
from tests.operator.integration.conftest import attached
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import JOBS, RUNNING, World, is_deleted, is_going, uid_of

Json = dict[str, Any]
SECONDS = 120.0
SAMPLES = Path(__file__).resolve().parents[2] / "k8s" / "samples"
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


class KindWorld(World):
    """A world whose workload has a real controller. `owners`: the kinds that may control its pods."""

    owners: tuple[Resource, ...] = (BATCH_JOBS,)

    def items(self, resource: Resource) -> list[Json]:
        """Everything of a kind."""
        found: list[Json] = self.client.list(resource, self.namespace, {}).get("items") or []
        return found

    def kubelet_runs_pods(self) -> None:
        """Every pod runs and is ready, those with a guard with it."""
        for pod in self.pods():
            if pod.get("status", {}).get("phase") != "Running":
                self.kubelet_runs(pod)

    def kubelet_runs(self, pod: Json) -> None:
        """This pod runs and is ready; a guard in it listens."""
        guarded = GUARD_CONTAINER in {one["name"] for one in pod["spec"].get("initContainers") or []}
        status = {"phase": "Running", "podIP": "10.1.2.3"} | READY
        if guarded:
            status = self.another(pod["metadata"]["labels"][JOB_LABEL]).with_guard(RUNNING | READY)
        self.pod_status(status, pod["metadata"]["name"])

    def job_controller_makes_pods(self) -> list[str]:
        """One pod for every Job that has none and is to run; the names of those Jobs."""
        controlled = {controller_of(pod) for pod in self.pods()}
        made = []
        for job in self.items(BATCH_JOBS):
            meta, spec = job["metadata"], job["spec"]
            if meta["uid"] in controlled or spec.get("suspend") or is_going(job):
                continue
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
            template = spec["template"]
            pod = {
                "name": f"{meta['name']}-0-{meta['uid'][:5]}",
                "labels": {**template["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": "0"},
                "annotations": template["metadata"].get("annotations") or {},
                "ownerReferences": [{**owner, "controller": True}],
            }
            self.put(PODS, {"metadata": pod, "spec": template["spec"]})
            made.append(meta["name"])
        return made

    def collect_garbage(self) -> None:
        """What has lost its owner, or has one that waits in the foreground for it to be gone, goes."""
        kinds = dict.fromkeys((self.workloads, *self.owners, STATEFUL_SETS))
        found = [(kind, raw) for kind in kinds for raw in self.items(kind)]
        staying = {uid_of(raw) for _, raw in found if not is_going(raw)}
        for kind, raw in [*found, *((PODS, pod) for pod in self.pods())]:
            owned = kind not in {self.workloads, STATEFUL_SETS} and controller_of(raw) not in staying
            if owned and not is_going(raw):
                path = kind.path(self.namespace, raw["metadata"]["name"])
                self.client.request("DELETE", path, body={"propagationPolicy": "Background"})
        self.kubelet_ends_pods()
        for kind, raw in found:
            held = raw["metadata"].get("finalizers") or []
            if is_going(raw) and "foregroundDeletion" in held:
                left = [one for one in held if one != "foregroundDeletion"]
                body = {"metadata": {"finalizers": left}}
                self.client.merge(kind, self.namespace, raw["metadata"]["name"], body, "test")

    def is_gone(self) -> bool:
        """Whether nothing is left of the run that was made by it."""
        return not any(self.items(kind) for kind in (self.workloads, *self.owners)) and not self.pods()

    def start_guard(self) -> Json:
        """The guard in a pod of its own runs and reports."""
        pod = super().start_guard()
        self.expect("Fired", "False", "NotFired", within=SECONDS)
        return pod

    def submit_sample(self, name: str, change: Callable[[Json], None] = lambda _: None) -> None:
        """Submit the job of this file of k8s/samples, with every claim that it names."""
        job = next(one for one in sample(name) if one["kind"] == JOBS.kind)
        job["metadata"]["name"] = self.name
        change(job)
        self.submit(job)
        for claim in sorted(set(claims_in(job["spec"]))):
            self.claim(claim, "ReadWriteMany")


def sample(name: str) -> list[Json]:
    """The objects of a file of k8s/samples."""
    return list(yaml.safe_load_all((SAMPLES / f"{name}.yaml").read_text("utf-8")))


def claims_in(value: Any) -> Iterator[str]:
    """Every claim that is named anywhere in an object."""
    if isinstance(value, dict):
        yield from (name for key, name in value.items() if key == "claimName")
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from claims_in(one)


class AttachedWorld(KindWorld):
    """A world whose workload is somebody else's. `target`: what that is called."""

    target = "shared"

    @property
    def workload_name(self) -> str:
        return self.target

    def attach(self, make_job: Callable[..., Json]) -> None:
        """Submit the job, attached, with the claims of its guard, to an operator that starts now."""
        for name in ("heldout", "state"):
            self.claim(name)
        self.claim("shared", "ReadWriteMany")
        self.submit(attached(make_job(), self.workloads, self.target))
        self.operator()

    def is_deleted_by_a_fire(self) -> None:
        """All of it goes, and nothing comes back."""
        self.fire()
        eventually(self.target_is_deleted, f"the {self.workloads.kind} is deleted", SECONDS)
        self.ends()
        assert self.is_gone()

    def target_is_deleted(self) -> bool:
        return is_deleted(self.client.get(self.workloads, self.namespace, self.target))
