"""What the operator may do: the least that its requests need. Generated into the chart.

In the namespaces of jobs it creates Secrets and never reads one. What it keeps is in its own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlguard.operator.adapters import ADAPTERS, WorkloadAdapter, makers
from rlguard.operator.api import names


def rules(adapters: Iterable[WorkloadAdapter] = ADAPTERS) -> list[dict[str, Any]]:
    """PolicyRules for the namespaces that the operator watches."""
    of_kinds = (rule for adapter in adapters for rule in workload_rules(adapter))
    return [*common_rules(), *of_kinds]


def common_rules() -> list[dict[str, Any]]:
    """Those that no kind of workload has to do with."""
    return [
        _rule(names.GROUP, [names.PLURAL], ["get", "list", names.OPERATOR_VERB, "watch"]),
        _rule(names.GROUP, [f"{names.PLURAL}/status"], ["get", "patch"]),
        _rule("", ["pods"], ["delete", "get", "list", "watch"]),
        _rule("", ["pods/log"], ["get"]),
        _rule("", ["persistentvolumeclaims"], ["get"]),
        _rule("", ["configmaps", "secrets"], ["create"]),
        # It tells why a pod does not come: what keeps it is in Events alone.
        _rule("", ["events"], ["create", "list"]),
        # Guards in pods of their own.
        _rule("", ["services"], ["create"]),
        _rule("apps", ["statefulsets"], ["create", "delete", "list", "watch"]),
    ]


def workload_rules(adapter: WorkloadAdapter) -> list[dict[str, Any]]:
    """For a kind of workload, and what is between it and its pods."""
    verbs = {adapter.resource: {"delete", "get"}}
    if not adapter.only_attached:
        verbs[adapter.resource].update(("create", "list", "patch", "watch"))
    for resource in adapter.between:
        verbs.setdefault(resource, set()).update(("delete", "list", "watch"))
    for maker in makers(adapter):
        verbs.setdefault(maker.resource, set()).update(("delete", "get"))
        for resource in maker.between:
            verbs.setdefault(resource, set()).update(("delete", "list"))
    return [_rule(one.group, [one.plural], sorted(found)) for one, found in verbs.items()]


def own_namespace_rules() -> list[dict[str, Any]]:
    """PolicyRules for the namespace in which the operator runs: its Lease, and Secrets with runs' state."""
    return [
        _rule("coordination.k8s.io", ["leases"], ["create", "get", "update"]),
        _rule("", ["secrets"], ["create", "delete", "get", "list", "patch"]),
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
