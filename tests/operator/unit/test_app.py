"""The operator's parts together, without a server: what is waited for, what is urgent, and the gauges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes.client import Configuration

from guard_operator import app
from guard_operator.__main__ import KINDS, parser
from guard_operator.adapters import ADAPTERS
from guard_operator.adapters.rayjob import RAY_CLUSTERS
from guard_operator.adapters.trainjob import RUNTIMES as TRAINING_RUNTIMES
from guard_operator.api import names
from guard_operator.api.reasons import Reason
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.controller import Controller
from guard_operator.reconcile.decision import Report
from guard_operator.reconcile.gather import DEAF_SECONDS
from guard_operator.reconcile.gauges import JobGauges
from guard_operator.reconcile.heartbeats import HeartbeatClock
from guard_operator.reconcile.schema_watch import WAITING_SECONDS, SchemaWatch
from guard_operator.reconcile.snapshot import Snapshot
from guard_operator.runtime.client import BATCH_JOBS, STATEFUL_SETS, Client
from guard_operator.runtime.manager import ManagerConfig
from guard_operator.runtime.metrics import OperatorMetrics
from guard_operator.runtime.queue import WorkQueue
from guard_operator.runtime.reflector import Key, Reflector, Timing

Json = dict[str, Any]
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}


def caches(*namespaces: str, kinds: tuple[str, ...] = (), kueue: bool = False) -> app._Caches:
    queue: WorkQueue[Key] = WorkQueue(OperatorMetrics())
    client = Client(cast(Any, Configuration()))
    config = OperatorConfig("guard:1", kinds=kinds, kueue=kueue)
    return app._Caches(client, namespaces, config, queue, HeartbeatClock(), Timing())


def sync(some: app._Caches, namespace: str) -> None:
    for reflector in some.reflectors:
        if reflector.namespace == namespace:
            reflector._synced.set()


def raw(name: str, **status: Any) -> Json:
    meta = {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": status}


def show(reflector: Reflector, raw: Json) -> None:
    """As a watch does."""
    reflector._fold({"type": "MODIFIED", "object": raw})


def test_only_kinds_that_are_switched_on_are_watched() -> None:
    assert tuple(adapter.resource.kind for adapter in ADAPTERS) == KINDS

    def watched(*kinds: str) -> set[str]:
        return {str(one.state()["path"]).rsplit("/", 1)[1] for one in caches("a", kinds=kinds).reflectors}

    always = {"guardedtrainingjobs", "pods", "statefulsets"}
    assert watched("RayJob") == always | {"rayjobs", "rayclusters"}
    assert watched("JobSet") == always | {"jobsets", "jobs"}
    runtimes = {"trainjobs", "trainingruntimes"}
    assert watched("TrainJob") == always | {"jobsets", "jobs"} | runtimes
    assert watched() == always | {"pytorchjobs", "jobs", "rayjobs", "rayclusters", "jobsets"} | runtimes


def test_so_many_work_as_the_chart_has_it() -> None:
    assert parser().parse_args(["--guard-image=g"]).workers == ManagerConfig().workers


def test_a_copy_is_cached_with_its_templates_and_what_is_between_without() -> None:
    slim = app._watched(())
    raw = {"metadata": {"name": "x"}, "spec": {"template": {}}}
    kept = {
        resource.plural: slim[resource](raw).get("spec")
        for resource in slim
        if "rayclusters" in resource.plural or "runtimes" in resource.plural
    }
    assert kept == {"rayclusters": None, "trainingruntimes": {"template": {}}}


def test_a_queue_is_watched_where_it_is_switched_on_and_looks_at_jobs_alone() -> None:
    some = caches("a", kueue=True)
    paths = [str(one.state()["path"]).rsplit("/", 1)[1] for one in some.reflectors]
    assert paths.count("workloads") == 1
    show(some._jobs[0], raw("run"))
    some._queue.done(some._queue.take() or ("", ""))

    def changed(owner: str, controller: bool = True) -> None:
        owners = [{"name": owner, "uid": "w", "controller": controller}]
        some._queued_changed(None, {"metadata": {"namespace": "a", "name": "x", "ownerReferences": owners}})

    changed("somebody")
    changed("run", controller=False)
    assert some._queue.depth() == 0
    changed("run")
    assert some._queue.depth() == 1


def test_each_namespace_is_worked_on_as_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    some = caches("a", "gone")
    assert not some.workable() and not some.ready()
    some.reflectors[0]._synced.set()
    assert not some.synced("a"), "its pods are not read yet"
    assert not some.workable()
    sync(some, "a")
    assert some.synced("a") and not some.synced("gone")
    assert some.workable() and not some.ready(), "the other may still come"
    monkeypatch.setattr(app, "GIVE_UP_SECONDS", 0.0)
    assert some.ready() and list(some.states()) == [("a", True), ("gone", False)]
    sync(some, "gone")
    assert some.synced("gone")


def of_kind(api_version: str, kind: str, where: str = "template") -> Json:
    """A job of this kind; `where` it says so."""
    made = {"apiVersion": api_version, "kind": kind}
    if where == "workloadRef":
        return {**raw("run", workloadRef=made), "spec": None}
    return {**raw("run"), "spec": {where: made}}


BATCH, RAY, JOBSET, TRAIN = (
    ("batch/v1", "Job"),
    ("ray.io/v1", "RayJob"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
)


def test_a_kind_that_cannot_be_listed_holds_up_its_own_jobs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart while the conversion webhook of one CRD is down: nobody led, nothing was stopped."""
    some = caches("a", "b", kueue=True)
    of_batch = of_kind(*BATCH)
    assert not some.workable() and some.unlisted(of_batch) == ["Job", "Pod", "StatefulSet"]
    for reflector in (*some._jobs, *some._pods):
        reflector._synced.set()
    assert some.workable() and not some.ready() and not some.synced("a"), "what has latched waits for nothing"
    assert dict(some.states()) == {"a": True, "b": True}
    sync(some, "a")
    for resource in (RAY_CLUSTERS, TRAINING_RUNTIMES):
        some._workloads[resource][0]._synced.clear()
    some._queued[0]._synced.clear()
    for where in ("template", "targetRef", "workloadRef"):
        assert some.unlisted(of_kind(*BATCH, where)) == some.unlisted(of_kind(*JOBSET, where)) == []
        assert some.unlisted(of_kind(*RAY, where)) == ["RayCluster"]
        assert some.unlisted(of_kind(*TRAIN, where)) == ["TrainingRuntime"]
    assert some.unlisted(of_kind("example.com/v1", "Other")) == []
    there = of_kind(*BATCH)
    there["metadata"]["namespace"] = "b"
    assert some.unlisted(there) == ["Job", "StatefulSet"]
    unlisted = {kind for namespace, kind, done in some.kinds() if namespace == "a" and not done}
    assert unlisted == {"RayCluster", "TrainingRuntime", "Workload"}
    monkeypatch.setattr(app, "GIVE_UP_SECONDS", 0.0)
    assert some.is_late() and some.ready()
    for reflector in some._pods:
        reflector._synced.clear()
    assert not some.workable(), "without pods nothing can be called stopped"


