"""Gantry's master treats a Java slave as RocketMQ's does, sends its log byte for byte, and counts the slave's acks."""

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
from gantry_broker.ha.store_log import MasterStore
from gantry_broker.store.identity import Epoch
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld

FILE_BYTES = TINY.mapped_file_size_commit_log
POOL = PoolSettings(is_enabled=True, buffers_count=4, path="/buffers")


class JavaSlave:
    """An independent implementation of RocketMQ's slave: how it handles the stream, and what it refuses."""

    def __init__(self, end: int = 0) -> None:
        self.begin = self.end = end
        self.log = b""
        self.heartbeats = 0
        """The number of heartbeats so far."""

        self._buffer = b""

    def request(self) -> bytes:
        return struct.pack(">q", self.end)

    def receive(self, data: bytes) -> bytes:
        """Handle data of the stream, and return its reports."""
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
            self.heartbeats += not size
            self.log += body
            if size:
                self.end = offset + size
                reports += self.request()
        return reports


class MasterWithSession:
    """A Gantry store and its session with one Java slave, whose bytes the test carries."""

    def __init__(self, *, acks_needed: int = 1, is_flushed_wanted: bool = False, is_pooled: bool = False) -> None:
        world = dataclasses.replace(TINY, pool=POOL) if is_pooled else TINY
        self.world = StoreWorld(FaultyDisk(), "/master", world)
        self.world.open()
        self.slaves = AckSet(acks_needed=acks_needed, is_flushed_wanted=is_flushed_wanted)
        self.facts = MasterFacts("c", "b", FILE_BYTES, self.world.store.identity.epoch)
        self.session = self.connect()

    def connect(self, peer: str = "10.0.0.7:4711") -> ClassicMasterSession:
        self.session = ClassicMasterSession(peer, self.facts, MasterStore(self.world.store), self.slaves)
        return self.session

    def fill(self, end: int) -> None:
        """Append messages until the log has reached ``end``."""
        while self.world.store.log.wrote < end:
            self.world.send()

    def settle(self, slave: JavaSlave, size: int = 1 << 30) -> None:
        """Carry all bytes in both directions, in pieces of at most ``size``."""
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
        data, log = b"", MasterStore(self.world.store)
        while more := log.read(begin + len(data), 1 << 20):
            data += more
        return data


@settings(max_examples=25)
@given(
    st.integers(0, 3 * FILE_BYTES), st.sampled_from((1, 5, 8, 13, 4_096, 1 << 20)), st.booleans(),
    st.lists(st.integers(1, 30), max_size=4),
)  # fmt: skip
def test_java_slave_gets_identical_log(end: int, size: int, is_pooled: bool, more: list[int]) -> None:
    """The log is identical however the bytes are split, from buffers or files, across files, and its acks count."""
    master = MasterWithSession(is_pooled=is_pooled)
    slave = JavaSlave()
    master.session.receive(slave.request(), 0.0)
    master.fill(end)
    if is_pooled:
        master.world.store.commit_step()
    for count in more:
        master.settle(slave, size)
        master.world.send("orders", count)
        assert master.slaves.acked_offset() <= slave.end
    master.settle(slave, size)

    assert slave.end == master.world.store.log.wrote or not slave.log
    assert slave.log == master.log(0)
    assert master.slaves.acked_offset() == master.world.store.log.wrote


def test_empty_java_slave_starts_at_the_last_file() -> None:
    """RocketMQ's own master does the same: an offset of 0 means that."""
    master, slave = MasterWithSession(), JavaSlave()
    master.fill(2 * FILE_BYTES + 2_000)

    master.session.receive(slave.request(), 0.0)
    master.settle(slave)

    assert slave.begin == 2 * FILE_BYTES
    assert slave.log == master.log(2 * FILE_BYTES)


def test_empty_java_slave_gets_unconfirmed_messages() -> None:
    """Its ack of the last file must not count for earlier messages that it never received."""
    master, slave = MasterWithSession(), JavaSlave()
    master.fill(FILE_BYTES + 1_000)
    master.world.store.positions.set_acked(master.world.store.log.wrote)
    master.fill(2 * FILE_BYTES + 1_000)

    master.session.receive(slave.request(), 0.0)
    master.settle(slave)

    assert slave.begin == FILE_BYTES
    assert master.slaves.acked_offset() == master.world.store.log.wrote


