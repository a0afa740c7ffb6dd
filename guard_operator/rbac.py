"""What the operator may do: the least that its requests need. Generated into k8s/rbac and the chart.

In the namespaces of jobs it creates Secrets and never reads one. What it keeps is in its own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from guard_operator.adapters import ADAPTERS, ComposedAdapter, OuterAdapter, WorkloadAdapter
from guard_operator.api import names
from guard_operator.runtime.client import KUEUE_WORKLOADS


def rules(adapters: Iterable[WorkloadAdapter] = ADAPTERS, kueue: bool = False) -> list[dict[str, Any]]:
    """PolicyRules for the namespaces that the operator watches."""
    of_kinds = (rule for adapter in adapters for rule in workload_rules(adapter))
    return [*common_rules(), *of_kinds, *(queue_rules() if kueue else ())]


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
    for resource in adapter.makes if isinstance(adapter, OuterAdapter) else ():
        verbs.setdefault(resource, set()).update(("delete", "get"))
    if isinstance(adapter, ComposedAdapter):
        verbs.setdefault(adapter.copied, set()).update(("create", "get", "list", "patch", "watch"))
        verbs |= {resource: {"get"} for resource in adapter.shared}
    return [_rule(one.group, [one.plural], sorted(found)) for one, found in verbs.items()]


def shared_rules(adapter: WorkloadAdapter) -> list[dict[str, Any]]:
    """Of these, what is in no namespace: a Role in each namespace does not give it."""
    shared = adapter.shared if isinstance(adapter, ComposedAdapter) else ()
    return [_rule(one.group, [one.plural], ["get"]) for one in shared]


def queue_rules() -> list[dict[str, Any]]:
    """For what Kueue has of a workload: to see why it waits."""
    return [_rule(KUEUE_WORKLOADS.group, [KUEUE_WORKLOADS.plural], ["list", "watch"])]


def own_namespace_rules() -> list[dict[str, Any]]:
    """PolicyRules for the namespace in which the operator runs: its Lease, and Secrets with runs' state."""
    return [
        _rule("coordination.k8s.io", ["leases"], ["create", "get", "update"]),
        _rule("", ["secrets"], ["create", "delete", "get", "list", "patch"]),
    ]


def cluster_role() -> dict[str, Any]:
    """The ClusterRole; bind it cluster-wide, or with a RoleBinding in each watched namespace."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": names.OPERATOR_MANAGER},
        "rules": rules(),
    }


def own_namespace_role() -> dict[str, Any]:
    """The Role in the operator's own namespace."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": f"{names.OPERATOR_MANAGER}-own-namespace"},
        "rules": own_namespace_rules(),
    }


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
