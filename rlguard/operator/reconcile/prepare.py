"""What can be found out before a workload is made or attached to: the template, claims, dry runs.

Whatever speaks against it is said once, by its field and with the API server's own words.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlguard.operator.adapters import TemplateError, WorkloadAdapter
from rlguard.operator.api import names
from rlguard.operator.api.reasons import Reason
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.guard_pod import why_not_shared
from rlguard.operator.reconcile.inject import made_for_the_guard
from rlguard.operator.reconcile.isolation import guard_objects_of
from rlguard.operator.reconcile.refusals import is_copy, template_claims
from rlguard.operator.reconcile.review import review
from rlguard.operator.reconcile.snapshot import OFTEN, SELDOM, Job, Preparation
from rlguard.operator.reconcile.targets import Belongings, has_made_nothing, why_not_attached
from rlguard.operator.reconcile.templates import rank0_of
from rlguard.operator.runtime.client import CLAIMS, Client, Json
from rlguard.operator.runtime.errors import ApiError

CHECKPOINTS = "spec.guard.checkpoints."
#: In how many seconds to ask again for what was refused for good: only another configuration admits it.
REFUSED_SECONDS = 300.0


def find_preparation(
    client: Client,
    config: OperatorConfig,
    adapter: WorkloadAdapter,
    job: Job,
    raw: Json | None,
    target: Belongings,
) -> Preparation:
    """Everything that can be found out before there is a guarded workload; the first obstacle wins.

    It asks the API server, and changes nothing.

    Args:
        client: of the API server.
        config: of the operator.
        adapter: of the workload.
        job: the job.
        raw: the workload of that name, if there is one.
        target: what belongs to it.
    """
    if (found := review(adapter, job, config)).reason is not None:
        return Preparation(found.reason, "; ".join(found.findings))
    if (missing := _missing_claim(client, adapter, job)) is not None:
        return missing
    if job.is_attached:
        refused = _target(adapter, job, raw, target)
    else:
        refused = _copied_claim(client, config, adapter, job) or _dry_run(
            client, adapter, job, found.workload
        )
    if refused is None:
        refused = _guard_refused(client, config, adapter, job)
    return refused or Preparation(owned_claim=_owned_claim(client, job, raw))


def _missing_claim(client: Client, adapter: WorkloadAdapter, job: Job) -> Preparation | None:
    """A claim that is not there, or that two nodes cannot share where they must."""
    for where, claim in _claims(adapter, job):
        if (raw := client.get(CLAIMS, job.namespace, claim)) is None:
            message = f"{where}: PersistentVolumeClaim {claim} does not exist in {job.namespace}: create it"
            return Preparation(Reason.CLAIM_MISSING, message, OFTEN)
        shared = job.spec.guard.own_pod is not None and where.startswith(CHECKPOINTS)
        if shared and (why := why_not_shared(raw)):
            message = f"{where}: PersistentVolumeClaim {claim}: {why}"
            refused = Reason.TEMPLATE_REFUSED if not job.is_attached else Reason.TARGET_REFUSED
            return Preparation(refused, message, OFTEN)
    return None


def _copied_claim(
    client: Client, config: OperatorConfig, adapter: WorkloadAdapter, job: Job
) -> Preparation | None:
    """A claim of the template that was made as a copy of one that only the guard may have."""
    own = guard_objects_of(job.name, job.uid, job.spec.guard, config)
    for field, claim in template_claims(adapter, job.spec.made_from.spec):
        if is_copy(client.get(CLAIMS, job.namespace, claim) or {}, own):
            message = f"{field}: PersistentVolumeClaim {claim} is a copy of one that only the guard may have"
            return Preparation(Reason.TEMPLATE_REFUSED, message)
    return None


def _guard_refused(
    client: Client, config: OperatorConfig, adapter: WorkloadAdapter, job: Job
) -> Preparation | None:
    """What the API server says to what is made for the guard: a quota, a policy, a value of the spec.

    Found out later it would be a run without its guard, and end as a silent one.
    """
    for resource, body in made_for_the_guard(job, adapter, config):
        try:
            client.create(resource, job.namespace, body, names.OPERATOR_MANAGER, dry_run=True)
        except ApiError as error:
            if error.status == 409:  # made by a try before, of which something else was refused
                continue
            if (again := _again_after(error)) is None:
                raise
            what = f"the {body['kind']} {body['metadata']['name']} for the guard: {error.message}"
            return Preparation(Reason.GUARD_REFUSED, what, again)
    return None


def _owned_claim(client: Client, job: Job, target: Json | None) -> str:
    """The checkpoint claim, if the target owns it: it is deleted with its owner."""
    name = job.spec.guard.checkpoints.claim_name
    if name is None or target is None:
        return ""
    claim = client.get(CLAIMS, job.namespace, name) or {"metadata": {}}
    owners = claim["metadata"].get("ownerReferences") or []
    return name if any(one.get("uid") == target["metadata"]["uid"] for one in owners) else ""


def _dry_run(client: Client, adapter: WorkloadAdapter, job: Job, workload: Json) -> Preparation | None:
    """What the API server, with the workload's schema and webhooks, says to the workload.

    First as a create, because a server-side apply refuses a value of the wrong type with a 500; then as the
    apply by which it is made, which refuses more: a null, two entries of one name. One that is there was made
    by a try before, of which something else was refused.
    """
    manager, resource = names.OPERATOR_MANAGER, adapter.resource
    try:
        try:
            made = client.create(resource, job.namespace, workload, manager, dry_run=True)
            adapter.check_manager(made.get("spec") or {})  # MultiKueue's webhook leaves it to another one
        except ApiError as error:
            if error.status != 409:
                raise
        client.apply(resource, workload, manager, dry_run=True)
    except TemplateError as error:
        message = f"spec.template: a webhook changes it: {error}"
        return Preparation(Reason.WORKLOAD_REFUSED, message, REFUSED_SECONDS)
    except ApiError as error:
        if (again := _again_after(error)) is None:
            raise
        message = error.message
        if error.status == 404:
            kind = f"{workload['kind']} ({workload['apiVersion']})"
            message, again = f"the cluster has no {kind}: install it; {message}", SELDOM
        return Preparation(Reason.WORKLOAD_REFUSED, f"spec.template: {message}", again)
    return None


def _again_after(error: ApiError) -> float | None:
    """After how many seconds to ask again what was refused; None: it was no refusal."""
    if error.status == 403:
        return SELDOM
    if error.status == 500:  # most likely a webhook that does not respond: its controller is down
        return OFTEN
    return REFUSED_SECONDS if error.refused else None


def _target(adapter: WorkloadAdapter, job: Job, raw: Json | None, found: Belongings) -> Preparation | None:
    """Whether the workload that the job names is there, and can be guarded."""
    named = f"spec.targetRef: {adapter.resource.kind} {job.workload_name}"
    if raw is None:
        message = f"{named} ({adapter.resource.api_version}) does not exist in {job.namespace}"
        return Preparation(Reason.TARGET_MISSING, message, OFTEN)
    if why := why_not_attached(adapter, raw, found.made):
        return Preparation(Reason.TARGET_REFUSED, f"{named}: {why}", OFTEN)
    if has_made_nothing(adapter, raw, found.made):
        message = f"{named} has made nothing yet that has pods"
        return Preparation(Reason.TARGET_MISSING, message, OFTEN)
    return None


def _claims(adapter: WorkloadAdapter, job: Job) -> Iterable[tuple[str, str]]:
    """The claims without which the guarded pod would never start, each with the field that names it."""
    guard = job.spec.guard
    if guard.heldout.volume.claim_name is not None:
        yield "spec.guard.heldout.volume.claimName", guard.heldout.volume.claim_name
    if guard.state.claim_name is not None:
        yield "spec.guard.state.claimName", guard.state.claim_name
    if guard.checkpoints.claim_name is not None:
        yield f"{CHECKPOINTS}claimName", guard.checkpoints.claim_name
    if job.is_attached:
        return
    spec = job.spec.made_from.spec
    _, pod = rank0_of(adapter, spec)
    for volume in pod.get("volumes", []):
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim and volume.get("name") == guard.checkpoints.volume:
            yield f"{CHECKPOINTS}volume", claim
