"""Templates: stores that were used in two runs, copied at the moments at which trials begin.

Each has a document with what its clients may expect (``expectations``).

    run 1 --- stop ---> `older-1`    run 2 --- a while ---> `older-2` --- its end ---> `unclean` --- stop ---> `clean`

In both runs messages of all kinds are sent, consumed, delayed and retried, transactions are ended or left open, and
settings and tables change, so that an older copy of each file differs from the newest. A copy of a running broker's
files equals the state after `kill -9`: page cache and buffers survive, memory is lost. A foreign template is made in
the same way, with other bodies and another identity.
"""

from __future__ import annotations

import asyncio
import os
import random
from functools import partial
from pathlib import Path
from typing import Final, final

from damage.client_requests import (
    COMMIT,
    ROLL_BACK,
    commit_offset,
    committed_offset,
    end_transaction,
    make_topic,
    read_queue,
    send,
    send_half_message,
)
from damage.damage_kinds import copy_member
from damage.expectations import Expectations, Message, PendingMessage
from damage.plan import TemplateKind
from damage.shard import FIRST_EPOCH, Setup, Shard, ShiftedClock, wait_until_met
from damage.trial_accounts import TemplateUsers, account_settings, super_dialogue, users_of

from gantry_broker.app import Broker
from gantry_testing.local import Dialogue, properties_text
from gantry_wire import RequestCode
from gantry_wire.message import parse_offset_message_id
from gantry_wire.names import TIMER_TOPIC

BUSY, LATER, DEALS, LATE_TOPIC = "Busy", "Later", "Deals", "Young"
"""Topics of ordinary, delayed and transaction messages, and a topic that is created in the second run."""
READERS, FAILING = "Readers", "Failing"
"""Consumer groups: one commits offsets, the other sends messages back."""
QUEUES: Final = {BUSY: 2, LATER: 1, DEALS: 1, LATE_TOPIC: 3}
"""The number of queues of each topic."""
RETRIED: Final = f"%RETRY%{FAILING}"
"""The topic of the messages that are retried."""
TAGS: Final = ("red", "green", "blue")
MESSAGES: Final = (150, 130, 80)
"""Number of ordinary messages in the first run, in the second before the copy `older-2`, and after it."""
HOUR_MS: Final = 3_600_000
TIMER_HOURS: Final = (0.05, 0.1, 0.7, 1.9)
"""In how many hours the timers of each run are due. The first one is recalled."""
SOON_MS: Final = 1_000
"""In how many ms one more timer of each run is due, which is delivered before the copies."""
SOON_MESSAGES: Final = {LATER: 4, RETRIED: 3}
"""How many messages of each run, delayed by a second or timers, are delivered in the run."""
PENDING: Final = 6 + 2 * (len(TIMER_HOURS) - 1)
"""How many messages wait in the end: delayed ones, half messages and the timers of both runs."""
HOURS_MS: Final = 3 * HOUR_MS
"""Clock offset of trials relative to templates, after which all delayed messages are due."""
SETTING: Final = ("maxBatchMessages", "77")
"""The setting that is changed at run time, and its last value."""
OLDER: Final = ("older-1", "older-2")
"""The folders of the two earlier copies, from which a file is rolled back."""
CLEAN, UNCLEAN = "clean", "unclean"
"""The folders of the copies after a stop and after a kill, with which trials begin."""


