"""Worlds: used stores, copied at the moments at which trials begin, with the ledgers of their clients.

    life 1 --- stop ---> `older-1`    life 2 --- a while ---> `older-2` --- its end ---> `unclean` --- stop ---> `clean`

A shard has two lives. Messages of all kinds are sent, consumed, delayed, retried, ended and left open; settings and
tables change in both lives, so that an older copy of each file differs from the newest. A copy of a running broker's
files equals the state after `kill -9`: page cache and buffers survive, memory is lost. A foreign world is made in the
same way, with other bodies and another identity.
"""

from __future__ import annotations

import asyncio
import os
import random
from functools import partial
from pathlib import Path
from typing import Final, final

from damage.harms import copy_member
from damage.ledger import Known, Ledger, Owed
from damage.shard import FIRST_EPOCH, Setup, Shard, ShiftedClock, wait_until_met
from damage.talk import (
    COMMIT,
    ROLL_BACK,
    commit_offset,
    committed_offset,
    end_transaction,
    make_topic,
    prepare,
    read_queue,
    send,
)

from gantry_broker.app import Broker
from gantry_testing.local import Dialogue, dialogue
from gantry_wire import RequestCode

BUSY, LATER, DEALS, LATE_TOPIC = "Busy", "Later", "Deals", "Young"
"""Topics of ordinary, delayed and transaction messages, and a topic that is created in the second life."""
READERS, FAILING = "Readers", "Failing"
QUEUES: Final = {BUSY: 2, LATER: 1, DEALS: 1, LATE_TOPIC: 3}
RETRIED: Final = f"%RETRY%{FAILING}"
TAGS: Final = ("red", "green", "blue")
MESSAGES: Final = (150, 130, 80)
"""Number of ordinary messages in the first life, in the second before the copy `older-2`, and after it."""
HOURS_MS: Final = 3 * 3_600_000
"""Clock offset of trials relative to worlds, after which all delayed messages are due."""
SETTING: Final = ("maxBatchMessages", "77")
OLDER: Final = ("older-1", "older-2")
CLEAN, UNCLEAN = "clean", "unclean"


