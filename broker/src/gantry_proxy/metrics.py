"""The proxy's metrics, in the text format of Prometheus. Counters live as long as the process."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, final

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


def metrics_text(metrics: ProxyMetrics, gauges: list[Gauge]) -> str:
    """Return all metrics in the text format of Prometheus."""
    return "\n".join([*_call_lines(metrics), *(line for gauge in gauges for line in _gauge_lines(gauge)), ""])


def own_gauges(metrics: ProxyMetrics) -> list[Gauge]:
    """Return the values of the counters that have no label."""
    return [
        Gauge("gantry_proxy_calls_running", "gauge", "Calls that are running, without Telemetry streams.",
              lambda: metrics.running),
        Gauge("gantry_proxy_calls_refused_total", "counter", "Calls that were refused because too many were running.",
              lambda: metrics.refused),
    ]  # fmt: skip


def _call_lines(metrics: ProxyMetrics) -> Iterator[str]:
    name = "gantry_proxy_calls_total"
    yield f"# HELP {name} Ended calls, by method and status code."
    yield f"# TYPE {name} counter"
    for (method, code), count in sorted(metrics.calls.items()):
        yield f'{name}{{method="{method}",code="{code}"}} {count}'
    name = "gantry_proxy_call_duration_seconds"
    yield f"# HELP {name} Duration of ended calls, long polls included."
    yield f"# TYPE {name} histogram"
    for method in sorted(metrics.seconds):
        total = 0
        for bound in (*DURATION_BOUNDS_S, float("inf")):
            total += metrics.durations[method, bound]
            yield f'{name}_bucket{{method="{method}",le="{"+Inf" if bound == float("inf") else bound}"}} {total}'
        yield f'{name}_sum{{method="{method}"}} {metrics.seconds[method]:.6f}'
        yield f'{name}_count{{method="{method}"}} {total}'


def _gauge_lines(gauge: Gauge) -> Iterator[str]:
    yield f"# HELP {gauge.name} {gauge.help}"
    yield f"# TYPE {gauge.name} {gauge.kind}"
    yield f"{gauge.name} {gauge.read():g}"