@pytest.mark.parametrize("offset", [300, FILE_BYTES, FILE_BYTES + 1], ids=["amid a record", "at a file", "after it"])
def test_java_slave_resumes_at_any_byte(offset: int) -> None:
    """RocketMQ splits records anywhere, so its slave may request the middle of one."""
    master, slave = MasterWithSession(), JavaSlave(offset)
    master.fill(2 * FILE_BYTES)

    master.session.receive(slave.request(), 0.0)
    master.settle(slave)

    assert slave.log == master.log(offset)


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 1 << 62, 5_000_000, FILE_BYTES - 1])
def test_offset_outside_the_log_is_refused(offset: int) -> None:
    """RocketMQ's master would let the two logs diverge silently, beyond the end, before the start, or below zero."""
    master = MasterWithSession()
    master.fill(2 * FILE_BYTES)
    master.world.store.discard_log(FILE_BYTES, master.world.store.identity.epochs)
    master.fill(FILE_BYTES + 2_000)

    with pytest.raises(
        StreamBroken, match=rf"the slave requested offset {offset}, but this log is {FILE_BYTES} to \d+"
    ):
        master.session.receive(struct.pack(">q", offset), 0.0)

    assert len(master.slaves) == 0 and not master.session.is_streaming and not master.session.pump(1 << 20)


@pytest.mark.parametrize("lie", [-1, 1, 1 << 40], ids=["back", "ahead", "far ahead"])
def test_impossible_classic_ack_ends_the_stream(lie: int) -> None:
    """An ack of unsent bytes, or one that moves backwards, ends the stream and changes nothing."""
    master, slave = MasterWithSession(), JavaSlave()
    master.session.receive(slave.request(), 0.0)
    master.fill(1_000)
    master.settle(slave)
    acked = master.slaves.acked_offset()

    with pytest.raises(StreamBroken):
        master.session.receive(struct.pack(">q", slave.end + lie), 1.0)

    assert master.slaves.acked_offset() == acked
    master.session.close()
    assert master.slaves.acked_offset() == -1


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_rogue_peer_does_not_affect_other_slaves(pieces: list[bytes]) -> None:
    """It is disconnected, or follows from its requested offset, and the acks of others still count."""
    master = MasterWithSession()
    master.fill(2_000)
    friend = master.slaves.join("ours", 1, 0.0)
    assert friend is not None
    friend.received = wrote = master.world.store.log.wrote
    session = master.connect()
    try:
        for data in pieces:
            session.receive(data, 1.0)
            session.pump(1 << 20)
            assert all(-1 <= slave.received <= max(session.sent, friend.received) for slave in master.slaves)
    except StreamBroken:
        pass
    session.close()

    assert [slave.identity for slave in master.slaves] == ["ours"]
    assert (friend.received, master.slaves.acked_offset()) == (wrote, wrote)


def test_each_java_slave_is_counted_once() -> None:
    """Two of them satisfy a master that needs two acks, one does not, and none has the broker id of a Gantry slave."""
    master = MasterWithSession(acks_needed=2)
    master.fill(1_000)
    assert master.slaves.join("ours", 1, 0.0) is not None
    first, second = master.connect("10.0.0.7:1"), master.connect("10.0.0.8:1")
    end = struct.pack(">q", master.world.store.log.wrote)

    first.receive(end, 0.0)
    assert master.slaves.acked_offset() == -1
    second.receive(end, 0.0)

    assert master.slaves.acked_offset() == master.world.store.log.wrote
    assert sorted((slave.broker_id, slave.identity) for slave in master.slaves) == [
        (-3, "classic 10.0.0.8:1"), (-2, "classic 10.0.0.7:1"), (1, "ours"),
    ]  # fmt: skip
    with pytest.raises(StreamBroken, match="is connected already"):
        master.connect("10.0.0.8:1").receive(end, 0.0)


def test_java_slave_does_not_count_for_flushed_acks() -> None:
    """A Java slave does not report its flushed position."""
    master, slave = MasterWithSession(is_flushed_wanted=True), JavaSlave()
    master.session.receive(slave.request(), 0.0)
    master.fill(1_000)
    master.settle(slave)

    assert slave.end == master.world.store.log.wrote
    assert master.slaves.acked_offset() == -1


