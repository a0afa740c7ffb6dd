"""What a cluster does that has no process here: pods run, and what lost its owner is collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guard_operator.runtime.client import BATCH_JOBS, PODS, STATEFUL_SETS, Resource, controller_of
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import BEAT, RUNNING, World

Json = dict[str, Any]
SECONDS = 120.0
READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.1.2.3"}


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
            if pod.get("status", {}).get("phase") == "Running":
                continue
            guarded = bool(pod["spec"].get("initContainers")) and "rlguard-guard" in str(pod["spec"])
            self.pod_status(
                {**(RUNNING if guarded else {"phase": "Running"}), **READY}, pod["metadata"]["name"]
            )

    def job_controller_makes_pods(self) -> list[str]:
        """One pod for every Job that has none and is to run; the names of those Jobs."""
        controlled = {controller_of(pod) for pod in self.pods()}
        made = []
        for job in self.items(BATCH_JOBS):
            meta, spec = job["metadata"], job["spec"]
            if meta["uid"] in controlled or spec.get("suspend") or spec.get("activeDeadlineSeconds") == 1:
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

    def collects_garbage(self) -> None:
        """Pods whose controller is gone, or waits in the foreground for them to be, go and have gone."""
        found = [one["metadata"] for kind in self.owners for one in self.items(kind)]
        there = {one["uid"] for one in found if "deletionTimestamp" not in one}
        for pod in self.pods():
            if controller_of(pod) not in there and "deletionTimestamp" not in pod["metadata"]:
                self.client.request("DELETE", PODS.path(self.namespace, pod["metadata"]["name"]))
        self.kubelet_ends_pods()


class AttachedWorld(KindWorld):
    """A world whose workload is somebody else's. `target`: what that is called."""

    target = "shared"

    def attach(self, make_job: Callable[..., Json], on_fire: str) -> None:
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
        job["spec"]["onFire"] = on_fire
        self.submit(job)

    def start_guard(self) -> None:
        """What the StatefulSet controller does; then the guard reports."""
        made = eventually(lambda: self.items(STATEFUL_SETS), "the guard's StatefulSet", SECONDS)[0]
        metadata, template = made["metadata"], made["spec"]["template"]
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
        owner |= {key: metadata[key] for key in ("name", "uid")}
        name = f"{metadata['name']}-0"
        meta = template["metadata"] | {"name": name, "ownerReferences": [owner]}
        self.put(PODS, {"metadata": meta, "spec": template["spec"]})
        running = {"name": "rlguard-guard", "image": "guard:1", "imageID": "", "ready": True}
        running |= {"restartCount": 0, "started": True, "state": {"running": {"startedAt": BEAT}}}
        self.pod_status({"phase": "Running", "containerStatuses": [running]}, name)
        self.guard_says(heartbeat=BEAT, step=1)
        self.expect("Fired", "False", "NotFired", within=SECONDS)
