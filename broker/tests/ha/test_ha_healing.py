"""A damaged record is *healed*: fetched from a replica over the replication stream, while both run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext

import msgspec
import pytest

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.follower import Follower
from gantry_broker.ha.frames import FrameReader, Hello, Range, RangeRequest, Welcome, encode
from gantry_broker.ha.healing import Healer, RangeRequester
from gantry_broker.ha.master_session import MasterFacts, MasterSession, Phase
from gantry_broker.ha.server import ReplicationServer
from gantry_broker.ha.slave_session import SlaveFacts
from gantry_broker.ha.store_log import MasterStore, SlaveStore
from gantry_broker.store.damage import DamageState
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import wait_until
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import locate_record, overwrite_log

COUNT = 200
"""The number of messages in the log."""

DAMAGED = 57
"""The number of the message that is damaged, counted from 0."""


def make_world(number: int) -> StoreWorld:
    world = StoreWorld(FaultyDisk(), f"/node{number}", TINY)
    world.open()
    return world


class Pair:
    """A master, a slave that follows it, and a healer on each side."""

    def __init__(self) -> None:
        self.master, self.slave = make_world(0), make_world(1)
        self.slaves = AckSet(acks_needed=0, is_flushed_wanted=False)
        self.server = ReplicationServer(
            self._facts, MasterStore(self.master.store), self.slaves, on_acks=lambda: None
        )  # fmt: skip
        self.follower: Follower | None = None
        self.healers = {
            "master": Healer(self.master.store, lambda: self.server.streams, nullcontext),
            "slave": Healer(self.slave.store, self._masters, nullcontext),
        }

    def _facts(self) -> MasterFacts:
        return MasterFacts("c", "b", TINY.mapped_file_size_commit_log, self.master.store.identity.epoch)

    def _masters(self) -> Iterator[Follower]:
        if self.follower is not None:
            yield self.follower

    def world(self, side: str) -> StoreWorld:
        return self.master if side == "master" else self.slave

    async def follow(self) -> asyncio.Task[None]:
        store = SlaveStore(self.slave.store)
        facts = SlaveFacts(
            "c", "b", 1, self.slave.store.identity.uuid, TINY.mapped_file_size_commit_log, 0, True, ""
        )  # fmt: skip

        def copied() -> None:
            assert self.follower is not None
            store.dispatch(self.follower.confirmed)

        self.follower = Follower(store, lambda: facts, ("127.0.0.1", self.server.port), on_copied=copied)
        return asyncio.ensure_future(self.follower.run())

    @property
    def has_caught_up(self) -> bool:
        """Whether the slave has, shows and has acknowledged the whole log."""
        dispatched = self.slave.store.dispatcher.dispatched
        return dispatched == self.master.store.log.wrote == max((one.received for one in self.slaves), default=-1)


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    one = Pair()
    one.master.send("orders", COUNT)
    await one.server.start("127.0.0.1", 0)
    task = await one.follow()
    try:
        await wait_until(lambda: one.has_caught_up)
        yield one
    finally:
        task.cancel()
        await asyncio.wait([task])
        for healer in one.healers.values():
            await healer.close()
        await one.server.close()


def damage(pair: Pair, side: str, *, at: int = 90, number: int = DAMAGED) -> int:
    """Damage the byte ``at`` of a record of one side, and return the record's offset."""
    start = locate_record(pair.master, number)[0]
    overwrite_log(pair.world(side), start + at, b"\xee")
    return start


def read_bodies(world: StoreWorld) -> list[bytes]:
    return world.bodies("orders")


