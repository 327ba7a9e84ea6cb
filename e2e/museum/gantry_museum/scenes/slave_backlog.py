"""A backlog that consumers cannot read from the slave: the master is stopped before the group has consumed it.

master and slave -> the group consumes one message and stops -> 20 messages -> the slave has them and the group
-> the master is stopped -> a consumer of the group starts, and must get the 20 messages from the slave
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from gantry_interop import probe
from gantry_interop.errors import DeadlineExceeded
from gantry_interop.processes import wait_until

from gantry_client import (
    ClientError,
    ClientSettings,
    ConsumerSettings,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from gantry_museum import clients
from gantry_museum.exhibit import Exhibit, Outcome, Stage, System, Thread
from gantry_museum.servers import READY_SECONDS_MAX, BrokerPlan, plan_broker, start_name_server
from gantry_museum.unguarded_broker import __file__ as unguarded_broker

BACKLOG: Final = 20
GROUP: Final = "museum-group"
CONSUME_SECONDS_MAX: Final = 90.0
"""How long the consumer waits for the backlog: three times the interval in which clients ask for routes."""
COPY_SECONDS_MAX: Final = 100.0
"""RocketMQ's slave copies topics and offsets about every minute."""
END: Final = BACKLOG + 1
QUERY_CONSUMER_OFFSET: Final = 14
GET_MAX_OFFSET: Final = 30
QUICK_ROUTES: Final = ClientSettings(route_poll_interval_ms=5_000)
FROM_FIRST: Final = ConsumerSettings(start_from=StartFrom.FIRST)


def run(stage: Stage) -> Outcome:
    """Read the backlog with the default settings of both brokers, and with slaveReadEnable."""
    missed, fact = _consume_from_slave(stage, "default settings", {})
    if not stage.is_apache:
        return Outcome(missed > 0, (fact,))
    _, other = _consume_from_slave(stage, "slaveReadEnable=true", {"slaveReadEnable": "true"})
    return Outcome(missed > 0, (fact, other))


def _consume_from_slave(stage: Stage, title: str, settings: Mapping[str, str]) -> tuple[int, str]:
    names = start_name_server(stage)
    place = stage.directory / title.replace(" ", "-")
    master = plan_broker(stage, names.address, settings, store=place / "master")
    program = (unguarded_broker, "slave-reads") if stage.is_twin else ("-m", "gantry_broker")
    slave = plan_broker(stage, names.address, settings, number=1, store=place / "slave", program=program)
    master_child = master.start()
    slave_child = slave.start()
    asyncio.run(_make_backlog(names.address))
    wait_until("the slave has the messages", lambda: _ask(slave, GET_MAX_OFFSET) == END, COPY_SECONDS_MAX, slave_child)
    with suppress(DeadlineExceeded):
        wait_until("the slave has the offset", lambda: _ask(slave, QUERY_CONSUMER_OFFSET) == 1, COPY_SECONDS_MAX)
    offset = _ask(slave, QUERY_CONSUMER_OFFSET)
    master_child.stop(READY_SECONDS_MAX)
    began = time.monotonic()
    found = asyncio.run(_consume(names.address, set(range(1, END)), CONSUME_SECONDS_MAX)) - {0}
    seconds = time.monotonic() - began
    for child in (slave_child, names.child):
        child.kill()
    copied = "had" if offset == 1 else "did not have"
    return BACKLOG - len(found), (
        f"With {title}, the slave {copied} the group's offset after {COPY_SECONDS_MAX:.0f} s at most, and the consumer "
        f"got {len(found)} of {BACKLOG} messages in {seconds:.0f} s."
    )


async def _make_backlog(name_server: str) -> None:
    """Let the group consume one message, so that brokers know it; then send the backlog."""
    await clients.create_topic(name_server, queues=1)
    async with clients.producer(name_server) as sender:
        first = await clients.send_one(sender, 0)
        assert first.is_acknowledged, first.answer
        assert await _consume(name_server, {0}, CONSUME_SECONDS_MAX) == {0}
        sent = await clients.send_many(sender, range(1, END))
    assert all(one.is_acknowledged for one in sent), clients.count_answers(sent)


async def _consume(name_server: str, wanted: set[int], seconds_max: float) -> set[int]:
    """Return the numbers of the messages that a consumer of the group gets, at the latest when it has all of these."""
    found: set[int] = set()
    complete = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        found.add(int(message.body))
        if wanted <= found:
            complete.set()

    consumer = PushConsumer(
        name_server, GROUP, topics={clients.TOPIC: "*"}, handler=handle, settings=FROM_FIRST,
        client_settings=QUICK_ROUTES,
    )  # fmt: skip
    with suppress(ClientError, TimeoutError):
        async with consumer:
            await asyncio.wait_for(complete.wait(), seconds_max)
    return found


def _ask(slave: BrokerPlan, code: int) -> int:
    """Return the offset in a slave's answer about the topic's only queue and the group; -1 without one."""
    fields = {"topic": clients.TOPIC, "queueId": "0", "consumerGroup": GROUP, "setZeroIfNotFound": "false"}
    try:
        return int(probe.send_request(slave.address, code, fields).fields.get("offset", "-1"))
    except OSError:
        return -1


EXHIBIT: Final = Exhibit(
    name="slave-backlog",
    title="Backlog unreadable on a slave",
    threads=(Thread("apache/rocketmq", (9879,)),),
    reported="""\
In a cluster of masters and slaves without a controller, producers sent 20 messages while no consumer ran. When the
masters were stopped, the route showed the topic as read-only on the slaves and consumers connected to them, but got
none of the messages. A setting that only a picture in the thread shows solved it for the reporter.""",
    scenario=f"""\
A group consumes one message and stops; {BACKLOG} more are sent. When the slave has them, and the group's offset, the
master is stopped and a consumer of the group starts. The failure occurs if it does not get the {BACKLOG} messages
within {CONSUME_SECONDS_MAX:.0f} s.""",
    run=run,
    systems=(System.APACHE, System.PREVIOUS, System.GANTRY, System.TWIN),
    twin="serves no pulls from slaves",
    remark="""\
`slaveReadEnable` decides in RocketMQ whether a slave answers consumers at all, and is false by default. In Gantry it
only decides whether a consumer that lags is sent to a slave. That RocketMQ's slave does not have the group's offset is
another report,
[apache/rocketmq#10284](https://github.com/apache/rocketmq/issues/10284).""",
)
