"""Timers that are late by minutes: many messages with a time of their own are due in the same second.

    sends, all with the same time of delivery -> that time -> all are in their topic -> lateness of each

The lateness of a message is the time at which the broker stored it in its topic, minus the time at which it was due.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Final

from gantry_interop.processes import Child

from gantry_client import Admin, Message
from gantry_museum import clients
from gantry_museum.exhibit import Exhibit, Outcome, Stage, System, Thread
from gantry_museum.servers import plan_broker, start_name_server

TIMERS: Final = 50_000
TIMERS_OF_TWIN: Final = 1_000
SENDERS: Final = 128
DUE_S: Final = 100
"""When the messages are due after the first send, which is longer than all sends take."""
LATE_MS: Final = 30_000
"""The failure: the smallest lateness in the report is 31 s."""
SUSPENDED_S: Final = 40
DELIVERED_SECONDS_MAX: Final = 240.0
POLL_S: Final = 0.5


def run(stage: Stage) -> Outcome:
    """Send the timers, and measure how late they are."""
    names = start_name_server(stage)
    return asyncio.run(_measure(stage, names.address, plan_broker(stage, names.address).start()))


async def _measure(stage: Stage, name_server: str, broker: Child) -> Outcome:
    count = TIMERS_OF_TWIN if stage.is_twin else TIMERS
    await clients.create_topic(name_server)
    began = time.monotonic()
    due_ms = (int(time.time()) + DUE_S) * 1_000
    numbers = iter(range(count))
    async with clients.producer(name_server) as sender:

        async def send_next() -> None:
            for number in numbers:
                receipt = await sender.send(Message(clients.TOPIC, str(number).encode(), deliver_at_ms=due_ms))
                assert receipt.is_acknowledged, receipt

        await asyncio.gather(*(send_next() for _ in range(SENDERS)))
    send_s = time.monotonic() - began
    assert time.time() * 1_000 < due_ms, f"the sends took {send_s:.0f} s"
    if stage.is_twin:
        await _suspend(broker, due_ms)
    await _wait_delivered(name_server, count)
    late_ms = sorted(one.store_timestamp_ms - due_ms for one in await clients.read_topic(name_server))
    assert len(late_ms) >= count, f"{len(late_ms)} of {count} messages were delivered"
    median, most = late_ms[len(late_ms) // 2], late_ms[-1]
    return Outcome(
        most > LATE_MS,
        (
            f"{count:,} timers were due in one second: the first one was stored {late_ms[0] / 1_000:.1f} s after it,"
            f" the median {median / 1_000:.1f} s, and the last one {most / 1_000:.1f} s.",
        ),
    )


async def _suspend(broker: Child, due_ms: int) -> None:
    """Suspend the broker from just before the messages are due."""
    await asyncio.sleep(max(due_ms / 1_000 - time.time() - 1, 0))
    os.kill(broker.process.pid, signal.SIGSTOP)
    await asyncio.sleep(SUSPENDED_S)
    os.kill(broker.process.pid, signal.SIGCONT)


async def _wait_delivered(name_server: str, count: int) -> None:
    """Wait until so many messages are in the topic, or the limit is over."""
    deadline = time.monotonic() + DUE_S + DELIVERED_SECONDS_MAX
    async with Admin(name_server) as admin:
        while time.monotonic() < deadline:
            stats = await admin.topics.stats(clients.TOPIC)
            if sum(one.max_offset - one.min_offset for one in stats.values()) >= count:
                return
            await asyncio.sleep(POLL_S)


EXHIBIT: Final = Exhibit(
    name="late-timers",
    title="Timers late by minutes",
    threads=(Thread("apache/rocketmq", (6566,)),),
    reported="""\
With RocketMQ 5.0, messages with a time of delivery arrived late: 31 s and 52 s with delays of up to ten minutes, and
from two and a half to nine minutes with longer ones. A maintainer explained that more messages may be due in a second
than are delivered in one, and asked for their number.""",
    scenario=f"""\
{TIMERS:,} messages are due in the same second, {DUE_S} s after the first send. The failure occurs if one of them is
stored in its topic more than {LATE_MS // 1000} s late.""",
    run=run,
    systems=(System.APACHE, System.GANTRY, System.TWIN),
    twin=f"is suspended for {SUSPENDED_S} s when the messages are due",
    remark="""\
The load of the reporter is not known, so this shows how both brokers deliver a burst, and not the cause of the report.
[Benchmarks](benchmarks.md) has the lateness over hours.""",
)
