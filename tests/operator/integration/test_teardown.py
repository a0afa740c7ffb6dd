"""A fire deletes the run, with a real API server; the tests play garbage collector, controllers and kubelet.

- The workload is deleted in the foreground, fenced by its UID; evidence is collected while its pods end.
- Stopped means that the workload and every pod that was seen are gone, whatever their owners and labels.
- Whatever blocks the delete is said in its own words, and meanwhile the pods are deleted as they come.
- Nothing that is refused, and no other operator, holds up the delete.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rlguard.operator.runtime.client import MERGE, PODS
from rlguard.operator.runtime.errors import ApiError

from .controlplane import ControlPlane
from .faults import Answer, Cut, Fault, FaultProxy, Hang, fault_proxy
from .waiting import eventually
from .world import JOBS, PYTORCHJOBS, Json, World, is_deleted, is_going, uid_of

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
NO_DELETE = "ask the cluster's owner first"


def start(here: World, job: Json, **operator: str) -> None:
    """The job runs, with its guard reporting."""
    here.claim()
    here.submit(job)
    here.operator(**operator)  # type: ignore[arg-type]
    here.start()


def with_grace(job: Json, seconds: int) -> Json:
    """Its pod may take so long to end."""
    changed = copy.deepcopy(job)
    template = changed["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = seconds
    return changed


def the_pod(here: World) -> Json:
    (pod,) = here.pods()
    return pod


def all_are_going(here: World) -> bool:
    return all(is_going(pod) for pod in here.pods())


# -- what a fire does ------------------------------------------------------------------------------------


@pytest.mark.always
def test_a_fire_deletes_the_workload_and_is_told(running: World) -> None:
    running.fire()
    running.expect_workload(is_going, "the workload is deleted")
    assert running.workload()["metadata"]["finalizers"] == ["foregroundDeletion"]
    running.expect("Fired", "True", "HackingGap")
    running.expect("Stopped", "False", "PodsTerminating")
    assert running.phase() == "Stopping" and "run-master-0" in running.conditions()["Stopped"][2]
    assert [one["name"] for one in running.job()["status"]["stop"]["pods"]] == ["run-master-0"]
    running.ends()
    assert running.phase() == "Stopped" and "Failed" not in running.conditions()
    running.expect_events("EvidenceCaptured", "NoPodsLeft")
    told = running.events()[1:]
    assert told[:2] == ["HackingGap", "StopRequested"]
    assert sorted(told[2:]) == ["EvidenceCaptured", "NoPodsLeft"]
    data = running.evidence()
    assert json.loads(data["verdict.json"])["fire"]["step"] == 40
    assert json.loads(data["last-good-checkpoint.json"])["path"] == "/ckpt/20"


@pytest.mark.always
def test_a_fired_job_cannot_be_unlatched_or_restarted(running: World) -> None:
    running.fire()
    running.expect_workload(is_going, "the workload is deleted")
    pod = the_pod(running)
    running.ends()
    path = JOBS.path(running.namespace, "run", "status")
    with pytest.raises(ApiError, match="latched"):
        running.client.request("PATCH", path, body={"status": {"guard": {"fire": None}}}, content_type=MERGE)
    # A pod that comes back, whoever made it, is deleted; the workload is never made again.
    meta = {key: pod["metadata"][key] for key in ("name", "labels")}
    running.put(PODS, {"metadata": meta, "spec": pod["spec"]})
    running.expect("Stopped", "False", "PodsTerminating")
    eventually(lambda: all_are_going(running), "it is deleted")
    running.ends()
    assert running.client.get(PYTORCHJOBS, running.namespace, "run") is None


@pytest.mark.always
def test_a_fire_that_is_only_reported_deletes_nothing(here: World, make_job: MakeJob) -> None:
    job = make_job()
    job["spec"]["onFire"] = "Report"
    start(here, job)
    here.fire()
    here.expect("Fired", "True", "HackingGap")
    here.expect_events("HackingGap")
    assert not is_deleted(here.workload()) and not is_going(the_pod(here))
    assert here.phase() == "Running" and "Stopped" not in here.conditions()
    here.workload_condition("Succeeded")
    here.expect("Succeeded", "True", "NotJudged")


# -- every pod that was seen is gone ---------------------------------------------------------------------


@pytest.mark.always
@pytest.mark.parametrize("labels", ["kept", "taken"])
def test_a_pod_without_its_owner_reference_is_deleted_by_its_uid(running: World, labels: str) -> None:
    """No garbage collector would end it, and without its labels no list finds it."""
    patch: Json = {"metadata": {"ownerReferences": None}}
    if labels == "taken":
        patch["metadata"]["labels"] = dict.fromkeys(the_pod(running)["metadata"]["labels"])
    running.client.merge(PODS, running.namespace, "run-master-0", patch, "test")
    running.fire()
    eventually(lambda: is_going(the_pod(running)), "the pod is deleted")
    running.keep_by()  # the workload goes: nothing owns it any more
    assert running.client.get(PYTORCHJOBS, running.namespace, "run") is None
    running.expect("Stopped", "False", "PodsTerminating")
    running.kubelet_ends_pods()
    running.expect("Stopped", "True", "NoPodsLeft")


@pytest.mark.always
def test_a_workload_that_goes_before_its_pods_is_not_stopped_yet(running: World) -> None:
    """As with `blockOwnerDeletion: false`: the object is gone and its pod still trains."""
    running.fire()
    running.expect_workload(is_going, "the workload is deleted")
    running.keep_by()
    assert running.client.get(PYTORCHJOBS, running.namespace, "run") is None
    eventually(lambda: is_going(the_pod(running)), "the pod is deleted")
    assert running.conditions()["Stopped"][0] == "False"
    running.kubelet_ends_pods()
    running.expect("Stopped", "True", "NoPodsLeft")


@pytest.mark.always
def test_a_grace_period_of_a_day_is_cut(here: World, make_job: MakeJob) -> None:
    """A kubelet never shortens one that runs, so the pod is deleted before the workload is."""
    job = with_grace(make_job(), 86400)
    job["spec"]["stopGraceSeconds"] = 20
    start(here, job)
    here.fire()
    here.expect_workload(is_going, "the workload is deleted")
    assert the_pod(here)["metadata"].get("deletionGracePeriodSeconds") == 20


# -- what blocks it --------------------------------------------------------------------------------------


@contextmanager
def no_deletes(here: World) -> Iterator[None]:
    """An admission policy of this namespace that denies every DELETE of a PyTorchJob, in its own words."""
    name = f"no-deletes-{here.namespace}"
    rule = {"apiGroups": ["kubeflow.org"], "apiVersions": ["*"], "operations": ["DELETE"]}
    policy = {
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["pytorchjobs"]}]},
        "validations": [{"expression": "false", "message": NO_DELETE}],
    }
    own = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": here.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": own}
    for path, kind, spec in (
        (POLICIES, "ValidatingAdmissionPolicy", policy),
        (BINDINGS, "ValidatingAdmissionPolicyBinding", binding),
    ):
        body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
        here.client.request("POST", path, body={**body, "spec": spec})
    probe = {"metadata": {"name": "probe"}, "spec": here.workload()["spec"]}
    here.put(PYTORCHJOBS, probe)

    def denied() -> bool:
        dry_run = {"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}
        try:
            here.client.request("DELETE", PYTORCHJOBS.path(here.namespace, "probe"), body=dry_run)
        except ApiError as error:
            return NO_DELETE in error.message
        return False

    eventually(denied, "the policy holds")
    try:
        yield
    finally:
        here.client.request("DELETE", f"{BINDINGS}/{name}")
        here.client.request("DELETE", f"{POLICIES}/{name}")


@pytest.mark.always
def test_a_delete_that_is_denied_is_said_and_meanwhile_the_pods_are_deleted_as_they_come(
    running: World,
) -> None:
    with no_deletes(running):
        pod = the_pod(running)
        running.fire()
        assert NO_DELETE in running.expect("Stopped", "False", "StopBlocked")
        running.expect_events("StopBlocked")
        eventually(lambda: is_going(the_pod(running)), "the pod is deleted")
        running.kubelet_ends_pods()
        # Its controller makes the pod again: the workload is still there.
        kept = {key: pod["metadata"][key] for key in ("name", "labels", "ownerReferences")}
        running.put(PODS, {"metadata": kept, "spec": pod["spec"]})
        eventually(lambda: is_going(the_pod(running)), "the next pod is deleted")
        running.kubelet_ends_pods()
        assert not is_going(running.workload()) and running.conditions()["Stopped"][0] == "False"
    running.expect_workload(is_going, "the workload is deleted")
    running.ends()


@pytest.mark.always
def test_a_foreign_finalizer_is_named_within_a_minute(running: World) -> None:
    """As of a controller that does not run, such as KubeRay's."""
    running.keep_by("ray.io/rayjob-finalizer")
    running.fire()
    eventually(lambda: is_going(the_pod(running)), "nobody ends the pod but the operator")
    running.kubelet_ends_pods()
    message = running.expect("Stopped", "False", "StopBlocked")
    assert "PyTorchJob run is kept by ray.io/rayjob-finalizer" in message
    running.keep_by()
    running.expect("Stopped", "True", "NoPodsLeft")


