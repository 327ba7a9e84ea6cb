"""The line that `gantry up` keeps showing: what the broker does now, asked once a second."""

import asyncio
import time
from collections.abc import Callable
from typing import final

from gantry_cli.account import client_settings
from gantry_cli.rates import BrokerFacts, Rates, rates_between, read_facts
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
