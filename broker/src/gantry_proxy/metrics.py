"""The proxy's metrics, in the text format of Prometheus. Counters live as long as the proxy.

A process returns its metrics as families, so that those of several processes can be added.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

import msgspec

from gantry_proxy.protocol import rocketmq_pb2 as pb

DURATION_BOUNDS_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)
"""The bounds of the buckets of call durations; long polls take up to 20 s."""


@final
@dataclass(slots=True)
class ProxyMetrics:
    """Counters of calls. Owned by the event loop."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Ended calls by method and code."""

    durations: Counter[tuple[str, float]] = field(default_factory=Counter)
    """Ended calls by method and bucket."""

    seconds: Counter[str] = field(default_factory=Counter)
    """The duration of all ended calls by method."""

    running: int = 0
    refused: int = 0
    """Calls that were refused because too many were running."""

    def record(self, method: str, code: pb.Code, seconds: float) -> None:
        """Count an ended call with its code and its duration."""
        self.calls[method, _NAMES.get(code) or str(code)] += 1
        self.seconds[method] += seconds  # type: ignore[assignment]  # a Counter of floats
        self.durations[method, _BUCKETS[bisect_left(DURATION_BOUNDS_S, seconds)]] += 1


_BUCKETS: Final = (*DURATION_BOUNDS_S, float("inf"))
_NAMES: Final[dict[int, str]] = {number: name for name, number in pb.Code.items()}


@final
@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that is read when metrics are scraped."""

    name: str
    kind: str
    """`gauge` or `counter`."""

    help: str
    read: Callable[[], float]
    is_shared: bool = False
    """Whether every process of a proxy has this value for all of them, so that they must not be added."""


@final
class MetricFamily(msgspec.Struct, frozen=True):
    """The samples of one metric."""

    name: str
    kind: str
    help: str
    samples: dict[str, float]
    """Values by the name of the sample with its labels, as the text format has it."""

    is_shared: bool = False
    """See `Gauge.is_shared`."""


def own_gauges(metrics: ProxyMetrics) -> list[Gauge]:
    """Return the values of the counters that have no label."""
    return [
        Gauge("gantry_proxy_calls_running", "gauge", "Calls that are running, without Telemetry streams.",
              lambda: metrics.running),
        Gauge("gantry_proxy_calls_refused_total", "counter", "Calls that were refused because too many were running.",
              lambda: metrics.refused),
    ]  # fmt: skip


def metric_families(metrics: ProxyMetrics, gauges: Iterable[Gauge]) -> list[MetricFamily]:
    """Return all metrics of a process."""
    return [
        MetricFamily(
            "gantry_proxy_calls_total", "counter", "Ended calls, by method and status code.",
            {
                f'gantry_proxy_calls_total{{method="{method}",code="{code}"}}': count
                for (method, code), count in sorted(metrics.calls.items())
            },
        ),
        MetricFamily(
            "gantry_proxy_call_duration_seconds", "histogram", "Duration of ended calls, long polls included.",
            dict(_duration_samples(metrics)),
        ),
        *map(gauge_family, gauges),
    ]  # fmt: skip


def gauge_family(gauge: Gauge) -> MetricFamily:
    """Return the present value of a gauge."""
    return MetricFamily(gauge.name, gauge.kind, gauge.help, {gauge.name: gauge.read()}, gauge.is_shared)


def _duration_samples(metrics: ProxyMetrics) -> Iterator[tuple[str, float]]:
    name = "gantry_proxy_call_duration_seconds"
    for method in sorted(metrics.seconds):
        total = 0
        for bound in _BUCKETS:
            total += metrics.durations[method, bound]
            label = "+Inf" if bound == float("inf") else bound
            yield f'{name}_bucket{{method="{method}",le="{label}"}}', total
        yield f'{name}_sum{{method="{method}"}}', metrics.seconds[method]
        yield f'{name}_count{{method="{method}"}}', total


def add_families(parts: Iterable[Iterable[MetricFamily]]) -> list[MetricFamily]:
    """Return the metrics of several processes together: sums, and the largest value of what all of them share."""
    totals: dict[str, MetricFamily] = {}
    for family in (family for part in parts for family in part):
        total = totals.setdefault(family.name, MetricFamily(family.name, family.kind, family.help, {}))
        for name, value in family.samples.items():
            present = total.samples.get(name, 0)
            total.samples[name] = max(present, value) if family.is_shared else present + value
    return list(totals.values())


def lasting_families(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """Return what of the metrics of a process remains when it ends: its counts."""
    return [family for family in families if family.kind != "gauge"]


def metrics_text(families: Iterable[MetricFamily]) -> str:
    """Return metrics in the text format of Prometheus."""
    return "\n".join([*(line for family in families for line in _lines(family)), ""])


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for name, value in family.samples.items():
        yield f"{name} {int(value) if float(value).is_integer() else format(value, '.6f')}"