@pytest.mark.parametrize("at", [5, 16, 30, 90, 130], ids=["magic", "flag", "own offset", "body", "properties"])
@pytest.mark.parametrize("side", ["master", "slave"])
async def test_damaged_record_is_healed_and_delivered(side: str, at: int) -> None:
    """On either side a reader waits before the message, gets it when it is healed, and misses none."""
    async with pair() as both:
        world, sent = both.world(side), both.master.sent_bodies("orders")
        damage(both, side, at=at)

        first = world.store.read("orders", 0, DAMAGED, count_max=1, bytes_max=1 << 20)
        assert first.is_waiting and first.next_offset == DAMAGED and not first.body
        await wait_until(lambda: world.store.guard.damage.counters.healed == 1)

        assert read_bodies(world) == sent
        assert not world.store.guard.damage.damaged and world.store.guard.damage.counters.lost == 0


async def test_healed_record_survives_power_loss() -> None:
    """A power loss right after healing reverts nothing."""
    async with pair() as both:
        both.master.store.flush()
        damage(both, "master")
        both.master.messages("orders")
        await wait_until(lambda: both.master.store.guard.damage.counters.healed == 1)
        sent = both.master.sent_bodies("orders")

    both.master.lose_power()
    both.master.open()
    assert read_bodies(both.master) == sent


async def test_readers_skip_damage_without_a_replica() -> None:
    """Nothing can heal it: the damage is reported, and its neighbours are served."""
    world = make_world(0)
    healer = Healer(world.store, list, nullcontext)
    world.send("orders", COUNT)
    overwrite_log(world, locate_record(world, DAMAGED)[0] + 90, b"\xee")

    sent = world.sent_bodies("orders")
    assert read_bodies(world) == sent[:DAMAGED] + sent[DAMAGED + 1 :]
    assert [one.state for one in world.store.guard.damage.damaged] == [DamageState.FOUND]
    await healer.close()


async def test_record_damaged_on_both_sides_is_lost_and_skipped() -> None:
    """A damaged copy of the slave is never taken for a good one."""
    async with pair() as both:
        for side in ("master", "slave"):
            damage(both, side)
        guard, sent = both.master.store.guard, both.master.sent_bodies("orders")

        read_bodies(both.master)
        await wait_until(lambda: guard.damage.counters.lost == 1)

        assert read_bodies(both.master) == sent[:DAMAGED] + sent[DAMAGED + 1 :]
        assert [one.state for one in guard.damage.damaged] == [DamageState.LOST]


async def test_stream_waits_until_a_damaged_record_is_healed() -> None:
    """The stream waits before the damage; a slave that has the record heals the master, and the stream continues."""
    async with pair() as both:
        start = damage(both, "master")
        late = make_world(2)
        store = SlaveStore(late.store)
        facts = SlaveFacts("c", "b", 2, late.store.identity.uuid, TINY.mapped_file_size_commit_log, 0, True, "")
        both.master.store.guard.damage.on_resolved.append(both.server.feed_streams)
        follower = Follower(store, lambda: facts, ("127.0.0.1", both.server.port))
        task = asyncio.ensure_future(follower.run())
        try:
            await wait_until(lambda: late.store.log.wrote == both.master.store.log.wrote)
        finally:
            task.cancel()
            await asyncio.wait([task])

        assert both.master.store.guard.damage.counters.healed == 1
        assert late.store.guard.message_at(start) == both.master.records[start]


@pytest.mark.parametrize("numbers", [(DAMAGED,), (3, 4, 5, 120, 199)], ids=["one", "several, and the last"])
@pytest.mark.parametrize("side", ["master", "slave", "both in turn"])
async def test_damage_does_not_keep_a_returning_slave_away(side: str, numbers: tuple[int, ...]) -> None:
    """The handshake compares the logs' ends: a damaged record there must not prevent its own healing."""
    async with pair() as both:
        for stream in tuple(both.server.streams):
            stream.end("ended by the test")
        for turn, number in enumerate(numbers):
            damage(both, ("master", "slave")[turn % 2] if side == "both in turn" else side, number=number)

        await wait_until(lambda: both.has_caught_up and both.follower is not None and both.follower.is_streaming)
        for healer in both.healers.values():
            healer.retry_damaged(1e6)
        guards = [world.store.guard for world in (both.master, both.slave)]
        await wait_until(
            lambda: (
                sum(one.damage.counters.healed for one in guards) >= 1 and not any(one.damage.damaged for one in guards)
            )
        )

        for world in (both.master, both.slave):
            assert read_bodies(world) == both.master.sent_bodies("orders")


