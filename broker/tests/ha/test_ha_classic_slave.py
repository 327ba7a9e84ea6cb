"""Gantry's slave follows a Java master: wherever the stream is cut or changed, its log is a prefix of the master's.

Two logs that differ are never mixed.
"""

from __future__ import annotations

import dataclasses
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.errors import StoreError
from gantry_broker.ha.classic.chunks import RecordAssembler
from gantry_broker.ha.classic.slave_session import ClassicSlaveSession, MasterRange, foreign_epochs, plan_stream_start
from gantry_broker.ha.frames import StreamBroken, Welcome
from gantry_broker.ha.history import CannotFollow, History
from gantry_broker.ha.store_log import SlaveStore
from gantry_broker.store.copying import CopyRefused
from gantry_broker.store.identity import Epoch
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.java_master import FILE_BYTES, JavaMaster
from gantry_testing.store_world import TINY, StoreWorld
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, RECORD_BYTES_MAX

POOL = PoolSettings(is_enabled=True, buffers_count=4, path="/buffers")


class Slave:
    """A Gantry store that copies from the master."""

    def __init__(self, *, is_pooled: bool = False) -> None:
        world = dataclasses.replace(TINY, pool=POOL) if is_pooled else TINY
        self.world = StoreWorld(FaultyDisk(), "/slave", world)
        self.world.open()
        self.store = SlaveStore(self.world.store)

    def reopen(self) -> None:
        """Stop the store cleanly, and start it again."""
        self.world.close()
        self.world.open()
        self.store = SlaveStore(self.world.store)

    def connect(self, master: JavaMaster) -> ClassicSlaveSession:
        """Connect to the master as the follower does."""
        start = plan_stream_start(self.store.history, master.range, FILE_BYTES)
        welcome = Welcome(
            epoch=start.epochs[-1].epoch, epochs=start.epochs, begin=start.end, start=start.end,
            is_restart=start.is_restart,
        )  # fmt: skip
        if not self.store.is_prepared(welcome):
            self.store.prepare(welcome)
        session = ClassicSlaveSession(self.store, start, FILE_BYTES)
        master.accept_connection()
        master.receive(session.begin())
        return session

    def follow(self, master: JavaMaster) -> None:
        """Follow the master to the end of its log."""
        session = self.connect(master)
        master.receive(session.receive(master.pump()))
        while not self.store.dispatch(self.store.received):
            pass

    def log(self) -> bytes:
        data, offset = b"", self.world.store.log.min_physical
        while more := self.store.read(offset + len(data), 1 << 20):
            data += more
        return data


@settings(max_examples=40)
@given(st.data(), st.booleans())
def test_slave_is_prefix_of_java_master_wherever_the_stream_is_cut(data: st.DataObject, is_pooled: bool) -> None:
    """After a cut in heads, in records or across files it resumes, and never acknowledges what it does not have."""
    master, slave = JavaMaster(), Slave(is_pooled=is_pooled)
    for _ in range(data.draw(st.integers(1, 5))):
        session = slave.connect(master)
        for _ in range(data.draw(st.integers(0, 6))):
            master.send(data.draw(st.integers(0, 30)))
            sent = master.pump(data.draw(st.sampled_from((1, 100, 4_096, 32_768))))
            cut = data.draw(st.integers(0, len(sent)))
            with suppress(StoreError):
                master.receive(session.receive(sent[:cut]))
            assert master.log.startswith(slave.log())
            assert master.acks[-1] <= max(1, slave.world.store.log.wrote)
            if cut < len(sent):
                break
        slave.world.store.commit_step()
    follow_with_few_buffers(slave, master)

    assert slave.log() == master.log
    assert slave.world.bodies() == master.bodies()


def follow_with_few_buffers(slave: Slave, master: JavaMaster) -> None:
    while slave.world.store.log.wrote < master.end:
        with suppress(StoreError):
            slave.follow(master)
        slave.world.store.commit_step()
    slave.follow(master)


def test_stream_can_be_cut_at_every_byte() -> None:
    """After every cut the log is a prefix of the master's, and the next stream brings the rest."""
    master = JavaMaster()
    master.send(6)
    probe = Slave().connect(master)
    stream = master.pump(100)
    assert probe.is_streaming
    for cut in range(len(stream) + 1):
        slave = Slave()
        session = slave.connect(master)
        session.receive(stream[:cut])
        assert master.log.startswith(slave.log())
        assert session.buffered < 200
        slave.follow(master)
        assert slave.log() == master.log


