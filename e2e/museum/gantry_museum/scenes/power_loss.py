"""Loss at power failure with default settings: the machines of brokers lose their power while messages are sent.

    sends for some seconds -> SIGSTOP -> the disks are cut off -> SIGKILL -> start on the disks as they were at the cut

A disk is an ext4 file system in a file (`faults.loop_disk`): what was not synced, and not written back by the kernel,
is gone. The failure has occurred if a message that was acknowledged is not in the log after the restart.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from faults.altered_broker import __file__ as altered_broker
from faults.loop_disk import LoopDisk, loop_disk
from faults.power import suspend
from gantry_interop.processes import Child, wait_until

from gantry_client import ClientError, Producer
from gantry_museum import clients
from gantry_museum.clients import Sent
from gantry_museum.exhibit import Exhibit, Need, Outcome, Stage, System, Thread
from gantry_museum.replicas import master_in_route
from gantry_museum.servers import READY_SECONDS_MAX, BrokerPlan, plan_broker, start_name_server

DISK_MIB: Final = 2048
"""The image is sparse; RocketMQ's broker maps an index of 400 MiB and a timer log of 100 MiB."""
SECONDS: Final = 4.0
"""How long messages are sent; several intervals of an asynchronous flush."""
SETTLED_S: Final = 20.0
"""How long no further message must appear before the rest counts as lost."""
IN_FLIGHT: Final = 4
UNGUARDED: Final = (altered_broker, "--without", "syncs", "-m", "gantry_broker")


@final
@dataclass(frozen=True)
class Mode:
    """What is not default in a power failure, and how the page calls it."""

    name: str
    title: str
    settings: Mapping[str, str]
    has_slave: bool = False
    """Whether a slave on another disk loses its power at the same time."""


