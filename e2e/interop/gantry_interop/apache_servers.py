"""Apache's proxy in front of any brokers, and the class path of Apache's servers of a chosen version.

    SDKs over gRPC, clients over remoting -> proxy in cluster mode -> name servers and brokers: Apache's or Gantry's

The Maven project `servers/` has the proxy with all servers of one version; its class path is resolved at the first use.
"""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

from gantry_interop import java
from gantry_interop.errors import InteropError
from gantry_interop.paths import INTEROP
from gantry_interop.processes import Child, Nursery, wait_until
from gantry_testing.ports import free_port_run

PROJECT: Final = INTEROP / "servers" / "pom.xml"
MAIN: Final = "org.apache.rocketmq.proxy.ProxyStartup"
HEAP_MIB: Final = 384
BUILD_SECONDS_MAX: Final = 900
READY_SECONDS_MAX: Final = 180.0
"""The proxy creates its topic at the brokers before it listens, and a virtual machine on a busy machine is slow."""


@final
@dataclass(frozen=True)
class ApacheProxy:
    """A running proxy and its two ports."""

    version: str
    child: Child
    grpc: str
    """The endpoints of SDKs."""
    remoting: str
    """The address that remoting clients use as their name server."""


def class_path(version: str) -> str:
    """Return the class path of Apache's servers of a version. Raises InteropError."""
    target = java.TARGET / f"servers-{version}"
    target.mkdir(parents=True, exist_ok=True)
    listing = target / "class-path.txt"
    with (target / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not listing.exists() or listing.stat().st_mtime < PROJECT.stat().st_mtime or not _is_complete(listing):
            maven = java.find_program("mvn", "install Maven (package `maven`)")
            done = subprocess.run(
                [maven, "-B", "-q", "-f", str(PROJECT), f"-Dservers.version={version}", "process-classes"],
                capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0:
                raise InteropError(f"Maven failed for RocketMQ {version}:\n{(done.stdout + done.stderr)[-2000:]}")
            listing.touch()
        return listing.read_text().strip()


def _is_complete(listing: Path) -> bool:
    return all(Path(entry).exists() for entry in listing.read_text().strip().split(":"))


def proxy_program(version: str) -> java.Program:
    """Return Apache's proxy of a version. Raises InteropError."""
    return java.Program(java.REFERENCE, MAIN, HEAP_MIB, options=java.OPENED_MODULES, classes=class_path(version))


def start_proxy(
    nursery: Nursery, version: str, name_server: str, cluster: str, directory: Path,
    more: Mapping[str, object] = MappingProxyType({}),
) -> ApacheProxy:  # fmt: skip
    """Start a proxy in cluster mode, and wait until SDKs and remoting clients could connect.

    ``more`` has further settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port_run(2)
    settings = {
        "rocketMQClusterName": cluster,
        "namesrvAddr": name_server,
        "proxyMode": "CLUSTER",
        "grpcServerPort": port,
        "remotingListenPort": port + 1,
        "localServeAddr": "127.0.0.1",
        **more,
    }
    conf = directory / "proxy.json"
    conf.write_text(json.dumps(settings))
    program = replace(proxy_program(version), properties={"RMQ_PROXY_HOME": str(directory)})
    command = program.command(directory / "home", ["-pc", str(conf)])
    child = nursery.start(f"apache-proxy-{version}", command, java.environment(directory))
    for one in (port, port + 1):
        wait_until("the proxy's ports", lambda number=one: is_listening(number), READY_SECONDS_MAX, child)  # type: ignore[misc]
    return ApacheProxy(version, child, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")


def is_listening(port: int) -> bool:
    """Return whether a process on this machine listens at a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
