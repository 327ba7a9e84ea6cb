"""`gantry up --single`: one name server and one broker, kept and proved like a group's, without a group's decisions.

Nothing can take over from a single broker, so there are no roles, no Lease and no orders: the broker runs with a plain
broker.conf, which takes any setting with ``-o``. A server that dies six times within a minute ends the command.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError, explain
from gantry_cli.local.ports import FAST_PORT_BELOW, free_broker_port, free_port, require_free
from gantry_cli.local.running import Face, Summary, claim, first_error, is_listening, run_until_stopped
from gantry_cli.local.state import now_ms
from gantry_cli.processes import RestartPolicy, ServerFailed, ServerProcess
from gantry_cli.rates import BrokerFacts, Rates, rates_between, read_facts
from gantry_cli.round_trip import RoundTrip, round_trip
from gantry_cli.stack import StackDirectory, StackRecord
from gantry_cli.text import bytes_text, count_text, duration_text, rate_text
from gantry_client import Admin, ClientError
from gantry_remoting import join_address

READY_TIMEOUT_S: Final = 120.0
"""A broker recovers its log before it is ready."""
READY_POLL_S: Final = 0.05
RESTARTS_MAX: Final = 5
"""Within a minute. After the sixth death a restart does not mend what is wrong."""
DELAY_S_MAX: Final = 8.0
BROKER_NAME: Final = "broker-a"
CLUSTER_NAME: Final = "DefaultCluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOptions:
    """What was typed."""

    data: Path
    host: str
    name_server_port: int
    broker_port: int
    broker_options: dict[str, str]


async def run_single(typed: SingleOptions, face: Face) -> None:
    """Everything between the lock and its release. Raises CliError."""
    directory = claim(typed.data)
    try:
        plan = plan_single(typed.host, typed.name_server_port, typed.broker_port, typed.broker_options)
        run = SingleRun(directory, plan, face)
        await run_until_stopped(run.work, run.stop, face)
    finally:
        directory.release()


# -- planning ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePlan:
    """Where the two servers listen, and what the broker is told beyond that."""

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


def plan_single(host: str, name_server_port: int, broker_port: int, options: Mapping[str, str]) -> SinglePlan:
    """Choose ports that are free now; 0 takes any. Raises CliError that names the port and the option."""
    if name_server_port == 0:
        name_server_port = free_port(host)
    else:
        require_free(host, name_server_port, "name server", "--namesrv-port")
    if broker_port == 0:
        broker_port = free_broker_port(host)
    else:
        require_free(host, broker_port, "broker", "--broker-port")
        require_free(host, broker_port - FAST_PORT_BELOW, "broker's fast port, two below its port", "--broker-port")
    return SinglePlan(
        host=host, name_server_port=name_server_port, broker_port=broker_port, broker_options=dict(options)
    )


def single_broker_conf(directory: StackDirectory, plan: SinglePlan) -> str:
    """Return the text of broker.conf. Options given on the command line come last and win."""
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


# -- running -----------------------------------------------------------------------------------------------------------


@final
class SingleRun:
    """The two servers, from their start to their stop. Owned by one event loop; the directory is claimed already."""

    def __init__(self, directory: StackDirectory, plan: SinglePlan, face: Face) -> None:
        self._directory, self._plan, self._face = directory, plan, face
        words = ("--listen", plan.name_server, "--data", str(directory.name_server_data))
        self._name_server: Final = self._server("name server", "gantry_nameserver", words, "nameserver")
        self._broker: Final = self._server("broker", "gantry_broker", ("-c", str(directory.broker_conf)), "broker")

    def __repr__(self) -> str:
        return f"<SingleRun {self._name_server!r} {self._broker!r}>"

    def _server(self, name: str, module: str, words: tuple[str, ...], log: str) -> ServerProcess:
        return ServerProcess(
            f"the {name}", module, lambda: words, self._directory.log(log), now_ms=now_ms, report=self._face.report,
            policy=RestartPolicy(delay_s_max=DELAY_S_MAX, deaths_max=RESTARTS_MAX),
        )  # fmt: skip

    async def work(self) -> None:
        """Start both, send a message and read it back, and keep both until cancelled. Raises CliError."""
        conf = single_broker_conf(self._directory, self._plan)
        await asyncio.to_thread(self._directory.broker_conf.write_text, conf, encoding="utf-8")
        try:
            async with asyncio.TaskGroup() as group:
                for server in (self._name_server, self._broker):
                    group.create_task(_keep(server), name=f"keep {server.name}")
                await self._start()
                group.create_task(self._report_returns(), name="report restarts")
                if not self._face.is_detached:
                    state = stream_state(self._plan.name_server, self._plan.broker, self._face)
                    group.create_task(state, name="stream state")
        except* CliError as errors:
            raise first_error(errors) from None

    async def _start(self) -> None:
        """Start one after the other, and wait until a message has come back. Raises CliError."""
        plan = self._plan
        self._name_server.start()
        await self._wait_until(
            self._name_server, lambda: is_listening(plan.host, plan.name_server_port), "does not answer"
        )
        self._broker.start()
        async with Admin(plan.name_server, client_settings=client_settings()) as admin:
            await self._wait_until(
                self._broker, lambda: is_registered(admin, plan.broker), "is not known to the name server"
            )
        self._directory.write(self._record())
        try:
            trip = await round_trip(plan.name_server)
        except ClientError as error:
            raise explain(error, plan.name_server) from error
        self._face.ready(single_summary(self._directory, plan, trip, is_detached=self._face.is_detached))

    async def _wait_until(self, server: ServerProcess, is_ready: Callable[[], Awaitable[bool]], lack: str) -> None:
        """Raises CliError when the server ends before it is ready, or takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not await is_ready():
            if server.failure:
                raise CliError(server.failure, f"see {server.log}")
            if time.monotonic() > deadline:
                raise CliError(f"{server.name} {lack} after {READY_TIMEOUT_S:.0f} s", f"see {server.log}")
            await asyncio.sleep(READY_POLL_S)

    async def _report_returns(self) -> None:
        """Report each server that answers again after a restart."""
        ports = ((self._name_server, self._plan.name_server_port), (self._broker, self._plan.broker_port))
        known = {server: server.starts for server, _ in ports}
        while True:
            for server, port in ports:
                starts, pid = server.starts, server.pid
                if pid is not None and starts != known[server] and await is_listening(self._plan.host, port):
                    known[server] = starts
                    self._face.report(f"{server.name} is back (pid {pid})")
            await asyncio.sleep(READY_POLL_S)

    def _record(self) -> StackRecord:
        return StackRecord(
            pid=os.getpid(),
            name_server=self._plan.name_server,
            broker=self._plan.broker,
            broker_name=self._plan.broker_options.get("brokerName", BROKER_NAME),
            started_at_ms=time.time_ns() // 1_000_000,
            is_detached=self._face.is_detached,
        )

    async def stop(self) -> list[str]:
        """Stop the broker, then the name server. Returns the names of those that had to be killed."""
        return [server.name for server in (self._broker, self._name_server) if not await server.stop()]


