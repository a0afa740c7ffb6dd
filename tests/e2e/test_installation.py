"""The life of a release, as run-on-kubernetes.md tells it: test, upgrade, uninstall, reinstall, a scope."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from . import given, then, timeouts, walk, when
from .kube import RELEASE, SYSTEM, TRAINER_CONTAINER, Cluster, Namespace, install

CRD = "guardedtrainingjobs.rlguard.dev"

pytestmark = pytest.mark.alone


@pytest.fixture
def restored(installation: Cluster) -> Iterator[None]:
    """Whatever a test does to the release, it is as it was before afterwards."""
    yield
    install(installation)


def test_what_a_user_asks_after_the_installation(installation: Cluster) -> None:
    """The commands of run-on-kubernetes.md: the release tests itself, and the API explains itself."""
    said = installation.helm("test", RELEASE, "--namespace", SYSTEM, f"--timeout={timeouts.INSTALL}s")
    assert "The workload to run, verbatim" in installation.kubectl("explain", "gtj.spec")
    assert re.search(r"TEST SUITE: +rlguard-test\n(.*\n)*Phase: +Succeeded", said), said


@pytest.mark.usefixtures("restored")
def test_an_upgrade_leaves_a_running_job_alone(namespace: Namespace) -> None:
    cluster = namespace.cluster
    job = given.a_scripted_run(namespace, deaf=True)
    workload, pod, before = job.workload, job.pod, operators(cluster)
    assert workload is not None

    install(cluster, "--set", "podAnnotations.rolled=again", "--set", "logLevel=debug")

    then.eventually(lambda: not operators(cluster) & before, "every operator is a new one", timeouts.STOP)
    after = job.workload
    assert after is not None
    assert after["metadata"]["generation"] == workload["metadata"]["generation"]
    assert job.pod["metadata"]["uid"] == pod["metadata"]["uid"]
    assert job.container(TRAINER_CONTAINER)["restartCount"] == 0
    assert job.status["phase"] == "Running"

    when.the_trainer_fires(job)

    then.the_job_has_fired(job, "KlHardStop")
    then.the_job_is_stopped(job)


@pytest.mark.usefixtures("restored")
def test_uninstall_keeps_the_jobs_and_a_new_release_adopts_them(namespace: Namespace) -> None:
    cluster = namespace.cluster
    kept = given.a_scripted_run(namespace, name="kept")
    doomed = given.a_scripted_run(namespace, name="doomed")
    pod = kept.pod

    cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", f"--timeout={timeouts.INSTALL}s")

    assert CRD in cluster.kubectl("get", "crd", CRD, "--output=name")
    then.eventually(lambda: left_of_the_release(cluster) == "", "nothing else of it is left", timeouts.STOP)
    assert kept.pod["metadata"]["uid"] == pod["metadata"]["uid"]

    # A job goes without an operator, with everything that was made for it.
    uid = doomed.uid
    namespace.kubectl("delete", "gtj", doomed.name, f"--timeout={timeouts.STOP}s")
    everything = (
        "pytorchjobs,pods,secrets,configmaps",
        f"--selector=rlguard.dev/job-uid={uid}",
    )
    then.eventually(
        lambda: namespace.kubectl("get", *everything, "--output=name") == "",
        "nothing of it is left",
        timeouts.STOP,
    )

    # The guard goes on: its trainer stops by itself, and the guard's last word has the fire.
    when.the_trainer_fires(kept)
    then.eventually(lambda: kept.pod["status"]["phase"] == "Failed", "the trainer has stopped", timeouts.STOP)
    assert kept.status["phase"] == "Running" and "fire" not in kept.guard, "nobody is there to say more"

    walk.takes(cluster, "helm install", "rollout status")

    then.the_job_has_fired(kept, "KlHardStop")
    then.the_job_is_stopped(kept)
    then.it_was_told_once(kept, "WorkloadCreated", "KlHardStop", "StopRequested", "NoPodsLeft")


# -- then, in the words of these tests -------------------------------------------------------------------


def operators(cluster: Cluster) -> set[str]:
    """The operator's pods."""
    select = (
        "--namespace",
        SYSTEM,
        f"--selector=app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=operator",
    )
    return set(cluster.kubectl("get", "pods", *select, "--output=name").split())


def left_of_the_release(cluster: Cluster) -> str:
    """Names of the objects that carry the release's label; the CRD, which is kept, is not asked for."""
    kinds = (
        "deployments,pods,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,"
        "poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    label = f"--selector=app.kubernetes.io/instance={RELEASE}"
    return cluster.kubectl("get", kinds, "--all-namespaces", label, "--output=name")
