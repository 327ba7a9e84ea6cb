"""Loss at power failure with default settings: the machine of a broker loses its power while messages are sent.

    sends for some seconds -> SIGSTOP -> the disk is cut off -> SIGKILL -> start on the disk as it was at the cut

The disk is an ext4 file system in a file (`faults.loop_disk`): what was not synced, and not written back by the kernel,
is gone. The failure has occurred if a message that was acknowledged is not in the log after the restart.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from faults.altered_broker import __file__ as altered_broker
from faults.loop_disk import LoopDisk, loop_disk
from faults.power import suspend
from gantry_interop.processes import Child

from gantry_client import Producer
from gantry_museum import clients
from gantry_museum.clients import Sent
from gantry_museum.exhibit import Exhibit, Need, Outcome, Stage, System, Thread
from gantry_museum.servers import BrokerPlan, plan_broker, start_name_server

DISK_MIB: Final = 2048
"""The image is sparse; RocketMQ's broker maps an index of 400 MiB and a timer log of 100 MiB."""
SECONDS: Final = 4.0
"""How long messages are sent; several intervals of an asynchronous flush."""
IN_FLIGHT: Final = 4
DEFAULTS: Final[Mapping[str, str]] = {}
SYNC: Final = {"flushDiskType": "SYNC_FLUSH"}
UNGUARDED: Final = (altered_broker, "--without", "syncs", "-m", "gantry_broker")


def run(stage: Stage) -> Outcome:
    """Lose the power with the default settings, and with a synchronous flush for comparison."""
    if stage.is_twin:
        lost, fact = _lose_power(stage, SYNC, "flushDiskType=SYNC_FLUSH")
        return Outcome(lost > 0, (fact,))
    lost, fact = _lose_power(stage, DEFAULTS, "default settings")
    lost_with_sync, other = _lose_power(stage, SYNC, "flushDiskType=SYNC_FLUSH")
    assert lost_with_sync == 0, f"a synchronous flush loses {lost_with_sync} acknowledged messages"
    return Outcome(lost > 0, (fact, other))


def _lose_power(stage: Stage, settings: Mapping[str, str], title: str) -> tuple[int, str]:
    """Return the number of lost acknowledged messages, and a sentence about them."""
    place = stage.directory / title.replace(" ", "-")
    place.mkdir(parents=True)
    names = start_name_server(stage)
    try:
        with loop_disk(place, size_mib=DISK_MIB) as disk:
            program = UNGUARDED if stage.is_twin else ("-m", "gantry_broker")
            broker = plan_broker(stage, names.address, settings, store=disk.path / "store", program=program)
            sent, found = _cut(broker, disk, names.address)
    finally:
        names.child.stop()
        shutil.rmtree(place, ignore_errors=True)
    acked = [one for one in sent if one.is_acknowledged]
    lost = [one for one in acked if one.number not in found]
    assert acked, f"no send succeeded: {clients.count_answers(sent)}"
    window = (
        f", those of the last {1000 * (max(one.at for one in acked) - min(one.at for one in lost)):,.0f} ms"
        if lost
        else ""
    )
    return len(lost), f"With {title}: {len(lost):,} of {len(acked):,} acknowledged messages are lost{window}."


def _cut(broker: BrokerPlan, disk: LoopDisk, name_server: str) -> tuple[list[Sent], set[int]]:
    """Return all sends up to the power loss, and the numbers of the messages that exist after the restart."""
    child = broker.start()
    sent = asyncio.run(_send_until_cut(child, disk, name_server))
    child.kill()
    disk.restore()
    child = broker.start()
    try:
        return sent, clients.numbers_of(asyncio.run(clients.read_topic(name_server)))
    finally:
        child.kill()


async def _send_until_cut(child: Child, disk: LoopDisk, name_server: str) -> list[Sent]:
    await clients.create_topic(name_server)
    async with clients.producer(name_server) as sender:
        loads = [asyncio.ensure_future(_send_in_turn(sender, first)) for first in range(IN_FLIGHT)]
        await asyncio.sleep(SECONDS)
        await suspend(child.process.pid)
        disk.cut_power()
        for load in loads:
            load.cancel()
        results: Sequence[list[Sent]] = await asyncio.gather(*loads)
    return [one for result in results for one in result]


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
cluster lose their power at about the same time, acknowledged messages are lost, or a whole stream, which the
documentation of the time did not mention.""",
    scenario=f"""\
A broker's disk is a file system that loses everything that was not synced. {IN_FLIGHT} senders send for
{SECONDS:.0f} s; then the disk is cut off, the broker is killed, and a new one starts on the disk as it was. The failure
occurs if an acknowledged message is missing with default settings. The same is repeated with a synchronous flush, which
must lose nothing.""",
    run=run,
    systems=(System.APACHE, System.GANTRY, System.TWIN),
    needs=dict.fromkeys(System, (Need.ROOT,)),
    twin="does not sync its files, with `SYNC_FLUSH`",
    remark="""\
Both brokers flush asynchronously by default, as RocketMQ's users expect, so both lose the end of the log.
[Promises](promises.md) states the window for each mode. A `BrokerGroup` replicates synchronously by default: then a
power failure of one machine loses nothing, and one of all machines at the same time loses the same window. NATS itself
is not run.""",
)