class Reconciled:
    """Stands in for the controller: what it was asked to do."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def reconcile(self, raw: Json | None) -> float | None:
        self.done.append("reconciled")
        return None

    def say_unlisted(self, _raw: Json, kinds: list[str]) -> None:
        self.done.append(kinds)

    def say_outdated(self, _raw: Json, lacks: tuple[str, ...]) -> None:
        self.done.append(lacks)


def operator_of(controller: Reconciled, *lacks: str) -> app.Operator:
    """One that knows of a job in namespace a, and of a CRD that lacks this."""
    operator = app.Operator.__new__(app.Operator)
    operator._caches, operator._controller = caches("a"), cast(Any, controller)
    operator._schema = SchemaWatch(cast(Any, None), OperatorMetrics().crd_lacks)
    operator._schema._note(lacks)
    show(operator._caches._jobs[0], of_kind(*BATCH))
    return operator


def test_under_an_older_crd_no_run_begins_and_those_that_run_are_watched() -> None:
    operator = operator_of(done := Reconciled(), "status.stop")
    sync(operator._caches, "a")
    key = ("a", "run")
    assert operator._reconcile(key) == WAITING_SECONDS and done.done == [("status.stop",)]
    for status in ({"workloadRef": {"name": "run"}}, {"guard": {"fire": LATCH}}):
        show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": status})
        assert operator._reconcile(key) is None and done.done.pop() == "reconciled"
    given = of_kind(*BATCH)
    given["metadata"]["deletionTimestamp"] = LATCH["at"]
    show(operator._caches._jobs[0], given)
    assert operator._reconcile(key) is None and done.done.pop() == "reconciled", "it begins nothing"
    assert operator._reconcile(("a", "gone")) is None


@pytest.mark.parametrize("namespace", ["a", "b"])
def test_a_run_whose_workload_was_not_noted_has_begun(namespace: str) -> None:
    """As after a crash between the two."""
    operator = operator_of(done := Reconciled(), "status.stop")
    sync(operator._caches, "a")
    labels = {names.UID_LABEL: of_kind(*BATCH)["metadata"]["uid"]}
    meta = {"name": "x", "namespace": namespace, "uid": "x", "resourceVersion": "1", "labels": labels}
    (reflector,) = operator._caches._workloads[STATEFUL_SETS]
    show(reflector, {"metadata": meta})
    operator._reconcile(("a", "run"))
    assert done.done == (["reconciled"] if namespace == "a" else [("status.stop",)])


def test_a_crd_of_which_nothing_is_known_is_waited_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = operator_of(done := Reconciled())
    sync(operator._caches, "a")
    operator._schema._lacks = None
    assert operator._reconcile(("a", "run")) == WAITING_SECONDS and done.done == []
    assert not operator.ready()
    monkeypatch.setattr(app, "GIVE_UP_SECONDS", 0.0)
    assert operator._reconcile(("a", "run")) is None and done.done == ["reconciled"]
    assert operator.ready(), "it is waited for no longer"
    operator._schema._note(("status.stop",))
    assert not operator.ready()


@pytest.mark.parametrize(("listed", "lacks"), [(True, ("status.stop",)), (False, ()), (True, None)])
def test_who_is_not_ready(listed: bool, lacks: tuple[str, ...] | None) -> None:
    operator = operator_of(Reconciled())
    if listed:
        sync(operator._caches, "a")
    operator._schema._lacks = lacks
    assert not operator.ready()
    sync(operator._caches, "a")
    operator._schema._note(())
    assert operator.ready()


def test_what_is_not_listed_is_waited_for_unless_a_latch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = operator_of(done := Reconciled())
    key = ("a", "run")
    assert operator._reconcile(key) == app.UNSYNCED_SECONDS and done.done == []
    monkeypatch.setattr(app, "GIVE_UP_SECONDS", 0.0)
    assert operator._reconcile(key) == app.UNLISTED_SECONDS > 10 * app.UNSYNCED_SECONDS
    assert done.done == [["Job", "Pod", "StatefulSet"]], "after a while it is said"
    show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": {"guard": {"halt": LATCH}}})
    assert operator._reconcile(key) is None and done.done[1:] == ["reconciled"]
    sync(operator._caches, "a")
    show(operator._caches._jobs[0], of_kind(*BATCH))
    assert operator._reconcile(key) is None and operator._reconcile(("a", "gone")) is None
    assert done.done[2:] == ["reconciled"] * 2


def deafen(reflectors: list[Reflector], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been shown of them for long."""
    for reflector in reflectors:
        monkeypatch.setattr(reflector, "quiet_for", lambda: DEAF_SECONDS + 1)


