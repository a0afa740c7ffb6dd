"""Plays one round against a real control plane, real operators and real guards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlguard.operator.api.schema import crd
from rlguard.operator.runtime.client import Client, load_configuration
from tests.operator.integration.conftest import install, new_namespace
from tests.operator.integration.controlplane import ControlPlane, control_plane
from tests.operator.integration.waiting import eventually
from tests.operator.integration.world import World, world
from tests.service.conftest import Zygote

from .clock import Clock, build_clock
from .cluster import Cluster, Played
from .counts import Facts
from .network import Network
from .replicas import Replica
from .schedule import Round, Strike
from .strikes import Field, Mend

TICK_SECONDS = 0.05
#: For how long runs may take to their end once everything is mended.
SETTLE_SECONDS = 120.0
#: For how long it is watched whether the end stays as it is.
LATER_SECONDS = 5.0


@dataclass(frozen=True)
class Stage:
    """What all rounds share."""

    plane: ControlPlane
    client: Client
    zygote: Zygote
    library: Path | None
    guards_clock: Clock | None
    directory: Path


@contextmanager
def stage(directory: Path, clocks: bool) -> Iterator[Stage]:
    """The control plane with its CRDs, and what guards are forked from. Without `clocks` none can jump."""
    library = build_clock(directory) if clocks else None
    guards_clock = None if library is None else Clock(library, directory / "guards.clock")
    with control_plane(directory) as plane, ExitStack() as stack:
        client = Client(load_configuration(str(plane.kubeconfig(directory / "kubeconfig"))))
        for definition in (crd(), yaml.safe_load((plane.crds / "kubeflow.org_pytorchjobs.yaml").read_text())):
            install(client, definition)
        zygote = Zygote({} if guards_clock is None else guards_clock.environment)
        stack.callback(zygote.close)
        yield Stage(plane, client, zygote, library, guards_clock, directory)


def play(stage: Stage, planned: Round, seed: int) -> tuple[Facts, ...]:
    """One round, to its end; what was seen of its runs."""
    namespace = new_namespace(stage.client)
    directory = stage.directory / namespace
    directory.mkdir()
    with (
        closing(Network()) as network,
        world(stage.plane, stage.client, namespace, directory, of=Played) as here,
    ):
        here.network = network
        here.claim()
        with ExitStack() as stack:
            replicas = [Replica(here, n, planned, stage.library) for n in range(2)]
            for replica in replicas:
                stack.callback(replica.close)
            cluster = Cluster(here, stage.zygote, planned.runs, f"{seed}: {planned.name}")
            stack.callback(cluster.close)
            field = Field(
                stage.plane,
                stage.client,
                namespace,
                replicas,
                cluster,
                network,
                stage.guards_clock,
                stage.zygote,
            )
            _wait_for_leaders(here, replicas, planned.two_leaders)
            cluster.start()
            if planned.reported_first:
                _until(cluster.reports, field, SETTLE_SECONDS)
            cluster.begin()
            _strike(field, planned.strikes)
            _until(cluster.settled, field, SETTLE_SECONDS)
            _until(lambda: False, field, LATER_SECONDS)
        return cluster.facts()


def _wait_for_leaders(here: World, replicas: list[Replica], both: bool) -> None:
    def lead() -> bool:
        leading = sum("leading as" in one.process.log.read_text() for one in replicas)
        return leading == (2 if both else 1)

    eventually(lead, f"operators lead in {here.namespace}", within=120)


def _strike(field: Field, strikes: tuple[Strike, ...]) -> None:
    """Every strike at its time, and mended at its time; returns when all are mended."""
    began, coming, open_ = time.monotonic(), list(strikes), list[tuple[float, Mend]]()
    while coming or open_:
        now = time.monotonic() - began
        for mended_at, mend in [one for one in open_ if one[0] <= now]:
            mend()
            open_.remove((mended_at, mend))
        if coming and coming[0].at <= now:
            strike = coming.pop(0)
            open_.append((now + strike.lasts, field.strike(strike)))
        field.keep_up()
        time.sleep(TICK_SECONDS)


def _until(over: Callable[[], bool], field: Field, within: float) -> None:
    deadline = time.monotonic() + within
    while not over() and time.monotonic() < deadline:
        field.mend_all()
        field.keep_up()
        time.sleep(TICK_SECONDS)
