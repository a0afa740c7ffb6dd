"""TrainJob of Kubeflow Trainer v2 (trainer.kubeflow.org/v1alpha1, seen with v2.2.0): a run on a runtime.

- Its pods are made of a (Cluster)TrainingRuntime, which somebody else owns and may change. The operator makes
  one of its own from it, with the job's patches, its environment and the guard in it: what was checked is
  what runs.
- Rank 0 is the first pod of the replicatedJob `node`. The container that trains is `node`, too.
- A failure is derived anew from the JobSet, so it lasts as long as that.
- Pods are a Job's, which a JobSet controls, which the TrainJob controls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from guard_operator.adapters.base import (
    ComposedAdapter,
    OuterAdapter,
    PodTemplate,
    TemplateError,
    TemplateSource,
    WorkloadState,
    at,
    count,
    dotted,
)
from guard_operator.adapters.job import INDEX_FIELD, INDEX_LABEL, limit_of
from guard_operator.adapters.jobset import JOB_LABEL, JOB_SETS, NAME_LABEL, replicated_jobs, spell_out
from guard_operator.runtime.client import BATCH_JOBS, Json, Resource

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
RUNTIMES = Resource(GROUP, VERSION, "trainingruntimes", "TrainingRuntime")
CLUSTER_RUNTIMES = Resource(GROUP, VERSION, "clustertrainingruntimes", "ClusterTrainingRuntime")
#: On a replicatedJob: which part of the TrainJob it gets.
PART_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER, NODE = "trainer", "node"
#: Where the runtime stands in a spec that is composed.
RUNTIME = "runtime"
_JOB_SET = (RUNTIME, "template", "spec")
#: By what the items of a list are told apart where Trainer merges two; other lists are replaced.
_KEYS = {
    "volumes": "name", "containers": "name", "initContainers": "name", "env": "name",
    "volumeMounts": "mountPath", "imagePullSecrets": "name", "schedulingGates": "name",
}  # fmt: skip
#: The parts of `initializer`, with what they are called in a runtime.
_INITIALIZERS = {"dataset": "dataset-initializer", "model": "model-initializer"}
#: What is known of a TrainJob and of what it is made of: anything else, of another release of Trainer such as
#: `podTemplateOverrides` of v2.1, may change pods after the check.
_OF_A_PART = frozenset({"storageUri", "env", "secretRef"})
_KNOWN: dict[tuple[str, ...], frozenset[str]] = {
    (): frozenset(
        {"runtimeRef", "initializer", "trainer", "runtimePatches", "suspend", "activeDeadlineSeconds"}
    )
    | {"managedBy", RUNTIME},
    (TRAINER,): frozenset({"image", "command", "args", "env", "numNodes", "resourcesPerNode"})
    | {"numProcPerNode"},
    ("initializer",): frozenset(_INITIALIZERS),
    **{("initializer", part): _OF_A_PART for part in _INITIALIZERS},
    (RUNTIME,): frozenset({"mlPolicy", "podGroupPolicy", "template"}),
    (RUNTIME, "mlPolicy"): frozenset({"numNodes", "torch", "jax", "xgboost"}),
    (RUNTIME, "podGroupPolicy"): frozenset({"coscheduling", "volcano"}),
}


class TrainJobAdapter(ComposedAdapter, OuterAdapter):
    """A row of the table."""

    resource = Resource(GROUP, VERSION, "trainjobs", "TrainJob")
    conditions = {"Failed": WorkloadState.FAILED, "Complete": WorkloadState.SUCCEEDED}  # noqa: RUF012
    manager = "trainer.kubeflow.org/trainjob-controller"
    pod_labels = (NAME_LABEL, JOB_LABEL, INDEX_LABEL)
    between = (JOB_SETS, BATCH_JOBS)
    max_name = 45  # JobSet refuses names that are too long for `<name>-node-0-<index>-<five characters>`
    makes = (JOB_SETS,)
    copied = RUNTIMES
    shared = (CLUSTER_RUNTIMES,)

    def source(self, spec: Mapping[str, Any]) -> TemplateSource:
        """The runtime; Trainer's defaults are those of its CRD."""
        kind, group = (at(spec, "runtimeRef", key) for key in ("kind", "apiGroup"))
        kinds = (CLUSTER_RUNTIMES, RUNTIMES)
        found = next((one for one in kinds if one.kind == (kind or CLUSTER_RUNTIMES.kind)), None)
        if found is None or group not in (None, GROUP):
            raise TemplateError(
                "runtimeRef", f"must be a {' or '.join(one.kind for one in kinds)} of {GROUP}"
            )
        name = at(spec, "runtimeRef", "name")
        if not isinstance(name, str) or not name:
            raise TemplateError("runtimeRef.name", "must name the runtime")
        return TemplateSource(found, name, found is RUNTIMES, "runtimeRef")

    def composed(self, spec: Mapping[str, Any], source: Mapping[str, Any]) -> Json:
        """With the runtime in it, as Trainer would compose the two: its patches, then its environment."""
        made = {**deepcopy(dict(spec)), RUNTIME: deepcopy(source.get("spec"))}
        for where, patch in _listed(spec, "runtimePatches"):
            _patch(made, patch, where)
        for (field, part, name), given in _parts(spec):
            for container in _containers(made, part, name):
                _add_environment(container, given, field)
        return made

    def recomposed(self, spec: Mapping[str, Any], copy: Mapping[str, Any]) -> Json:
        """The patches and the environment are in the copy."""
        return {**spec, RUNTIME: copy.get("spec")}

    def as_given(self, spec: Mapping[str, Any]) -> Json:
        """Without the runtime."""
        return {key: value for key, value in spec.items() if key != RUNTIME}

    def split(self, spec: Mapping[str, Any], name: str) -> tuple[Json, Json]:
        """What is in the copy is not said again: Trainer would put it over what the operator wrote."""
        own = deepcopy(self.as_given(spec))
        own.pop("runtimePatches", None)
        for _, given in _parts(own):
            for key in ("env", "secretRef"):
                given.pop(key, None)
        own["runtimeRef"] = {"apiGroup": GROUP, "kind": self.copied.kind, "name": name}
        return own, deepcopy(spec[RUNTIME])

    def pod_templates(self, spec: Mapping[str, Any]) -> tuple[PodTemplate, ...]:
        """That of every replicatedJob of the runtime; guarded is `node`."""
        self.check_manager(spec)
        name = self.source(spec).name
        if RUNTIME not in spec:
            raise TemplateError(
                "runtimeRef", f"the runtime {name} was not read, so nothing is known of its pods"
            )
        _check_runtime(spec)
        _check_fields(spec)
        number = _rank0(spec)
        return tuple(_template(place, job, place == number) for place, job in enumerate(_jobs(spec)))

    def made(self, workload: Mapping[str, Any]) -> tuple[str, ...]:
        """A JobSet of the same name; another one once that is gone and the job has not ended."""
        return (str(at(workload, "metadata", "name")),)

    def may_make(self, kind: str, name: str, workload: str) -> bool:  # noqa: ARG002
        """A JobSet has its name."""
        return name == workload

    def attached(self, spec: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> str:
        """In `node`, as the JobSet has it: what made that of the runtime is done."""
        self.check_manager(spec)
        for jobs in (at(one, "spec", "replicatedJobs") for one in made):
            if all(at(job, "name") != NODE for job in (jobs if isinstance(jobs, list) else [])):
                raise TemplateError(
                    "runtimeRef", f"its JobSet has no replicatedJob {NODE}: nothing tells which pod is rank 0"
                )
        return NODE

    def holds_rank0(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """The first pod of `node`."""
        labels = at(pod, "metadata", "labels") or {}
        first = all(str(labels.get(label)) == "0" for label in (JOB_LABEL, INDEX_LABEL))
        return first and labels.get(NAME_LABEL) == NODE

    def is_ready(self, workload: Mapping[str, Any]) -> bool:
        """By its Jobs."""
        jobs = at(workload, "status", "jobsStatus") or []
        return any(at(job, "name") == NODE and at(job, "ready") for job in jobs)

    def pods_wanted(self, spec: Mapping[str, Any]) -> int:
        """The nodes; what waits for others comes later. Without the runtime, as many as the job says."""
        nodes = at(spec, "trainer", "numNodes") or at(spec, RUNTIME, "mlPolicy", "numNodes")
        jobs = at(spec, *_JOB_SET, "replicatedJobs")
        return sum(
            count(nodes if at(job, "name") == NODE else at(job, "template", "spec", "parallelism"))
            for job in (jobs if isinstance(jobs, list) else [{"name": NODE}])
            if not at(job, "dependsOn")
        )

    def prepared(self, spec: Json) -> Json:
        """Defaults made explicit that would hurt, as in a JobSet."""
        prepared = deepcopy(spec)
        # Without its JobSet a run that failed is no longer one, and Trainer starts it again.
        at(prepared, *_JOB_SET).pop("ttlSecondsAfterFinished", None)
        for job in _jobs(prepared):
            job["template"]["spec"].setdefault("completionMode", "Indexed")
        spell_out(_jobs(prepared)[_rank0(prepared)])
        return prepared


# -- what the spec says ----------------------------------------------------------------------------------


def _listed(node: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """The objects of a list, if there is one, each with its path.

    Raises:
        TemplateError: it is no list, or something in it is no object.
    """
    found, where = at(node, *path), dotted(path)
    if not isinstance(found, list | None):
        raise TemplateError(where, "must be a list of objects")
    for number, one in enumerate(found or []):
        if not isinstance(one, dict):
            raise TemplateError(f"{where}[{number}]", "must be an object")
        yield f"{where}[{number}]", one


def _parts(spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], Json]]:
    """What a TrainJob says of containers of its runtime: (its field, the runtime's part, the container)."""
    places: list[tuple[tuple[str, ...], str, str]] = [((TRAINER,), TRAINER, NODE)]
    places += [(("initializer", key), name, name) for key, name in _INITIALIZERS.items()]
    for path, part, container in places:
        given = at(spec, *path)
        if isinstance(given, dict):
            yield (dotted(path), part, container), given


def _add_environment(container: Json, given: Mapping[str, Any], field: str) -> None:
    """A variable takes the place of one with its name, as Trainer has it."""
    own = [one for _, one in _listed(container, "env")]
    for where, variable in _listed(given, "env"):
        if not isinstance(variable.get("name"), str):
            raise TemplateError(f"{field}.{where}", "must have a name")
        own = [one for one in own if one.get("name") != variable["name"]] + [deepcopy(variable)]
    if own:
        container["env"] = own
    if (secret := given.get("secretRef")) is not None:
        others = [one for _, one in _listed(container, "envFrom")]
        container["envFrom"] = [*others, {"secretRef": deepcopy(secret)}]


# -- what the runtime says -------------------------------------------------------------------------------


def _jobs(spec: Mapping[str, Any]) -> list[Json]:
    return replicated_jobs(spec, *_JOB_SET)


def _containers(spec: Mapping[str, Any], part: str, name: str) -> Iterator[Json]:
    for job in _jobs(spec):
        if at(job, "template", "metadata", "labels", PART_LABEL) == part:
            for _, container in _listed(job["template"], "spec", "template", "spec", "containers"):
                if container.get("name") == name:
                    yield container


def _check_runtime(spec: Mapping[str, Any]) -> None:
    """Refuse what Trainer or JobSet would add to pods after the check, and what no stop would end.

    Raises:
        TemplateError: it names the field.
    """
    for policy in ("mpi", "flux"):
        if at(spec, RUNTIME, "mlPolicy", policy) is not None:
            why = (
                "must not be set: Trainer adds volumes or containers after the check, and starts the program "
                "from another pod than the one that trains"
            )
            raise TemplateError(f"{RUNTIME}.mlPolicy.{policy}", why)
    if at(spec, *_JOB_SET, "managedBy") not in (None, "jobset.sigs.k8s.io/jobset-controller"):
        why = "must be jobset.sigs.k8s.io/jobset-controller: pods elsewhere are not stopped"
        raise TemplateError(dotted((*_JOB_SET, "managedBy")), why)
    if at(spec, *_JOB_SET, "volumeClaimPolicies"):
        why = "must not be set: JobSet adds volumes after the check"
        raise TemplateError(dotted((*_JOB_SET, "volumeClaimPolicies")), why)


def _check_fields(spec: Mapping[str, Any]) -> None:
    """Refuse what this version does not know.

    Raises:
        TemplateError: it names the field.
    """
    for path, known in _KNOWN.items():
        given = at(spec, *path)
        if not isinstance(given, dict | None):
            raise TemplateError(dotted(path), "must be an object")
        for field, value in (given or {}).items():
            if field not in known and value is not None:
                why = "must not be set: this version of the operator does not know what it does to pods"
                raise TemplateError(dotted((*path, str(field))), why)


def _rank0(spec: Mapping[str, Any]) -> int:
    """The place of the replicatedJob with rank 0.

    Raises:
        TemplateError: it is not the one that Trainer takes for it, or its pods are not all ranks at once.
    """
    path = (*_JOB_SET, "replicatedJobs")
    trainers = [
        n
        for n, job in enumerate(_jobs(spec))
        if at(job, "template", "metadata", "labels", PART_LABEL) == TRAINER
    ]
    names = [str(_jobs(spec)[number]["name"]) for number in trainers]
    if names != [NODE]:
        found = f", not {', '.join(names)}" if names else ""
        why = f"must have one with the label {PART_LABEL}: {TRAINER}, and that must be named {NODE}{found}"
        raise TemplateError(dotted(path), why)
    [number] = trainers
    job = _jobs(spec)[number]
    if job.get("replicas") not in (None, 1):
        raise TemplateError(
            dotted((*path, number, "replicas")), "must be 1: spec.trainer.numNodes says how many"
        )
    if job["template"]["spec"].get("completionMode") not in (None, "Indexed"):
        where = dotted((*path, number, "template", "spec", "completionMode"))
        raise TemplateError(where, "must be Indexed: no pod is rank 0")
    return number


def _template(number: int, job: Json, guarded: bool) -> PodTemplate:
    place = (*_JOB_SET, "replicatedJobs", number, "template")
    between = ((RUNTIME, "template"), place)
    pods, limit = (*place, "spec", "template"), limit_of(job["template"]["spec"], *place, "spec")
    container, index = (NODE, INDEX_FIELD) if guarded else ("", None)
    return PodTemplate(pods, container, guarded, index, between, limit)


# -- both together ---------------------------------------------------------------------------------------


def _patch(spec: Json, patch: Mapping[str, Any], where: str) -> None:
    """Change the runtime in a composed spec as one of its `runtimePatches` says."""
    jobs, whole = _jobs(spec), at(spec, RUNTIME, "template")
    field = ("trainingRuntimeSpec", "template")
    template = at(patch, *field)
    if (metadata := at(template, "metadata")) is not None:
        whole["metadata"] = _merged(whole.get("metadata") or {}, metadata)
    for inner, one in _listed(template, "spec", "replicatedJobs"):
        path = f"{where}.{dotted(field)}.{inner}"
        job = next((job for job in jobs if job["name"] == one.get("name")), None)
        if job is None:
            names = ", ".join(job["name"] for job in jobs)
            raise TemplateError(path, f"must name a replicatedJob of the runtime, which has {names}")
        change = one.get("template") or {}
        _check_containers(job, change, path)
        job["template"] = _merged(job["template"], change)


def _merged(base: Any, change: Any, field: str = "") -> Any:
    """A template with a patch, as Trainer merges the two; a null takes away."""
    if isinstance(base, dict) and isinstance(change, dict):
        all_ = base | {key: _merged(base.get(key), value, key) for key, value in change.items()}
        return {key: value for key, value in all_.items() if value is not None}
    if (key := _KEYS.get(field)) is None or not isinstance(base, list) or not isinstance(change, list):
        return deepcopy(change)
    both = list(base)
    for one in change:
        same = (
            n for n, other in enumerate(both) if at(one, key) is not None and at(other, key) == at(one, key)
        )
        place = next(same, None)
        if place is None:
            both.append(deepcopy(one))
        else:
            both[place] = _merged(both[place], one)
    return both


def _check_containers(job: Mapping[str, Any], change: Any, where: str) -> None:
    """A patch changes containers that the runtime has, and brings none.

    Raises:
        TemplateError: it names one that is not there.
    """
    pod = ("spec", "template", "spec")
    for kind in ("initContainers", "containers"):
        there = [one.get("name") for _, one in _listed(job["template"], *pod, kind)]
        for _, one in _listed(change, *pod, kind):
            if one.get("name") not in there:
                why = f"must be of a container that replicatedJob {job['name']} of the runtime has"
                raise TemplateError(f"{where}.template.{dotted((*pod, kind))}", why)
