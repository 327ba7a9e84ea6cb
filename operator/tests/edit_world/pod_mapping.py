"""Maps the environment of a pod to this machine: its paths to a folder, its ports and name servers to loopback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from gantry_operator.objects import configuration, names
from gantry_testing.ports import free_broker_port, free_ports

HOST: Final = "127.0.0.1"
DROPPED_OPTIONS: Final = ("--lease",)
DROPPED_FLAGS: Final = ("--regain",)
"""Options of the sidecar that need an API server, with and without a value; they are left out."""


@final
class PodMapping:
    """Translates the paths and addresses of one pod to those of this machine, and back."""

    def __init__(self, folder: Path, buffers: Path, name_servers: Mapping[str, str]) -> None:
        """``name_servers`` maps the addresses of running ones; others get a port without a listener."""
        self.broker: Final = free_broker_port()
        self.http, log = free_ports(2)
        self.folders: Final = {
            configuration.BUFFERS: buffers,
            configuration.STORE_FOLDER: folder / "data",
            configuration.RUN: folder / "run",
            configuration.CONFIGURATION: folder / "group",
            configuration.REPLICATION_SECRET: folder / "replication",
            configuration.SIDECAR_SECRET: folder / "sidecar",
            configuration.ACCOUNTS: folder / "accounts",
            configuration.CERTIFICATES: folder / "certificates",
        }
        self._ports: Final = {
            names.BROKER_PORT: self.broker,
            names.REPLICATION_PORT: self.broker + 1,
            names.SIDECAR_PORT: self.http,
            names.LOG_PORT: log,
        }
        self._name_servers: Final = dict(name_servers)

    def conf(self, text: str) -> str:
        """Return a broker's settings with the paths and addresses of this machine."""
        lines = dict(line.partition("=")[::2] for line in text.splitlines())
        lines["bindAddress"] = HOST
        for key in ("listenPort", "haListenPort"):
            lines[key] = str(self._ports[int(lines[key])])
        addresses = lines["namesrvAddr"].split(";")
        for address, port in zip(addresses, free_ports(len(addresses)), strict=True):
            self._name_servers.setdefault(address, f"{HOST}:{port}")
        lines["namesrvAddr"] = ";".join(self._name_servers[address] for address in addresses)
        return "".join(f"{key}={self._mapped(value)}\n" for key, value in lines.items())

    def arguments(self, words: list[str]) -> list[str]:
        """Return the arguments of the sidecar's container after `pod sidecar`, for this machine."""
        kept: list[str] = []
        for word in words[2:]:
            if kept and kept[-1] in DROPPED_OPTIONS:
                kept.pop()
            elif word not in DROPPED_FLAGS:
                kept.append(self._mapped(word))
        return kept

    def with_pod_addresses(self, value: str) -> str:
        """Return a value with the addresses that name servers have in the pod."""
        for address, here in self._name_servers.items():
            value = value.replace(here, address)
        return value

    def _mapped(self, value: str) -> str:
        for path, place in self.folders.items():
            if value == path or value.startswith(f"{path}/"):
                return f"{place}{value.removeprefix(path)}"
        host, separator, port = value.rpartition(":")
        if separator and host in ("[::]", HOST) and port.isdigit() and int(port) in self._ports:
            return f"{HOST}:{self._ports[int(port)]}"
        return value
