"""Stale name server addresses: the only name server gets another address, as a pod does when it is created again.

    broker -> ns.museum (127.0.0.2) -> the name server ends, another one starts at 127.0.0.3, ns.museum follows

The name is in a file that is mounted over /etc/hosts for the processes of this run only.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

from faults.loop_disk import keep_mounts_private
from gantry_interop.errors import DeadlineExceeded
from gantry_interop.processes import wait_until

from gantry_museum.exhibit import Exhibit, Need, Outcome, Stage, System, Thread
from gantry_museum.servers import plan_broker, start_name_server
from gantry_operator.objects.names import name_server_addresses
from gantry_testing.ports import free_port

FIRST, SECOND = "127.0.0.2", "127.0.0.3"
NAME: Final = "ns.museum"
HOSTS: Final = Path("/etc/hosts")
FOUND_SECONDS_MAX: Final = 180.0
"""Several registration periods of a broker (30 s), and several lives of an address in Java's cache (30 s)."""


def run(stage: Stage) -> Outcome:
    """Move the name server of a broker that knows it by name; of a twin, that knows it by address."""
    facts = () if stage.is_apache else (_handed_out(),)
    seconds = _move(stage, FIRST if stage.is_twin else NAME)
    known = "the address" if stage.is_twin else "the name"
    if seconds is None:
        lost = (
            f"The broker knew {known}, and was not registered at the moved name server for {FOUND_SECONDS_MAX:.0f} s."
        )
        return Outcome(True, (*facts, lost))
    found = f"The broker knew {known}, and was registered at the moved name server after {seconds:.0f} s."
    return Outcome(False, (*facts, found))


def _move(stage: Stage, host: str) -> float | None:
    """Return the seconds until the broker was registered at the moved name server; None if it never was."""
    stage.directory.mkdir(parents=True, exist_ok=True)
    hosts = stage.directory / "hosts"
    before = HOSTS.read_text()
    hosts.write_text(f"{FIRST} {NAME}\n{before}")
    keep_mounts_private()
    subprocess.run(["mount", "--bind", str(hosts), str(HOSTS)], check=True)
    try:
        port = free_port()
        names = start_name_server(stage, FIRST, port)
        broker = plan_broker(stage, f"{host}:{port}")
        child = broker.launch()
        wait_until("the first registration", lambda: broker.is_registered(names.address), FOUND_SECONDS_MAX, child)
        names.child.kill()
        moved = start_name_server(stage, SECOND, port)
        hosts.write_text(f"{SECOND} {NAME}\n{before}")
        began = time.monotonic()
        try:
            wait_until("another registration", lambda: broker.is_registered(moved.address), FOUND_SECONDS_MAX, child)
        except DeadlineExceeded:
            return None
        return time.monotonic() - began
    finally:
        subprocess.run(["umount", str(HOSTS)], check=True)


def _handed_out() -> str:
    addresses = name_server_addresses("orders", "shop", 2)
    assert not any(one[0].isdigit() for one in addresses), addresses
    return f"The operator gives its brokers names: `{addresses[0]}`."


EXHIBIT: Final = Exhibit(
    name="name-servers",
    title="Stale name server addresses after pods move",
    threads=(Thread("apache/rocketmq-operator", (52, 70, 143, 227)),),
    reported="""\
RocketMQ's operator collects the addresses of the name servers' pods, and gives them to brokers and to the console.
When these pods were created again, brokers and console kept addresses of pods that no longer existed (70, 143). While
some of the pods were new, brokers got an incomplete list, so that name servers had different brokers (227). A new name
server needs a restart of all brokers, one after another (52).""",
    scenario=f"""\
A broker knows its only name server by a name. The name server gets another address, and the name follows. The failure
occurs if the broker is not registered there within {FOUND_SECONDS_MAX:.0f} s. The twin gets the address, as brokers of
that operator do.""",
    run=run,
    systems=(System.APACHE, System.GANTRY, System.TWIN),
    needs=dict.fromkeys(System, (Need.ROOT,)),
    twin="gets an address instead of a name",
    remark="""\
RocketMQ's operator itself is not run. The result of RocketMQ's broker shows that it follows a name, too: the reports
are about what the operator gives to it.""",
)