@pytest.mark.parametrize("is_found", [False, True], ids=["not found yet", "found by a reader"])
async def test_several_damaged_records_are_no_other_history(is_found: bool) -> None:
    """The slave that has the records is accepted and sends them, whether or not a reader has found the damage."""
    async with pair() as both:
        for stream in tuple(both.server.streams):
            stream.end("ended by the test")
        for number in (DAMAGED, DAMAGED + 1, DAMAGED + 2):
            damage(both, "master", number=number)
            if is_found:
                both.master.store.guard.damage.report(*locate_record(both.master, number)[:2])

        await wait_until(lambda: both.has_caught_up and both.follower is not None and both.follower.is_streaming)
        both.healers["master"].retry_damaged(1e6)
        await wait_until(lambda: not both.master.store.guard.damage.damaged)
        assert read_bodies(both.master) == both.master.sent_bodies("orders")


async def test_slave_with_long_damage_is_accepted_and_healed() -> None:
    """170 records in a row are damaged, and the records after them are the same."""
    async with pair() as both:
        for stream in tuple(both.server.streams):
            stream.end("ended by the test")
        numbers = range(20, 190)
        for number in numbers:
            damage(both, "slave", number=number)
            both.slave.store.guard.damage.report(*locate_record(both.master, number)[:2])

        await wait_until(lambda: both.has_caught_up and both.follower is not None and both.follower.is_streaming)
        guard = both.slave.store.guard
        for _ in range(60):
            both.healers["slave"].retry_damaged(1e6)
            await asyncio.sleep(0.02)
        await wait_until(lambda: not guard.damage.damaged)

        assert guard.damage.counters.healed >= 1
        assert read_bodies(both.slave) == both.master.sent_bodies("orders")


@pytest.mark.parametrize("number", [2, 5, 10])
async def test_damaged_last_record_and_an_earlier_one_are_no_other_history(number: int) -> None:
    """The records between them are the same: nothing after the last one could prove it."""
    both = Pair()
    both.master.append([both.master.draft("orders", body=b"x" * 3_000) for _ in range(16)])
    assert locate_record(both.master, 15)[0] % TINY.mapped_file_size_commit_log == 0, "expected the first of its file"
    await both.server.start("127.0.0.1", 0)
    task = await both.follow()
    try:
        await wait_until(lambda: both.has_caught_up)
        for stream in tuple(both.server.streams):
            stream.end("ended by the test")
        for damaged in (number, 15):
            damage(both, "slave", number=damaged, at=2_000)

        await wait_until(lambda: both.has_caught_up and both.follower is not None and both.follower.is_streaming)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await both.server.close()


async def test_isolated_damage_is_not_skipped_past_equal_records() -> None:
    """A small equal record between two damaged ones, the second of which is the last, proves that the logs are one."""
    both = Pair()
    for body_bytes in (3_000, 3_000, 300, 8_000):
        both.master.append([both.master.draft("orders", body=b"x" * body_bytes)])
    await both.server.start("127.0.0.1", 0)
    task = await both.follow()
    try:
        await wait_until(lambda: both.has_caught_up)
        for stream in tuple(both.server.streams):
            stream.end("ended by the test")
        for damaged in (1, 3):
            damage(both, "slave", number=damaged, at=2_000)

        await wait_until(lambda: both.has_caught_up and both.follower is not None and both.follower.is_streaming)
    finally:
        task.cancel()
        await asyncio.wait([task])
        await both.server.close()