@pytest.mark.parametrize("quiet", ["Pod", "Job", "StatefulSet"])
def test_a_run_of_whose_parts_a_watch_shows_nothing_is_unknown(
    quiet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A permission that was taken away, or a conversion webhook that died, since the kind was listed.

    Nothing is asked for: what hangs would keep the workers from all other runs.
    """
    operator = operator_of(done := Reconciled())
    sync(operator._caches, "a")
    begun, key = {"workloadRef": {"name": "run"}}, ("a", "run")
    show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": begun})
    assert operator._reconcile(key) is None and done.done.pop() == "reconciled"
    parts = {resource.kind: many for resource, many in operator._caches._workloads.items()}
    deafen({**parts, "Pod": operator._caches._pods}[quiet], monkeypatch)
    assert operator._reconcile(key) == app.UNLISTED_SECONDS and done.done.pop() == [quiet]
    for status in (
        {},
        begun | {"guard": {"halt": LATCH}},
        begun | {"conditions": [condition("Failed", "True")]},
    ):
        show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": status})
        assert operator._reconcile(key) is None
        assert done.done.pop() == "reconciled", "it has not begun, a stop waits for nothing, or it has ended"


def test_a_job_whose_own_watch_shows_nothing_is_read_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all watches are dead a fire stands in the job that nobody shows."""
    operator = operator_of(done := Reconciled())
    sync(operator._caches, "a")
    show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": {"workloadRef": {"name": "run"}}})
    deafen(operator._caches.reflectors, monkeypatch)
    assert operator._reconcile(("a", "run")) is None and done.done == ["reconciled"]


def test_a_kind_of_others_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = operator_of(done := Reconciled())
    sync(operator._caches, "a")
    show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": {"workloadRef": {"name": "run"}}})
    deafen(operator._caches._workloads[RAY_CLUSTERS], monkeypatch)
    operator._reconcile(("a", "run"))
    assert done.done == ["reconciled"]


def test_a_kind_that_is_no_longer_served_is_no_kind_that_has_nothing() -> None:
    operator = operator_of(done := Reconciled())
    sync(operator._caches, "a")
    show(operator._caches._jobs[0], of_kind(*BATCH) | {"status": {"workloadRef": {"name": "run"}}})
    for reflector in operator._caches._workloads[BATCH_JOBS]:
        reflector.missing = True
    assert operator._reconcile(("a", "run")) == app.UNLISTED_SECONDS
    assert done.done == [["Job"]]


def test_what_cannot_be_read_any_more_is_not_called_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role binding that was pruned: the alerts on it must fire, and nothing was missing at the start."""
    some = caches("a", "b")
    for namespace in ("a", "b"):
        sync(some, namespace)
    assert all(done for _, done in some.states()) and all(done for *_, done in some.kinds())
    deafen([one for one in some._pods if one.namespace == "a"], monkeypatch)
    deafen([one for one in some._workloads[BATCH_JOBS] if one.namespace == "b"], monkeypatch)
    absent = some._workloads[RAY_CLUSTERS][0]
    deafen([absent], monkeypatch)
    absent.missing = True
    assert dict(some.states()) == {"a": False, "b": True}
    odd = [one for one in some.kinds() if one[2] is not True]
    assert sorted(odd) == [("a", "RayCluster", None), ("b", "Job", False)]
    assert some.ready(), "what is led goes on"


def controller_that_says(said: list[Report]) -> Controller:
    """One that puts what it writes there; no guard has left a word."""
    actuator = SimpleNamespace(say=lambda _raw, report: said.append(report))
    gatherer = SimpleNamespace(last_words=Snapshot)
    return Controller(cast(Any, gatherer), cast(Any, actuator))


@pytest.mark.parametrize("before", [None, "False", "True"])
def test_a_run_whose_kind_cannot_be_listed_says_so_and_stays_as_it_is(before: str | None) -> None:
    said: list[Report] = []
    given = of_kind(*BATCH)
    given["metadata"] |= {"generation": 2}
    fired = condition("Fired", "False")
    given["status"] = {"phase": "Running", "evidence": "e", "guardDigest": "v1:a", "conditions": [fired]}
    if before is not None:
        given["status"]["conditions"].append(condition("GuardSilent", before))
    controller = controller_that_says(said)
    controller.say_unlisted(given, ["Job", "Pod"])
    (report,) = said
    told = {one.type: one for one in report.conditions}
    assert (report.phase, report.evidence, set(told)) == ("Running", "e", {"Fired", "GuardSilent"})
    assert report.guard_digest == "v1:a"
    assert (told["GuardSilent"].status, told["GuardSilent"].reason) == ("Unknown", "KindUnread")
    assert told["GuardSilent"].message.startswith("Job, Pod cannot be listed")
    assert (told["Fired"].status, told["Fired"].reason) == ("Unknown", "KindUnread")
    assert told["Fired"].message.startswith(
        "there is no verdict now: Job, Pod cannot be listed; its last verdict"
    )
    given["status"]["conditions"] = [one.model_dump(mode="json", by_alias=True) for one in report.conditions]
    controller.say_unlisted(given, ["Job", "Pod"])
    assert len(said) == 1, "once"
    given["status"]["conditions"] = [condition("Succeeded", "True")]
    controller.say_unlisted(given, ["Job", "Pod"])
    given["status"]["conditions"], given["metadata"]["deletionTimestamp"] = [], "2026-01-01T00:00:00Z"
    controller.say_unlisted(given, ["Job", "Pod"])
    assert len(said) == 1, "nor of one that is over, or goes"
    del given["metadata"]["deletionTimestamp"]
    given["status"]["conditions"] = [condition("Fired", "Unknown", "NoVerdictYet")]
    controller.say_unlisted(given, ["Job", "Pod"])
    assert [one.reason for one in said[-1].conditions] == ["NoVerdictYet", "KindUnread"]


def test_why_no_run_begins_under_an_older_crd_is_said_once_and_nothing_is_forgotten() -> None:
    said: list[Report] = []
    given = of_kind(*BATCH)
    given["status"] = {
        "phase": "Refused",
        "guardDigest": "v1:a",
        "conditions": [condition("Isolated", "True")],
    }
    controller = controller_that_says(said)
    controller.say_outdated(given, ["status.stop", "status.evidence"])
    (report,) = said
    told = {one.type: one for one in report.conditions}
    assert (report.phase, report.guard_digest, set(told)) == ("Pending", "v1:a", {"Guarded", "Isolated"})
    assert (told["Guarded"].status, told["Guarded"].reason) == ("False", "CRDOutdated")
    assert "The CRD lacks status.stop, status.evidence, which" in told["Guarded"].message
    given["status"]["conditions"] = [one.model_dump(mode="json", by_alias=True) for one in report.conditions]
    controller.say_outdated(given, ["status.stop", "status.evidence"])
    assert len(said) == 1


def test_what_was_noted_of_a_guard_stays_where_its_spec_cannot_be_read() -> None:
    """As in an operator that was rolled back: the workload may be there although nothing is noted of it."""
    said: list[Report] = []
    given = of_kind(*BATCH) | {"status": {"guardDigest": "v1:a"}}
    given["metadata"] |= {"resourceVersion": "1"}
    assert controller_that_says(said).reconcile(given) is None
    assert [(one.phase, one.guard_digest) for one in said] == [("Refused", "v1:a")]


def test_a_process_that_can_read_nothing_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "GIVE_UP_SECONDS", 0.0)
    some = caches("gone")
    assert not some.ready() and not some.workable()


@pytest.mark.parametrize(
    ("status", "urgent"),
    [
        ({"guard": {"fire": LATCH}}, True),
        ({"guard": {"halt": LATCH}}, True),
        ({"conditions": [{"type": "Halted", "status": "True"}]}, True),
        ({"conditions": [{"type": "Fired", "status": "True"}]}, True),
        (
            {"conditions": [{"type": "Fired", "status": "Unknown"}, {"type": "Guarded", "status": "True"}]},
            False,
        ),
        ({"guard": {"fire": LATCH}, "stop": {"method": "Stop"}}, False),
        ({"guard": {"step": 3}}, False),
        ({}, False),
    ],
    ids=[
        "fired",
        "halted",
        "halted for silence",
        "fired, and only the condition says so",
        "not fired",
        "stop asked for",
        "running",
        "new",
    ],
)
def test_a_latch_goes_before_what_waits_already(status: Json, urgent: bool) -> None:
    some = caches("a")
    some._job_changed(None, raw("first"))
    some._job_changed(None, raw("second", **status))
    assert some._queue.take(wait=False) == ("a", "second" if urgent else "first")


def running(beat: str, **more: Any) -> Json:
    conditions = [{"type": kind, "status": "False"} for kind in ("Fired", "GuardSilent")]
    guard = {"heartbeat": beat, "step": 3, **more}
    return raw("run", phase="Running", conditions=conditions, guard=guard)


def test_a_report_of_a_run_that_goes_on_is_heard_and_costs_no_look() -> None:
    some, now = caches("a"), [0.0]
    some._beats = HeartbeatClock(lambda: now[0])
    first, second = (f"2026-01-01T00:00:{second:02}Z" for second in (0, 15))
    some._beats.age("run", datetime.fromisoformat(first))
    now[0] += 15
    some._job_changed(running(first), running(second))
    assert some._queue.depth() == 0
    now[0] += 1
    assert some._beats.age("run", datetime.fromisoformat(second)) == 1
    some._job_changed(running(second), running("no time", fire=LATCH))
    assert some._queue.depth() == 1


OVER = {"conditions": [{"type": "Succeeded", "status": "True"}], "evidence": "e"}


def ended_pod(name: str, phase: str, job: str = "run") -> Json:
    labels = {"rlguard.dev/job": job, "rlguard.dev/job-uid": job}
    meta = {"name": name, "namespace": "a", "uid": name, "labels": labels, "resourceVersion": "1"}
    return {"metadata": meta, "status": {"phase": phase}}


def test_pods_that_have_ended_go_from_the_cache_with_their_run() -> None:
    some = caches("a")
    (jobs,), (pods,) = some._jobs, some._pods
    show(jobs, raw("run", phase="Running"))
    for one in (ended_pod("x", "Succeeded"), ended_pod("y", "Running"), ended_pod("z", "Failed", "other")):
        show(pods, one)
    assert len(pods.items()) == 3, "what ended is evidence while its run is not over"
    show(jobs, raw("run", phase="Succeeded", **OVER))
    assert {one["metadata"]["name"] for one in pods.items()} == {"y", "z"}
    show(pods, ended_pod("y", "Succeeded"))
    assert {one["metadata"]["name"] for one in pods.items()} == {"z"}
    show(
        pods,
        {
            **ended_pod("x", "Failed"),
            "metadata": {
                **ended_pod("x", "Failed")["metadata"],
                "labels": {"rlguard.dev/job": "run", "rlguard.dev/job-uid": "a namesake of before"},
            },
        },
    )
    assert len(pods.items()) == 2, "the pod of another job of this name"


def test_jobs_whose_watch_shows_nothing_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    some = caches("a", "b")
    for reflector, namespace in zip(some._jobs, "ab", strict=True):
        reflector._synced.set()
        for name, status in (("runs", {}), ("over", OVER)):
            body = raw(name, **status)
            body["metadata"]["namespace"] = namespace
            show(reflector, body)
    while some._queue.depth():
        some._queue.done(some._queue.take() or ("", ""))
    some.look_at_the_unheard()
    assert some._queue.depth() == 0
    monkeypatch.setattr(some._jobs[1], "quiet_for", lambda: DEAF_SECONDS + 1)
    some.look_at_the_unheard()
    assert some._queue.depth() == 1 and some._queue.take() == ("b", "runs")


@pytest.mark.parametrize("missing", [False, True])
def test_jobs_of_whose_parts_a_watch_shows_nothing_are_looked_at(
    missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kind is not there at all, what was of it has been looked at, and is tried again and again."""
    some = caches("a")
    sync(some, "a")
    show(some._jobs[0], of_kind(*BATCH))
    while some._queue.depth():
        some._queue.done(some._queue.take() or ("", ""))
    deafen(some._workloads[RAY_CLUSTERS], monkeypatch)
    some.look_at_the_unheard()
    assert some._queue.depth() == 0, "it is of no RayCluster"
    deafen(some._workloads[BATCH_JOBS], monkeypatch)
    some._workloads[BATCH_JOBS][0].missing = missing
    some._workloads[RAY_CLUSTERS][0].missing = True
    some.look_at_the_unheard()
    assert some._queue.depth() == (0 if missing else 1)


def condition(kind: str, status: str, reason: str = "R") -> Json:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}


