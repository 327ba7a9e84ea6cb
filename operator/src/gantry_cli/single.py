"""`gantry up --single`: from nothing to one broker that has sent and read back a message, without any group."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError, explain
from gantry_cli.faces import Face
from gantry_cli.local_stack import LocalStack, StackPlan, plan
from gantry_cli.own_name import own_name
from gantry_cli.rates import BrokerFacts, Rates, rates_between, read_facts
from gantry_cli.round_trip import RoundTrip, round_trip
from gantry_cli.running import claim, stop_signal, until
from gantry_cli.stack import StackDirectory
from gantry_cli.text import bytes_text, count_text, duration_text, rate_text
from gantry_client import Admin, ClientError

Show = Callable[[str], None]


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


@final
class StateStream:
    """Asks one broker again and again. Owned by one event loop."""

    def __init__(self, name_server: str, broker: str, show: Show, *, interval_s: float) -> None:
        self._name_server = name_server
        self._broker = broker
        self._show = show
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until cancelled. A broker that does not answer is a line, too."""
        started, previous = time.monotonic(), None
        async with Admin(self._name_server, client_settings=client_settings()) as admin:
            while True:
                try:
                    facts = read_facts(await admin.brokers.runtime(self._broker), time.monotonic())
                except ClientError as error:
                    self._show(f"the broker does not answer: {error}")
                    previous = None
                else:
                    rates = rates_between(previous or facts, facts)
                    self._show(state_line(facts, rates, facts.at_s - started))
                    previous = facts
                await asyncio.sleep(self._interval_s)


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
        stack = LocalStack(directory, plan(typed.host, typed.name_server_port, typed.broker_port, typed.broker_options),
                           face.report)  # fmt: skip
        stopped = stop_signal()
        try:
            await until(stopped, _work(stack, face))
        finally:
            face.report("stopping")
            killed = await stack.stop()
        if killed:
            raise CliError(f"had to kill the {' and the '.join(killed)} after waiting in vain", "see its log")
        face.report("stopped")
    finally:
        directory.release()


async def _work(stack: LocalStack, face: Face) -> None:
    await stack.start(is_detached=face.is_detached, pid=os.getpid())
    try:
        trip = await round_trip(stack.plan.name_server)
    except ClientError as error:
        raise explain(error, stack.plan.name_server) from error
    face.ready(summary(stack.directory, stack.plan, trip, is_detached=face.is_detached))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(stack.keep(), name="keep servers")
            if not face.is_detached:
                group.create_task(_stream(stack.plan, face), name="stream state")
    except* CliError as errors:
        raise errors.exceptions[0] from None


async def _stream(plan: StackPlan, face: Face) -> None:
    await StateStream(plan.name_server, plan.broker, face.show, interval_s=face.interval_s).run()


def summary(directory: StackDirectory, plan: StackPlan, trip: RoundTrip, *, is_detached: bool) -> str:
    """Addresses, the proof, and three next steps."""
    namesrv = "" if plan.name_server == "127.0.0.1:9876" else f" -n {plan.name_server}"
    data = "" if directory.path == StackDirectory(Path(".gantry/local")).path else f" --data {directory.path}"
    gantry = own_name()
    stop = f"{gantry} down{data}" if is_detached else "Ctrl-C"
    return "\n".join(
        [
            "Gantry is up.",
            f"  name server   {plan.name_server}   log {directory.log('nameserver')}",
            f"  broker        {plan.broker}   log {directory.log('broker')}",
            f"  data          {directory.path}",
            f"  checked       1 message sent and read back in {trip.elapsed_ms:.1f} ms "
            f"({trip.queue.topic}, queue {trip.queue.queue_id}, offset {trip.queue_offset})",
            "",
            "Next steps",
            f'  1. From Java:   producer.setNamesrvAddr("{plan.name_server}");   (consumers the same)',
            f'  2. From here:   {gantry} produce{namesrv} hello "first message" && {gantry} consume{namesrv} hello',
            f"  3. Look at it:  {gantry} status{namesrv}   (stop with {stop})",
            "",
        ]
    )
