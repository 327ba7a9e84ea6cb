"""The gRPC proxies in the view of the group, with the proxies' own HTTP port and metrics."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gantry_admin.proxies import POLL_AFTER_REQUEST_S, Proxies, ProxyDocument, figures_of
from gantry_proxy.http_endpoint import HttpEndpoint
from gantry_proxy.metrics import Gauge, ProxyMetrics, metric_families, metrics_text, own_gauges
from gantry_proxy.protocol import rocketmq_pb2 as pb


class FakeProxy:
    """A proxy of which only the HTTP port exists."""

    def __init__(self) -> None:
        self.metrics = ProxyMetrics()
        self.not_ready_reason = ""
        self.clients = 0
        self.address = ""
        self.endpoint = HttpEndpoint("127.0.0.1:0", lambda: self.not_ready_reason, self._text)

    async def start(self) -> None:
        await self.endpoint.start()
        self.address = f"127.0.0.1:{self.endpoint.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    async def _text(self) -> str:
        gauges = [
            Gauge("gantry_proxy_ready", "gauge", "Ready.", lambda: float(not self.not_ready_reason)),
            Gauge("gantry_proxy_clients", "gauge", "Clients.", lambda: self.clients),
            Gauge("gantry_proxy_telemetry_streams", "gauge", "Streams.", lambda: self.clients),
            Gauge("gantry_proxy_messages_in_flight", "gauge", "Messages.", lambda: 7),
        ]
        return metrics_text(metric_families(self.metrics, [*own_gauges(self.metrics), *gauges]))


@asynccontextmanager
async def fake_proxy() -> AsyncIterator[FakeProxy]:
    made = FakeProxy()
    await made.start()
    try:
        yield made
    finally:
        await made.endpoint.close()


class FakeClock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def polled(proxies: Proxies) -> dict[str, ProxyDocument]:
    """Poll once; return the proxies by address."""
    await proxies.poll()
    return {one.address: one for one in proxies.documents()}


async def test_figures_of_each_proxy_are_shown() -> None:
    """Clients, streams, calls and messages in flight are those of its metrics; one that is not ready has a reason."""
    async with fake_proxy() as first, fake_proxy() as second:
        first.clients, first.metrics.running, first.metrics.refused = 3, 5, 2
        second.not_ready_reason = "stopping"

        found = await polled(Proxies((first.url, second.url)))

    assert found[first.address] == ProxyDocument(
        address=first.address, is_reachable=True, age_ms=found[first.address].age_ms, fault=None, is_ready=True,
        clients=3, streams=3, calls_running=5, calls_refused=2, messages_in_flight=7,
    )  # fmt: skip
    assert (found[second.address].is_ready, found[second.address].not_ready_reason) == (False, "stopping")


async def test_rate_is_that_of_all_calls_between_two_polls() -> None:
    """Calls of every method and code count; a proxy that has started again has no rate at first."""
    clock = FakeClock()
    async with fake_proxy() as proxy:
        proxies = Proxies((proxy.url,), monotonic_s=clock)
        before = (await polled(proxies))[proxy.address]
        for method in ("SendMessage", "AckMessage"):
            proxy.metrics.record(method, pb.OK, 0.001)
            proxy.metrics.record(method, pb.TOO_MANY_REQUESTS, 0.001)
        clock.now_s += 2
        after = (await polled(proxies))[proxy.address]
        proxy.metrics.calls.clear()
        clock.now_s += 2
        restarted = (await polled(proxies))[proxy.address]

    assert (before.calls_per_second, after.calls_per_second, restarted.calls_per_second) == (None, 2.0, None)


async def test_silent_proxy_keeps_its_last_figures_with_their_age() -> None:
    """A proxy that does not answer is unreachable, and is never shown as ready without its age."""
    clock = FakeClock()
    async with fake_proxy() as proxy:
        proxy.clients = 3
        proxies, address = Proxies((proxy.url,), monotonic_s=clock), proxy.address
        await polled(proxies)
    clock.now_s += 4

    found = (await polled(proxies))[address]

    assert not found.is_reachable and found.fault
    assert (found.clients, found.age_ms) == (3, 4000)


async def test_answer_of_another_program_is_no_proxy() -> None:
    """An answer without the metrics of a proxy is named, and has no figures."""

    async def up() -> str:
        return "up 1\n"

    endpoint = HttpEndpoint("127.0.0.1:0", lambda: "", up)
    await endpoint.start()
    try:
        [found] = (await polled(Proxies((f"http://127.0.0.1:{endpoint.port}",)))).values()
    finally:
        await endpoint.close()

    assert (found.is_reachable, found.fault, found.is_ready) == (False, "its answer has no metrics of a proxy", None)


async def test_host_name_stands_for_each_of_its_addresses() -> None:
    """One URL of a headless Service is enough for all pods; a name without an address is a group without proxies."""
    async with fake_proxy() as proxy:
        port = proxy.endpoint.port

        async def pods(host: str) -> list[str]:
            assert host == "orders-proxy-pods.shop.svc"
            return ["127.0.0.1", "127.0.0.1"]

        found = await polled(Proxies((f"http://orders-proxy-pods.shop.svc:{port}",), resolve=pods))
        none = await polled(Proxies(("http://orders-proxy-pods.shop.svc:9081",), resolve=failing(socket.EAI_NONAME)))

    assert list(found) == [proxy.address] and found[proxy.address].is_reachable
    assert none == {}


async def test_failure_of_the_name_service_is_shown() -> None:
    """The twin: a name service that does not answer must not look like a group without proxies."""
    proxies = Proxies(("http://orders-proxy-pods.shop.svc:9081",), resolve=failing(socket.EAI_AGAIN))

    [found] = (await polled(proxies)).values()

    assert not found.is_reachable and "not resolved" in str(found.fault)


def failing(number: int) -> Callable[[str], Awaitable[list[str]]]:
    """Return a name service that fails with this error."""

    async def resolve(_host: str) -> list[str]:
        raise socket.gaierror(number, "no such name")

    return resolve


async def test_proxies_are_polled_only_while_a_client_reads_the_view() -> None:
    """Without a reader no proxy gets a request, and old figures are dropped."""
    clock = FakeClock()
    async with fake_proxy() as proxy:
        proxies = Proxies((proxy.url,), monotonic_s=clock)
        await proxies.poll_if_requested()
        unasked = proxies.documents()
        proxies.request()
        await proxies.poll_if_requested()
        asked = proxies.documents()
        clock.now_s += POLL_AFTER_REQUEST_S
        await proxies.poll_if_requested()

    assert (unasked, [one.address for one in asked], proxies.documents()) == ([], [proxy.address], [])


def test_values_of_a_metric_are_added_up_over_its_labels() -> None:
    """Labels with spaces and braces do not confuse the reader; comments and other metrics are left out."""
    lines = [
        "# TYPE gantry_proxy_calls_total counter",
        'gantry_proxy_calls_total{method="Send {x} y",code="OK"} 4',
        'gantry_proxy_calls_total{method="AckMessage",code="OK"} 2',
        "gantry_proxy_clients 3",
        "other_clients 9",
    ]

    assert figures_of(lines) == {"gantry_proxy_calls_total": 6.0, "gantry_proxy_clients": 3.0}
    for value in ("many", "inf", "NaN"):
        with pytest.raises(ValueError, match=value):
            figures_of([f"gantry_proxy_clients {value}"])