#: Which gauges of a job there are, by its status.
GAUGES: dict[str, tuple[Json, set[str]]] = {
    "new": ({}, set()),
    "running, nothing evaluated": (
        {"phase": "Running", "conditions": [condition("Fired", "False")]},
        {"rlguard_first_evaluation_pending_seconds"},
    ),
    "starting, nothing evaluated": (
        {"phase": "Starting", "conditions": [condition("GuardSilent", "False")]},
        {"rlguard_first_evaluation_pending_seconds"},
    ),
    "silent, nothing evaluated": (
        {"phase": "Running", "conditions": [condition("GuardSilent", "True"), condition("Fired", "Unknown")]},
        {"rlguard_first_evaluation_pending_seconds"},
    ),
    "starting, and its guard has not reported": (
        {
            "phase": "Starting",
            "conditions": [condition(kind, "Unknown") for kind in ("Fired", "GuardSilent")],
        },
        set(),
    ),
    "running": (
        {
            "phase": "Running",
            "guard": {"lastEvaluationTime": "2026-01-01T00:00:00Z"},
            "conditions": [condition("Fired", "False")],
        },
        {"rlguard_evaluation_age_seconds"},
    ),
    "suspended": (
        {
            "phase": "Suspended",
            "guard": {"lastEvaluationTime": "2026-01-01T00:00:00Z"},
            "conditions": [condition("Fired", "False")],
        },
        set(),
    ),
    "fired": ({"phase": "Stopping", "guard": {"fire": LATCH}}, {"rlguard_unstopped_seconds"}),
    "halted": (
        {"phase": "Stopping", "conditions": [condition("Halted", "True")]},
        {"rlguard_unstopped_seconds"},
    ),
    "overdue": (
        {
            "phase": "Stopping",
            "guard": {"fire": LATCH},
            "conditions": [condition("Stopped", "False", Reason.PODS_OVERDUE)],
        },
        {"rlguard_unstopped_seconds", "rlguard_pods_overdue_seconds"},
    ),
    "stopped": (
        {"phase": "Stopped", "guard": {"fire": LATCH}, "conditions": [condition("Stopped", "True")]},
        set(),
    ),
    "waiting": (
        {"phase": "Pending", "conditions": [condition("Waiting", "True")]},
        {"rlguard_waiting_seconds"},
    ),
    "a guard that judges and cannot start": (
        {"phase": "Judging", "conditions": [condition("Waiting", "True")]},
        {"rlguard_waiting_seconds"},
    ),
    "waited": ({"phase": "Pending", "conditions": [condition("Waiting", "False")]}, set()),
    "failed while it waited": ({"phase": "Failed", "conditions": [condition("Waiting", "True")]}, set()),
    "succeeded": ({"phase": "Succeeded", "conditions": [condition("Guarded", "True")]}, set()),
}


