"""A fire stops the run, once and for good, whoever is away, dies or deletes something at that moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import given, then, when
from .kube import GONE, START, SYSTEM, Namespace, Run

#: Long enough for an operator to die in the middle of a teardown, well within a pod's grace period.
SLOW_END_SECONDS = 12
#: The reward rises while the policy, which answered all prompts, answers none.
HACK = ["checkpoint 7", "steps 8 0.5", "checkpoint 7", "steps 8 0.7", "checkpoint 3", "steps 8 0.9"]


def test_a_run_that_hacks_is_stopped_and_nobody_opens_its_latch(namespace: Namespace) -> None:
    run = given.a_submitted_run(namespace, *HACK, "checkpoint 4", deaf=True)

    fire = then.the_guard_has_fired(run, within=START)

    then.the_run_is_stopped(run)
    for how, patch in {
        "merge": '{"status": {"guard": {"fire": null}}}',
        "json": '[{"op": "remove", "path": "/status/guard"}]',
    }.items():
        arguments = ("--subresource=status", f"--type={how}", "--patch", patch)
        assert namespace.try_kubectl("patch", "gtj", run.name, *arguments).returncode != 0, patch
    assert run.fire == fire


@pytest.mark.alone
def test_a_fire_while_no_operator_runs_stops_the_run_when_one_is_back(namespace: Namespace) -> None:
    """One trainer stops by the guard's answer and its pod ends meanwhile; the other one goes on."""
    (obedient,) = given.runs(namespace, ["obedient"])
    (deaf,) = given.runs(namespace, ["deaf"], deaf=True)
    for run in (obedient, deaf):
        then.the_phase_is(run, "Running")

    with when.the_operator_is_away(namespace.cluster):
        for run in (obedient, deaf):
            when.the_run_fires(run)
        then.the_trainer_has_ended(obedient, exit_code=3)
        then.the_trainer_says(deaf, "must stop")
        assert deaf.pod["status"]["phase"] == "Running", "nobody but an operator can stop it"
        assert {run.phase for run in (obedient, deaf)} == {"Running"}

    for run in (obedient, deaf):
        then.the_run_is_stopped(run)


def test_two_operators_that_both_lead_stop_a_run_once(namespace: Namespace) -> None:
    with when.a_second_operator_leads_too(namespace.cluster, namespace.name):
        run = given.a_run(namespace, deaf=True, ends_slowly=SLOW_END_SECONDS)
        workload, told = the_uid_of_its_workload(run), then.told(run)
        with then.the_latch_never_opens(run):
            when.the_run_fires(run)
            then.the_run_is_stopped(run)

        assert the_uid_of_its_workload(run) in {workload, ""}, "nobody made it again"
        then.the_stop_was_told_once(run, told)


@pytest.mark.alone
def test_operators_that_are_killed_and_rolled_during_a_fire_stop_a_run_once(namespace: Namespace) -> None:
    run = given.a_run(namespace, deaf=True, ends_slowly=SLOW_END_SECONDS)
    workload, told = the_uid_of_its_workload(run), then.told(run)

    with then.the_latch_never_opens(run):
        when.the_run_fires(run)
        then.the_guard_has_fired(run)
        when.the_operators_are_killed(namespace.cluster)
        when.the_operators_are_rolled(namespace.cluster)
        then.the_run_is_stopped(run)

    assert the_uid_of_its_workload(run) in {workload, ""}, "nobody made it again"
    then.the_stop_was_told_once(run, told)


def test_a_job_and_a_namespace_that_are_deleted_during_a_fire_leave_nothing(
    new_namespace: Callable[[], Namespace],
) -> None:
    namespaces = new_namespace(), new_namespace()
    runs = [given.a_submitted_run(one, deaf=True, ends_slowly=SLOW_END_SECONDS) for one in namespaces]
    uids = [run.job["metadata"]["uid"] for run in runs]
    for run in runs:
        then.the_trainer_says(run, f"done: {given.CALM}", within=START)
    cluster = namespaces[0].cluster
    given_away = {
        "configmap/kube-root-ca.crt",
        "configmap/run-script",
        "secret/run-heldout",
        "serviceaccount/default",
    }

    for run in runs:
        when.the_run_fires(run)
        then.the_guard_has_fired(run)
        assert run.pods, "its teardown is under way"
    namespaces[0].kubectl("delete", "gtj", "run", "--wait=false")
    cluster.kubectl("delete", "namespace", namespaces[1].name, "--wait=false")

    for gone in (f"gtj/run --namespace={namespaces[0].name}", f"namespace/{namespaces[1].name}"):
        cluster.kubectl("wait", "--for=delete", *gone.split(), f"--timeout={GONE}s", within=2 * GONE)
    then.eventually(
        lambda: everything_in(namespaces[0]) <= given_away, "nothing but what a user applied is left", GONE
    )

    def is_kept() -> bool:
        kept = cluster.kubectl("get", "secrets,configmaps", "--namespace", SYSTEM, "--output=yaml")
        return any(uid in kept for uid in uids)

    then.eventually(lambda: not is_kept(), "an operator keeps nothing of a job that is gone", GONE)


def the_uid_of_its_workload(run: Run) -> str:
    """Of what the job made, or "" if it is gone."""
    found = run.namespace.items("pytorchjobs")
    return next((str(one["metadata"]["uid"]) for one in found if one["metadata"]["name"] == run.name), "")


def everything_in(namespace: Namespace) -> set[str]:
    """Every object of a namespace but its Events, as kind/name."""
    kinds = namespace.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    lasting = [kind for kind in kinds if not kind.startswith(("events", "localsubjectaccess"))]
    found = namespace.kubectl("get", ",".join(lasting), "--output=name", "--ignore-not-found").split()
    return {name for name in found if not name.startswith(("pods.metrics", "podmetrics"))}
