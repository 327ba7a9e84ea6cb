"""No client can set a property that only a broker may set, on whichever path its message comes in."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.app import Broker
from gantry_broker.server.core import broker_properties, send_routes
from gantry_broker.server.core.broker_properties import (
    BROKER_PROPERTIES,
    OWNED_PROPERTIES,
    RULES,
    Rule,
    remove_broker_properties,
)
from gantry_broker.server.timers import delivery
from gantry_broker.server.transactions import records as transaction_records
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_testing.timer_client import unique_id, wait_for_rounds
from gantry_wire import RequestCode
from gantry_wire import properties as keys
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.message import StoredMessage, decode_record

VICTIMS: Final = "Victims"
ATTACKS: Final = "Attacks"
DELAY_MS: Final = 5_000
NOT_NAMES: Final = {"KEY_END", "VALUE_END", "KEY_SEPARATOR", "REPLY_TYPE"}
"""Constants of ``gantry_wire.properties`` that are texts, and no names of properties."""
REFERENCES: Final = ("0,0", "1,1", "0", "1", "2", "0,1", "8", "")
"""Values that would name records of a victim."""

Properties = dict[str, str]
Kept = tuple[str, str]
"""The name of a path, and a property that was stored on it."""


@final
class World:
    """A broker with pending messages of one client, and another client that sends what it likes."""

    def __init__(self, broker: Broker, clock: FakeClock, peer: Dialogue) -> None:
        self.broker = broker
        self.clock = clock
        self.peer = peer
        self._numbers = count(100)
        self.body = b""
        """The body of the attacker's messages: the name of the path."""
        self.half: Properties = {}

    async def store_victims(self) -> None:
        """Store two timers, a delayed message and a half message, each the first of its system topic."""
        for body in (b"timer 0", b"timer 1"):
            await self._send(VICTIMS, body, {"TIMER_DELAY_MS": str(DELAY_MS)})
        await self._send(VICTIMS, b"delayed", {"DELAY": "1"})
        self.half = await self._send(VICTIMS, b"transaction", {"TRAN_MSG": "true", "PGROUP": "victims"})

    async def find_lost(self) -> set[bytes]:
        """Let every message come due, and return the victim's messages that are not delivered exactly once."""
        await wait_for_rounds(self.broker)  # everything is read
        await self._commit(self.half, "victims")
        self.clock.advance(DELAY_MS)
        await wait_for_rounds(self.broker)
        rounds = self.broker.delay.rounds
        await wait_until(lambda: self.broker.delay.rounds >= rounds + 2)
        bodies = sorted(one.body for one in await self.peer.read(topic=VICTIMS))
        wanted = {b"timer 0", b"timer 1", b"delayed", b"transaction"}
        return {body for body in wanted if bodies.count(body) != 1} | (set(bodies) - wanted)

    async def find_kept(self) -> set[Kept]:
        """Return the forbidden properties in records of the attacker, without the seal that a broker writes."""
        await wait_for_rounds(self.broker)
        forbidden = BROKER_PROPERTIES - {keys.RECORD_CRC}
        return {
            (record.body.decode(), name)
            for record in self._records()
            if record.body.decode() in {path.__name__ for path in PATHS}
            for name in forbidden & record.properties.keys()
        }

    def _records(self) -> Iterator[StoredMessage]:
        log = self.broker.store.log
        offset = log.min_physical
        while offset < log.wrote:
            record = self.broker.store.guard.message_at(offset)
            assert record is not None, offset
            yield decode_record(record)
            offset += len(record)

    async def _send(self, topic: str, body: bytes, properties: Properties, **fields: str) -> Properties:
        unique = unique_id(next(self._numbers))
        text = properties_text(**{"UNIQ_KEY": unique, **properties})
        return await self.peer.send_ok(body, topic=topic, properties=text, **fields)

    async def _commit(self, half: Properties, group: str) -> None:
        ext = {
            "producerGroup": group,
            "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": str(int(half["msgId"][-16:], 16)),
            "commitOrRollback": "8",
        }
        reply = await self.peer.ask(RequestCode.END_TRANSACTION, ext)
        assert reply.code == 0, (reply.code, reply.remark)

    # ------- the paths

    async def plain(self, forged: Properties) -> None:
        await self._send(ATTACKS, self.body, forged)

    async def plain_without_id(self, forged: Properties) -> None:
        await self.peer.send_ok(self.body, topic=ATTACKS, properties=properties_text(**forged))

    async def timer(self, forged: Properties) -> None:
        await self._send(ATTACKS, self.body, {"TIMER_DELAY_MS": str(DELAY_MS - 1), **forged})

    async def timer_due_with_victim(self, forged: Properties) -> None:
        await self._send(ATTACKS, self.body, {"TIMER_DELAY_MS": str(DELAY_MS), **forged})

    async def delayed(self, forged: Properties) -> None:
        await self._send(ATTACKS, self.body, {"DELAY": "1", **forged})

    async def half_message(self, forged: Properties) -> None:
        half = await self._send(ATTACKS, self.body, {"TRAN_MSG": "true", "PGROUP": "attackers", **forged})
        await self._commit(half, "attackers")

    async def open_half_message(self, forged: Properties) -> None:
        await self._send(ATTACKS, self.body, {"TRAN_MSG": "true", "PGROUP": "victims", **forged})

    async def half_timer(self, forged: Properties) -> None:
        pairs = {"TRAN_MSG": "true", "PGROUP": "attackers", "TIMER_DELAY_MS": str(DELAY_MS - 1), **forged}
        await self._commit(await self._send(ATTACKS, self.body, pairs), "attackers")

    async def batch(self, forged: Properties) -> None:
        for own, shared in ((forged, {}), ({}, forged)):
            entries = [
                BatchEntry(0, self.body, properties_text(UNIQ_KEY=unique_id(number), **own).encode())
                for number in range(2)
            ]
            text = properties_text(UNIQ_KEY=unique_id(9), **shared)
            await self.peer.send_ok(encode_batch(entries), topic=ATTACKS, properties=text, batch="true")

    async def reply(self, forged: Properties) -> None:
        ext = {
            "a": "p",
            "b": "TestCluster_REPLY_TOPIC",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
        }
        text = properties_text(UNIQ_KEY=unique_id(8), REPLY_TO_CLIENT="none", **forged)
        await self.peer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, {**ext, "i": text}, self.body)

    async def send_back(self, forged: Properties) -> None:
        stored = await self._send(ATTACKS, self.body, forged, queueId="2")
        ext = {"offset": str(int(stored["msgId"][-16:], 16)), "group": GROUP, "delayLevel": "1", "originTopic": ATTACKS}
        assert (await self.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == 0

    async def recalled(self, forged: Properties) -> None:
        stored = await self._send(ATTACKS, self.body, {"TIMER_DELAY_MS": str(DELAY_MS), **forged})
        ext = {"topic": ATTACKS, "recallHandle": stored["recallHandle"], "producerGroup": "attackers"}
        assert (await self.peer.ask(RequestCode.RECALL_MESSAGE, ext)).code == 0


PATHS: Final[tuple[Callable[[World, Properties], Awaitable[None]], ...]] = (
    World.plain, World.plain_without_id, World.timer, World.timer_due_with_victim, World.delayed, World.half_message,
    World.open_half_message, World.half_timer, World.batch, World.reply, World.send_back, World.recalled,
)  # fmt: skip
Attack = tuple[Callable[[World, Properties], Awaitable[None]], Properties]
FORGED: Final = st.dictionaries(st.sampled_from(sorted(BROKER_PROPERTIES)), st.sampled_from(REFERENCES), min_size=1)


async def attack_with(root: Path, attacks: list[Attack]) -> tuple[set[bytes], set[Kept]]:
    """Return the messages of the victim that are not delivered once, and the forbidden properties that are stored."""
    clock = FakeClock()
    async with running_broker(root, clock=clock) as broker, dialogue(broker) as peer:
        await peer.make_group()
        world = World(broker, clock, peer)
        await world.store_victims()
        await wait_for_rounds(broker)
        for path, forged in attacks:
            world.body = path.__name__.encode()
            await path(world, forged)
        kept = await world.find_kept()
        return await world.find_lost(), kept


@pytest.mark.verify
@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(PATHS), FORGED), min_size=1, max_size=6))
def test_forged_properties_have_no_effect(attacks: list[Attack]) -> None:
    """Any of them on any path, in any order, is not stored, and each message of another client is delivered once."""
    with tempfile.TemporaryDirectory() as root:
        assert asyncio.run(attack_with(Path(root), attacks)) == (set(), set())


