"""A Java slave follows our master: one that does what RocketMQ's does gets our log byte for byte, and is counted."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.classic.chunks import CHUNK_BYTES_MAX
from gantry_broker.ha.classic.master_session import ClassicMasterSession
from gantry_broker.ha.frames import StreamBroken
from gantry_broker.ha.history import History
from gantry_broker.ha.master_session import MasterFacts
from gantry_broker.ha.store_log import StoreLog
from gantry_broker.store.identity import Epoch
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld

FILE_BYTES = TINY.mapped_file_size_commit_log
POOL = PoolSettings(is_enabled=True, buffers_count=4, path="/buffers")


class JavaSlave:
    """What RocketMQ's slave does with the bytes of the stream, and what it refuses. Written apart from ours."""

    def __init__(self, end: int = 0) -> None:
        self.begin = self.end = end
        self.log = b""
        self.beats = 0
        self._buffer = b""

    def request(self) -> bytes:
        return struct.pack(">q", self.end)

    def receive(self, data: bytes) -> bytes:
        """Its reports."""
        self._buffer += data
        reports = b""
        while len(self._buffer) >= 12:
            offset, size = struct.unpack_from(">qi", self._buffer)
            assert self.end in (0, offset), "master pushed offset not equal the max phy offset in slave"
            assert 12 + size <= 4 << 20, "it would never have room for that"
            if len(self._buffer) < 12 + size:
                break
            body, self._buffer = self._buffer[12 : 12 + size], self._buffer[12 + size :]
            assert offset // FILE_BYTES == (offset + max(size, 1) - 1) // FILE_BYTES, "over the end of a file"
            if not self.log:
                self.begin = offset
            self.beats += not size
            self.log += body
            if size:
                self.end = offset + size
                reports += self.request()
        return reports


class Wire:
    """A store of ours and one Java slave, joined by hand."""

    def __init__(self, *, acks_needed: int = 1, is_flushed_wanted: bool = False, is_pooled: bool = False) -> None:
        world = dataclasses.replace(TINY, pool=POOL) if is_pooled else TINY
        self.world = StoreWorld(FaultyDisk(), "/master", world)
        self.world.open()
        self.slaves = AckSet(acks_needed=acks_needed, is_flushed_wanted=is_flushed_wanted)
        self.facts = MasterFacts("c", "b", FILE_BYTES, self.world.store.identity.epoch)
        self.session = self.connect()

    def connect(self, peer: str = "10.0.0.7:4711") -> ClassicMasterSession:
        self.session = ClassicMasterSession(peer, self.facts, StoreLog(self.world.store), self.slaves)
        return self.session

    def fill(self, end: int) -> None:
        """Messages until the log has come to ``end``."""
        while self.world.store.log.wrote < end:
            self.world.send()

    def settle(self, slave: JavaSlave, size: int = 1 << 30) -> None:
        up = b""
        while True:
            down = b"".join(self.session.pump(1 << 20))
            for start in range(0, len(down), size):
                up += slave.receive(down[start : start + size])
            if not up:
                return
            for start in range(0, len(up), size):
                self.session.receive(up[start : start + size], 1.0)
            up = b""

    def log(self, begin: int) -> bytes:
        data, log = b"", StoreLog(self.world.store)
        while more := log.read(begin + len(data), 1 << 20):
            data += more
        return data


@settings(max_examples=25)
@given(
    st.integers(0, 3 * FILE_BYTES), st.sampled_from((1, 5, 8, 13, 4_096, 1 << 20)), st.booleans(),
    st.lists(st.integers(1, 30), max_size=4),
)  # fmt: skip
def test_a_java_slave_gets_the_log_byte_for_byte(end: int, size: int, is_pooled: bool, more: list[int]) -> None:
    """However the bytes are cut on their way, from a buffer or from files, across files, and its word counts."""
    wire = Wire(is_pooled=is_pooled)
    slave = JavaSlave()
    wire.session.receive(slave.request(), 0.0)
    wire.fill(end)
    if is_pooled:
        wire.world.store.commit_step()
    for count in more:
        wire.settle(slave, size)
        wire.world.send("orders", count)
        assert wire.slaves.acked() <= slave.end
    wire.settle(slave, size)

    assert slave.end == wire.world.store.log.wrote or not slave.log
    assert slave.log == wire.log(0)
    assert wire.slaves.acked() == wire.world.store.log.wrote


def test_an_empty_java_slave_gets_the_last_file() -> None:
    """As with RocketMQ's own master, whose 0 means that."""
    wire, slave = Wire(), JavaSlave()
    wire.fill(2 * FILE_BYTES + 2_000)

    wire.session.receive(slave.request(), 0.0)
    wire.settle(slave)

    assert slave.begin == 2 * FILE_BYTES
    assert slave.log == wire.log(2 * FILE_BYTES)


