"""The operator's metrics: controller-runtime's names where it has them, `rlguard_` for what is ours.

`docs/reference/metrics.md` is generated from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTROLLER = "guardedtrainingjob"
_TEARDOWN_SECONDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


class OperatorMetrics:
    """One registry with everything."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        reconcile = "controller_runtime_reconcile"
        of_controller = ("controller", "result")
        self.reconciles = Counter(reconcile, "Reconciles by result.", of_controller, registry=registry)
        errors = Counter(f"{reconcile}_errors", "Reconciles that failed.", ("controller",), registry=registry)
        self.errors = errors.labels(CONTROLLER)
        active = "controller_runtime_active_workers"
        workers = Gauge(active, "Workers that reconcile now.", ("controller",), registry=registry)
        self.active_workers = workers.labels(CONTROLLER)
        requests = "Requests to the API server by method and code."
        self._requests = Counter("rest_client_requests", requests, ("method", "code"), registry=registry)
        master = "leader_election_master_status"
        self.leading = Gauge(master, "1 while this process leads.", ("name",), registry=registry)
        self._fires = Counter("rlguard_fires", "Fires recorded, by rule.", ("reason",), registry=registry)
        self._halts = Counter("rlguard_halts", "Halts recorded, by reason.", ("reason",), registry=registry)
        self._teardown = Histogram(
            "rlguard_teardown_seconds",
            "From the guard's latch to the last pod gone.",
            buckets=_TEARDOWN_SECONDS,
            registry=registry,
        )

    def request(self, method: str, code: str) -> None:
        """A request to the API server got the response `code`, or none ("<error>")."""
        self._requests.labels(method, code).inc()

    def fired(self, reason: str) -> None:
        """A fire was recorded."""
        self._fires.labels(reason).inc()

    def halted(self, reason: str) -> None:
        """A halt was recorded."""
        self._halts.labels(reason).inc()

    def stopped(self, seconds: float) -> None:
        """The last pod of a fired run is gone."""
        self._teardown.observe(seconds)


class QueueGauges(Collector):
    """Gauges of the queue that are computed when they are read."""

    def __init__(self, depth: Callable[[], int], working_for: Callable[[], list[float]]) -> None:
        self._depth = depth
        self._working_for = working_for

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        longest = max(self._working_for(), default=0.0)
        for name, text, value in (
            ("workqueue_depth", "Keys that wait now.", float(self._depth())),
            ("workqueue_longest_running_processor_seconds", "Age of the oldest work under way.", longest),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["name"])
            gauge.add_metric([CONTROLLER], value)
            yield gauge