@final
class WorldBuilder:
    """Builds one world in the current directory of this process. Owned by one loop."""

    def __init__(self, setup: Setup, seed: int, *, is_pooled: bool) -> None:
        self._dice: Final = random.Random(f"{seed}/{setup}/{is_pooled}")
        self._clock: Final = ShiftedClock()
        self._setup: Final = setup
        self._is_pooled: Final = is_pooled
        self._marker: Final = self._dice.randbytes(6).hex()
        self._serial = 0
        self._bodies: dict[str, bytes] = {}
        self.ledger: Final = Ledger(epoch=FIRST_EPOCH)

    async def build(self) -> Ledger:
        """Run both lives; the copies are created beside, each in a folder with the members' folders."""
        shard = Shard(self._setup, self._clock, is_pooled=self._is_pooled)
        await shard.begin()
        master = shard.master
        assert master is not None, shard.refusals
        assert await shard.level(), "no slave follows"
        async with dialogue(master) as peer:
            await self._make_tables(peer, first=True)
            await self._live(master, peer, MESSAGES[0])
        await self._settle(shard)
        await shard.close()
        self._copy(shard, OLDER[0])

        shard = Shard(self._setup, self._clock, is_pooled=self._is_pooled, epoch=FIRST_EPOCH)
        await shard.start_all()
        await shard.lead(regains=False)
        master = shard.master
        assert master is not None and await shard.level(), "no slave follows"
        async with dialogue(master) as peer:
            await self._make_tables(peer, first=False)
            await self._live(master, peer, MESSAGES[1])
            await self._settle(shard)
            self._copy(shard, OLDER[1])
            self.ledger.flushed = await asyncio.to_thread(master.store.flush)
            await self._fill(peer, MESSAGES[2])
            await self._leave_open(peer)
            await self._settle(shard)
            await self._write_down(shard, master, peer)
        self._copy(shard, UNCLEAN)
        await shard.close()
        self._copy(shard, CLEAN)
        return self.ledger

    def _copy(self, shard: Shard, name: str) -> None:
        for number in shard.numbers:
            copy_member(Path(str(number)), Path(name) / str(number))

    async def _settle(self, shard: Shard) -> None:
        """Wait until slaves have caught up and tables are on the disks."""
        assert await shard.level(), "a slave does not catch up"
        master = shard.master
        assert master is not None
        for broker in shard.brokers.values():
            if broker is not master:
                are_same = partial(_have_same_offsets, master, broker)
                assert await wait_until_met(are_same, 20), "a slave does not get the offsets"
            broker.core.persistence.mark("consumerOffset", now=False)
            broker.core.persistence.mark("delayOffset", now=False)
            broker.core.persistence.mark("queueLocks", now=False)
            await broker.core.persistence.write_stale()

    async def _make_tables(self, peer: Dialogue, *, first: bool) -> None:
        if first:
            for topic in (BUSY, LATER, DEALS):
                await make_topic(peer, topic, QUEUES[topic])
        else:
            await make_topic(peer, LATE_TOPIC, QUEUES[LATE_TOPIC])
        for group, retries in ((READERS, 5 if first else 6), (FAILING, 3 if first else 4)):
            document = {"groupName": group, "retryMaxTimes": retries}
            await peer.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=document)
        value = "33" if first else SETTING[1]
        reply = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, f"{SETTING[0]}={value}\n".encode())
        assert reply.code == 0, reply
        self.ledger.setting = SETTING
        queues = [{"topic": BUSY, "brokerName": "shard", "queueId": number} for number in range(1 if first else 2)]
        locked = {"consumerGroup": READERS, "clientId": "reader", "mqSet": queues}
        await peer.heartbeat("reader", group=READERS, topic=BUSY)
        if self._setup is Setup.ALONE:  # A new master gives no queue locks for a minute.
            await peer.ask_json(RequestCode.LOCK_BATCH_MQ, body=locked)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _next(self, *, body_bytes: int = 0) -> tuple[str, bytes]:
        self._serial += 1
        unique = f"{self._marker}{self._serial:020X}"
        length = body_bytes or self._dice.choice((40, 700, 1_200, 1_900))
        body = f"{unique}:".encode() + self._dice.randbytes(length)
        self._bodies[unique] = body
        return unique, body

    async def _fill(self, peer: Dialogue, count: int) -> None:
        for _ in range(count):
            unique, body = self._next()
            queue_id = self._dice.randrange(QUEUES[BUSY])
            answer = await send(
                peer, BUSY, queue_id, body, UNIQ_KEY=unique, KEYS=f"key-{self._serial} every-{self._serial % 10}",
                TAGS=self._dice.choice(TAGS), own=f"o{self._serial}",
            )  # fmt: skip
            assert answer.code == 0, answer

    async def _live(self, master: Broker, peer: Dialogue, count: int) -> None:
        """Send a share of all kinds of messages."""
        await self._fill(peer, count // 2)
        for _ in range(3):
            await self._delayed(peer, "1")
        for _ in range(2):
            await self._delayed(peer, "2")
        await self._transactions(peer)
        await self._retries(peer)
        self._clock.shift_ms += 2_000
        await self._delivered(master)
        await self._fill(peer, count - count // 2)
        await self._consume(peer)

    async def _delayed(self, peer: Dialogue, level: str) -> None:
        unique, body = self._next(body_bytes=100)
        answer = await send(peer, LATER, 0, body, UNIQ_KEY=unique, DELAY=level)
        assert answer.code == 0, answer
        self.ledger.owed.append(Owed(LATER, 0, unique, body, physical=answer.physical))

    async def _transactions(self, peer: Dialogue) -> None:
        for how in (COMMIT, ROLL_BACK, COMMIT):
            unique, body = self._next(body_bytes=150)
            half = await prepare(peer, DEALS, 0, body, unique)
            assert (await end_transaction(peer, half, how)).code == 0
            self.ledger.ended.append(unique)

    async def _leave_open(self, peer: Dialogue) -> None:
        for _ in range(2):
            unique, body = self._next(body_bytes=150)
            self.ledger.owed.append(await prepare(peer, DEALS, 0, body, unique))

    async def _retries(self, peer: Dialogue) -> None:
        """Let some messages be redelivered after a second."""
        served = await read_queue(peer, BUSY, 0)
        for message in self._dice.sample(served.messages, 3):
            fields = {"offset": str(message.physical), "group": FAILING, "delayLevel": "1", "originTopic": BUSY}
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0

    async def _delivered(self, master: Broker) -> None:
        """Wait until messages that were delayed for a second have arrived."""
        due = self._due = getattr(self, "_due", 0) + 3
        has_come = await wait_until_met(lambda: _end(master, LATER) >= due and _end(master, RETRIED) >= due, 20)
        assert has_come, "not delivered"

    async def _consume(self, peer: Dialogue) -> None:
        for queue_id in range(QUEUES[BUSY]):
            served = await read_queue(peer, BUSY, queue_id)
            await commit_offset(peer, READERS, BUSY, queue_id, len(served.messages) * 3 // 4)

    # -- what is known in the end --------------------------------------------------------------------------------------

    async def _write_down(self, shard: Shard, master: Broker, peer: Dialogue) -> None:
        ledger, store = self.ledger, master.store
        for topic, queues in {**QUEUES, RETRIED: 1}.items():
            for queue_id in range(queues):
                served = await read_queue(peer, topic, queue_id)
                assert not served.problem, served.problem
                ledger.known += [self._checked(message) for message in served.messages]
        seen = {message.unique for message in ledger.known}
        ledger.owed = [one for one in ledger.owed if one.unique not in seen]
        assert len(ledger.owed) == 6, ledger.owed
        for queue_id in range(QUEUES[BUSY]):
            offset = await committed_offset(peer, READERS, BUSY, queue_id)
            assert offset is not None
            ledger.offsets.append((READERS, BUSY, queue_id, offset))
        ledger.topics = {name: (number, number) for name, number in QUEUES.items()}
        ledger.groups = {READERS: 6, FAILING: 4}
        for topic, ids in store.queues.topics().items():
            for queue_id in ids:
                queue = store.queues.get(topic, queue_id)
                assert queue is not None
                ledger.queue_ends.append((topic, queue_id, queue.end))
        ledger.wrote, ledger.epoch, ledger.master = store.log.wrote, shard.epoch, shard.master_number
        ledger.epochs = [(one.epoch, one.start) for one in store.identity.epochs]

    def _checked(self, message: Known) -> Known:
        assert message.body == self._bodies[message.unique], f"{message.place} is not what was sent"
        return message


def _end(broker: Broker, topic: str, queue_id: int = 0) -> int:
    queue = broker.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.readable_end


def _have_same_offsets(one: Broker, other: Broker) -> bool:
    tables = [broker.core.offsets.document().offset_table for broker in (one, other)]
    return tables[0].get(f"{BUSY}@{READERS}") == tables[1].get(f"{BUSY}@{READERS}")


async def build_world(folder: Path, setup: Setup, seed: int, *, is_pooled: bool) -> None:
    """Build a world in ``folder``, which becomes this process's current directory."""
    os.chdir(folder)
    ledger = await WorldBuilder(setup, seed, is_pooled=is_pooled).build()
    ledger.save(folder)