@pytest.mark.parametrize("body_bytes", [40, 4_000])
async def test_history_with_shifted_records_is_refused(body_bytes: int) -> None:
    """After the first twenty, records start at other offsets: that resembles damage, but continues up to the end."""
    both = Pair()
    both.master.send("orders", COUNT)
    both.slave.send("orders", 20)
    while both.slave.store.log.wrote < both.master.store.log.wrote:
        both.slave.append([both.slave.draft("orders", body=b"x" * body_bytes)])
    both.master.send("orders", COUNT)
    await both.server.start("127.0.0.1", 0)
    task = await both.follow()
    try:
        await wait_until(lambda: both.follower is not None and bool(both.follower.problem or both.has_caught_up))
        assert both.follower is not None
        assert "fork" in (both.follower.problem or "")
    finally:
        task.cancel()
        await asyncio.wait([task])
        await both.server.close()


async def test_diverged_history_with_damage_is_refused() -> None:
    """Good records that differ are never explained by damage elsewhere."""
    both = Pair()
    both.master.send("orders", COUNT)
    both.slave.send("orders", COUNT - 60)
    both.slave.clock.advance(7)
    both.slave.send("orders", 60)
    overwrite_log(both.slave, locate_record(both.slave, COUNT - 50)[0] + 90, b"\xee")
    await both.server.start("127.0.0.1", 0)
    task = await both.follow()
    try:
        await wait_until(lambda: both.follower is not None and "fork" in (both.follower.problem or ""))
    finally:
        task.cancel()
        await asyncio.wait([task])
        await both.server.close()


async def test_new_replica_is_asked_for_damaged_records() -> None:
    """Damage that no replica could heal is tried again when another one connects, and after a while."""
    world = make_world(0)
    world.send("orders", COUNT)
    start = locate_record(world, DAMAGED)[0]
    sources: list[ScriptedSource] = []
    healer = Healer(world.store, lambda: sources, nullcontext)
    overwrite_log(world, start + 90, b"\xee")
    read_bodies(world)
    assert world.store.guard.damage.counters.found == 1

    healer.retry_damaged(1.0)
    sources.append(ScriptedSource(b"", start))
    healer.retry_damaged(2.0)
    await wait_until(lambda: world.store.guard.damage.counters.lost == 1)
    sources[0].record = world.records[start]
    healer.retry_damaged(3.0)
    assert world.store.guard.damage.damaged[0].state is DamageState.LOST
    healer.retry_damaged(63.0)
    await wait_until(lambda: world.store.guard.damage.counters.healed == 1)
    await healer.close()

    assert read_bodies(world) == world.sent_bodies("orders")


async def test_lost_record_is_counted_once() -> None:
    """It is requested again and again with the same result: the counter shows messages, not attempts."""
    world = make_world(0)
    world.send("orders", COUNT)
    start = locate_record(world, DAMAGED)[0]
    source = ScriptedSource(b"", start)
    healer = Healer(world.store, lambda: [source], nullcontext)
    overwrite_log(world, start + 90, b"\xee")
    read_bodies(world)
    for now in (0.0, 100.0, 200.0):
        healer.retry_damaged(now)
        await wait_until(lambda: world.store.guard.damage.damaged[0].state is DamageState.LOST)
    assert source.fetched >= 3 and world.store.guard.damage.counters.lost == 1
    await healer.close()


@pytest.mark.parametrize("count_expected", [1, 2], ids=["all replicas asked", "one is not connected"])
async def test_record_is_lost_only_when_every_expected_replica_lacks_it(count_expected: int) -> None:
    """One of two slaves lacks it: readers wait for the other one, and the record is healed when that connects."""
    world = make_world(0)
    world.send("orders", COUNT)
    start = locate_record(world, DAMAGED)[0]
    sources = [ScriptedSource(b"", start)]
    healer = Healer(world.store, lambda: sources, nullcontext, count_expected=lambda: count_expected)
    overwrite_log(world, start + 90, b"\xee")
    guard = world.store.guard

    assert world.store.read("orders", 0, DAMAGED, count_max=1, bytes_max=1 << 20, accept=None).is_waiting
    await wait_until(lambda: sources[0].fetched == 1)
    await asyncio.sleep(0)
    if count_expected == 1:
        await wait_until(lambda: guard.damage.counters.lost == 1)
    else:
        assert guard.damage.may_be_healed(start) and guard.damage.is_awaited and not guard.damage.counters.lost
        sources.append(ScriptedSource(world.records[start], start))
        healer.retry_damaged(1.0)
        await wait_until(lambda: guard.damage.counters.healed == 1)
        assert read_bodies(world) == world.sent_bodies("orders")
    await healer.close()