@pytest.mark.parametrize(("status", "expected"), GAUGES.values(), ids=GAUGES.keys())
def test_what_is_measured_of_a_job(status: Json, expected: set[str]) -> None:
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: [raw("run", **status)], list, list))
    of_job = {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("namespace") == "a"
    }
    assert of_job.keys() == expected
    assert all(value > 0 for value in of_job.values())


@pytest.mark.parametrize(
    ("off", "noted", "least"),
    [
        (timedelta(hours=1), True, 1000),
        (timedelta(days=-2), True, 1000),
        (timedelta(seconds=-500), False, 1500),
        (timedelta(hours=1), False, 0),
    ],
    ids=["ahead", "behind", "behind, not noted yet", "ahead, not noted yet"],
)
def test_a_run_that_must_stop_is_timed_by_the_operators_own_clock(
    off: timedelta, noted: bool, least: int
) -> None:
    """A guard says when it fired by another one: an hour ahead, and for an hour nobody would be called."""
    began = datetime.now(UTC) - timedelta(seconds=1000)
    fire, since = LATCH | {"at": (began + off).isoformat()}, {"lastTransitionTime": began.isoformat()}
    conditions = [condition("Stopped", "False", Reason.PODS_OVERDUE)]
    conditions += [condition("Fired", "True") | since] if noted else []
    metrics = OperatorMetrics()
    job = raw("run", phase="Stopping", guard={"fire": fire}, conditions=conditions)
    metrics.registry.register(JobGauges(lambda: [job], list, list))
    for name in ("rlguard_unstopped_seconds", "rlguard_pods_overdue_seconds"):
        value = metrics.registry.get_sample_value(name, {"namespace": "a", "name": "run"})
        assert value is not None and least <= value < least + 400, name


