"""The operator's world with the real controllers of kinds, as processes beside a real API server.

No kubelet, scheduler, Job controller or garbage collector runs: a test plays those, and only those.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from rlguard.operator.runtime.client import Client
from tests.operator.integration.conftest import (
    client,
    install,
    kubeconfig,
    make_job,
    namespace,
    plane,
)
from tests.operator.integration.controlplane import BUILD_SECONDS

from .webhooks import CONFIGS, Webhooks

BUILD = Path(__file__).parent / "build.sh"
START_SECONDS = 120

__all__ = ["client", "kubeconfig", "make_job", "namespace", "plane"]

#: How each controller is started.
FLAGS = {
    "kuberay": ["--metrics-addr=0", "--health-probe-bind-address=0", "--enable-leader-election=false"],
    "jobset": ["--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect=false"],
    "trainer": [],
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits until the control plane and the controllers are built."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS + 600))
    # What waits for a CRD comes before all that install one and leave it there.
    items.sort(key=lambda item: item.get_closest_marker("before_crds") is None)


@pytest.fixture(scope="session")
def controller(
    client: Client, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], None]]:
    """Builds the controller of a kind, installs its CRDs and starts it, once for all tests."""
    logs, running = tmp_path_factory.mktemp("controllers"), set[str]()
    with ExitStack() as stack:

        def start(name: str) -> None:
            if name in running:
                return
            running.add(name)
            built = subprocess.run(
                [BUILD, name], stdout=subprocess.PIPE, text=True, timeout=BUILD_SECONDS, check=True
            )
            directory = Path(built.stdout.strip())
            for file in sorted((directory / "crds").iterdir()):
                install(client, yaml.safe_load(file.read_text()))
            webhooks = Webhooks(name, directory, logs) if name in CONFIGS else None
            config = [] if webhooks is None else [f"--config={webhooks.config}"]
            own = {} if webhooks is None else webhooks.environment
            out = stack.enter_context((logs / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [directory / "manager", *FLAGS[name], *config],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, "KUBECONFIG": str(kubeconfig), "GOGC": "50"},
            )
            stack.callback(process.wait, START_SECONDS)
            stack.callback(process.kill)
            if webhooks is not None:
                webhooks.register(client, START_SECONDS)

        yield start