def test_empty_slave_gets_the_whole_log() -> None:
    """It copies from the oldest file on, though RocketMQ's master sends only the last one for offset 0."""
    master, slave = JavaMaster(), Slave()
    master.fill(3 * FILE_BYTES + 5_000)

    slave.follow(master)

    assert master.acks[0] == 1
    assert slave.log() == master.log
    assert slave.world.bodies() == master.bodies()


def test_copy_begins_where_the_masters_log_begins() -> None:
    """The master's first files have expired."""
    master, slave = JavaMaster(begin=7 * FILE_BYTES), Slave()
    master.fill(9 * FILE_BYTES)

    slave.follow(master)

    assert (slave.world.store.log.min_physical, slave.log()) == (7 * FILE_BYTES, master.log)
    assert slave.store.history.epochs == [Epoch(2, 7 * FILE_BYTES, is_ours=False)]


def test_slave_behind_expired_files_copies_again() -> None:
    """All of its log has expired on the master, too, and a Gantry master wrote none of it."""
    master, slave = JavaMaster(), Slave()
    master.fill(2_000)
    slave.follow(master)
    later = JavaMaster(begin=5 * FILE_BYTES)
    later.fill(6 * FILE_BYTES)

    slave.follow(later)

    assert (slave.world.store.log.min_physical, slave.log()) == (5 * FILE_BYTES, later.log)


def test_empty_java_master_is_followed() -> None:
    """The slave copies from the master's first message on, while the stream waits."""
    master, slave = JavaMaster(), Slave()
    session = slave.connect(master)
    assert session.receive(master.heartbeat()) == b""

    master.send(10)
    session.receive(master.pump())

    assert slave.log() == master.log


def test_promoted_slave_begins_its_own_epoch_after_javas_records() -> None:
    """Java's records need no seal, later ones must have one; and the store starts again with that."""
    master, slave = JavaMaster(), Slave()
    master.send(30)
    slave.follow(master)
    slave.reopen()
    slave.follow(master)
    end, epochs = master.end, slave.store.history.epochs
    assert epochs == [Epoch(2, 0, is_ours=False)]

    slave.store.promote([*epochs, Epoch(3, end)])
    slave.world.store.dispatcher.release(slave.world.store.log.wrote, keep_holding=False)
    slave.world.send("orders", 5)
    slave.reopen()

    identity = slave.world.store.identity
    assert [identity.is_ours(offset) for offset in (0, end - 1, end)] == [False, False, True]
    assert slave.world.bodies() == master.bodies() + slave.world.sent_bodies()


def test_starts_of_a_slave_leave_no_epochs() -> None:
    """Each start begins an epoch for messages of its own, and the next stream removes it as it is empty."""
    master, slave = JavaMaster(), Slave()
    for _ in range(3):
        master.send(5)
        slave.follow(master)
        slave.reopen()

    slave.follow(master)

    assert slave.store.history.epochs == [Epoch(2, 0, is_ours=False)]


# -- diverged logs -----------------------------------------------------------------------------------------------------


def test_own_tail_that_java_master_lacks_is_refused() -> None:
    """It may be the only copy of acknowledged messages, so an administrator has to decide. Nothing is changed."""
    master, slave = JavaMaster(), Slave()
    master.send(30)
    slave.follow(master)
    slave.store.promote([*slave.store.history.epochs, Epoch(3, master.end)])
    slave.world.send("orders", 3)
    before = slave.log()

    with pytest.raises(CannotFollow, match="but the master's is only"):
        slave.connect(master)
    master.send(50)
    session = slave.connect(master)
    with pytest.raises(CannotFollow, match="differs from the master's"):
        session.receive(master.pump())

    assert slave.log() == before
    assert not session.is_streaming and session.ack() == b"" and slave.world.store.log.wrote not in master.acks


def test_own_tail_that_java_master_has_is_followed() -> None:
    """A Java slave of ours was made the master: its log is ours, seals included, and continues without seals."""
    slave = Slave()
    slave.world.send("orders", 40)
    master = JavaMaster()
    master.log = slave.log()
    master.starts = [0] * 40
    master.send(40)

    slave.follow(master)

    assert slave.log() == master.log
    identity = slave.world.store.identity
    assert [epoch.is_ours for epoch in identity.epochs] == [True, False]


