"""A name server and a broker as child processes of this one, from the first port check to the clean stop."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError
from gantry_cli.ports import FAST_PORT_BELOW, free_broker_port, free_port, require_free
from gantry_cli.stack import StackDirectory, StackRecord
from gantry_cli.supervisor import Server, ServerCommand, ServerFailed
from gantry_client import Admin, ClientError
from gantry_remoting import join_address

REGISTER_TIMEOUT_S: Final = 30.0
REGISTER_POLL_S: Final = 0.05
BROKER_NAME: Final = "broker-a"
CLUSTER_NAME: Final = "DefaultCluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """Where a stack listens, and what its broker is told beyond that."""

    host: str
    name_server_port: int
    broker_port: int
    broker_options: Mapping[str, str]

    @property
    def name_server(self) -> str:
        return join_address(self.host, self.name_server_port)

    @property
    def broker(self) -> str:
        return join_address(self.host, self.broker_port)


def plan(host: str, name_server_port: int, broker_port: int, options: Mapping[str, str]) -> StackPlan:
    """Ports that are free now; 0 takes any. Raises CliError that names the port and the option."""
    if name_server_port == 0:
        name_server_port = free_port(host)
    else:
        require_free(host, name_server_port, "name server", "--namesrv-port")
    if broker_port == 0:
        broker_port = free_broker_port(host)
    else:
        require_free(host, broker_port, "broker", "--broker-port")
        require_free(host, broker_port - FAST_PORT_BELOW, "broker's fast port, two below its port", "--broker-port")
    return StackPlan(
        host=host, name_server_port=name_server_port, broker_port=broker_port, broker_options=dict(options)
    )


@final
class LocalStack:
    """The two servers. Owned by one event loop; the directory must be claimed already."""

    def __init__(self, directory: StackDirectory, plan: StackPlan, report: Callable[[str], None]) -> None:
        self.directory = directory
        self.plan = plan
        self.name_server = Server(_name_server_command(directory, plan), report)
        self.broker = Server(_broker_command(directory), report)

    def __repr__(self) -> str:
        return f"<LocalStack {self.name_server!r} {self.broker!r}>"

    async def start(self, *, is_detached: bool, pid: int) -> None:
        """Start both and wait until clients can find the broker. Raises CliError."""
        await asyncio.to_thread(_write, self.directory.broker_conf, broker_conf(self.directory, self.plan))
        try:
            await self.name_server.start()
            await self.broker.start()
        except ServerFailed as error:
            raise CliError(str(error)) from error
        await self._wait_registered()
        self.directory.write(
            StackRecord(
                pid=pid,
                name_server=self.plan.name_server,
                broker=self.plan.broker,
                broker_name=self.plan.broker_options.get("brokerName", BROKER_NAME),
                started_at_ms=time.time_ns() // 1_000_000,
                is_detached=is_detached,
            )
        )

    async def keep(self) -> None:
        """Keep both running until cancelled. Raises CliError when one cannot be kept."""
        try:
            async with asyncio.TaskGroup() as group:
                for server in (self.name_server, self.broker):
                    group.create_task(server.keep(), name=f"keep {server.command.name}")
        except* ServerFailed as errors:
            raise CliError(str(errors.exceptions[0])) from errors

    async def stop(self) -> list[str]:
        """Stop the broker, then the name server; the names of those that had to be killed."""
        return [server.command.name for server in (self.broker, self.name_server) if not await server.stop()]

    async def _wait_registered(self) -> None:
        """Raises CliError when no client could find the broker."""
        reason = "it has not registered"
        async with Admin(self.plan.name_server, client_settings=client_settings()) as admin:
            try:
                async with asyncio.timeout(REGISTER_TIMEOUT_S):
                    while True:
                        try:
                            if self.plan.broker in {broker.address for broker in await admin.brokers.all()}:
                                return
                        except ClientError as error:
                            reason = str(error)
                        await asyncio.sleep(REGISTER_POLL_S)
            except TimeoutError as error:
                raise CliError(
                    f"the broker is not known to the name server after {REGISTER_TIMEOUT_S:.0f} s ({reason})",
                    f"see {self.directory.log('broker')}",
                ) from error


def broker_conf(directory: StackDirectory, plan: StackPlan) -> str:
    """The broker.conf of a stack. Options given on the command line come last and win."""
    entries = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": BROKER_NAME,
        "brokerId": "0",
        "brokerIP1": plan.host,
        "bindAddress": plan.host,
        "listenPort": str(plan.broker_port),
        "namesrvAddr": plan.name_server,
        "storePathRootDir": str(directory.broker_data),
    } | dict(plan.broker_options)
    lines = [f"{key}={value}" for key, value in entries.items()]
    return "\n".join(
        ["# Written by `gantry up` at every start; change settings with `gantry up -o key=value`.", *lines, ""]
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _name_server_command(directory: StackDirectory, plan: StackPlan) -> ServerCommand:
    return ServerCommand(
        name="name server",
        module="gantry_nameserver",
        arguments=("--listen", plan.name_server, "--data", str(directory.name_server_data)),
        ready="name server listening on ",
        log=directory.log("nameserver"),
    )


def _broker_command(directory: StackDirectory) -> ServerCommand:
    return ServerCommand(
        name="broker",
        module="gantry_broker",
        arguments=("-c", str(directory.broker_conf)),
        ready="broker listening on ",
        log=directory.log("broker"),
    )
