"""What the operator counts about itself, for Prometheus: its own registry, so that two of them never mix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gantry_remoting.http_admission import HttpAdmission

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@final
class _ClosedConnections(Collector):
    """Why connections of the probes' port were closed or refused."""

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
    """Of one process."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._reconcile: Final = Histogram(
            "gantry_operator_reconcile_seconds",
            "One round of one group: observe, decide, act.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._calls: Final = Counter(
            "gantry_operator_api_calls_total",
            "Calls to the API server; code 0 was not answered.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._call_seconds: Final = Histogram(
            "gantry_operator_api_call_seconds", "Of one call.", ["verb"], buckets=BUCKETS, registry=self.registry
        )
        self._actions: Final = Counter(
            "gantry_operator_actions_total", "Actions by type.", ["type", "outcome"], registry=self.registry
        )
        self._bugs: Final = Counter(
            "gantry_operator_bugs_total",
            "Rounds that ended in an error of our own.",
            registry=self.registry,
        )
        self.groups: Final = Gauge("gantry_operator_groups", "Groups that are looked after.", registry=self.registry)
        self.leader: Final = Gauge("gantry_operator_leader", "1 while this one leads.", registry=self.registry)
        self.stalest: Final = Gauge(
            "gantry_operator_stalest_group_seconds", "Since the group came round that waits longest.",
            registry=self.registry,
        )  # fmt: skip

    @contextmanager
    def reconcile(self) -> Iterator[None]:
        """Around one round."""
        with self._reconcile.time():
            yield

    def called(self, verb: str, plural: str, status: int, seconds: float) -> None:
        """The API server was called."""
        self._calls.labels(verb, plural, str(status)).inc()
        self._call_seconds.labels(verb).observe(seconds)

    def acted(self, name: str, *, is_done: bool) -> None:
        """Something was tried."""
        self._actions.labels(name, "done" if is_done else "refused").inc()

    def count_connections(self, admission: HttpAdmission) -> None:
        """Show what the limits of the probes' port did."""
        self.registry.register(_ClosedConnections(admission))

    def bug(self) -> None:
        """A round has ended badly."""
        self._bugs.inc()

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)
