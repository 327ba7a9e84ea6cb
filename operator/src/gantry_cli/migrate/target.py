"""Our broker in a migration: what it is told, where it goes, and starting it so that it outlives the command."""

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

from gantry_cli.local.ports import is_free
from gantry_cli.migrate.record import Home
from gantry_cli.migrate.source import CannotMigrate
from gantry_cli.processes import last_log_line
from gantry_remoting import split_address
from gantry_status.order_client import OrderClient
from gantry_status.orders import AskStatus, OrderError

START_TIMEOUT_S: Final = 120.0
"""It recovers what it has copied so far before it answers."""
POLL_S: Final = 0.1
WAIT_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where our broker shall be."""

    host: str
    port: int
    name_server: str
    broker_id: int

    @property
    def ports(self) -> tuple[int, ...]:
        """Its own, the fast one below it, replication above it."""
        return (self.port, self.port - 2, self.port + 1)

    def conf(self) -> dict[str, str]:
        return {
            "brokerIP1": self.host,
            "listenPort": str(self.port),
            "namesrvAddr": self.name_server,
            "brokerId": str(self.broker_id),
        }


@final
class OurBroker:
    """The process, which may be anybody's: whoever answers at the control socket is it."""

    def __init__(self, home: Home) -> None:
        self.orders: Final = OrderClient(str(home.control))
        self._home: Final = home

    async def is_running(self) -> bool:
        try:
            await self.orders.call(AskStatus(), timeout_s=CONNECT_TIMEOUT_S)
        except OrderError:
            return False
        return True

    async def start(self) -> int:
        """Start it in a session of its own. Its process, once it answers."""
        process = self._spawn()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                while process.poll() is None:
                    if await self.is_running():
                        return process.pid
                    await asyncio.sleep(POLL_S)
        if process.poll() is None:
            raise CannotMigrate(f"our broker does not answer after {START_TIMEOUT_S:.0f} s", f"see {self._home.log}")
        raise CannotMigrate(f"our broker did not start: {last_log_line(self._home.log)}", f"see {self._home.log}")

    async def appears(self) -> None:
        """Wait until somebody has started it."""
        while True:
            if await self.is_running():
                return
            await asyncio.sleep(WAIT_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._home.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gantry_broker", "-c", str(self._home.conf)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


async def reach(address: str) -> str:
    """Why nobody takes a connection at ``address``; nothing if somebody does."""
    try:
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError, TimeoutError) as error:
        return str(error) or "no answer in time"
    writer.transport.abort()
    return ""


def taken(host: str, ports: tuple[int, ...]) -> list[int]:
    """Return which of the ports another process listens on. Raises CannotMigrate if none may be listened on there."""
    is_free_port = is_free(host)
    try:
        return [port for port in ports if not is_free_port(port)]
    except (OSError, OverflowError) as error:
        raise CannotMigrate(f"bindAddress {host!r} cannot be used: {error}", "choose another one") from error


def free_bytes(path: Path) -> int:
    """Where ``path`` is, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def log_files(home: Home) -> tuple[int, int | None]:
    """How many bytes the log that is here already takes, and the size of one of its files."""
    sizes: list[int] = []
    for file in home.store.glob("commitlog/*"):
        if file.name.isdigit():
            with contextlib.suppress(FileNotFoundError):  # retention deletes files while the slave runs
                sizes.append(file.stat().st_size)
    return sum(sizes), max(sizes, default=None)


def ports_of(conf: Mapping[str, str]) -> tuple[int, ...]:
    """Which ports a broker with these settings listens on."""
    port = int(conf["listenPort"])
    own = (port, int(conf.get("fastListenPort", port - 2)), int(conf.get("haListenPort", port + 1)))
    return tuple(one for one in own if one > 0)
