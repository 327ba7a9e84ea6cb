"""A proxy of several processes: how connections are divided, and what the end of a process means for clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from test_proxy_processes import Sdk, cluster, running_proxy

from gantry_proxy import processes as processes_module
from gantry_proxy.metrics import (
    Gauge,
    MetricFamily,
    ProxyMetrics,
    add_families,
    lasting_families,
    metric_families,
    metrics_text,
)
from gantry_proxy.process_link import Report
from gantry_proxy.processes import ProxyProcesses
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ListenSettings, ProxyLimits, ProxySettings, parse_settings, settings_of_process
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.local import wait_until

SETTINGS_FRAME = 4
"""The type of the frame with which a server of HTTP/2 begins."""
UNREACHABLE = ("127.0.0.1:1",)
"""Name servers that no test needs."""


def settings(count: int, **limits: Any) -> ProxySettings:
    listen = ListenSettings(
        address="127.0.0.1:0", http_address="127.0.0.1:0", processes=count, drain_delay_ms=0, grace_ms=1_000
    )
    return ProxySettings(name_servers=UNREACHABLE, listen=listen, limits=ProxyLimits(**limits))


@asynccontextmanager
async def running(made: ProxySettings) -> AsyncIterator[ProxyProcesses]:
    proxy = ProxyProcesses(made, "INFO")
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def serving(pid: int) -> list[int]:
    """Return the processes of a proxy that serve clients."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def metric(proxy: ProxyProcesses, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", await proxy.metrics_text(), re.MULTILINE)
    return float(found.group(1)) if found else 0.0


class Client:
    """A connection of a client that asks for the health of the service, which needs no broker."""

    def __init__(self, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)

    async def call(self) -> None:
        """Call, and repeat the call if its connection is lost, as SDKs do."""
        method: Any = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        async with asyncio.timeout(30):
            while True:
                try:
                    await method(b"", timeout=30, wait_for_ready=True)
                    return
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def clients(proxy: ProxyProcesses, count: int) -> list[Client]:
    """Return connected clients. They connect one after the other."""
    made = [Client(proxy.port) for _ in range(count)]
    for one in made:
        await one.call()
    return made


async def test_connections_are_divided_equally() -> None:
    """Each connection goes to the process with the fewest: with six on two processes, each has three."""
    async with running(settings(2)) as proxy:
        made = await clients(proxy, 6)

        assert len(made) == 6
        assert [one.open_connections for one in proxy._processes.values()] == [3, 3]
        assert await metric(proxy, "gantry_proxy_connections") == 6
        assert await metric(proxy, "gantry_proxy_processes") == 2


async def test_closed_connections_do_not_count() -> None:
    """A process whose clients have left gets the next ones."""
    async with running(settings(2)) as proxy:
        made = await clients(proxy, 4)
        for one in made[::2]:  # both are connections of one process
            await one.channel.close()
        await wait_until(lambda: sorted(one.open_connections for one in proxy._processes.values()) == [0, 2])
        more = await clients(proxy, 2)

        assert len(more) == 2
        assert [one.open_connections for one in proxy._processes.values()] == [2, 2]


