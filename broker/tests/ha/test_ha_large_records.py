"""The largest message that a broker accepts is replicated, compared and healed like any other."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Final

import pytest

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.frames import DATA_BYTES_MAX, FrameReader, Range, encode
from gantry_broker.ha.healing import Healer
from gantry_broker.ha.master_session import BATCH_BYTES, MasterFacts, MasterSession
from gantry_broker.ha.slave_session import Phase, SlaveFacts, SlaveSession
from gantry_broker.ha.store_log import MasterStore, SlaveStore
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.log_guard import ANSWER_BYTES, SEARCH_BYTES
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import wait_until
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import LOG
from gantry_wire.limits import FRAME_BYTES_MAX
from gantry_wire.message import RECORD_BYTES_MAX

MIB: Final = 1 << 20
BODY_BYTES: Final = 15 * MIB
SETTINGS: Final = dataclasses.replace(TINY, mapped_file_size_commit_log=40 * MIB)


def make_world(number: int) -> StoreWorld:
    world = StoreWorld(FaultyDisk(), f"/node{number}", SETTINGS)
    world.open()
    return world


def make_master() -> StoreWorld:
    """Return a store with two messages of the largest size, a small one before each of them and one at the end."""
    world = make_world(0)
    for number in range(2):
        world.send("orders")
        world.append([world.draft(body=bytes([number + 1]) * BODY_BYTES)])
    world.send("orders")
    return world


def follow(master: StoreWorld, slave: StoreWorld) -> MasterSession:
    """Carry one stream between two stores until both have nothing more to send. Return the master's end of it."""
    file_bytes, slave_log = SETTINGS.mapped_file_size_commit_log, SlaveStore(slave.store)
    facts = MasterFacts("c", "b", file_bytes, master.store.identity.epoch)
    sender = MasterSession(facts, MasterStore(master.store), AckSet(acks_needed=1, is_flushed_wanted=False))
    identity = slave.store.identity
    receiver = SlaveSession(
        SlaveFacts("c", "b", 1, identity.uuid, file_bytes, 0, True, ""), slave_log, lambda table: None
    )  # fmt: skip
    up = receiver.begin()
    while True:
        down = (sender.receive(up, 1) if up else b"") + b"".join(sender.pump(MIB))
        up = (receiver.receive(down) if down else b"") + receiver.ack()
        if receiver.phase is Phase.PREPARING:
            assert receiver.welcome is not None
            slave_log.prepare(receiver.welcome)
            up += receiver.start_stream()
        if not up and not down:
            return sender


def test_limits_fit_the_largest_message() -> None:
    """The largest message of the settings fits a frame of a client, and its record one of the replication stream."""
    assert broker_settings({"maxMessageSize": str(BODY_BYTES)}).message_bytes_max == BODY_BYTES
    with pytest.raises(SettingsError, match="maxMessageSize"):
        broker_settings({"maxMessageSize": str(BODY_BYTES + 1)})
    assert max(FRAME_BYTES_MAX + (128 << 10), BATCH_BYTES, ANSWER_BYTES) <= RECORD_BYTES_MAX <= DATA_BYTES_MAX
    assert SEARCH_BYTES >= FRAME_BYTES_MAX + (128 << 10)


def test_largest_record_is_replicated() -> None:
    """A slave gets a record of 15 MiB and those after it: the stream does not stop at such a record."""
    master, slave = make_master(), make_world(1)

    follow(master, slave)

    assert slave.store.log.wrote == master.store.log.wrote
    assert all(slave.store.guard.message_at(start) == record for start, record in master.records.items())


class Replica:
    """A replica that answers range requests as a slave does, in frames of the stream."""

    def __init__(self, world: StoreWorld) -> None:
        self._guard = world.store.guard

    def has_range(self, end: int) -> bool:
        """Return True: the replica has the whole log."""
        return True

    def lacks(self, start: int) -> bool:
        """Return False, for the same reason."""
        return False

    def waits_at(self, start: int) -> bool:
        """Return False, for the same reason."""
        return False

    async def fetch(self, start: int, end: int) -> bytes:
        """Return the records that the replica's frame contains."""
        frame = encode(Range(start, self._guard.read_verified_range(start, end)))
        [answer] = FrameReader().feed(frame)
        assert isinstance(answer, Range)
        return answer.records


@pytest.mark.parametrize("at", [1, MIB], ids=["its length", "its body"])
async def test_damaged_largest_record_is_healed(at: int) -> None:
    """A damaged record of 15 MiB is fetched from a replica, also if its length is unknown."""
    master, slave = make_master(), make_world(1)
    follow(master, slave)
    sent = dict(master.records)
    start = max(sent, key=lambda offset: (len(sent[offset]), -offset))
    master.overwrite(LOG, start + at, b"\x00" if at == 1 else b"\xee")
    healer = Healer(master.store, lambda: [Replica(slave)], nullcontext)

    assert not master.store.guard.read_verified(start, MIB)
    await wait_until(lambda: not master.store.guard.damage.damaged)
    await healer.close()

    assert master.store.guard.damage.counters.lost == 0
    assert all(master.store.guard.message_at(offset) == record for offset, record in sent.items())


@pytest.mark.parametrize("side", ["master", "slave"])
def test_damaged_largest_record_is_no_other_history(side: str) -> None:
    """A slave that returns is compared within a large record, and accepted: one side's record is damaged."""
    master, slave = make_master(), make_world(1)
    follow(master, slave)
    start = max(master.records, key=lambda offset: (len(master.records[offset]), offset))
    (master if side == "master" else slave).overwrite(LOG, start + BODY_BYTES - MIB // 2, b"\xee")

    assert follow(master, slave).refusal is None


def test_other_largest_record_is_another_history() -> None:
    """Two logs that differ only within a good record of 15 MiB are of two histories: the slave is refused."""
    master, slave = make_master(), make_world(1)
    follow(master, slave)
    start = max(master.records, key=lambda offset: (len(master.records[offset]), offset))
    other = make_world(2)
    for number in range(2):
        other.send("orders")
        other.append([other.draft(body=bytes([number + 1]) * (BODY_BYTES - 1) + bytes([9 * number + 1]))])
    assert start in other.records
    replace(slave, start, other.records[start])

    refusal = follow(master, slave).refusal

    assert refusal is not None and refusal.reason == "fork"


def replace(world: StoreWorld, start: int, record: bytes) -> None:
    """Write a good record over the one at ``start`` of the log."""
    world.store.guard.prepare_rewrite(start, record)()
    assert world.store.guard.message_at(start) == record
