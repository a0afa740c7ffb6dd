"""Stopping is fenced by UID: a workload that takes the name between the look and the stop is left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from guard_operator.runtime.client import Client

from .controlplane import ControlPlane
from .faults import FaultProxy, fault_proxy
from .waiting import eventually
from .world import PYTORCHJOBS, Json, World, world

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(("on_fire", "method"), [("Stop", "PATCH"), ("Delete", "DELETE")])
def test_a_namesake_of_the_workload_is_not_stopped_in_its_place(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    make_job: Callable[..., Json],
    on_fire: str,
    method: str,
) -> None:
    with fault_proxy(plane) as proxy, world(plane, client, namespace, tmp_path) as here:
        here.claim()
        job = make_job()
        job["spec"]["onFire"] = on_fire
        here.submit(job)
        here.operator(server=proxy.url)
        here.expect("Guarded", "True", "WorkloadCreated")
        here.start_pod()
        made = _replace_at_the_first(method, proxy, here)
        here.fire()
        eventually(lambda: made, "the workload was replaced while its stop was on the way")
        here.delete_pods()
        here.kubelet_ends_pods()
        here.expect("Stopped", "True", "NoPodsLeft", within=60.0)
        left = here.workload()
        assert left["metadata"]["uid"] == made[0]["metadata"]["uid"]
        assert left["spec"] == made[0]["spec"] and "deletionTimestamp" not in left["metadata"]


def _replace_at_the_first(method: str, proxy: FaultProxy, here: World) -> list[Json]:
    """When the operator first asks this of the workload, another one has its name; that one, once made."""
    path, made = PYTORCHJOBS.path(here.namespace, here.name), list[Json]()

    def rule(asked: str, at: str) -> None:
        if asked == method and at.split("?", maxsplit=1)[0] == path and not made:
            old = here.workload()
            here.client.delete(PYTORCHJOBS, here.namespace, here.name, old["metadata"]["uid"])
            eventually(lambda: here.client.get(PYTORCHJOBS, here.namespace, here.name) is None, "it is gone")
            new = {"metadata": {"name": here.name}, "spec": copy.deepcopy(old["spec"])}
            made.append(here.put(PYTORCHJOBS, new))

    proxy.inject(rule)
    return made