async def _keep(server: ServerProcess) -> None:
    try:
        await server.run()
    except ServerFailed as error:
        raise CliError(str(error)) from error


async def is_registered(admin: Admin, address: str) -> bool:
    """Return whether the name server tells clients of the broker."""
    try:
        return address in {broker.address for broker in await admin.brokers.all()}
    except ClientError:
        return False


# -- what is printed ---------------------------------------------------------------------------------------------------


def single_summary(directory: StackDirectory, plan: SinglePlan, trip: RoundTrip, *, is_detached: bool) -> str:
    """Addresses, the proof, and three next steps."""
    text = Summary(directory, plan.name_server, trip, is_detached=is_detached)
    servers = [
        f"  name server   {plan.name_server}   log {directory.log('nameserver')}",
        f"  broker        {plan.broker}   log {directory.log('broker')}",
        f"  data          {directory.path}",
    ]
    return text.with_lines(servers, [f"Look at it:  {text.gantry} status{text.namesrv}   (stop with {text.stop})"])


def state_line(facts: BrokerFacts, rates: Rates, up_s: float) -> str:
    """One broker's state as one line."""
    parts = [
        f"up {duration_text(up_s)}",
        f"in {rate_text(rates.puts_per_s)}/s ({count_text(facts.puts)} so far)",
        f"out {rate_text(rates.gets_per_s)}/s ({count_text(facts.gets)} so far)",
        f"stored {bytes_text(facts.stored_bytes)}",
    ]
    if facts.connections is not None:
        parts.append(f"{facts.connections} connections")
    if facts.producer_groups is not None and facts.consumer_groups is not None:
        parts.append(f"groups {facts.producer_groups} sending, {facts.consumer_groups} reading")
    if facts.held_pulls:
        parts.append(f"{facts.held_pulls} waiting pulls")
    if facts.disk_used_ratio is not None:
        parts.append(f"disk {facts.disk_used_ratio:.0%}")
    return "  ".join(parts)


async def stream_state(name_server: str, broker: str, face: Face) -> None:
    """Show the broker's state again and again until cancelled. A broker that does not answer is a line, too."""
    started, previous = time.monotonic(), None
    async with Admin(name_server, client_settings=client_settings()) as admin:
        while True:
            try:
                facts = read_facts(await admin.brokers.runtime(broker), time.monotonic())
            except ClientError as error:
                face.show(f"the broker does not answer: {error}")
                previous = None
            else:
                face.show(state_line(facts, rates_between(previous or facts, facts), facts.at_s - started))
                previous = facts
            await asyncio.sleep(face.interval_s)