def start_with_damage(first: int, *, is_rebuilt: bool) -> StoreWorld:
    """Return a started store in which two messages of a queue are damaged; its queues may have been lost."""
    world = make_world(0)
    world.send("orders", COUNT)
    world.send("bills", 3)
    places = [locate_record(world, number)[0] for number in (first, first + 1)]
    world.close()
    for offset in places:
        overwrite_log(world, offset + 90, b"\xee")
    if is_rebuilt:
        world.disk.remove_tree(world.path("consumequeue"))
        world.disk.remove(world.path("recovery-point.json"))
        world.disk.remove(world.path("checkpoint"))
    world.open()
    return world


@pytest.mark.parametrize("first", [0, DAMAGED, COUNT - 2], ids=["first two", "in the middle", "last two"])
@pytest.mark.parametrize("is_rebuilt", [False, True], ids=["clean", "queues rebuilt"])
async def test_healed_record_is_dispatched_to_its_queue(is_rebuilt: bool, first: int) -> None:
    """A start that builds queues skips damage; after healing, the message is in its queue at its place."""
    world = start_with_damage(first, is_rebuilt=is_rebuilt)
    sent = world.sent_bodies("orders")
    assert read_bodies(world) == sent[:first] + sent[first + 2 :]

    source = RecordSource(world)
    healer = Healer(world.store, lambda: [source], nullcontext)
    healer.retry_damaged(1.0)
    await wait_until(lambda: not world.store.guard.damage.damaged)
    await healer.close()

    assert read_bodies(world) == sent
    assert world.bodies("bills") == world.sent_bodies("bills")
    assert world.store.guard.damage.counters.lost == 0


@pytest.mark.parametrize("first", [0, DAMAGED])
async def test_readers_wait_before_damage_in_a_rebuilt_queue(first: int) -> None:
    """Also before its first message: a reader that skipped to that one would never see the healed ones."""
    world = start_with_damage(first, is_rebuilt=True)
    healer = Healer(world.store, list, nullcontext, count_expected=lambda: 1)
    healer.retry_damaged(1e6)

    result = world.store.read("orders", 0, first, count_max=1, bytes_max=1 << 20, accept=None)

    assert (result.is_waiting, result.next_offset, result.count) == (True, first, 0)
    await healer.close()


class RecordSource:
    """A replica that has every record that was sent."""

    def __init__(self, world: StoreWorld) -> None:
        self._records = world.records

    def has_range(self, end: int) -> bool:
        return True

    def lacks(self, start: int) -> bool:
        return False

    def waits_at(self, start: int) -> bool:
        return False

    async def fetch(self, start: int, end: int) -> bytes:
        data = b""
        while record := self._records.get(start + len(data)):
            if start + len(data) + len(record) > end:
                break
            data += record
        return data


class ScriptedSource:
    """A replica whose answers the test defines."""

    def __init__(self, record: bytes, start: int) -> None:
        self.record = record
        self.start = start
        self.fetched = 0

    def has_range(self, end: int) -> bool:
        return True

    def lacks(self, start: int) -> bool:
        return False

    def waits_at(self, start: int) -> bool:
        return False

    async def fetch(self, start: int, end: int) -> bytes:
        self.fetched += 1
        return self.record


