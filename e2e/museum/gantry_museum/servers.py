"""Name servers and brokers of either system, with their default settings except for names, ports and sizes.

Settings that a scenario does not name keep their defaults on both systems, since most reports are about defaults.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_interop import apache_servers, java, probe
from gantry_interop.processes import Child, wait_until

from gantry_museum.exhibit import RELEASES, Stage
from gantry_testing.ports import free_port, free_port_run

CLUSTER: Final = "MuseumCluster"
BROKER_NAME: Final = "broker-a"
READY_SECONDS_MAX: Final = 240.0
BROKER_HEAP_MIB: Final = 512
NAME_SERVER_HEAP_MIB: Final = 256
LOG_FILE_BYTES: Final = 16 << 20
AUTO_CREATE_TOPIC: Final = "TBW102"
NAME_SERVER: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER: Final = "org.apache.rocketmq.broker.BrokerStartup"


@final
@dataclass(frozen=True)
class NameServer:
    """A running name server: its address for brokers and clients, and its process."""

    address: str
    child: Child


@final
@dataclass(frozen=True)
class BrokerPlan:
    """A broker that can be started several times on the same store, at the same ports."""

    stage: Stage
    name_server: str
    store: Path
    port: int
    settings: Mapping[str, str]
    number: int = 0
    """Its broker id: 0 is the master."""

    program: Sequence[str] = ("-m", "gantry_broker")
    """The Python program of Gantry's broker, for a twin without a guard."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def replication_address(self) -> str:
        return f"127.0.0.1:{self.port + 1}"

    def start(self) -> Child:
        """Start the broker, and wait until it is registered, or listens if it is no master."""
        child = self.launch()
        if self.number == 0:
            wait_until("the registration", lambda: self.is_registered(self.name_server), READY_SECONDS_MAX, child)
        wait_until("the port", lambda: apache_servers.is_listening(self.port), READY_SECONDS_MAX, child)
        return child

    def launch(self) -> Child:
        """Start the broker without waiting for it."""
        self.stage.directory.mkdir(parents=True, exist_ok=True)
        conf = self.stage.directory / f"broker-{self.number}.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
        name = f"broker-{self.number}"
        if self.stage.is_apache:
            home = self.stage.directory / f"home-{self.number}"
            command = program_of(self.stage, BROKER, BROKER_HEAP_MIB).command(home, ["-c", str(conf)])
            return self.stage.nursery.start(name, command, java.environment(home))
        return self.stage.nursery.start(name, [sys.executable, *self.program, "-c", str(conf)], os.environ)

    def is_registered(self, name_server: str) -> bool:
        """Return whether a name server has the topics of this broker."""
        return probe.has_route(name_server, AUTO_CREATE_TOPIC)

    def _settings(self) -> dict[str, str]:
        shared = {
            "brokerClusterName": CLUSTER, "brokerName": BROKER_NAME, "brokerId": str(self.number),
            "brokerRole": "SLAVE" if self.number else "ASYNC_MASTER",
            "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": str(self.port),
            "haListenPort": str(self.port + 1), "namesrvAddr": self.name_server,
            "storePathRootDir": str(self.store), "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
            # A send may wait for a busy machine; these scenarios are not about that.
            "waitTimeMillsInSendQueue": "60000",
        }  # fmt: skip
        own = {
            "brokerIP2": "127.0.0.1", "storePathCommitLog": str(self.store / "commitlog"),
            # On a disk that is 85 % full, Apache's broker deletes its oldest files.
            "cleanFileForciblyEnable": "false",
        }  # fmt: skip
        return {**shared, **(own if self.stage.is_apache else {}), **self.settings}


def plan_broker(
    stage: Stage, name_server: str, settings: Mapping[str, str] | None = None, *, number: int = 0,
    store: Path | None = None, program: Sequence[str] = ("-m", "gantry_broker"),
) -> BrokerPlan:  # fmt: skip
    """Choose ports and a store for a broker: the main port has a fast port two below it and replication above it."""
    place = store or stage.directory / f"store-{number}"
    return BrokerPlan(stage, name_server, place, free_port_run(4) + 2, dict(settings or {}), number, program)


def start_name_server(stage: Stage, host: str = "127.0.0.1", port: int = 0) -> NameServer:
    """Start a name server, and wait until it answers."""
    stage.directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    address = f"{host}:{port}"
    if stage.is_apache:
        home = stage.directory / f"name-server-home-{host}"
        conf = stage.directory / f"namesrv-{host}.conf"
        conf.write_text(f"listenPort={port}\nbindAddress={host}\n")
        command = program_of(stage, NAME_SERVER, NAME_SERVER_HEAP_MIB).command(home, ["-c", str(conf)])
        child = stage.nursery.start("name-server", command, java.environment(home))
    else:
        data = stage.directory / f"name-server-data-{host}"
        command = [sys.executable, "-m", "gantry_nameserver", "--listen", address, "--data", str(data)]
        child = stage.nursery.start("name-server", command, os.environ)
    wait_until("the name server", lambda: _answers(address), READY_SECONDS_MAX, child)
    return NameServer(address, child)


def program_of(stage: Stage, main: str, heap_mib: int) -> java.Program:
    """Return a server of the stage's version of RocketMQ."""
    classes = apache_servers.class_path(RELEASES[stage.system])
    return java.Program(java.REFERENCE, main, heap_mib=heap_mib, options=java.OPENED_MODULES, classes=classes)


def _answers(address: str) -> bool:
    try:
        probe.send_request(address, probe.GET_ROUTE_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC})
    except OSError:
        return False
    return True
