"""What a cluster does that has no process here: pods run, and what lost its owner is collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guard_operator.api.names import GUARD_CONTAINER, JOB_LABEL
from guard_operator.runtime.client import BATCH_JOBS, PODS, STATEFUL_SETS, Resource, controller_of
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import BEAT, RUNNING, World, is_going, uid_of

Json = dict[str, Any]
SECONDS = 120.0
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

    def start_guard(self) -> None:
        """What the StatefulSet controller does; then the guard reports."""
        made = eventually(lambda: self.items(STATEFUL_SETS), "the guard's StatefulSet", SECONDS)[0]
        metadata, template = made["metadata"], made["spec"]["template"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
        owner |= {key: metadata[key] for key in ("name", "uid")}
        name = f"{metadata['name']}-0"
        meta = template["metadata"] | {"name": name, "ownerReferences": [owner]}
        self.put(PODS, {"metadata": meta, "spec": template["spec"]})
        running = {"name": GUARD_CONTAINER, "image": "guard:1", "imageID": "", "ready": True}
        running |= {"restartCount": 0, "started": True, "state": {"running": {"startedAt": BEAT}}}
        self.pod_status(self.with_guard({"phase": "Running", "containerStatuses": [running]}), name)
        self.guard_says(step=1)
        self.expect("Fired", "False", "NotFired", within=SECONDS)


class AttachedWorld(KindWorld):
    """A world whose workload is somebody else's. `target`: what that is called."""

    target = "shared"

    @property
    def workload_name(self) -> str:
        return self.target

    def attach(self, make_job: Callable[..., Json]) -> None:
        """Submit the job, attached, with the claims of its guard."""
        for name in ("heldout", "state"):
            self.claim(name)
        self.claim("checkpoints", "ReadWriteMany")
        job = make_job(
            placement="Pod",
            state={"claimName": "state"},
            checkpoints={"claimName": "checkpoints"},
            metrics={"follow": {"path": "run/metrics.jsonl", "format": "verl"}},
        )
        del job["spec"]["template"]
        kind = self.workloads
        job["spec"]["targetRef"] = {"apiVersion": kind.api_version, "kind": kind.kind, "name": self.target}
        self.submit(job)
