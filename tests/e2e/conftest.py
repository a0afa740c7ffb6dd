"""Fixtures: one real cluster, the chart installed in it, and a namespace for each test."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import artefacts, given, jobs, timeouts
from .kube import Cluster, Json, Namespace, install

HERE = Path(__file__).parent
#: A JSON file that describes the cluster; run.sh makes one, and a developer iterates on one that is kept.
EXISTING = "RLGUARD_E2E"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of these tests is not that of the others."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(timeouts.TEST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Collect artefacts of a failed test while its namespace is still there; say where, and the essence."""
    report: pytest.TestReport = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and cluster is not None and HERE in item.path.parents:
        report.sections.append(("artefacts", artefacts.collect(cluster, item.name)))
    return report


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that RLGUARD_E2E describes."""
    described = os.environ.get(EXISTING)
    if not described:
        pytest.fail(f"set {EXISTING} to the file that describes a cluster: `make e2e` and `make kind-up` do")
    return Cluster.from_json(Path(described).read_text())


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Cluster:
    """The cluster with the operator in it, installed as docs/tasks/run-on-kubernetes.md says for kind.

    By one process after the other: Helm refuses a release that another one is changing.
    """
    with Path(os.environ[EXISTING]).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        install(cluster)
    return cluster


@pytest.fixture
def namespace(installation: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh namespace; nothing of it is left after the test, so that the next one has both cores."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    with fresh_namespace(installation, words[:40].strip("-")) as made:
        yield made


@pytest.fixture
def demo(installation: Cluster) -> Iterator[Namespace]:
    """The namespace that the demo's overlay makes, which is not there yet."""
    with cleared(installation, jobs.DEMO_NAMESPACE) as named:
        yield named


@pytest.fixture
def shared(namespace: Namespace) -> Iterator[list[Json]]:
    """A claim `checkpoints` that two nodes could share."""
    with given.a_claim_for_two_nodes(namespace, "checkpoints") as made:
        yield made


@contextmanager
def fresh_namespace(cluster: Cluster, name: str) -> Iterator[Namespace]:
    """A namespace for the length of a `with`."""
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, f"{artefacts.LABEL}=test")
    with cleared(cluster, name) as made:
        yield made


@contextmanager
def cleared(cluster: Cluster, name: str) -> Iterator[Namespace]:
    """A namespace of which nothing is left after the `with`."""
    made = Namespace(cluster, name)
    try:
        yield made
    finally:
        made.kubectl("delete", "gtj", "--all", "--ignore-not-found", "--wait=false")
        made.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        seconds = timeouts.NAMESPACE_DELETE
        wait = ("wait", "--for=delete", f"namespace/{name}", f"--timeout={seconds}s")
        cluster.kubectl(*wait, within=seconds + timeouts.COMMAND)