@pytest.mark.parametrize("change", ["bit", "other place", "too long"])
async def test_invalid_records_of_a_replica_are_never_written(change: str) -> None:
    """A replica's records are verified like any others."""
    world = make_world(0)
    world.send("orders", COUNT)
    start = locate_record(world, DAMAGED)[0]
    other = locate_record(world, DAMAGED + 1)[0]
    given = {
        "bit": world.records[start][:-30] + bytes((world.records[start][-30] ^ 1,)) + world.records[start][-29:],
        "other place": world.records[other],
        "too long": world.records[start] + b"more",
    }[change]
    healer = Healer(world.store, lambda: [ScriptedSource(given, start)], nullcontext)
    overwrite_log(world, start + 90, b"\xee")
    before = world.files("commitlog")

    read_bodies(world)
    await wait_until(lambda: world.store.guard.damage.counters.lost == 1)
    await healer.close()

    assert world.files("commitlog") == before


def test_older_peer_gets_no_range_request() -> None:
    """It would end the stream at an unknown frame; the handshake announces which peers answer."""
    world = make_world(0)
    facts = MasterFacts("c", "b", TINY.mapped_file_size_commit_log, world.store.identity.epoch)
    session = MasterSession(facts, MasterStore(world.store), AckSet(acks_needed=0, is_flushed_wanted=False))
    session.slave = session._slaves.join("uuid", 1, 0.0)
    hello = {
        "cluster": "c", "broker_name": "b", "broker_id": 1, "store_uuid": "u", "epochs": [], "begin": 0, "end": 0,
        "file_bytes": 1, "promised_epoch": 0,
    }  # fmt: skip
    session.hello = msgspec.convert(hello, Hello)

    assert session.slave is not None
    assert not session.has_range(0)
    session.slave.received = 10
    session.hello = msgspec.structs.replace(session.hello, gives_ranges=True)
    assert session.has_range(10) and not session.has_range(11)
    assert not msgspec.convert({"epoch": 1, "epochs": [], "begin": 0, "start": 0}, Welcome).gives_ranges


async def test_late_range_is_dropped_and_closed_stream_fails_request() -> None:
    """A late reply must not be taken for the next one's."""
    question, written = RangeRequester(), bytearray()
    asked = asyncio.ensure_future(question.fetch(written.extend, 10, 20))
    await asyncio.sleep(0)
    question.deliver_range(Range(5, b"late"))
    assert FrameReader().feed(bytes(written)) == [RangeRequest(start=10, end=20)]
    with pytest.raises(ConnectionError):
        await question.fetch(written.extend, 30, 40)
    question.deliver_range(Range(10, b"records"))
    assert await asked == b"records"

    asked = asyncio.ensure_future(question.fetch(written.extend, 10, 20))
    await asyncio.sleep(0)
    question.close()
    with pytest.raises(ConnectionError):
        await asked


def test_range_frame_round_trip() -> None:
    """A range with records and one without are decoded as they were encoded."""
    for answer in (Range(1 << 40, b"records"), Range(0, b"")):
        assert FrameReader().feed(encode(answer)) == [answer]


def test_range_may_arrive_in_pieces() -> None:
    """A master buffers the received part of a range, or of a slave's request, until the rest arrives."""
    world = make_world(0)
    facts = MasterFacts("c", "b", TINY.mapped_file_size_commit_log, world.store.identity.epoch)
    for phase in (Phase.STREAMING, Phase.EXAMINING):
        given: list[Range] = []
        slaves = AckSet(acks_needed=0, is_flushed_wanted=False)
        session = MasterSession(facts, MasterStore(world.store), slaves, on_range=given.append)
        session.phase = phase
        frame = encode(Range(0, bytes(100)))
        assert session.receive(frame[:50], 0.0) == b""
        if phase is Phase.STREAMING:
            session.receive(frame[50:], 0.0)
            assert given == [Range(0, bytes(100))]
            question = encode(RangeRequest(start=0, end=10))
            assert session.receive(question[:-3], 0.0) == b""
            assert session.receive(question[-3:], 0.0) == encode(Range(0, b""))
