"""The proxies of `make bench-proxy`, each in front of a broker: processes, and their topic and group.

    Gantry            Gantry's proxy   Gantry's broker
    Apache            Apache's proxy   Apache's broker
    Gantry / Apache   Gantry's proxy   the same broker of Apache's, so that the proxies alone are compared

All of them run during the whole benchmark and are loaded in turn, since a virtual machine of Java's becomes fast with
time. No process is pinned to a core: Apache's proxy uses several threads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
from gantry_interop import apache_servers, java, versions
from gantry_interop.errors import InteropError
from gantry_interop.processes import Nursery, wait_until

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_apache import READY_SECONDS_MAX, apache_missing_reason, start_apache_cluster
from gantry_bench.processes import run_server, start_broker, start_name_server, wait_for_line
from gantry_client import Admin
from gantry_testing.ports import free_port
from gantry_wire.commands.admin import SubscriptionGroupConfig

CLUSTER: Final = "bench"
TOPIC: Final = "proxied"
GROUP: Final = "proxied-group"
QUEUES: Final = 8
PROXY_HEAP_MIB: Final = 1024
STARTED: Final = "rocketmq-proxy startup successfully"


class ProxyStack(msgspec.Struct, frozen=True):
    """A proxy and the broker behind it, both running."""

    name: str
    address: str
    """The gRPC port of the proxy."""

    proxy_ids: tuple[int, ...]
    """All processes of the proxy."""

    broker_id: int
    broker_name: str


@contextmanager
def start_stacks(folder: Path, *, with_apache: bool, processes: int) -> Iterator[tuple[list[ProxyStack], str]]:
    """Start all stacks; yield them, and why Apache's are missing, or an empty text.

    ``processes`` is the number of processes of Gantry's proxies. Apache's has a thread for each core.
    """
    reason = apache_missing_reason() if with_apache else "Apache was left out by an option"
    with ExitStack() as stack:
        found = [_start_gantry(folder, stack, processes)]
        if not reason:
            found += _start_apache(folder, stack, processes)
        yield found, reason


def _start_gantry(folder: Path, stack: ExitStack, processes: int) -> ProxyStack:
    name_server = stack.enter_context(start_name_server(folder))
    broker = stack.enter_context(start_broker(folder / "gantry", name_server=name_server, core=None))
    asyncio.run(_create(name_server))
    address, proxy_ids = stack.enter_context(start_gantry_proxy(folder, "gantry-proxy", name_server, processes))
    return ProxyStack("Gantry", address, proxy_ids, broker.target.process_id, broker.target.broker_name)


def _start_apache(folder: Path, stack: ExitStack, processes: int) -> list[ProxyStack]:
    broker, name_server = stack.enter_context(start_apache_cluster(folder / "apache", has_timers=True))
    asyncio.run(_create(name_server))
    address, proxy_id = stack.enter_context(start_apache_proxy(folder / "apache-proxy", name_server))
    mixed_address, mixed_ids = stack.enter_context(start_gantry_proxy(folder, "mixed-proxy", name_server, processes))
    return [
        ProxyStack("Apache", address, (proxy_id,), broker.process_id, broker.broker_name),
        ProxyStack("Gantry / Apache", mixed_address, mixed_ids, broker.process_id, broker.broker_name),
    ]


async def _create(name_server: str) -> None:
    """Create the topic and the group."""
    async with Admin(name_server) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES, attributes={"message.type": "NORMAL"})
        await admin.groups.create(SubscriptionGroupConfig(group_name=GROUP))


@contextmanager
def start_gantry_proxy(
    folder: Path, name: str, name_server: str, processes: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Start Gantry's proxy with this many processes; yield its address and the ids of all its processes."""
    settings, port = folder / f"{name}.json", free_port()
    listen = {"address": f"127.0.0.1:{port}", "httpAddress": "127.0.0.1:0", "drainDelayMs": 0, "graceMs": 1_000,
              "processes": processes}  # fmt: skip
    settings.write_text(json.dumps({"nameServers": [name_server], "listen": listen}))
    command = [sys.executable, "-m", "gantry_proxy", "--config", str(settings)]
    with run_server(command, log=folder / f"{name}.log", core=None) as server:
        wait_for_line(server, what="proxy", beginning="proxy listening on ")
        main = server.process_id
        serving = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        yield f"127.0.0.1:{port}", (main, *map(int, serving))


@contextmanager
def start_apache_proxy(folder: Path, name_server: str) -> Iterator[tuple[str, int]]:
    """Start Apache's proxy in cluster mode with its default settings; yield its address and process id."""
    folder.mkdir()
    port, home = free_port(), folder / "home"
    settings = folder / "rmq-proxy.json"
    keys = {
        "rocketMQClusterName": CLUSTER, "proxyClusterName": CLUSTER, "proxyName": "bench-proxy",
        "localServeAddr": "127.0.0.1", "grpcServerPort": port, "remotingListenPort": free_port(),
    }  # fmt: skip
    settings.write_text(json.dumps(keys))
    arguments = ["-n", name_server, "-pc", str(settings), "-pm", "cluster"]
    try:
        program = replace(apache_servers.proxy_program(versions.PEER), heap_mib=PROXY_HEAP_MIB, is_measured=True)
        program = replace(program, options=(*program.options, f"-Xms{PROXY_HEAP_MIB}m"))
        with Nursery(folder / "logs") as nursery:
            proxy = nursery.start("proxy", program.command(home, arguments), java.environment(home))
            wait_until(
                "the start of Apache's proxy", lambda: STARTED in proxy.log.read_text(errors="replace"),
                READY_SECONDS_MAX, proxy,
            )  # fmt: skip
            yield f"127.0.0.1:{port}", proxy.process.pid
    except (InteropError, OSError) as error:
        raise BenchmarkFailed(f"Apache's proxy: {error}") from error