def test_java_slave_does_not_count_where_the_role_may_move() -> None:
    """It gives no promises, so a promotion could not rely on its acks; it still gets the log."""
    master, slave = MasterWithSession(), JavaSlave()
    master.facts = master.facts._replace(is_classic_counted=False)
    master.connect().receive(slave.request(), 0.0)
    master.fill(1_000)
    master.settle(slave)

    assert slave.log == master.log(0)
    assert len(master.slaves) == 0 and master.slaves.acked_offset() == -1
    master.session.close()


def test_comparing_master_refuses_classic_slaves() -> None:
    """Its log may still get back messages that a start has lost."""
    master = MasterWithSession()
    master.facts = master.facts._replace(is_comparing=True)

    with pytest.raises(StreamBroken, match="comparing its log"):
        master.connect().receive(bytes(8), 0.0)


def test_idle_classic_stream_sends_heartbeats() -> None:
    """A heartbeat is sent after five seconds without data, at the slave's offset, and none before."""
    master, slave = MasterWithSession(), JavaSlave()
    assert master.session.encode_heartbeat(0) == b""
    master.session.receive(slave.request(), 0.0)
    master.fill(1_000)
    master.settle(slave)
    beats = []
    for second in range(1, 17):
        slave.receive(master.session.encode_heartbeat(second * 1000))
        beats.append(slave.heartbeats)

    assert beats == [0] * 5 + [1] * 5 + [2] * 5 + [3]
    master.fill(2_000)
    master.settle(slave)
    assert slave.log == master.log(0)


def test_repeated_report_of_empty_slave_is_accepted() -> None:
    """A Java slave reports every five seconds, also that it has nothing yet, which is no step backwards."""
    master, slave = MasterWithSession(), JavaSlave()
    master.fill(FILE_BYTES)
    begin = master.world.store.log.wrote - master.world.store.log.wrote % FILE_BYTES
    master.session.receive(bytes(8), 0.0)

    master.session.receive(bytes(16), 5.0)

    assert [(one.received, one.acked_at) for one in master.slaves] == [(begin, 5.0)]
    master.settle(slave)
    assert slave.log == master.log(begin)
    with pytest.raises(StreamBroken):
        master.session.receive(bytes(8), 6.0)


class OnePieceLog:
    """A log whose files lie in one contiguous memory region."""

    history = History([Epoch(1, 0)], 0, 3 * FILE_BYTES)
    wrote = flushed = confirmed = 3 * FILE_BYTES

    def read(self, offset: int, bytes_max: int) -> bytes:
        return bytes(min(bytes_max, self.wrote - offset))

    def read_verified(self, offset: int, bytes_max: int) -> bytes:
        return self.read(offset, bytes_max)

    def rest_of_record(self, offset: int) -> bytes:
        return b""

    def find_record_start(self, offset: int) -> int:
        return offset

    def end_of_damage(self, offset: int) -> int:
        return offset

    def read_verified_through(self, start: int, end: int) -> bytes:
        return b""

    def read_verified_range(self, start: int, end: int) -> bytes:
        return b""

    def append_tail(self, data: bytes, offset: int) -> None:
        raise AssertionError("Java gives nothing back")


def test_chunk_never_crosses_the_end_of_a_file() -> None:
    """A Java slave would silently drop bytes after it, from any source."""
    facts = MasterFacts("c", "b", FILE_BYTES, 1)
    session = ClassicMasterSession("peer", facts, OnePieceLog(), AckSet(acks_needed=0, is_flushed_wanted=False))
    session.receive(struct.pack(">q", 100), 0.0)

    heads = [struct.unpack(">qi", part) for part in session.pump(1 << 20)[::2]]

    assert heads == [(100, FILE_BYTES - 100), (FILE_BYTES, FILE_BYTES), (2 * FILE_BYTES, FILE_BYTES)]


def test_chunk_fits_the_buffer_of_java_slave() -> None:
    """A larger record is sent in several chunks."""
    settings = dataclasses.replace(TINY, mapped_file_size_commit_log=16 << 20)
    master = MasterWithSession()
    master.world = StoreWorld(FaultyDisk(), "/large", settings)
    master.world.open()
    master.world.append([master.world.draft(body=bytes(3 << 20))])
    facts = master.facts._replace(file_bytes=16 << 20)
    session = ClassicMasterSession("peer", facts, MasterStore(master.world.store), master.slaves)
    session.receive(bytes(8), 0.0)

    parts = session.pump(64 << 20)

    assert max(map(len, parts)) == CHUNK_BYTES_MAX
    assert sum(map(len, parts)) == master.world.store.log.wrote + 12 * (len(parts) // 2)