def test_an_empty_java_slave_gets_what_somebody_waits_for_too() -> None:
    """Its ack of the last file must not count for messages before it that it never got."""
    wire, slave = Wire(), JavaSlave()
    wire.fill(FILE_BYTES + 1_000)
    wire.world.store.positions.wait_for_slaves(wire.world.store.log.wrote)
    wire.fill(2 * FILE_BYTES + 1_000)

    wire.session.receive(slave.request(), 0.0)
    wire.settle(slave)

    assert slave.begin == FILE_BYTES
    assert wire.slaves.acked() == wire.world.store.log.wrote


@pytest.mark.parametrize("offset", [300, FILE_BYTES, FILE_BYTES + 1], ids=["amid a record", "at a file", "behind it"])
def test_a_java_slave_goes_on_at_any_byte(offset: int) -> None:
    """RocketMQ cuts records anywhere, so its slave may ask for the middle of one."""
    wire, slave = Wire(), JavaSlave(offset)
    wire.fill(2 * FILE_BYTES)

    wire.session.receive(slave.request(), 0.0)
    wire.settle(slave)

    assert slave.log == wire.log(offset)


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 1 << 62, 5_000_000, FILE_BYTES - 1])
def test_an_offset_that_this_log_has_not_is_refused(offset: int) -> None:
    """Beyond its end, before its begin, below zero: RocketMQ's master would let the two logs part without a word."""
    wire = Wire()
    wire.fill(2 * FILE_BYTES)
    wire.world.store.restart(FILE_BYTES, wire.world.store.identity.epochs)
    wire.fill(FILE_BYTES + 2_000)

    with pytest.raises(StreamBroken, match=rf"it asks for {offset}, and this log is {FILE_BYTES} to \d+"):
        wire.session.receive(struct.pack(">q", offset), 0.0)

    assert len(wire.slaves) == 0 and not wire.session.is_streaming and not wire.session.pump(1 << 20)


@pytest.mark.parametrize("lie", [-1, 1, 1 << 40], ids=["back", "ahead", "far ahead"])
def test_an_ack_that_cannot_be_ends_the_stream(lie: int) -> None:
    """Of bytes that were never sent, or back behind what was acknowledged before; and it changes nothing."""
    wire, slave = Wire(), JavaSlave()
    wire.session.receive(slave.request(), 0.0)
    wire.fill(1_000)
    wire.settle(slave)
    acked = wire.slaves.acked()

    with pytest.raises(StreamBroken):
        wire.session.receive(struct.pack(">q", slave.end + lie), 1.0)

    assert wire.slaves.acked() == acked
    wire.session.close()
    assert wire.slaves.acked() == -1


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_a_rogue_peer_changes_nothing_for_others(said: list[bytes]) -> None:
    """Whatever it says: it is closed, or follows as one that has what it asked for, and the voices of others stay."""
    wire = Wire()
    wire.fill(2_000)
    friend = wire.slaves.join("ours", 1, 0.0)
    assert friend is not None
    friend.received = wrote = wire.world.store.log.wrote
    session = wire.connect()
    try:
        for data in said:
            session.receive(data, 1.0)
            session.pump(1 << 20)
            assert all(-1 <= slave.received <= max(session.sent, friend.received) for slave in wire.slaves)
    except StreamBroken:
        pass
    session.close()

    assert [slave.identity for slave in wire.slaves] == ["ours"]
    assert (friend.received, wire.slaves.acked()) == (wrote, wrote)


def test_java_slaves_are_one_voice_each() -> None:
    """Two of them satisfy a master that needs two acks, one does not, and none has the number of a slave of ours."""
    wire = Wire(acks_needed=2)
    wire.fill(1_000)
    assert wire.slaves.join("ours", 1, 0.0) is not None
    first, second = wire.connect("10.0.0.7:1"), wire.connect("10.0.0.8:1")
    end = struct.pack(">q", wire.world.store.log.wrote)

    first.receive(end, 0.0)
    assert wire.slaves.acked() == -1
    second.receive(end, 0.0)

    assert wire.slaves.acked() == wire.world.store.log.wrote
    assert sorted((slave.broker_id, slave.identity) for slave in wire.slaves) == [
        (-3, "classic 10.0.0.8:1"), (-2, "classic 10.0.0.7:1"), (1, "ours"),
    ]  # fmt: skip
    with pytest.raises(StreamBroken, match="is here"):
        wire.connect("10.0.0.8:1").receive(end, 0.0)


def test_a_java_slave_never_counts_where_flushed_acks_are_wanted() -> None:
    """It does not say what it has flushed."""
    wire, slave = Wire(is_flushed_wanted=True), JavaSlave()
    wire.session.receive(slave.request(), 0.0)
    wire.fill(1_000)
    wire.settle(slave)

    assert slave.end == wire.world.store.log.wrote
    assert wire.slaves.acked() == -1


