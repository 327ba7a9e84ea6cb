"""SEND_OK after a failed flush, with SYNC_FLUSH: every sync of the broker fails, or its file system becomes read-only.

    sends succeed -> strace: msync, fsync and fdatasync of the broker return EIO -> sends -> the fault ends -> sends
    sends succeed -> ext4 of the store becomes read-only, as after an error of the disk -> sends

The failure has occurred if a send is answered with SEND_OK while every sync fails. Sends after the fault show whether
the broker continues on a disk whose last sync failed: the kernel may have dropped the pages of that sync, and reports
the error only once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from faults.altered_broker import __file__ as altered_broker
from faults.loop_disk import LoopDisk, loop_disk
from faults.power import suspend
from faults.strace import injected
from gantry_interop.processes import Child

from gantry_museum import clients
from gantry_museum.exhibit import Exhibit, Need, Outcome, Stage, System, Thread
from gantry_museum.servers import plan_broker, start_name_server

SENDS: Final = 20
DISK_MIB: Final = 2048
"""The image is sparse."""
SYNC_FLUSH: Final = {"flushDiskType": "SYNC_FLUSH"}
SYNCS: Final = "msync,fsync,fdatasync"
EVERY_CALL_FAILS: Final = "error=EIO:when=1+"
UNGUARDED: Final = (altered_broker, "--without", "sync-errors", "-m", "gantry_broker")


def run(stage: Stage) -> Outcome:
    """Run both faults, each with a broker of its own, and count the answers."""
    names = start_name_server(stage)
    program = UNGUARDED if stage.is_twin else ("-m", "gantry_broker")
    broker = plan_broker(stage, names.address, SYNC_FLUSH, program=program).start()
    with_errors = asyncio.run(_send_through(stage, names.address, broker))
    broker.kill()
    with loop_disk(stage.directory, size_mib=DISK_MIB) as disk:
        on_disk = plan_broker(stage, names.address, SYNC_FLUSH, store=disk.path / "store", program=program).start()
        read_only = asyncio.run(_send_to_read_only(names.address, on_disk, disk))
        on_disk.kill()
    return Outcome(with_errors.has_failed or read_only.has_failed, (*with_errors.facts, *read_only.facts))


async def _send_to_read_only(name_server: str, broker: Child, disk: LoopDisk) -> Outcome:
    await clients.create_topic(name_server)
    async with clients.producer(name_server) as sender:
        before = await clients.send_many(sender, range(SENDS))
        # Between system calls: a sync that overlaps the change may return 0 for bytes that are on no disk.
        await suspend(broker.process.pid)
        disk.make_read_only()
        os.kill(broker.process.pid, signal.SIGCONT)
        after = await clients.send_many(sender, range(SENDS, 2 * SENDS))
    assert all(one.is_acknowledged for one in before), f"before the fault: {clients.count_answers(before)}"
    fact = f"Answers of {SENDS} sends to a read-only file system: {clients.count_answers(after)}."
    return Outcome(any(one.is_acknowledged for one in after), (fact + _end_of(broker),))


def _end_of(broker: Child) -> str:
    return "" if broker.is_running() else f" The broker had ended with code {broker.process.wait()}."


async def _send_through(stage: Stage, name_server: str, broker: Child) -> Outcome:
    await clients.create_topic(name_server)
    async with clients.producer(name_server) as sender:
        before = await clients.send_many(sender, range(SENDS))
        trace = stage.directory / "trace"
        async with injected(broker.process.pid, SYNCS, EVERY_CALL_FAILS, trace) as injection:
            during = await clients.send_many(sender, range(SENDS, 2 * SENDS))
            failed = len(injection.hits())
        after = await clients.send_many(sender, range(2 * SENDS, 3 * SENDS))
    assert all(one.is_acknowledged for one in before), f"before the fault: {clients.count_answers(before)}"
    assert failed, "no sync has failed"
    return Outcome(
        any(one.is_acknowledged for one in during),
        (
            f"Answers of {SENDS} sends while every sync failed: {clients.count_answers(during)}.",
            f"Answers of {SENDS} sends after the fault: {clients.count_answers(after)}.{_end_of(broker)}",
        ),
    )


EXHIBIT: Final = Exhibit(
    name="failed-flush",
    title="SEND_OK after a failed flush",
    threads=(Thread("apache/rocketmq", (3129, 5235, 4306, 2706)),),
    reported="""\
With `flushDiskType=SYNC_FLUSH` the broker logged a failed sync of the log, and counted the range as flushed. The
producer got `SEND_OK`, and the messages were lost when the machine restarted. A disk that the kernel had made read-only
was one of the causes.""",
    scenario=f"""\
A broker with `SYNC_FLUSH` gets {SENDS} messages. Then every `msync`, `fsync` and `fdatasync` of its process fails with
EIO, and {SENDS} messages are sent; after that the fault ends, and {SENDS} more are sent. Another broker's file system
becomes read-only, as after an error of the disk. The failure occurs if a message is answered with `SEND_OK` while all
syncs fail, or from a read-only file system.""",
    run=run,
    systems=(System.APACHE, System.PREVIOUS, System.GANTRY, System.TWIN),
    needs=dict.fromkeys(System, (Need.STRACE, Need.ROOT)),
    twin="ignores errors of syncs",
)
