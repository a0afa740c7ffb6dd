"""What a guard is told of its run, what is kept of it, and who counts as the guard.

The operator is a real process; the tests play training-operator, kubelet and guard, the last over real TLS.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable

import pytest

from rlguard.operator.api import names
from rlguard.operator.runtime.client import SECRETS

from .test_operator import LAST_WORD, ended_with
from .waiting import eventually
from .world import JOBS, PODS, RUNNING, Guard, Json, World, is_deleted, next_address

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
KEYS = {"tls.crt", "tls.key", "ingest-token", "read-token", "supervisor-token"}


def uid(here: World) -> str:
    return str(here.job()["metadata"]["uid"])


def kept(here: World) -> Json | None:
    """What the operator keeps of the run in its own namespace, which is that of the job here."""
    return kept_of(here, uid(here))


def kept_of(here: World, uid: str) -> Json | None:
    found = here.client.list(SECRETS, here.namespace, {})["items"]
    return next((one for one in found if one["metadata"]["name"].endswith(uid)), None)


def jobs_secret(here: World) -> Json | None:
    return here.client.get(SECRETS, here.namespace, names.support_name("run", uid(here)))


def replace_pod(here: World) -> Guard:
    """The pod goes and leaves nothing, and another one comes with an empty guard."""
    here.delete_pods()
    here.kubelet_ends_pods()
    eventually(lambda: here.pods() == [], "the pod is gone")
    here.start_pod()
    return here.guards["run"]


@pytest.mark.always
def test_the_next_guard_is_told_what_is_kept_of_the_run(running: World) -> None:
    assert running.guards["run"].told == {}, "of a new run nothing is known"
    running.guard_says(step=9, evaluated=2, announced=2)
    eventually(lambda: running.job()["status"]["guard"].get("evaluated") == 2, "it is read")
    eventually(lambda: "state" in (kept(running) or {}).get("data", {}), "its state is kept")
    guard = replace_pod(running)
    told = eventually(lambda: guard.told, "the next guard is told")
    assert told["sequence"] > 0 and not told.get("lost")
    running.guard_says(step=10)
    running.expect("Fired", "False", "NotFired")
    assert "Halted" not in running.conditions()


@pytest.mark.always
def test_a_pod_whose_guard_never_began_is_no_past_that_nobody_knows(running: World) -> None:
    running.guard_says(step=9, evaluated=2, announced=2)
    eventually(lambda: "state" in (kept(running) or {}).get("data", {}), "its state is kept")
    replace_pod(running).end()  # it crashes as it starts
    guard = replace_pod(running)
    told = eventually(lambda: guard.told, "the next guard is told")
    assert told["sequence"] > 0 and not told.get("lost")


@pytest.mark.always
def test_steps_stay_out_of_etcd_and_a_fire_does_not_wait(running: World) -> None:
    """Figures are written at most every ten seconds, whatever the guard says meanwhile."""
    running.guard_says(step=2)
    eventually(lambda: running.job()["status"]["guard"].get("step") == 2, "a step is noted")
    before, versions, begun = running.job(), set[str](), time.monotonic()
    for step in range(3, 1003):
        running.guard_says(step=step, steps=step)
        versions.add(running.job()["metadata"]["resourceVersion"])
        if time.monotonic() - begun > 8:
            break
    assert step > 20 and len(versions - {before["metadata"]["resourceVersion"]}) <= 1
    running.fire()
    running.expect("Fired", "True", "HackingGap")
    noted = running.job()["status"]["guard"]
    assert noted["steps"] == step
    del noted["fire"], noted["bestCheckpoint"]
    assert len(json.dumps(noted)) < len(json.dumps(before["status"]["guard"])) + 200, "it does not grow"


@pytest.mark.always
def test_a_guard_that_was_lost_while_no_operator_looked_stops_the_run(here: World, make_job: MakeJob) -> None:
    """It may have fired: nobody knows."""
    here.claim()
    here.submit(make_job())
    first = here.operator(lease_seconds=4)
    here.start()
    eventually(lambda: "state" in (kept(here) or {}).get("data", {}), "its state is kept")
    first.kill()
    guard = replace_pod(here)
    here.operator(lease_seconds=4)
    assert "without a last word" in eventually(lambda: guard.told, "it is told")["lost"]
    here.expect("Halted", "True", "PastUnknown")
    here.expect_workload(is_deleted, "the workload is deleted")
    assert here.conditions()["Fired"][0] != "True", "that is no fire"


def test_the_next_guard_is_told_of_the_fire_in_the_last_word(here: World, make_job: MakeJob) -> None:
    here.claim()
    here.submit(make_job() | {"spec": make_job()["spec"] | {"onFire": "Report"}})
    first = here.operator(lease_seconds=4)
    here.start()
    first.kill()
    here.guards["run"].end()
    here.pod_status(ended_with(LAST_WORD))
    path = PODS.path(here.namespace, "run-master-0")
    old = here.client.request("GET", path)
    here.delete_pods()
    here.kubelet_ends_pods()
    eventually(lambda: here.pods() == [], "the pod is gone")
    kept_of_it = {key: old["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    here.put(PODS, {"metadata": {"name": "run-master-old", **kept_of_it}, "spec": old["spec"]})
    here.pod_status(ended_with(LAST_WORD), "run-master-old")
    here.start_pod()
    here.operator(lease_seconds=4)
    told = eventually(lambda: here.guards["run"].told, "the next guard is told")
    assert [one["fire"] for one in told["latches"]] == [True]
    here.expect("Fired", "True", "HackingGap")


@pytest.mark.always
def test_a_secret_that_somebody_removes_comes_back_with_the_same_bytes(
    here: World, make_job: MakeJob
) -> None:
    here.claim()
    here.submit(make_job())
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated")
    before = jobs_secret(here)
    assert before is not None and before["data"].keys() == KEYS and before["immutable"]
    here.client.request("DELETE", SECRETS.path(here.namespace, before["metadata"]["name"]))
    here.start_pod_without_guard()
    after = eventually(lambda: jobs_secret(here), "it is back")
    assert after["data"] == before["data"]


@pytest.mark.always
def test_who_has_another_key_is_no_guard(here: World, make_job: MakeJob) -> None:
    """As where somebody took the guard's port: it is told nothing, not even a token."""
    here.claim()
    here.submit(make_job())
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated")
    made = jobs_secret(here)
    assert made is not None
    certificate, key = (here.plane.ca_file.with_suffix(end).read_text() for end in (".crt", ".key"))
    stolen = made["data"] | {
        name: base64.b64encode(text.encode()).decode()
        for name, text in (("tls.crt", certificate), ("tls.key", key))
    }
    here.start_pod()
    here.guards["run"].end()
    address = next_address()
    thief = Guard(address, here.guards["run"].port, stolen)
    try:
        here.pod_status(RUNNING | {"podIP": address, "podIPs": [{"ip": address}]})
        message = here.expect("Guarded", "Unknown", "GuardUnreachable")
        assert "certificate" in message.lower() and thief.asked == 0 and thief.told is None
        assert here.conditions()["Fired"][0] == "Unknown"
    finally:
        thief.end()


@pytest.mark.slow
def test_nothing_is_kept_of_a_job_that_is_gone(running: World) -> None:
    of = uid(running)
    running.client.request("DELETE", JOBS.path(running.namespace, "run"))
    eventually(lambda: kept_of(running, of) is None, "it is removed", within=300)
