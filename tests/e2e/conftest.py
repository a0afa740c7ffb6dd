"""Fixtures: one real cluster for the session, the chart installed in it, and a namespace for each test."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from . import artefacts, timeouts
from .kube import Cluster, Namespace, install

HERE = Path(__file__).parent
#: A JSON file that describes a cluster which is there already: how a developer iterates.
EXISTING = "RLGUARD_E2E"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first may have to wait until everything is built."""
    mine = [item for item in items if HERE in item.path.parents]
    for number, item in enumerate(mine):
        item.add_marker(pytest.mark.timeout(timeouts.TEST + (0 if number else timeouts.CLUSTER)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Collect artefacts of a failed test while its namespace is still there, and say where they are."""
    report: pytest.TestReport = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and cluster is not None and HERE in item.path.parents:
        report.sections.append(("artefacts", str(artefacts.collect(cluster, item.name))))
    return report


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster that RLGUARD_E2E describes, or one that is made for this session and removed after it."""
    if EXISTING in os.environ:
        yield Cluster.from_json(Path(os.environ[EXISTING]).read_text())
        return
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # its progress is for whoever waits
        up = subprocess.run(
            [HERE / "cluster" / "up.sh"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeouts.CLUSTER,
            check=False,
        )
    try:
        assert up.returncode == 0, f"{HERE}/cluster/up.sh failed with exit code {up.returncode}; see above"
        yield Cluster.from_json(up.stdout.strip().splitlines()[-1])
    finally:
        subprocess.run([HERE / "cluster" / "down.sh"], timeout=timeouts.CLUSTER_DELETE, check=True)


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Cluster:
    """The cluster with the operator in it, installed as docs/install.md says for kind."""
    install(cluster)
    return cluster


@pytest.fixture
def namespace(installation: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh namespace; nothing of it is left after the test, so that the next one has both cores."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    with fresh_namespace(installation, words[:40].strip("-")) as made:
        yield made


@pytest.fixture
def more_namespaces(installation: Cluster) -> Iterator[Callable[[str], Namespace]]:
    """Makes further namespaces by name."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(fresh_namespace(installation, name))


@contextmanager
def fresh_namespace(cluster: Cluster, name: str) -> Iterator[Namespace]:
    """A namespace for the length of a `with`."""
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, f"{artefacts.LABEL}=test")
    made = Namespace(cluster, name)
    try:
        yield made
    finally:
        made.kubectl("delete", "gtj", "--all", "--ignore-not-found", "--wait=false")
        made.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        seconds = timeouts.NAMESPACE_DELETE
        wait = ("wait", "--for=delete", f"namespace/{name}", f"--timeout={seconds}s")
        cluster.kubectl(*wait, within=seconds + timeouts.COMMAND)
