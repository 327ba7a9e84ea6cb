"""SEND_OK after a failed flush: every sync of the broker's files fails while messages are sent with SYNC_FLUSH.

    sends succeed -> strace: msync, fsync and fdatasync of the broker return EIO -> sends -> the fault ends -> sends

The failure has occurred if a send is answered with SEND_OK while every sync fails. Sends after the fault show whether
the broker continues on a disk whose last sync failed: the kernel may have dropped the pages of that sync, and reports
the error only once.
"""

from __future__ import annotations

import asyncio
from typing import Final

from faults.altered_broker import __file__ as altered_broker
from faults.strace import injected
from gantry_interop.processes import Child

from gantry_museum import clients
from gantry_museum.exhibit import Exhibit, Need, Outcome, Stage, System, Thread
from gantry_museum.servers import plan_broker, start_name_server

SENDS: Final = 20
SYNCS: Final = "msync,fsync,fdatasync"
EVERY_CALL_FAILS: Final = "error=EIO:when=1+"
UNGUARDED: Final = (altered_broker, "--without", "sync-errors", "-m", "gantry_broker")


def run(stage: Stage) -> Outcome:
    """Send before, during and after the fault, and count the answers."""
    names = start_name_server(stage)
    program = UNGUARDED if stage.is_twin else ("-m", "gantry_broker")
    broker = plan_broker(stage, names.address, {"flushDiskType": "SYNC_FLUSH"}, program=program)
    return asyncio.run(_send_through(stage, names.address, broker.start()))


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
    ended = "" if broker.is_running() else f" The broker had ended with code {broker.process.wait()}."
    return Outcome(
        any(one.is_acknowledged for one in during),
        (
            f"Answers of {SENDS} sends while every sync failed: {clients.count_answers(during)}.",
            f"Answers of {SENDS} sends after the fault: {clients.count_answers(after)}.{ended}",
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
EIO, and {SENDS} messages are sent; after that the fault ends, and {SENDS} more are sent. The failure occurs if a
message is answered with `SEND_OK` while all syncs fail.""",
    run=run,
    systems=(System.APACHE, System.PREVIOUS, System.GANTRY, System.TWIN),
    needs=dict.fromkeys(System, (Need.STRACE,)),
    twin="ignores errors of syncs",
)
