"""The target of a migration: the new Gantry broker's address, and its process, which outlives the command."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.local.ports import port_probe
from gantry_cli.migrate.record import MigrationDirectory
from gantry_cli.migrate.source import MigrationError
from gantry_cli.processes import last_log_line
from gantry_remoting import split_address
from gantry_status.broker_ports import fast_port_of, replication_port_of
from gantry_status.order_client import OrderClient
from gantry_status.orders import OrderError, StatusRequest

START_TIMEOUT_S: Final = 120.0
"""The time in which the new broker must answer; it recovers its copy of the log first."""
POLL_S: Final = 0.1
WAIT_S: Final = 1.0
"""The time between two checks whether the user has started the broker."""
CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAddress:
    """The address of the new broker and of its name servers."""

    host: str
    port: int
    name_server: str
    broker_id: int

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the listen port, the fast port below it, and the replication port above it."""
        return (self.port, fast_port_of(self.port), replication_port_of(self.port))

    def conf(self) -> dict[str, str]:
        """Return the settings of broker.conf for this address."""
        return {
            "brokerIP1": self.host,
            "listenPort": str(self.port),
            "namesrvAddr": self.name_server,
            "brokerId": str(self.broker_id),
        }


@final
class TargetBroker:
    """The new broker's process, which answers at the control socket; another command may have started it."""

    def __init__(self, directory: MigrationDirectory) -> None:
        self.orders: Final = OrderClient(str(directory.control))
        self._directory: Final = directory

    async def is_running(self) -> bool:
        try:
            await self.orders.call(StatusRequest(), timeout_s=CONNECT_TIMEOUT_S)
        except OrderError:
            return False
        return True

    async def start(self) -> int:
        """Start the broker in a session of its own and return its pid once it answers. Raises MigrationError."""
        process = self._spawn()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                while process.poll() is None:
                    if await self.is_running():
                        return process.pid
                    await asyncio.sleep(POLL_S)
        if process.poll() is None:
            raise MigrationError(
                f"the new broker did not answer within {START_TIMEOUT_S:.0f} s", f"see {self._directory.log}"
            )
        raise MigrationError(
            f"the new broker did not start: {last_log_line(self._directory.log)}", f"see {self._directory.log}"
        )

    async def wait_until_running(self) -> None:
        """Wait until the broker has been started by the user."""
        while True:
            if await self.is_running():
                return
            await asyncio.sleep(WAIT_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._directory.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gantry_broker", "-c", str(self._directory.conf)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


async def connection_failure(address: str) -> str:
    """Return why a connection to ``address`` fails; empty if it succeeds."""
    try:
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError, TimeoutError) as error:
        return str(error) or "timed out"
    writer.transport.abort()
    return ""


def ports_in_use(host: str, ports: tuple[int, ...]) -> list[int]:
    """Return the ports on which another process listens. Raises MigrationError if this process may not listen there."""
    is_free = port_probe(host)
    try:
        return [port for port in ports if not is_free(port)]
    except (OSError, OverflowError) as error:
        reason = f"this machine does not let the new broker listen on bindAddress {host!r}: {error}"
        raise MigrationError(reason, "choose another bindAddress with -o, or another --port") from error


def free_bytes(path: Path) -> int:
    """Return the free disk space at ``path``, which need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def log_files(directory: MigrationDirectory) -> tuple[int, int | None]:
    """Return the size of the log that is already copied, and the size of its largest file; None without files."""
    sizes: list[int] = []
    for file in directory.store.glob("commitlog/*"):
        if file.name.isdigit():
            with contextlib.suppress(FileNotFoundError):  # retention deletes files while the slave runs
                sizes.append(file.stat().st_size)
    return sum(sizes), max(sizes, default=None)


def configured_ports(conf: Mapping[str, str]) -> tuple[int, ...]:
    """Return the ports on which a broker with these settings listens."""
    port = int(conf["listenPort"])
    fast = int(conf.get("fastListenPort", fast_port_of(port)))
    ports = (port, fast, int(conf.get("haListenPort", replication_port_of(port))))
    return tuple(one for one in ports if one > 0)
