"""Leader election on a Lease of coordination.k8s.io, with client-go's rules.

Others' clocks are never trusted: a lease has expired when *this* process has seen no change of it for
`duration`, on the monotonic clock. The leader gives up when it could not renew for `renew_deadline`, which is
shorter, and every request has a deadline that is shorter still: so an old leader stops before a new one
starts, unless the process is frozen in between; that is why every action is also fenced and idempotent.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from rlguard.operator.runtime.backoff import Backoff
from rlguard.operator.runtime.client import LEASES, Client, Json
from rlguard.operator.runtime.errors import ApiError, ClusterError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds; duration > renew_deadline > request."""

    duration: float
    renew_deadline: float
    retry: float
    request: float

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.request:
            raise ValueError(
                f"lease: duration ({self.duration:g} s) must exceed renew_deadline "
                f"({self.renew_deadline:g} s), which must exceed the request time-out ({self.request:g} s)"
            )


class LeaderElector:
    """Holds, or waits for, one Lease.

    Args:
        client: the transport.
        namespace, name: of the Lease.
        identity: unique to this process.
        timing: deadlines.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing
        self._stop = threading.Event()
        self._seen: tuple[object, float] | None = None  # the record of the Lease, and since when it is so
        self.is_leader = False

    def stop(self) -> None:
        """End `acquire` or `hold` soon."""
        self._stop.set()

    def acquire(self) -> bool:
        """Wait until this process is the leader. False: it was stopped first."""
        backoff = Backoff(self._timing.retry, self._timing.retry)
        while not self._stop.is_set():
            if self._try(time.monotonic() + self._timing.renew_deadline):
                self.is_leader = True
                log.info("leading as %s", self._identity)
                return True
            self._stop.wait(backoff.next())
        return False

    def hold(self) -> bool:
        """Renew until stopped. False: the Lease was lost, and the process must end."""
        deadline = time.monotonic() + self._timing.renew_deadline
        while not self._stop.wait(min(self._timing.retry, max(0.0, deadline - time.monotonic()))):
            started = time.monotonic()
            if self._try(deadline):
                # Others may count from the moment the request began, so this process does too.
                deadline = started + self._timing.renew_deadline
            elif self._held_by_another() or time.monotonic() >= deadline:
                self.is_leader = False
                log.error("the Lease %s/%s is lost", self._namespace, self._name)
                return False
        return True

    def release(self) -> None:
        """Give the Lease back, so that another process leads at once. Best effort."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            lease = self._client.get(LEASES, self._namespace, self._name, self._timing.request)
            if lease is not None and _holder(lease) == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _stamp()}
                self._replace(lease, self._timing.request)
        except ClusterError as error:
            log.warning("the Lease could not be released; it expires by itself: %s", error)

    def _try(self, deadline: float) -> bool:
        """Acquire or renew once, no longer than until `deadline`; False if that was not possible."""
        try:
            lease = self._client.get(LEASES, self._namespace, self._name, self._left(deadline))
            if lease is None:
                self._create(self._left(deadline))
            elif self._may_take(lease):
                self._replace(self._taken(lease), self._left(deadline))
            else:
                return False
        except ClusterError as error:
            if not (isinstance(error, ApiError) and error.status == 409):
                log.warning("lease: %s", error)
            return False
        return True

    def _left(self, deadline: float) -> float:
        """Time-out for the next request, seconds."""
        return min(self._timing.request, max(0.05, deadline - time.monotonic()))

    def _may_take(self, lease: Json) -> bool:
        """Whether it is ours, free, or has not changed for its whole duration before our eyes."""
        spec = lease.get("spec") or {}
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if self._seen is None or self._seen[0] != record:
            self._seen = record, time.monotonic()
        if _holder(lease) in {"", self._identity}:
            return True
        duration = float(spec.get("leaseDurationSeconds") or self._timing.duration)
        return time.monotonic() - self._seen[1] > duration

    def _held_by_another(self) -> bool:
        holder = self._seen[0][0] if self._seen and isinstance(self._seen[0], tuple) else None
        return holder not in {None, "", self._identity}

    def _taken(self, lease: Json) -> Json:
        spec = lease.get("spec") or {}
        changes = _holder(lease) != self._identity
        transitions = int(spec.get("leaseTransitions") or 0) + (1 if changes else 0)
        acquired = _stamp() if changes else spec.get("acquireTime", _stamp())
        return {**lease, "spec": self._spec(acquired, transitions)}

    def _create(self, timeout: float) -> None:
        meta = {"name": self._name, "namespace": self._namespace}
        body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta}
        body["spec"] = self._spec(_stamp(), 0)
        path = LEASES.path(self._namespace)
        self._client.request("POST", path, body=body, timeout=timeout)

    def _replace(self, lease: Json, timeout: float) -> None:
        """Put it back; its resourceVersion makes a competing write a 409."""
        path = LEASES.path(self._namespace, self._name)
        self._client.request("PUT", path, body=lease, timeout=timeout)

    def _spec(self, acquired: str, transitions: int) -> Json:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "acquireTime": acquired,
            "renewTime": _stamp(),
            "leaseTransitions": transitions,
        }


def _holder(lease: Json) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