@pytest.mark.parametrize(
    "time", ["2026-01-01T00:00:00x1Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99"]
)
def test_a_time_that_is_none_takes_no_gauge_of_another_job(time: str) -> None:
    """The API server takes all of these for a date-time, and whoever writes a guard's status chooses."""
    fire, fired, runs = LATCH | {"at": time}, [condition("Fired", "True")], [condition("Fired", "False")]
    jobs = [
        raw("odd", phase="Running", guard={"lastEvaluationTime": time}, conditions=runs),
        raw("fires", phase="Stopping", guard={"fire": fire}, conditions=fired),
        raw("halts", phase="Stopping", guard={"fire": fire}, conditions=[condition("Halted", "True")]),
        raw("run", phase="Running", guard={"lastEvaluationTime": "2026-01-01T00:00:00Z"}, conditions=runs),
    ]
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: jobs, list, list))
    value = metrics.registry.get_sample_value
    labels = [{"namespace": "a", "name": name} for name in ("odd", "fires", "halts", "run")]
    ages = [value("rlguard_evaluation_age_seconds", one) for one in labels]
    assert ages[0] is None and ages[3]
    for one in labels[1:3]:
        assert value("rlguard_unstopped_seconds", one), "it must stop, whatever its guard wrote"


def test_phases_and_silence_are_counted() -> None:
    silent = [condition("GuardSilent", "True")]
    jobs = [
        raw("a", phase="Running", conditions=silent),
        raw("b", phase="Running", conditions=[condition("GuardSilent", "False")]),
        raw("c", phase="Stopped", conditions=silent),
        raw("d"),
        raw("e", phase="Starting", conditions=[condition("GuardSilent", "True", Reason.MOST_SILENT)]),
        raw("f", phase="Judging", conditions=silent),
    ]
    metrics = OperatorMetrics()
    spaces, kinds = [("a", True), ("gone", False)], [("a", "Job", True), ("a", "RayJob", False)]
    metrics.registry.register(JobGauges(lambda: jobs, lambda: spaces, lambda: kinds))
    value = metrics.registry.get_sample_value
    assert [value("rlguard_jobs", {"phase": phase}) for phase in ("Running", "Stopped", "Pending")] == [
        2,
        1,
        1,
    ]
    assert (value("rlguard_guards_silent"), value("rlguard_guards_silent_at_once")) == (3, 1)
    synced = [value("rlguard_namespace_synced", {"namespace": name}) for name in ("a", "gone")]
    assert synced == [1, 0]
    listed = [value("rlguard_kind_synced", {"namespace": "a", "kind": kind}) for kind in ("Job", "RayJob")]
    assert listed == [1, 0]


