"""Carries strikes out: each begins now, and what mends it is what comes back."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from rlguard.operator.runtime.client import LEASES, Client
from rlguard.operator.runtime.errors import ClusterError
from tests.operator.integration.controlplane import Child, ControlPlane
from tests.operator.integration.faults import Cut, FaultProxy, Hang
from tests.service.conftest import Zygote

from .clock import Clock
from .cluster import Cluster
from .network import Network
from .replicas import Replica
from .schedule import Fault, Strike

Mend = Callable[[], None]

#: How far a clock jumps at most, either way.
JUMP_SECONDS = 2 * 24 * 3600
#: The share of operators' strikes that hit the leader, and the share of guards that one strike hits.
LEADER_SHARE, GUARDS_SHARE = 0.7, 0.5


def _nothing() -> None:
    pass


@dataclass
class Field:
    """Everything that can be struck."""

    plane: ControlPlane
    client: Client
    namespace: str
    replicas: list[Replica]
    cluster: Cluster
    network: Network
    guards_clock: Clock | None
    zygote: Zygote

    def strike(self, strike: Strike) -> Mend:
        """Begin; the result mends it."""
        match strike.fault:
            case Fault.OPERATOR_KILLED:
                self._operator(strike.pick).kill(strike.lasts)
                return _nothing
            case Fault.LEADER_PAUSED:
                leader = self._operator(0.0)
                leader.pause()
                return leader.resume
            case Fault.OPERATOR_CUT_OFF:
                hangs = strike.pick * 10 % 1 < 0.5
                return _all(_cut_off(one.proxy, hangs) for one in self._operators(strike))
            case Fault.WATCHES_FROZEN:
                return _all(_freeze(one.proxy) for one in self._operators(strike))
            case Fault.API_SERVER_KILLED:
                return _kill(self.plane.api_server)
            case Fault.ETCD_KILLED:
                return _kill(self.plane.etcd)
            case Fault.GUARDS_KILLED:
                return self._kill_guards(strike.pick)
            case Fault.GUARDS_CUT_OFF:
                self.network.cut(hangs=strike.pick < 0.5)
                return self.network.heal
            case Fault.DISK_FULL:
                return self._fill_disk()
            case Fault.CLOCK_JUMPS:
                return self._jump(strike.pick)
            case Fault.TRAINING_OPERATOR_AWAY:
                return self._training_operator_away()

    def keep_up(self) -> None:
        for replica in self.replicas:
            replica.keep_up()

    def mend_all(self) -> None:
        """What the control plane lost is back, also where it ended by itself meanwhile."""
        for child in (self.plane.etcd, self.plane.api_server):
            if not child.runs():
                child.start()

    def _operator(self, pick: float) -> Replica:
        """The leader, by its Lease, or the other one; the first while nobody can tell."""
        leader = ""
        with suppress(ClusterError):
            lease = self.client.get(LEASES, self.namespace, "rlguard-operator", timeout=1.0) or {}
            leader = str((lease.get("spec") or {}).get("holderIdentity") or "")
        first = next((one for one in self.replicas if one.knows(leader)), self.replicas[0])
        return first if pick < LEADER_SHARE else next(one for one in self.replicas if one is not first)

    def _operators(self, strike: Strike) -> list[Replica]:
        return self.replicas if strike.both else [self._operator(strike.pick)]

    def _kill_guards(self, pick: float) -> Mend:
        rng = random.Random(pick)
        for one in self.cluster.runs:
            if rng.random() < GUARDS_SHARE and (pid := one.guard.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return _nothing  # the kubelet starts them again

    def _fill_disk(self) -> Mend:
        """No file of a guard grows, also of one that is started meanwhile."""
        self._limit_files(0)
        return lambda: self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> None:
        for pid in (self.zygote.pid, *(one.guard.pid for one in self.cluster.runs)):
            with suppress(ProcessLookupError):
                if pid:
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _jump(self, pick: float) -> Mend:
        """The clock of the leader, of the other operator or of all guards, off until it is mended."""
        clocks = [self._operator(0.0).clock, self._operator(1.0).clock, self.guards_clock]
        clock = clocks[int(pick * 1000) % len(clocks)]
        assert clock is not None
        clock.jump_to(int((pick - 0.5) * 2 * JUMP_SECONDS))
        return lambda: clock.jump_to(0)

    def _training_operator_away(self) -> Mend:
        cluster = self.cluster
        cluster.training_operator_away = True

        def back() -> None:
            cluster.training_operator_away = False

        return back


def _all(mends: Iterable[Mend]) -> Mend:
    """What does each of these, which are made now."""
    made = tuple(mends)

    def mend() -> None:
        for one in made:
            one()

    return mend


def _freeze(proxy: FaultProxy) -> Mend:
    """Requests are answered, and open watches show nothing."""
    proxy.freeze_streams()
    return proxy.heal


def _cut_off(proxy: FaultProxy, hangs: bool) -> Mend:
    """Nothing gets through: every request hangs, or its connection is closed."""
    fault = Hang() if hangs else Cut()
    proxy.inject(lambda _method, _path: fault)
    proxy.cut_streams()
    return proxy.heal


def _kill(child: Child) -> Mend:
    if child.runs():
        child.kill()
    return lambda: None if child.runs() else child.start()
