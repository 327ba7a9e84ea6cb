"""The metrics of the operator itself, in a registry of their own, so that two operators in one process never mix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gantry_remoting.http_admission import HttpAdmission

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets of all histograms, in seconds."""


@final
class _ClosedConnections(Collector):
    """Collects why connections to the port of the probes were closed or refused."""

    def __init__(self, admission: HttpAdmission) -> None:
        self._admission: Final = admission

    def collect(self) -> Iterator[Metric]:
        closed = CounterMetricFamily(
            "gantry_operator_http_closed", "HTTP connections that a limit closed or refused.", labels=["reason"]
        )
        for reason, count in self._admission.counts.items():
            closed.add_metric([reason.value], count)
        yield closed


@final
class Metrics:
    """The metrics of one operator process."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._reconcile: Final = Histogram(
            "gantry_operator_reconcile_seconds",
            "Duration of one reconciliation of one resource.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._calls: Final = Counter(
            "gantry_operator_api_calls_total",
            "Calls to the API server. Code 0 means that there was no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._call_seconds: Final = Histogram(
            "gantry_operator_api_call_seconds", "Duration of one call to the API server.", ["verb"],
            buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._actions: Final = Counter(
            "gantry_operator_actions_total", "Actions by type and outcome.", ["type", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._unexpected_errors: Final = Counter(
            "gantry_operator_unexpected_errors_total",
            "Reconciliations that ended with an unexpected error.",
            registry=self.registry,
        )
        self.groups: Final = Gauge("gantry_operator_groups", "Groups that are reconciled.", registry=self.registry)
        self.leader: Final = Gauge(
            "gantry_operator_leader", "1 while this process is the leader.", registry=self.registry
        )
        self.stalest: Final = Gauge(
            "gantry_operator_stalest_group_seconds", "Largest time since the last reconciliation of a group.",
            registry=self.registry,
        )  # fmt: skip

    @contextmanager
    def time_reconciliation(self) -> Iterator[None]:
        """Measure the duration of one round of a resource's loop while the context is entered."""
        with self._reconcile.time():
            yield

    def record_call(self, verb: str, plural: str, status: int, seconds: float) -> None:
        """Count and time a call to the API server."""
        self._calls.labels(verb, plural, str(status)).inc()
        self._call_seconds.labels(verb).observe(seconds)

    def record_action(self, name: str, *, is_done: bool) -> None:
        """Count an action that was executed or refused."""
        self._actions.labels(name, "done" if is_done else "refused").inc()

    def export_closed_connections(self, admission: HttpAdmission) -> None:
        """Export how often limits closed or refused connections to the port of the probes."""
        self.registry.register(_ClosedConnections(admission))

    def record_unexpected_error(self) -> None:
        """Count a round of a loop that ended with an unexpected error."""
        self._unexpected_errors.inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
