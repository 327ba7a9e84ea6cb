"""Damaged messages in whole brokers: never delivered, healed from a replica if there is one, and reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_cli.rates import parse_runtime_info
from gantry_status import LogRange
from gantry_testing.local import GROUP, TOPIC, dialogue, running_broker, wait_until
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.fastjson import loads
from gantry_wire.message import decode_records

MESSAGES = 20
DAMAGED_NUMBER = 7


def flip_bit(broker: Broker, number: int = DAMAGED_NUMBER, *, at: int = 95) -> int:
    """Flip a bit of a stored message, as another process would; return the offset of its record."""
    queue = broker.store.queues.get(TOPIC, 0)
    unit = None if queue is None else queue.unit(number)
    assert unit is not None
    file_size = broker.store.settings.mapped_file_size_commit_log
    path = Path(broker.store.root) / "commitlog" / f"{unit[0] - unit[0] % file_size:020d}"
    with path.open("r+b") as file:
        file.seek(unit[0] % file_size + at)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes((byte ^ 0x10,)))
    return unit[0]


async def send_all(broker: Broker) -> list[bytes]:
    bodies = [b"message %d, and a little more" % number for number in range(MESSAGES)]
    async with dialogue(broker) as client:
        for body in bodies:
            await client.send_ok(body)
    return bodies


async def pull_all(broker: Broker, *, wait_ms: int = 15_000) -> list[bytes]:
    """Pull like a consumer: from the offset of the last answer, held if there is no new message."""
    offset, bodies = 0, list[bytes]()
    async with dialogue(broker) as client:
        while offset < MESSAGES:
            reply = await client.pull(offset, wait_ms=wait_ms)
            if reply.code == ResponseCode.SUCCESS:
                bodies += [message.body for message in decode_records(reply.body)]
            else:
                assert reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY), reply
            offset = int(reply.ext["nextBeginOffset"])
    return bodies


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master that waits for its slave, and the slave."""
    async with running_broker(folder / "master", disk=None, clock=None, brokerRole="SYNC_MASTER") as master:
        conf = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.settings.ha_address}
        async with running_broker(folder / "slave", disk=None, clock=None, **conf) as slave:
            await wait_until(lambda: len(master.replication.acks) == 1)
            yield master, slave


@pytest.mark.parametrize("side", ["master", "slave"])
async def test_consumer_receives_a_damaged_message_when_it_is_healed(tmp_path: Path, side: str) -> None:
    """It waits for the message instead of skipping it, on whichever broker it reads, and misses none."""
    async with pair(tmp_path) as (master, slave):
        bodies = await send_all(master)
        await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)
        broker = master if side == "master" else slave
        flip_bit(broker)

        assert await pull_all(broker) == bodies
        assert broker.store.guard.damage.integrity.healed_records == 1
        assert (
            broker.store.guard.damage.integrity.damaged_records == broker.store.guard.damage.integrity.lost_records == 0
        )


async def test_single_broker_skips_a_damaged_message_and_reports_it(tmp_path: Path) -> None:
    """A single broker does not wait for a replica; the status page has the number of damaged messages."""
    async with running_broker(tmp_path, disk=None, clock=None) as broker:
        bodies = await send_all(broker)
        flip_bit(broker)

        assert await pull_all(broker, wait_ms=0) == bodies[:DAMAGED_NUMBER] + bodies[DAMAGED_NUMBER + 1 :]
        shown = broker.status.snapshot()
        assert (shown.damaged_records, shown.damaged_records_found, shown.healed_records) == (1, 1, 0)
        async with dialogue(broker) as peer:
            table = loads((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        facts, [one] = parse_runtime_info(table, 0.0), broker.store.guard.damage.damaged
        assert (facts.damaged_records, facts.damaged) == (1, (LogRange(one.start, one.end),))


async def test_single_broker_is_incomplete_while_a_message_is_damaged(tmp_path: Path) -> None:
    """Without a replica nothing heals the damage: the status reports missing data until the record is good again."""
    async with running_broker(tmp_path, disk=None, clock=None) as broker:
        await send_all(broker)
        assert broker.roles.report().is_complete is True
        place = flip_bit(broker)
        await pull_all(broker, wait_ms=0)

        assert broker.roles.report().is_complete is False
        assert broker.roles.report().damaged_bytes == broker.store.guard.damage.damaged[0].end - place > 0

        end = broker.store.guard.damage.damaged[0].end
        flip_bit(broker)
        broker.store.guard.damage.mark_good(place, end)
        assert broker.roles.report().is_complete is True
        assert broker.roles.report().damaged_bytes == 0


async def test_damaged_message_is_not_found_by_offset_nor_sent_back(tmp_path: Path) -> None:
    """Requests that name the message by its offset are refused with a reason, and store nothing altered."""
    async with running_broker(tmp_path, disk=None, clock=None) as broker:
        await send_all(broker)
        place, wrote = flip_bit(broker), broker.store.log.wrote
        async with dialogue(broker) as client:
            await client.make_group()
            viewed = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
            back = {"offset": str(place), "group": GROUP, "delayLevel": "0", "originMsgId": "x", "originTopic": TOPIC}
            returned = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)

        assert viewed.code == returned.code == ResponseCode.SYSTEM_ERROR
        assert str(place) in (viewed.remark or "") and str(place) in (returned.remark or "")
        assert broker.store.log.wrote == wrote
