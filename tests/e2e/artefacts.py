"""What is kept of a failed test, in build/e2e/: objects, events and logs of its namespaces and the operators.

Best effort: what cannot be had is said in the file, and never hides the failure itself.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from . import timeouts
from .kube import ROOT, SYSTEM, TRAINING, Cluster

KINDS = "gtj,pytorchjobs,pods,deployments,configmaps,persistentvolumeclaims,statefulsets,leases"
#: Label of the namespaces that tests make.
LABEL = "rlguard.dev/e2e"


def collect(cluster: Cluster, test: str) -> str:
    """Write everything about the present state; the folder, and what tells most of each test's namespace."""
    folder = ROOT / "build" / "e2e" / re.sub(r"[^\w.-]+", "-", test)
    folder.mkdir(parents=True, exist_ok=True)
    tests = _kubectl(cluster, "get", "namespaces", "-l", LABEL, "-o", "jsonpath={.items[*].metadata.name}")
    events = {
        namespace: _namespace(cluster, namespace, folder) for namespace in (*tests.split(), SYSTEM, TRAINING)
    }
    nodes = _kubectl(cluster, "describe", "nodes")
    (folder / "nodes.txt").write_text(nodes)
    # CI keeps what was printed, and no files.
    told = [str(folder)]
    for namespace in tests.split():
        objects = _kubectl(cluster, "get", "--namespace", namespace, "gtj,pods", "-o", "wide")
        told.append(f"{namespace}:\n{objects}{events[namespace]}")
    return "\n".join(told)


def _namespace(cluster: Cluster, namespace: str, folder: Path) -> str:
    """Write all of one namespace; its events."""
    where = ("--namespace", namespace)
    (folder / f"{namespace}.yaml").write_text(_kubectl(cluster, "get", *where, KINDS, "-o", "yaml"))
    events = _kubectl(cluster, "get", *where, "events", "--sort-by=.metadata.creationTimestamp")
    (folder / f"{namespace}-events.txt").write_text(events)
    for pod in _kubectl(cluster, "get", *where, "pods", "-o", "name").split():
        if not pod.startswith("pod/"):
            continue
        for name, flags in (("log", ()), ("previous", ("--previous",))):
            text = _kubectl(
                cluster, "logs", *where, pod, "--all-containers", "--prefix", "--timestamps", *flags
            )
            (folder / f"{namespace}-{pod.removeprefix('pod/')}.{name}").write_text(text)
    return events


def _kubectl(cluster: Cluster, *arguments: str) -> str:
    try:
        done = cluster.try_kubectl(*arguments, within=timeouts.ARTEFACT)
    except subprocess.TimeoutExpired:
        return f"not within {timeouts.ARTEFACT} s: {' '.join(arguments)}\n"
    return done.stdout or done.stderr
