"""The operator's metrics: controller-runtime's names where it has them, `rlguard_` for what is ours.

`docs/reference/metrics.md` is generated from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTROLLER = "guardedtrainingjob"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEARDOWN_SECONDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


class OperatorMetrics:
    """One registry with everything."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels, controller = ("controller",), (CONTROLLER,)
        reconcile, queue = "controller_runtime_reconcile", "workqueue"
        self.reconciles = Counter(
            reconcile, "Reconciles by result.", ("controller", "result"), registry=self.registry
        )
        self.errors = Counter(
            f"{reconcile}_errors", "Reconciles that failed.", labels, registry=self.registry
        ).labels(*controller)
        self.reconcile_seconds = Histogram(
            f"{reconcile}_time_seconds",
            "Duration of a reconcile.",
            labels,
            buckets=_SECONDS,
            registry=self.registry,
        ).labels(*controller)
        self.active_workers = Gauge(
            "controller_runtime_active_workers", "Workers that reconcile now.", labels, registry=self.registry
        ).labels(*controller)
        self.max_workers = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Workers there are.",
            labels,
            registry=self.registry,
        ).labels(*controller)
        self._adds = Counter(
            f"{queue}_adds", "Keys that began to wait.", ("name",), registry=self.registry
        ).labels(*controller)
        self._retries = Counter(
            f"{queue}_retries", "Keys that came back after a failure.", ("name",), registry=self.registry
        ).labels(*controller)
        self._waited = Histogram(
            f"{queue}_queue_duration_seconds",
            "How long a key waited.",
            ("name",),
            buckets=_SECONDS,
            registry=self.registry,
        ).labels(*controller)
        self._worked = Histogram(
            f"{queue}_work_duration_seconds",
            "How long a key was worked on.",
            ("name",),
            buckets=_SECONDS,
            registry=self.registry,
        ).labels(*controller)
        self._requests = Counter(
            "rest_client_requests",
            "Requests to the API server by method and code.",
            ("method", "code"),
            registry=self.registry,
        )
        self.leading = Gauge(
            "leader_election_master_status",
            "1 while this process leads.",
            ("name",),
            registry=self.registry,
        )
        self._fires = Counter(
            "rlguard_fires", "Fires recorded, by rule.", ("reason",), registry=self.registry
        )
        self._halts = Counter(
            "rlguard_halts", "Halts recorded, by reason.", ("reason",), registry=self.registry
        )
        self._teardown = Histogram(
            "rlguard_teardown_seconds",
            "From the guard's latch to the last pod gone.",
            buckets=_TEARDOWN_SECONDS,
            registry=self.registry,
        )

    def request(self, method: str, code: str) -> None:
        """A request to the API server got the response `code`, or none ("<error>")."""
        self._requests.labels(method, code).inc()

    # -- the queue ---------------------------------------------------------------------------------------

    def added(self) -> None:
        """A key began to wait."""
        self._adds.inc()

    def taken(self, waited: float) -> None:
        """A worker took a key."""
        self._waited.observe(waited)
        self.active_workers.inc()

    def finished(self, worked: float) -> None:
        """A worker is done with a key."""
        self._worked.observe(worked)
        self.active_workers.dec()

    def retried(self) -> None:
        """A key will come back after a failure."""
        self._retries.inc()

    # -- the actuator ------------------------------------------------------------------------------------

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
        working = self._working_for()
        for name, text, value in (
            ("workqueue_depth", "Keys that wait now.", float(self._depth())),
            ("workqueue_unfinished_work_seconds", "Seconds of work under way.", sum(working)),
            (
                "workqueue_longest_running_processor_seconds",
                "Age of the oldest work under way.",
                max(working, default=0.0),
            ),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["name"])
            gauge.add_metric([CONTROLLER], value)
            yield gauge