@pytest.mark.parametrize("place", [0, 1, 57, 700, -1], ids=["first", "second", "early", "middle", "last"])
def test_differing_byte_before_the_end_is_detected(place: int) -> None:
    """It is detected regardless of later bytes.

    Only byte 0 is not compared, because a slave cannot request it. It belongs to a length, and cannot differ alone.
    """
    master, slave = JavaMaster(), Slave()
    master.send(20)
    slave.follow(master)
    place %= len(master.log)
    other = bytearray(master.log)
    other[place] ^= 1
    master.log = bytes(other)
    master.starts = [0] * 20
    master.send(20)
    before = slave.log()

    session = slave.connect(master)
    if place:
        with pytest.raises(CannotFollow, match="differs from the master"):
            session.receive(master.pump(64))
        assert slave.log() == before
    else:
        session.receive(master.pump(64))
        assert slave.world.store.log.wrote == master.end


def test_java_master_that_lost_its_tail_is_not_followed() -> None:
    """RocketMQ's slave would wait until the master has grown past it, and then mix two logs."""
    master, slave = JavaMaster(), Slave()
    master.send(20)
    slave.follow(master)
    master.log = master.log[: master.starts[10]]

    with pytest.raises(
        CannotFollow, match=f"this log is 0 to {slave.world.store.log.wrote}, but the master's is only 0 to"
    ):
        slave.connect(master)


# -- invalid data ------------------------------------------------------------------------------------------------------


def head(offset: int, size: int) -> bytes:
    return struct.pack(">qi", offset, size)


@pytest.mark.parametrize("noise", [
    head(0, 10), head(2, 10), head(-1, 10), head(1 << 62, 0), head(1, -1), head(1, FILE_BYTES), head(1, 1 << 30),
    b"\xff" * 12, b"HTTP/1.1 400 Bad Request",
])  # fmt: skip
def test_invalid_head_ends_the_stream(noise: bytes) -> None:
    """A wrong offset, an invalid size, or one beyond a file's end is rejected before a byte of it is kept."""
    slave = Slave()
    session = slave.connect(JavaMaster())

    with pytest.raises(StreamBroken):
        session.receive(noise)

    assert slave.world.store.log.wrote == 0


@settings(max_examples=60)
@given(st.data())
def test_corrupted_stream_leaves_a_prefix_or_is_detected_by_the_next(data: st.DataObject) -> None:
    """After missing, repeated or foreign bytes the log is a prefix, and the next stream brings the rest.

    RocketMQ's checksum covers only the body. So the log may have other changes, and then is no prefix: the next stream,
    which compares, detects them.
    """
    master, slave = JavaMaster(), Slave()
    master.send(40)
    session = slave.connect(master)
    sent = master.pump(1_000)
    at, size = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.integers(1, 300))
    kind = data.draw(st.sampled_from(("drop", "double", "insert")))
    piece = {"drop": b"", "double": sent[at : at + size] * 2, "insert": b"\x07" * size + sent[at : at + size]}[kind]
    changed = sent[:at] + piece + sent[at + size :]

    with suppress(StreamBroken, CopyRefused):
        session.receive(changed)

    kept = slave.log()
    if master.log.startswith(kept):
        slave.follow(master)
        assert slave.log() == master.log
        return
    place = next(place for place, pair in enumerate(zip(master.log, kept, strict=False)) if pair[0] != pair[1])
    number, start = max((number, start) for number, start in enumerate(master.starts) if start <= place)
    assert not start + 88 <= place < start + 88 + len(master.bodies()[number])
    with pytest.raises(CannotFollow):
        slave.follow(master)


def test_record_with_bad_checksum_is_rejected() -> None:
    """Neither that record nor a later one is kept; earlier ones stay."""
    master, slave = JavaMaster(), Slave()
    master.send(20)
    session = slave.connect(master)
    good = master.log
    bad = bytearray(good)
    bad[master.starts[10] + 90] ^= 0x40
    master.log = bytes(bad)
    stream = master.pump(good.index(good[master.starts[10] :]))
    first = master.starts[10] + 12

    session.receive(stream[:first])
    with pytest.raises(CopyRefused, match=f"no valid record at {master.starts[10]}"):
        session.receive(stream[first:])

    assert slave.log() == good[: master.starts[10]]
    master.log = good
    slave.follow(master)
    assert slave.log() == good