@pytest.mark.parametrize(("phase", "listed"), [("Running", 0), ("Succeeded", 1)])
def test_a_kind_that_is_not_served_is_synced_unless_a_run_of_it_goes_on(phase: str, listed: int) -> None:
    """One that nobody installed is missed by nobody."""
    jobs = [raw("a", phase=phase, workloadRef={"kind": "JobSet"})]
    kinds: list[tuple[str, str, bool | None]] = [("", "JobSet", None), ("", "RayJob", None)]
    metrics = OperatorMetrics()
    metrics.registry.register(JobGauges(lambda: jobs, lambda: [], lambda: kinds))
    value = metrics.registry.get_sample_value
    there = [value("rlguard_kind_synced", {"namespace": "", "kind": kind}) for kind in ("JobSet", "RayJob")]
    assert there == [listed, 1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gaurd-image=g"], "--gaurd-image is not a flag: did you mean --guard-image?"),
        (["--guard-image", "g", "--namspace", "a"], "--namspace is not a flag: did you mean --namespace?"),
        (["--guard-image=g", "--guard"], "--guard is not a flag: did you mean --guard-image?"),
        (["--guard-image=g", "--zzz"], "--zzz is not a flag: known are --bind, --guard-image"),
        (["--guard-image=g", f"--{'z' * 999}"], "z… is not a flag"),
    ],
)
def test_a_flag_that_does_not_exist_says_which_may_be_meant(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(flags)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("[]", "it is no mapping"),
        ('{"limit": {"memory": "4Gi"}}', "limit: Extra inputs are not permitted"),
        ('{"limits": {"memory": null}}', "limits.memory.int: Input should be a valid integer"),
    ],
)
def test_resources_of_guards_that_cannot_be_are_named(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--guard-image=g", f"--guard-resources={text}"])
    assert said in capsys.readouterr().err
    assert parser().parse_args(["--guard-image=g", "--guard-resources={}"]).guard_resources == {}