@pytest.mark.always
def test_a_pod_on_a_dead_node_is_said_within_a_minute(here: World, make_job: MakeJob) -> None:
    start(here, with_grace(make_job(), 5))
    here.fire()
    message = here.expect("Stopped", "False", "StopBlocked")
    assert "pod run-master-0 should have ended at" in message and "look at node node" in message
    here.ends()


def test_pods_that_cannot_be_listed_are_deleted_and_nothing_is_called_stopped(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    def no_pods(method: str, path: str) -> Fault | None:
        listed = method == "GET" and "/pods" in path.split("?", maxsplit=1)[0]
        return Answer(403, "Forbidden") if listed else None

    with fault_proxy(plane) as proxy:
        start(here, make_job(), server=proxy.url)
        proxy.break_watch(no_pods)
        here.fire()
        assert "the pods cannot be read: 403" in here.expect("Stopped", "False", "StopBlocked")
        eventually(lambda: all_are_going(here), "its pod is deleted")
        here.collect_garbage()
        time.sleep(5.0)
        assert here.conditions()["Stopped"][1] == "StopBlocked", "nobody knows that it is gone"
        proxy.heal()
        here.expect("Stopped", "True", "NoPodsLeft")


def test_a_delete_that_hangs_does_not_keep_the_pods(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """As behind a webhook from which no answer comes."""

    def hangs(method: str, path: str) -> Fault | None:
        return Hang() if method == "DELETE" and "/pytorchjobs/" in path else None

    with fault_proxy(plane) as proxy:
        start(here, make_job(), server=proxy.url)
        proxy.inject(hangs)
        here.fire()
        eventually(lambda: all_are_going(here), "its pod is deleted")
        assert "a delete was refused: DELETE" in here.expect("Stopped", "False", "StopBlocked")
        proxy.heal()
        here.expect_workload(is_going, "the workload is deleted")
        here.ends()


# -- what holds it up not --------------------------------------------------------------------------------


@pytest.mark.always
def test_a_status_that_is_refused_does_not_hold_up_the_delete(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    def no_status(method: str, path: str) -> Fault | None:
        return Answer(500, "InternalError") if method == "PATCH" and "/status" in path else None

    with fault_proxy(plane) as proxy:
        start(here, make_job(), server=proxy.url)
        proxy.inject(no_status)
        here.fire()
        here.expect_workload(is_going, "the workload is deleted")
        eventually(lambda: all_are_going(here), "its pod is deleted")
        assert "stop" not in here.job()["status"], "nothing of it could be written"
        proxy.heal()
        here.ends()


@pytest.mark.always
@pytest.mark.parametrize("fault", [Cut(), Answer(503), Answer(409)])
def test_nothing_is_deleted_before_it_is_written_down_why(
    plane: ControlPlane, here: World, make_job: MakeJob, fault: Fault
) -> None:
    """An operator that ends then would leave a run that is gone, and nobody who knows of its fire."""

    def no_status(method: str, path: str) -> Fault | None:
        return fault if method == "PATCH" and "/status" in path else None

    with fault_proxy(plane) as proxy:
        start(here, make_job(), server=proxy.url)
        proxy.inject(no_status)
        here.fire()
        time.sleep(3.0)
        assert not is_going(here.workload())
        proxy.heal()
        here.expect_workload(is_going, "the workload is deleted")
        here.ends()


@pytest.mark.always
def test_a_fire_while_the_api_server_is_away(plane: ControlPlane, here: World, make_job: MakeJob) -> None:
    with fault_proxy(plane) as proxy:
        here.claim()
        here.submit(make_job())
        here.operator(server=proxy.url, lease_seconds=30)
        here.start()
        proxy.inject(lambda _method, _path: Cut())
        proxy.cut_streams()
        here.fire()
        time.sleep(1.0)
        assert not is_going(here.workload())
        proxy.heal()
        here.expect_workload(is_going, "the workload is deleted")
        here.ends()


@pytest.mark.always
def test_two_operators_at_once_do_as_one(here: World, make_job: MakeJob) -> None:
    """Both lead: each with a Lease of its own, as after a frozen process thaws."""
    here.claim()
    here.operator("--lease-name=one")
    here.operator("--lease-name=two")
    here.submit(make_job())
    here.expect("Guarded", "True", "WorkloadCreated")
    here.start()
    here.fire()
    here.expect_workload(is_going, "the workload is deleted")
    here.ends()
    told = ("WorkloadCreated", "HackingGap", "NoPodsLeft")
    here.expect_events(*told)
    events = here.events()
    assert [events.count(reason) for reason in told] == [1, 1, 1], "it is made once, and never again"


@pytest.mark.always
def test_the_next_operator_goes_on_where_one_was_killed(here: World, make_job: MakeJob) -> None:
    """It knows of every pod that was seen, also of one that has lost its owner and its labels since."""
    here.claim()
    here.submit(make_job())
    first = here.operator(lease_seconds=4)
    here.start()
    here.fire()
    here.expect("Stopped", "False", "PodsTerminating")
    first.kill()
    labels = dict.fromkeys(the_pod(here)["metadata"]["labels"])
    patch = {"metadata": {"ownerReferences": None, "labels": labels}}
    here.client.merge(PODS, here.namespace, "run-master-0", patch, "test")
    here.keep_by()
    here.operator()
    eventually(here.leader, "it leads")
    time.sleep(3.0)
    assert here.conditions()["Stopped"][0] == "False", "the pod is still there"
    here.ends()
    here.expect_events("NoPodsLeft")
    assert here.events().count("NoPodsLeft") == 1 and here.evidence()


@pytest.mark.always
def test_a_namesake_of_the_workload_is_not_deleted_in_its_place(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """The delete is fenced by the UID: one that takes the name on its way is left alone."""
    with fault_proxy(plane) as proxy:
        start(here, make_job(), server=proxy.url)
        made = replace_at_the_first_delete(proxy, here)
        here.fire()
        eventually(lambda: made, "the workload was replaced while its delete was on the way")
        here.ends()
        left = here.workload()
        assert uid_of(left) == uid_of(made[0]) and not is_going(left)


def replace_at_the_first_delete(proxy: FaultProxy, here: World) -> list[Json]:
    """When the operator first deletes the workload, another one has its name; that one, once made."""
    path, made = PYTORCHJOBS.path(here.namespace, here.name), list[Json]()

    def rule(asked: str, at: str) -> None:
        if asked == "DELETE" and at.split("?", maxsplit=1)[0] == path and not made:
            old = here.workload()
            here.client.delete(PYTORCHJOBS, here.namespace, here.name, uid_of(old))
            eventually(lambda: here.client.get(PYTORCHJOBS, here.namespace, here.name) is None, "it is gone")
            made.append(
                here.put(PYTORCHJOBS, {"metadata": {"name": here.name}, "spec": copy.deepcopy(old["spec"])})
            )

    proxy.inject(rule)
    return made