DEFAULTS: Final = Mode("defaults", "default settings", {})
SYNC: Final = Mode("synchronous", "`SYNC_FLUSH`", {"flushDiskType": "SYNC_FLUSH"})
REPLICATED: Final = Mode(
    "replicated",
    "a synchronous slave that loses its power too",
    {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"},
    True,
)


def run(stage: Stage) -> Outcome:
    """Lose the power with the default settings, with a synchronous slave, and with a synchronous flush."""
    if stage.is_twin:
        lost, fact = _lose_power(stage, SYNC)
        return Outcome(lost > 0, (fact,))
    lost, fact = _lose_power(stage, DEFAULTS)
    lost_replicated, replicated = _lose_power(stage, REPLICATED)
    lost_with_sync, synced = _lose_power(stage, SYNC)
    assert lost_with_sync == 0, f"a synchronous flush loses {lost_with_sync} acknowledged messages"
    return Outcome(lost + lost_replicated > 0, (fact, replicated, synced))


def _lose_power(stage: Stage, mode: Mode) -> tuple[int, str]:
    """Return the number of lost acknowledged messages, and a sentence about them."""
    place = stage.directory / mode.name
    place.mkdir(parents=True)
    names = start_name_server(stage)
    try:
        sent, found = _run_mode(stage, mode, names.address, place)
    finally:
        names.child.stop()
        shutil.rmtree(place, ignore_errors=True)
    acked = [one for one in sent if one.is_acknowledged]
    lost = [one for one in acked if one.number not in found]
    assert acked, f"no send succeeded: {clients.count_answers(sent)}"
    window_ms = 1_000 * (max(one.at for one in acked) - min(one.at for one in lost)) if lost else 0.0
    window = f", those of the last {window_ms:,.0f} ms" if lost else ""
    return len(lost), f"With {mode.title}: {len(lost):,} of {len(acked):,} acknowledged messages are lost{window}."


def _run_mode(stage: Stage, mode: Mode, name_server: str, place: Path) -> tuple[list[Sent], set[int]]:
    """Return all sends up to the power failure, and the numbers of the messages that exist after the restart."""
    program = UNGUARDED if stage.is_twin else ("-m", "gantry_broker")
    with ExitStack() as stack:
        disks: list[LoopDisk] = []
        plans: list[BrokerPlan] = []
        for number in range(1 + mode.has_slave):
            folder = place / f"machine-{number}"
            folder.mkdir()
            disks.append(stack.enter_context(loop_disk(folder, size_mib=DISK_MIB)))
            settings = mode.settings if number == 0 else _own_settings(stage, plans[0])
            store = disks[-1].path / "store"
            plans.append(plan_broker(stage, name_server, settings, number=number, store=store, program=program))
        children = [plan.start() for plan in plans]
        stack.callback(lambda: [child.kill() for child in children])
        sent = asyncio.run(_send_until_cut(children, disks, name_server, plans if mode.has_slave else ()))
        for child, disk in zip(children, disks, strict=True):
            child.kill()
            disk.restore()
        # Gantry's master compares its log with the slave's before it serves, so the slave starts as well.
        children[:] = [plan.launch() for plan in reversed(plans)]
        wait_until("the master", lambda: master_in_route(name_server) == plans[0].address, READY_SECONDS_MAX)
        found = asyncio.run(_read_settled(name_server))
        for child in children:
            child.kill()
        return sent, found


def _own_settings(stage: Stage, master: BrokerPlan) -> dict[str, str]:
    """Return the settings of a slave. Gantry's master registers only after it has compared its log with the slave's."""
    return {} if stage.is_apache else {"haMasterAddress": master.replication_address}


async def _read_settled(name_server: str) -> set[int]:
    """Return the numbers of all messages, once they have not become more for a while.

    A master shows consumers what its slave has, which it knows only when the slave has connected again.
    """
    found: set[int] = set()
    settled_at = time.monotonic() + SETTLED_S
    while time.monotonic() < settled_at:
        with suppress(ClientError):
            now = clients.numbers_of(await clients.read_topic(name_server))
            if len(now) > len(found):
                found, settled_at = now, time.monotonic() + SETTLED_S
        await asyncio.sleep(0.5)
    return found


async def _send_until_cut(
    children: Sequence[Child], disks: Sequence[LoopDisk], name_server: str, pair: Sequence[BrokerPlan]
) -> list[Sent]:
    """Send until all machines have lost their power; with a pair, from the time at which the slave follows."""
    await clients.create_topic(name_server)
    async with clients.producer(name_server) as sender:
        if pair:
            await _wait_for_slave(sender, pair[1])
        loads = [asyncio.ensure_future(_send_in_turn(sender, first)) for first in range(IN_FLIGHT)]
        await asyncio.sleep(SECONDS)
        for child in children:
            await suspend(child.process.pid)
        for disk in disks:
            disk.cut_power()
        for load in loads:
            load.cancel()
        results: Sequence[list[Sent]] = await asyncio.gather(*loads)
    return [one for result in results for one in result]


async def _wait_for_slave(sender: Producer, slave: BrokerPlan) -> None:
    """Send until a message is acknowledged, which needs the slave. The numbers are negative."""
    for number in range(1, 100):
        if (await clients.send_one(sender, -number)).is_acknowledged:
            return
        await asyncio.sleep(1)
    raise AssertionError(f"the slave at {slave.address} does not acknowledge")


async def _send_in_turn(sender: Producer, first: int) -> list[Sent]:
    """Send one message after another until the task is cancelled; return what was answered."""
    sent: list[Sent] = []
    number = first
    try:
        while True:
            sent.append(await clients.send_one(sender, number))
            number += IN_FLIGHT
    except asyncio.CancelledError:
        return sent


EXHIBIT: Final = Exhibit(
    name="power-loss",
    title="Loss at power failure with default settings",
    threads=(Thread("nats-io/nats-server", (7564,)),),
    reported="""\
By default the server syncs its files every two minutes, but acknowledges a message at once. When the machines of a
cluster lose their power at about the same time, acknowledged messages are lost, or a whole stream, although the
documentation called an acknowledged message persisted.""",
    scenario=f"""\
A broker's disk is a file system that loses everything that was not synced. {IN_FLIGHT} senders send for
{SECONDS:.0f} s; then the disk is cut off, the broker is killed, and a new one starts on the disk as it was. The same is
repeated with a slave whose acknowledgement is needed, and both machines lose their power at once; and with a
synchronous flush, which must lose nothing. The failure occurs if an acknowledged message is missing in one of the first
two.""",
    run=run,
    systems=(System.APACHE, System.GANTRY, System.TWIN),
    needs=dict.fromkeys(System, (Need.ROOT,)),
    twin="does not sync its files, with `SYNC_FLUSH`",
    remark="""\
Both brokers flush asynchronously by default, as RocketMQ's users expect, so both lose the end of the log.
[Promises](promises.md) states the window for each mode. A `BrokerGroup` waits for the disk of a slave by
default: a power failure of one machine or of all loses nothing then. NATS itself is not run.""",
)
