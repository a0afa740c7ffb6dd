"""The pod template of a Job, as it stands alone or in a JobSet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlguard.operator.adapters.base import PodTemplate, TemplateError, at, dotted, objects

CONTAINER = "trainer"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
INDEX_FIELD = f"metadata.labels['{INDEX_LABEL}']"


def rank0_template(spec: Mapping[str, Any], *where: str | int) -> PodTemplate:
    """The guarded template of a Job whose spec stands at `where`.

    Raises:
        TemplateError: its pods are not one run, a single pod or all ranks at once, or none trains.
    """

    def refused(field: str, why: str) -> TemplateError:
        return TemplateError(dotted((*where, *field.split("."))), why)

    indexed, ranks = spec.get("completionMode") == "Indexed", spec.get("parallelism")
    ranks = 1 if ranks is None else ranks
    if not isinstance(ranks, int):
        raise refused("parallelism", "must be a whole number")
    if ranks != 1 and not indexed:
        raise refused("parallelism", "must be 1 unless completionMode is Indexed: no pod is rank 0")
    if spec.get("completions") not in (None, ranks):
        raise refused("completions", f"must be as many as parallelism ({ranks}): the pods are one run")
    names = [str(one.get("name")) for one in objects(at(spec, "template", "spec", "containers"))]
    if len(names) != 1 and CONTAINER not in names:
        why = f"must have one container, or name the one that trains {CONTAINER}"
        raise refused("template.spec.containers", why)
    counts_restarts = at(spec, "template", "spec", "restartPolicy") == "OnFailure"
    return PodTemplate(
        (*where, "template"),
        container=names[0] if len(names) == 1 else CONTAINER,
        guarded=True,
        index_field=INDEX_FIELD if indexed else None,
        limit=(*where, "backoffLimit") if counts_restarts else (),
        pods=ranks,
    )