@pytest.mark.parametrize("reference", ["0,0", "0"])
async def test_every_path_removes_every_forged_property(tmp_path: Path, reference: str, kind_of_batch: str) -> None:
    """Each alone, with both kinds of references to the first record of a topic, on all paths and both hot paths."""
    attacks: list[Attack] = [(path, {name: reference}) for path in PATHS for name in sorted(BROKER_PROPERTIES)]

    assert await attack_with(tmp_path, attacks) == (set(), set())


async def test_forged_property_is_stored_without_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a property without its rule is kept on each path, and the test above would fail."""
    allowed = BROKER_PROPERTIES - {keys.TIMER_COPY_OF}
    monkeypatch.setattr(broker_properties, "BROKER_PROPERTIES", allowed)
    monkeypatch.setattr(send_routes, "OWNED_PROPERTIES", OWNED_PROPERTIES - {keys.TIMER_COPY_OF})

    _, kept = await attack_with(tmp_path, [(path, {keys.TIMER_COPY_OF: "0,0"}) for path in PATHS])

    assert kept == {(path.__name__, keys.TIMER_COPY_OF) for path in PATHS}


async def test_timer_of_another_client_is_lost_without_the_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: with neither the rule nor the comparison of records, a message cancels the timer of another client."""
    monkeypatch.setattr(broker_properties, "BROKER_PROPERTIES", frozenset())
    monkeypatch.setattr(delivery, "replaces", lambda copy, message: True)
    monkeypatch.setattr(delivery, "real_topic", lambda pairs: ATTACKS)
    forged: Attack = (World.timer, {keys.TIMER_COPY_OF: "0,0"})

    assert (await attack_with(tmp_path, [forged]))[0] == {b"timer 0"}


async def test_transaction_of_another_client_is_lost_without_the_guards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: with neither guard, a half message takes the place of the one of another client."""
    monkeypatch.setattr(broker_properties, "BROKER_PROPERTIES", frozenset())
    monkeypatch.setattr(transaction_records, "_identity_of", lambda message: b"")
    forged: Attack = (World.open_half_message, {keys.TRANSACTION_PREPARED_QUEUE_OFFSET: "0"})

    assert (await attack_with(tmp_path, [forged]))[0] == {b"transaction"}


def test_every_property_has_one_rule() -> None:
    """A new property of the wire format needs a decision: the build fails without one."""
    names = {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)}

    assert names - {getattr(keys, name) for name in NOT_NAMES} == RULES.keys()


def test_client_keeps_every_other_property() -> None:
    """Only the properties of brokers are removed, and those that RocketMQ's clients set stay as they are."""
    pairs = dict.fromkeys([*RULES, "own", "__STARTDELIVERTIME"], "1")

    kept = remove_broker_properties(dict(pairs))

    assert pairs.keys() - kept.keys() == {name for name, rule in RULES.items() if rule is Rule.REMOVED}
