"""The two kinds of peer to which the drivers can connect.

`apache` is Apache RocketMQ, name server and broker: a scenario is valid if it passes with it (the README names
two that cannot). `apache-VERSION` is another release of it. `gantry` is Gantry. Both are given the same topic
defaults and the same short delay levels, so that a retry takes seconds. Other files start servers of their own where
settings differ, such as `acl.py`, `tls.py` and `broker_group.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gantry_interop import apache_servers, java, probe
from gantry_interop.processes import Child, Nursery, wait_until
from gantry_testing.ports import free_port_run

SHORT_DELAY_LEVELS = "1s 1s 1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s"
"""Level 3, where retries begin, is one second; each later one is a second longer."""

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

READY_SECONDS_MAX = 240.0
PORTS = 5
"""The number of consecutive ports of a peer, from `Layout.first_port` on."""
CLEAN_STOP_SECONDS_MAX = 240.0
"""A Java broker waits for its dispatcher before it ends."""
AUTO_CREATE_TOPIC = "TBW102"

NAME_SERVER = java.Program(
    java.REFERENCE, "org.apache.rocketmq.namesrv.NamesrvStartup", heap_mib=256, options=java.OPENED_MODULES
)
BROKER = java.Program(
    java.REFERENCE, "org.apache.rocketmq.broker.BrokerStartup", heap_mib=1024, options=java.OPENED_MODULES
)


@dataclass(frozen=True)
class Layout:
    """The place of a peer: its directory, its addresses, and changes of its broker configuration.

    `name_server_override` is the address of another peer's name server, for a broker that joins it.
    """

    directory: Path
    listen_host: str = "127.0.0.1"
    advertised_host: str = "127.0.0.1"
    settings: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    """System properties of Apache's processes."""
    name_server_seen_by_broker_host: str | None = None
    """The host under which the broker finds the name server, if a proxy is between them."""
    name_server_override: str | None = None
    is_measured: bool = False
    """Whether speed is measured, so that Java runs with default options."""
    first_port: int = field(default_factory=lambda: free_port_run(PORTS))

    @property
    def name_server_port(self) -> int:
        return self.first_port

    @property
    def broker_port(self) -> int:
        """The main port; two below it is the fast port, one above it replication."""
        return self.first_port + 3

    @property
    def name_server(self) -> str:
        return self.name_server_override or _address(self.listen_host, self.name_server_port)

    @property
    def name_server_seen_by_broker(self) -> str:
        if self.name_server_seen_by_broker_host is None:
            return self.name_server
        return _address(self.name_server_seen_by_broker_host, self.name_server_port)

    @property
    def store(self) -> Path:
        return self.directory / "store"


@dataclass(frozen=True)
class Peer:
    """A running name server and broker."""

    kind: str
    layout: Layout
    name_server: Child
    broker: Child

    @property
    def address(self) -> str:
        return self.layout.name_server

    @property
    def broker_address(self) -> str:
        return _address(self.layout.advertised_host, self.layout.broker_port)

    def stop(self) -> None:
        """Stop both cleanly: the broker flushes, removes its `abort` marker, and unregisters."""
        self.broker.stop(CLEAN_STOP_SECONDS_MAX)
        self.name_server.stop()

    def crash(self) -> None:
        """Kill both processes with SIGKILL."""
        self.broker.kill()
        self.name_server.kill()


def start(kind: str, nursery: Nursery, layout: Layout) -> Peer:
    """Start a peer and wait until a client could create a topic through it."""
    name_server = start_name_server(kind, nursery, layout)
    broker = start_broker(kind, nursery, layout)
    return Peer(kind, layout, name_server, broker)


def start_broker(kind: str, nursery: Nursery, layout: Layout, name: str = "broker") -> Child:
    """Start only the broker of a layout (again) and wait until it is registered."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    conf = layout.directory / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in broker_settings(kind, layout).items()))
    home = layout.directory / "broker-home"
    if is_apache(kind):
        program = replace(_of_version(kind, BROKER), properties=dict(layout.properties), is_measured=layout.is_measured)
        broker = nursery.start(name, program.command(home, ["-c", str(conf)]), java.environment(home))
    else:
        broker = nursery.start(name, [sys.executable, "-m", "gantry_broker", "-c", str(conf)], os.environ)
    wait_until(
        "the broker's registration",
        lambda: probe.has_route(layout.name_server, AUTO_CREATE_TOPIC),
        READY_SECONDS_MAX,
        broker,
    )
    return broker


def start_name_server(kind: str, nursery: Nursery, layout: Layout) -> Child:
    """Start only the name server of a layout, and wait until it answers."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    name_server = _launch_name_server(kind, nursery, layout)
    wait_until("the name server's answer", lambda: _is_answering(layout.name_server), READY_SECONDS_MAX, name_server)
    return name_server


def _launch_name_server(kind: str, nursery: Nursery, layout: Layout) -> Child:
    if is_apache(kind):
        home = layout.directory / "name-server-home"
        conf = layout.directory / "namesrv.conf"
        conf.write_text(f"listenPort={layout.name_server_port}\nbindAddress={layout.listen_host}\n")
        program = replace(
            _of_version(kind, NAME_SERVER), properties=dict(layout.properties), is_measured=layout.is_measured
        )
        return nursery.start("name-server", program.command(home, ["-c", str(conf)]), java.environment(home))
    data = layout.directory / "name-server-data"
    command = [sys.executable, "-m", "gantry_nameserver", "--listen", layout.name_server, "--data", str(data)]
    return nursery.start("name-server", command, os.environ)


def broker_settings(kind: str, layout: Layout) -> dict[str, str]:
    """Return the broker.conf of a peer, with RocketMQ's names."""
    settings = {
        "brokerClusterName": "InteropCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "brokerIP1": layout.advertised_host,
        "bindAddress": layout.listen_host,
        "listenPort": str(layout.broker_port),
        "haListenPort": str(layout.broker_port + 1),
        "namesrvAddr": layout.name_server_seen_by_broker,
        "storePathRootDir": str(layout.store),
        "messageDelayLevel": SHORT_DELAY_LEVELS,
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "1000",
        "mappedFileSizeCommitLog": str(256 * 1024 * 1024),
        "autoCreateTopicEnable": "true",
        "traceTopicEnable": "true",
        "enablePropertyFilter": "true",
        # On two cores a client that shares them with the broker can keep a request waiting longer than the default of
        # 200 ms; the scenarios are about messages, not about that machine's scheduling. `benchmark` keeps the default.
        "waitTimeMillsInSendQueue": "5000",
    }
    if is_apache(kind):
        settings |= {
            "storePathCommitLog": str(layout.store / "commitlog"),
            "brokerIP2": layout.advertised_host,
            "timerWheelEnable": "true",
            "recallMessageEnable": "true",
            # On a disk that is 85 % full, Apache's broker deletes its oldest files, which a scenario still compares.
            "cleanFileForciblyEnable": "false",
        }
    return {**settings, **layout.settings}


def is_apache(kind: str) -> bool:
    """Return whether a kind is Apache RocketMQ, of any version."""
    return kind.partition("-")[0] == "apache"


def _of_version(kind: str, program: java.Program) -> java.Program:
    """Return a server of the version in the kind; without one, of the reference module's."""
    version = kind.partition("-")[2]
    return replace(program, classes=apache_servers.class_path(version)) if version else program


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_answering(address: str) -> bool:
    try:
        probe.send_request(address, probe.GET_ROUTE_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC})
    except OSError:
        return False
    return True
