"""Fixtures: the cluster that RLGUARD_E2E describes, the chart installed in it, and namespaces."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .kube import COMMAND, GONE, Cluster, Namespace

HERE = Path(__file__).parent
DESCRIBED = "RLGUARD_E2E"
TEST_SECONDS = 40 * 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster with the operator in it. One process installs after the other, as Helm wants it."""
    described = os.environ.get(DESCRIBED)
    if not described:
        pytest.fail(f"set {DESCRIBED} to the file that describes a cluster; `make kind-up` writes one")
    cluster = Cluster.read(described)
    with Path(described).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cluster.install()
    return cluster


@pytest.fixture
def new_namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Callable[[], Namespace]]:
    """Makes namespaces that are gone after the test."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))[:40].strip("-")
    with ExitStack() as stack:
        yield lambda: stack.enter_context(_namespace(cluster, f"{words}-{secrets.token_hex(3)}"))


@pytest.fixture
def namespace(new_namespace: Callable[[], Namespace]) -> Namespace:
    """A fresh namespace."""
    return new_namespace()


@contextmanager
def _namespace(cluster: Cluster, name: str) -> Iterator[Namespace]:
    cluster.kubectl("create", "namespace", name)
    try:
        yield Namespace(cluster, name)
    finally:
        cluster.kubectl("delete", "gtj", "--all", "--namespace", name, "--ignore-not-found", "--wait=false")
        cluster.kubectl("delete", "pods", "--all", "--namespace", name, "--grace-period=1", "--wait=false")
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found", within=GONE + COMMAND)