def test_record_with_wrong_offset_is_rejected() -> None:
    """A record contains its own offset."""
    master, slave = JavaMaster(), Slave()
    master.send(5)
    session = slave.connect(master)
    first = master.log[: master.starts[1]]
    master.log = first + first + master.log[2 * len(first) :]

    with pytest.raises((CopyRefused, StreamBroken)):
        session.receive(master.pump())

    assert slave.world.store.log.wrote == 0


def test_impossible_length_is_not_buffered() -> None:
    """The bytes that wait in memory for their rest are limited, for any length that the master announces."""
    for size, magic in ((0, 0), (90, -626843481), (1 << 30, -626843481), (500, 7), (FILE_BYTES - 1, BLANK_MAGIC)):
        with pytest.raises(StreamBroken):
            RecordAssembler(0, FILE_BYTES).feed(BLANK_RECORD.pack(size, magic))
    with pytest.raises(StreamBroken, match="more than"):
        RecordAssembler(0, 1 << 30).feed(BLANK_RECORD.pack(RECORD_BYTES_MAX + 1, -626843481))


# -- where to begin ----------------------------------------------------------------------------------------------------

JAVAS = [Epoch(2, 0, is_ours=False)]
OURS = [Epoch(2, 0, is_ours=False), Epoch(3, 500)]


@pytest.mark.parametrize(("own", "master", "text"), [
    (History(OURS, 0, 900), MasterRange(0, 899), "but the master's is only"),
    (History(OURS, 0, 900), MasterRange(1_000, 5_000), "written by a Gantry master"),
    (History(OURS, 0, 1_000), MasterRange(1_000, 5_000), "written by a Gantry master"),
    (History([], 0, 0), MasterRange(1_234, 5_000), "mappedFileSizeCommitLog must be the same"),
])  # fmt: skip
def test_impossible_start_of_a_stream_is_refused(own: History, master: MasterRange, text: str) -> None:
    """The slave would lose records or mix two logs, or the master has another file size; the reason has the offsets."""
    with pytest.raises(CannotFollow, match=text):
        plan_stream_start(own, master, 1_000)


def test_the_last_mebibyte_is_compared() -> None:
    """The slave compares the last mebibyte, or all that both have; an empty one requests the whole log."""
    mebibyte = 1 << 20
    far = plan_stream_start(History(JAVAS, 0, 5 * mebibyte), MasterRange(0, 9 * mebibyte), mebibyte)
    near = plan_stream_start(History(JAVAS, 0, 5 * mebibyte), MasterRange(5 * mebibyte, 9 * mebibyte), mebibyte)
    short = plan_stream_start(History(JAVAS, 0, 700), MasterRange(0, 900), mebibyte)
    empty = plan_stream_start(History([Epoch(1, 0)], 0, 0), MasterRange(0, 900), mebibyte)
    late = plan_stream_start(History([Epoch(1, 0)], 0, 0), MasterRange(mebibyte, 2 * mebibyte), mebibyte)

    assert (far.request, far.end, far.epochs) == (4 * mebibyte, 5 * mebibyte, JAVAS)
    assert (near.request, near.end) == (5 * mebibyte, 5 * mebibyte)
    assert (short.request, short.end) == (1, 700)
    assert (empty.request, empty.end, empty.epochs, empty.is_restart) == (1, 0, JAVAS, False)
    assert (late.request, late.end, late.is_restart) == (mebibyte, mebibyte, True)


def test_history_records_the_writer_of_each_epoch() -> None:
    """Epochs without a message are removed, and used numbers are not used again."""
    assert foreign_epochs([Epoch(1, 0)], 0) == [Epoch(2, 0, is_ours=False)]
    assert foreign_epochs(OURS, 900) == [*OURS, Epoch(4, 900, is_ours=False)]
    assert foreign_epochs(OURS, 500) == JAVAS
    assert foreign_epochs([Epoch(1, 0), Epoch(7, 900)], 900) == [Epoch(1, 0), Epoch(8, 900, is_ours=False)]