@final
class TemplateBuilder:
    """Builds one template in the current directory of this process. Owned by one loop."""

    def __init__(self, kind: TemplateKind, seed: int) -> None:
        self._rng: Final = random.Random(f"{seed}/{kind.folder_name()}")
        self._clock: Final = ShiftedClock()
        self._kind: Final = kind
        self._marker: Final = self._rng.randbytes(6).hex()
        self._users: Final = TemplateUsers(self._marker, topic=BUSY, other_topic=LATER, group=READERS)
        self._serial = 0
        self._rounds = 0
        """How often messages of all kinds were sent."""
        self._bodies: dict[str, bytes] = {}
        self.expectations: Final = Expectations(epoch=FIRST_EPOCH)

    async def build(self) -> Expectations:
        """Use the shard in both runs; the copies are created beside it, each in a folder with the members' folders."""
        shard = self._shard()
        await shard.start_new()
        master = shard.master
        assert master is not None, shard.refusals
        assert await shard.wait_until_caught_up(), "no slave follows"
        async with super_dialogue(master) as peer:
            await self._make_tables(peer, first=True)
            await self._send_all_kinds(master, peer, MESSAGES[0])
        await self._wait_until_settled(shard)
        await shard.close()
        self._copy(shard, OLDER[0])

        shard = self._shard()
        await shard.start_all()
        await shard.promote_master(can_regain=False)
        master = shard.master
        assert master is not None and await shard.wait_until_caught_up(), "no slave follows"
        async with super_dialogue(master) as peer:
            await self._make_tables(peer, first=False)
            await self._send_all_kinds(master, peer, MESSAGES[1])
            await self._wait_until_settled(shard)
            self._copy(shard, OLDER[1])
            self.expectations.flushed = await asyncio.to_thread(master.store.flush)
            await self._fill(peer, MESSAGES[2])
            await self._leave_open(peer)
            if self._kind.has_users:
                await self._users.change_at_last(peer)
            await self._wait_until_settled(shard)
            await self._write_down(shard, master, peer)
        self._copy(shard, UNCLEAN)
        await shard.close()
        self._copy(shard, CLEAN)
        return self.expectations

    def _shard(self) -> Shard:
        """Return the brokers of the template, which are not started yet."""
        kind = self._kind
        shard = Shard(kind.setup, self._clock, has_write_buffers=kind.has_write_buffers, epoch=FIRST_EPOCH)
        if kind.has_users:
            shard.change_settings(**account_settings())
        return shard

    def _copy(self, shard: Shard, name: str) -> None:
        for number in shard.numbers:
            copy_member(Path(str(number)), Path(name) / str(number))

    async def _wait_until_settled(self, shard: Shard) -> None:
        """Wait until slaves have caught up and tables are on the disks."""
        assert await shard.wait_until_caught_up(), "a slave does not catch up"
        master = shard.master
        assert master is not None
        for broker in shard.brokers.values():
            if broker is not master:
                are_same = partial(_have_same_tables, master, broker)
                assert await wait_until_met(are_same, 20), "a slave does not get the tables"
            has_flushed = partial(_has_flushed_timers, broker)
            assert await wait_until_met(has_flushed, 30), "timers are not in their files"
            broker.core.persistence.mark("consumerOffset", now=False)
            broker.core.persistence.mark("timerProgress", now=False)
            broker.core.persistence.mark("delayOffset", now=False)
            broker.core.persistence.mark("queueLocks", now=False)
            await broker.core.persistence.write_stale()

    async def _make_tables(self, peer: Dialogue, *, first: bool) -> None:
        """Create or change users, topics, groups, the setting and queue locks, for the first run or the second."""
        if self._kind.has_users:
            change = self._users.change_in_first_run if first else self._users.change_in_second_run
            await change(peer)
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
        self.expectations.setting = SETTING
        queues = [{"topic": BUSY, "brokerName": "shard", "queueId": number} for number in range(1 if first else 2)]
        locked = {"consumerGroup": READERS, "clientId": "reader", "mqSet": queues}
        await peer.heartbeat("reader", group=READERS, topic=BUSY)
        if self._kind.setup is Setup.ALONE:  # A new master gives no queue locks for a minute.
            await peer.ask_json(RequestCode.LOCK_BATCH_MQ, body=locked)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _next(self, *, body_bytes: int = 0) -> tuple[str, bytes]:
        self._serial += 1
        unique = f"{self._marker}{self._serial:020X}"
        length = body_bytes or self._rng.choice((40, 700, 1_200, 1_900))
        body = f"{unique}:".encode() + self._rng.randbytes(length)
        self._bodies[unique] = body
        return unique, body

    async def _fill(self, peer: Dialogue, count: int) -> None:
        """Send so many ordinary messages to random queues."""
        for _ in range(count):
            unique, body = self._next()
            queue_id = self._rng.randrange(QUEUES[BUSY])
            answer = await send(
                peer, BUSY, queue_id, body, UNIQ_KEY=unique, KEYS=f"key-{self._serial} every-{self._serial % 10}",
                TAGS=self._rng.choice(TAGS), own=f"o{self._serial}",
            )  # fmt: skip
            assert answer.code == 0, answer

    async def _send_all_kinds(self, master: Broker, peer: Dialogue, count: int) -> None:
        """Send a share of all kinds of messages."""
        await self._fill(peer, count // 2)
        for _ in range(3):
            await self._delayed(peer, "1")
        for _ in range(2):
            await self._delayed(peer, "2")
        await self._timers(peer)
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
        self.expectations.pending.append(PendingMessage(LATER, 0, unique, body, physical_offset=answer.physical_offset))

    async def _timers(self, peer: Dialogue) -> None:
        """Send timers that are due soon, in this hour and in later ones; recall one, which must never be delivered."""
        for number, delay_ms in enumerate((SOON_MS, *(int(hours * HOUR_MS) for hours in TIMER_HOURS))):
            unique, body = self._next(body_bytes=100)
            due_ms = str(self._clock.wall_ms() + delay_ms)
            properties = properties_text(WAIT="true", UNIQ_KEY=unique, TIMER_DELIVER_MS=due_ms)
            reply = await peer.send(body, topic=LATER, queueId="0", properties=properties)
            assert reply.code == 0, reply
            if number == 0:
                self.expectations.delivered_timers.append(unique)
            if number == 1:
                fields = {"topic": LATER, "recallHandle": reply.ext["recallHandle"], "producerGroup": "producers"}
                assert (await peer.ask(RequestCode.RECALL_MESSAGE, fields)).code == 0
                continue
            physical_offset = parse_offset_message_id(reply.ext["msgId"])[2]
            pending = PendingMessage(LATER, 0, unique, body, physical_offset=physical_offset, is_timer=True)
            self.expectations.pending.append(pending)

    async def _transactions(self, peer: Dialogue) -> None:
        for how in (COMMIT, ROLL_BACK, COMMIT):
            unique, body = self._next(body_bytes=150)
            half = await send_half_message(peer, DEALS, 0, body, unique)
            assert (await end_transaction(peer, half, how)).code == 0
            self.expectations.ended.append(unique)

    async def _leave_open(self, peer: Dialogue) -> None:
        """Send half messages whose transactions stay open."""
        for _ in range(2):
            unique, body = self._next(body_bytes=150)
            self.expectations.pending.append(await send_half_message(peer, DEALS, 0, body, unique))

    async def _retries(self, peer: Dialogue) -> None:
        """Let some messages be redelivered after a second."""
        served = await read_queue(peer, BUSY, 0)
        for message in self._rng.sample(served.messages, 3):
            fields = {"offset": str(message.physical_offset), "group": FAILING, "delayLevel": "1", "originTopic": BUSY}
            assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0

    async def _delivered(self, master: Broker) -> None:
        """Wait until messages that were delayed for a second have arrived."""
        self._rounds += 1
        due = {topic: count * self._rounds for topic, count in SOON_MESSAGES.items()}
        has_come = await wait_until_met(lambda: all(_end(master, topic) >= due[topic] for topic in due), 20)
        assert has_come, "not delivered"

    async def _consume(self, peer: Dialogue) -> None:
        for queue_id in range(QUEUES[BUSY]):
            served = await read_queue(peer, BUSY, queue_id)
            await commit_offset(peer, READERS, BUSY, queue_id, len(served.messages) * 3 // 4)

    # -- what is known in the end --------------------------------------------------------------------------------------

    async def _write_down(self, shard: Shard, master: Broker, peer: Dialogue) -> None:
        """Record what clients may expect from now on."""
        expectations, store = self.expectations, master.store
        for topic, queues in {**QUEUES, RETRIED: 1}.items():
            for queue_id in range(queues):
                served = await read_queue(peer, topic, queue_id)
                assert not served.problem, served.problem
                expectations.messages += [self._checked(message) for message in served.messages]
        seen = {message.unique for message in expectations.messages}
        expectations.pending = [one for one in expectations.pending if one.unique not in seen]
        assert len(expectations.pending) == PENDING, expectations.pending
        assert seen >= set(expectations.delivered_timers)
        for queue_id in range(QUEUES[BUSY]):
            offset = await committed_offset(peer, READERS, BUSY, queue_id)
            assert offset is not None
            expectations.offsets.append((READERS, BUSY, queue_id, offset))
        if self._kind.has_users:
            expectations.logins, expectations.users = self._users.logins(), await users_of(peer) or {}
        expectations.topics = {name: (number, number) for name, number in QUEUES.items()}
        expectations.groups = {READERS: 6, FAILING: 4}
        for topic, ids in store.queues.topics().items():
            for queue_id in ids:
                queue = store.queues.get(topic, queue_id)
                assert queue is not None
                expectations.queue_ends.append((topic, queue_id, queue.end))
        expectations.wrote, expectations.epoch, expectations.master = store.log.wrote, shard.epoch, shard.master_number
        expectations.epochs = [(one.epoch, one.start) for one in store.identity.epochs]

    def _checked(self, message: Message) -> Message:
        assert message.body == self._bodies[message.unique], f"{message.place} is not what was sent"
        return message


def _end(broker: Broker, topic: str, queue_id: int = 0) -> int:
    queue = broker.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.readable_end


def _has_flushed_timers(broker: Broker) -> bool:
    """Whether the due files have every timer message."""
    end = _end(broker, TIMER_TOPIC)
    return broker.timers.files.saved_position.queue_offset == end and not broker.timers.index.is_split_needed(0)


def _have_same_tables(one: Broker, other: Broker) -> bool:
    """Whether two members have the same offsets of the consumers, and the same users."""
    tables = [broker.core.offsets.document().offset_table for broker in (one, other)]
    accounts = [broker.core.accounts and broker.core.accounts.tables for broker in (one, other)]
    return tables[0].get(f"{BUSY}@{READERS}") == tables[1].get(f"{BUSY}@{READERS}") and accounts[0] == accounts[1]


async def build_template(folder: Path, kind: TemplateKind, seed: int) -> None:
    """Build a template in ``folder``, which becomes this process's current directory."""
    os.chdir(folder)
    expectations = await TemplateBuilder(kind, seed).build()
    expectations.save(folder)