async def test_connections_wait_while_no_process_takes_them() -> None:
    """More clients than fit between two suspended processes connect at once, and all are served when those continue."""
    async with running(settings(2)) as proxy:
        pids = [one.process.pid for one in proxy._processes.values()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        opening = [asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(700)]
        streams = await asyncio.gather(*opening)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        greetings = await asyncio.gather(*(reader.readexactly(9) for reader, _ in streams))
        for _, writer in streams:
            writer.close()

    assert {greeting[3] for greeting in greetings} == {SETTINGS_FRAME}


async def test_process_that_ends_is_replaced_and_totals_do_not_fall() -> None:
    """kill -9 of a process: clients of the other one notice nothing, those of this one connect again."""
    async with running(settings(2)) as proxy:
        made = await clients(proxy, 2)
        killed, other = [one.process.pid for one in proxy._processes.values()]
        before = await metric(proxy, "gantry_proxy_port_refusals_total")
        os.kill(killed, signal.SIGKILL)
        await asyncio.gather(*(one.call() for one in made))
        await wait_until(
            lambda: (
                killed not in [one.process.pid for one in proxy._processes.values()]
                and sum(one.is_started for one in proxy._processes.values()) == 2
            )
        )
        await asyncio.gather(*(one.call() for one in made))

        assert other in [one.process.pid for one in proxy._processes.values()]
        assert await metric(proxy, "gantry_proxy_process_restarts_total") == 1
        assert await metric(proxy, "gantry_proxy_processes") == 2
        assert await metric(proxy, "gantry_proxy_port_refusals_total") >= before


async def test_proxy_without_a_process_is_not_ready_and_keeps_its_totals() -> None:
    """Between the end of all processes and the next ones, probes are refused, and no count falls or is added twice."""
    async with running(settings(2)) as proxy:
        handles = list(proxy._processes.values())
        for one in handles:
            one._report = Report(not_ready_reason="")
            one.last_families = [MetricFamily("x_total", "counter", "X.", {"x_total": 5})]
        assert proxy.not_ready_reason() == ""
        for one in handles:
            one.process.kill()
        await wait_until(lambda: not any(one.is_started for one in handles))
        reason, ready = proxy.not_ready_reason(), await metric(proxy, "gantry_proxy_ready")
        total = await metric(proxy, "x_total")

        assert reason == "a process of the proxy is starting"
        assert (ready, total) == (0, 10)


@pytest.mark.parametrize("limit_s", [4.0, 1e6])
async def test_process_that_does_not_answer_is_killed(limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended process is replaced after the time without a report. The twin with no limit keeps it."""
    monkeypatch.setattr(processes_module, "SILENT_S", limit_s)
    async with running(settings(2)) as proxy:
        [suspended, _] = [one.process for one in proxy._processes.values()]
        os.kill(suspended.pid, signal.SIGSTOP)
        is_killed = True
        try:
            async with asyncio.timeout(60 if limit_s < 100 else 5):
                await suspended.wait()
        except TimeoutError:
            is_killed = False

    assert is_killed == (limit_s < 100)


async def test_serving_processes_end_with_the_main_process(tmp_path: Path) -> None:
    """kill -9 of the main process leaves no process behind."""
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, 2) as proxy:
        children = serving(proxy.process.pid)
        proxy.process.kill()
        await proxy.process.wait()
        await wait_until(lambda: not any(is_running(pid) for pid in children))

    assert len(children) == 2


async def test_interrupt_of_a_terminal_stops_all_processes_in_order(tmp_path: Path) -> None:
    """Ctrl-C reaches every process at once; the main process stops the others, and the exit code is 0."""
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, 2) as proxy:
        children = serving(proxy.process.pid)
        for pid in (*children, proxy.process.pid):
            os.kill(pid, signal.SIGINT)
        async with asyncio.timeout(60):
            code = await proxy.process.wait()
        log = await asyncio.to_thread((tmp_path / "a" / "log").read_text)

    assert code == 0
    assert not any(is_running(pid) for pid in children)
    assert log.count("draining") == 2, "each process drains once"


async def test_killed_process_under_load_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """kill -9 of one process during sends: all sends succeed after a repetition, and each message is delivered."""
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, 2) as proxy:
        sdks, consumer = [Sdk(proxy, number=number) for number in range(4)], Sdk(proxy, number=9)
        bodies: set[bytes] = set()
        await consumer.receive(0, auto_renew=False)

        async def send(sdk: Sdk, numbers: range) -> None:
            for number in numbers:
                await sdk.send(number)

        sending = [asyncio.ensure_future(send(sdk, range(start, 400, 4))) for start, sdk in enumerate(sdks)]
        await asyncio.sleep(0.1)
        os.kill(serving(proxy.process.pid)[0], signal.SIGKILL)
        await asyncio.gather(*sending)
        async with asyncio.timeout(60):
            while len(bodies) < 400:
                with contextlib.suppress(grpc.aio.AioRpcError):  # the connection of the consumer may be lost, too
                    found = await consumer.receive(1, auto_renew=False)
                    bodies |= {one.body for one in found}
                    await consumer.ack(found)

    assert bodies == {f"body {number}".encode() for number in range(400)}


async def test_invalid_accounts_prevent_the_start(tmp_path: Path) -> None:
    """A file that a process cannot read is the error of the whole proxy, with its setting and its name."""
    document = {"access": {"accountsFile": str(tmp_path / "missing.yml")}, "listen": {"processes": 2}}
    made = parse_settings(document)
    listen = ListenSettings(address="127.0.0.1:0", http_address="", processes=2)
    proxy = ProxyProcesses(ProxySettings(listen=listen, access=made.access), "INFO")

    with pytest.raises(SettingsError, match=r"accountsFile.*missing\.yml"):
        await proxy.start()

    assert proxy.not_ready_reason() == "the proxy is stopping"


@pytest.mark.parametrize("value", [0, 65, -1])
def test_number_of_processes_has_limits(value: int) -> None:
    with pytest.raises(SettingsError, match="processes"):
        parse_settings({"listen": {"processes": value}})


def test_processes_divide_the_limits_of_all_clients() -> None:
    """The limits for all clients and for one account are divided and rounded up; those of one client are not."""
    one = settings_of_process(settings(3, clients_max=10, calls_per_account_max=0, calls_per_client_max=7))

    assert (one.limits.clients_max, one.limits.calls_per_account_max, one.limits.calls_per_client_max) == (4, 0, 7)
    assert (one.listen.address, one.listen.http_address) == ("", "")


def test_metrics_of_processes_are_added() -> None:
    """Counts are sums, also those of a process that has ended; its gauges end with it. Shared values are not added."""
    metrics = ProxyMetrics()
    metrics.record("SendMessage", pb.OK, 0.002)
    gauges = [
        Gauge("clients", "gauge", "Clients.", lambda: 3),
        Gauge("ready", "gauge", "Ready.", lambda: 1, is_shared=True),
        Gauge("bytes_total", "counter", "Bytes.", lambda: 12_345_678),
    ]
    one = metric_families(metrics, gauges)

    text = metrics_text(add_families([one, one, lasting_families(one)])).splitlines()

    assert 'gantry_proxy_calls_total{method="SendMessage",code="OK"} 3' in text
    assert 'gantry_proxy_call_duration_seconds_bucket{method="SendMessage",le="0.001"} 0' in text
    assert 'gantry_proxy_call_duration_seconds_bucket{method="SendMessage",le="+Inf"} 3' in text
    assert 'gantry_proxy_call_duration_seconds_sum{method="SendMessage"} 0.006000' in text
    assert "clients 6" in text
    assert "ready 1" in text
    assert "bytes_total 37037034" in text


def test_added_metrics_leave_their_parts_unchanged() -> None:
    part = [MetricFamily("x_total", "counter", "X.", {"x_total": 1})]

    add_families([part, part])

    assert part[0].samples == {"x_total": 1}