def test_a_java_slave_never_counts_where_the_role_may_move() -> None:
    """It gives no promises, so a promotion could not know of its acks; it is copied to all the same."""
    wire, slave = Wire(), JavaSlave()
    wire.facts = wire.facts._replace(is_classic_counted=False)
    wire.connect().receive(slave.request(), 0.0)
    wire.fill(1_000)
    wire.settle(slave)

    assert slave.log == wire.log(0)
    assert len(wire.slaves) == 0 and wire.slaves.acked() == -1
    wire.session.close()


def test_nobody_follows_a_master_that_compares_first() -> None:
    """Its log may get back what a start has lost."""
    wire = Wire()
    wire.facts = wire.facts._replace(is_comparing=True)

    with pytest.raises(StreamBroken, match="compares its log"):
        wire.connect().receive(bytes(8), 0.0)


def test_a_quiet_stream_is_kept_alive() -> None:
    """A heartbeat after five seconds without data, at the offset where the slave is, and none before."""
    wire, slave = Wire(), JavaSlave()
    assert wire.session.beat(0) == b""
    wire.session.receive(slave.request(), 0.0)
    wire.fill(1_000)
    wire.settle(slave)
    beats = []
    for second in range(1, 17):
        slave.receive(wire.session.beat(second * 1000))
        beats.append(slave.beats)

    assert beats == [0] * 5 + [1] * 5 + [2] * 5 + [3]
    wire.fill(2_000)
    wire.settle(slave)
    assert slave.log == wire.log(0)


def test_an_empty_slave_that_waits_says_nothing_new() -> None:
    """A Java slave reports every five seconds, also that it has nothing yet: that is no step back."""
    wire, slave = Wire(), JavaSlave()
    wire.fill(FILE_BYTES)
    begin = wire.world.store.log.wrote - wire.world.store.log.wrote % FILE_BYTES
    wire.session.receive(bytes(8), 0.0)

    wire.session.receive(bytes(16), 5.0)

    assert [(one.received, one.acked_at) for one in wire.slaves] == [(begin, 5.0)]
    wire.settle(slave)
    assert slave.log == wire.log(begin)
    with pytest.raises(StreamBroken):
        wire.session.receive(bytes(8), 6.0)


class OnePieceLog:
    """A log whose files lie in one piece of memory."""

    history = History([Epoch(1, 0)], 0, 3 * FILE_BYTES)
    wrote = flushed = confirmed = 3 * FILE_BYTES

    def read(self, offset: int, bytes_max: int) -> bytes:
        return bytes(min(bytes_max, self.wrote - offset))

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        return self.read(offset, bytes_max)

    def rest_of_record(self, offset: int) -> bytes:
        return b""

    def record_around(self, offset: int) -> int:
        return offset

    def end_of_damage(self, offset: int) -> int:
        return offset

    def records_through(self, start: int, end: int) -> bytes:
        return b""

    def healthy_records(self, start: int, end: int) -> bytes:
        return b""

    def append_tail(self, data: bytes, offset: int) -> None:
        raise AssertionError("Java gives nothing back")


def test_a_chunk_never_reaches_over_the_end_of_a_file() -> None:
    """A Java slave would drop what lies behind it, and never say so; wherever the bytes come from."""
    facts = MasterFacts("c", "b", FILE_BYTES, 1)
    session = ClassicMasterSession("peer", facts, OnePieceLog(), AckSet(acks_needed=0, is_flushed_wanted=False))
    session.receive(struct.pack(">q", 100), 0.0)

    heads = [struct.unpack(">qi", part) for part in session.pump(1 << 20)[::2]]

    assert heads == [(100, FILE_BYTES - 100), (FILE_BYTES, FILE_BYTES), (2 * FILE_BYTES, FILE_BYTES)]


def test_a_chunk_is_never_larger_than_a_java_slave_can_hold() -> None:
    """A record may be; it goes in several."""
    settings = dataclasses.replace(TINY, mapped_file_size_commit_log=16 << 20)
    wire = Wire()
    wire.world = StoreWorld(FaultyDisk(), "/large", settings)
    wire.world.open()
    wire.world.append([wire.world.draft(body=bytes(3 << 20))])
    facts = wire.facts._replace(file_bytes=16 << 20)
    session = ClassicMasterSession("peer", facts, StoreLog(wire.world.store), wire.slaves)
    session.receive(bytes(8), 0.0)

    parts = session.pump(64 << 20)

    assert max(map(len, parts)) == CHUNK_BYTES_MAX
    assert sum(map(len, parts)) == wire.world.store.log.wrote + 12 * (len(parts) // 2)
