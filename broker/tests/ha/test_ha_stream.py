"""A master's and a slave's session of the replication stream, without a socket: a slave's log is always a prefix."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.errors import PoolExhausted, StoreError
from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.frames import PREAMBLE, Ack, Hello, Ready, StreamBroken, encode
from gantry_broker.ha.master_session import MasterFacts, MasterSession
from gantry_broker.ha.master_session import Phase as MasterPhase
from gantry_broker.ha.slave_session import Phase, SlaveFacts, SlaveSession
from gantry_broker.ha.store_log import MasterStore, SlaveStore
from gantry_broker.store.copying import CopyRefused
from gantry_broker.store.identity import Epoch
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld

POOL = PoolSettings(is_enabled=True, buffers_count=4, path="/buffers")
SECRET = b"a shared secret"


class Node:
    """A store that is a master or a slave."""

    def __init__(self, number: int, *, is_pooled: bool = False) -> None:
        settings = dataclasses.replace(TINY, pool=POOL) if is_pooled else TINY
        self.world = StoreWorld(FaultyDisk(), f"/node{number}", settings)
        self.world.open()
        self.number = number
        self.promised_epoch = 0

    @property
    def store(self) -> MessageStore:
        return self.world.store

    def master_facts(self, secret: bytes = b"") -> MasterFacts:
        return MasterFacts("c", "b", TINY.mapped_file_size_commit_log, self.store.identity.epoch, 0, secret)

    def slave_facts(self, secret: bytes = b"") -> SlaveFacts:
        return SlaveFacts(
            "c", "b", self.number, self.store.identity.uuid, TINY.mapped_file_size_commit_log, self.promised_epoch,
            True, f"10.0.0.{self.number}:10911", secret,
        )  # fmt: skip

    def log(self) -> bytes:
        data, offset, log = b"", self.store.log.min_physical, MasterStore(self.store)
        while more := log.read(offset + len(data), 1 << 20):
            data += more
        return data


class Connection:
    """One connection between a master and a slave, whose bytes the test carries from one to the other."""

    def __init__(self, master: Node, slave: Node, slaves: AckSet, *, secrets: tuple[bytes, bytes] = (b"", b"")) -> None:
        self.slave_store = SlaveStore(slave.store)
        self.master = MasterSession(master.master_facts(secrets[0]), MasterStore(master.store), slaves)
        self.slave = SlaveSession(slave.slave_facts(secrets[1]), self.slave_store, lambda table: None)
        self.up = self.slave.begin()
        """Bytes on their way to the master."""
        self.down = b""
        """Bytes on their way to the slave."""
        self.now = 0

    def carry(self, size: int = 1 << 30, change: Callable[[bytes], bytes] = lambda data: data) -> bool:
        """Carry up to ``size`` bytes each way; return False if there was nothing to carry."""
        self.now += 1
        up, self.up = self.up[:size], self.up[size:]
        if up:
            self.down += self.master.receive(up, self.now)
        self.down += b"".join(self.master.pump(1 << 20))
        down, self.down = self.down[:size], self.down[size:]
        if down:
            self.up += self.slave.receive(change(down))
        if self.slave.phase is Phase.PREPARING:
            assert self.slave.welcome is not None
            self.slave_store.prepare(self.slave.welcome)
            self.up += self.slave.start_stream()
        self.up += self.slave.ack()
        return bool(up or down)

    def settle(self) -> None:
        """Carry all bytes and a heartbeat, until the slave shows all confirmed messages."""
        while self.carry():
            pass
        self.down += self.master.encode_heartbeat(self.now)
        while self.carry():
            pass
        while not self.slave_store.dispatch(self.slave.confirmed):
            pass


@settings(max_examples=40)
@given(st.data(), st.booleans())
def test_slave_is_prefix_of_master_wherever_the_stream_is_cut(data: st.DataObject, is_pooled: bool) -> None:
    """The stream may be cut at any byte of a frame; after reconnecting, the slave continues at its end."""
    master, slave, slaves = Node(0), Node(1, is_pooled=is_pooled), AckSet(acks_needed=1, is_flushed_wanted=False)
    master.world.send("orders", 1)
    for _ in range(data.draw(st.integers(1, 6))):
        connection = Connection(master, slave, slaves)
        for _ in range(data.draw(st.integers(0, 40))):
            if data.draw(st.integers(0, 3)) == 0:
                master.world.send(data.draw(st.sampled_from(("orders", "bills"))), data.draw(st.integers(1, 20)))
            try:
                connection.carry(data.draw(st.sampled_from((1, 3, 7, 100, 5_000, 1 << 20))))
            except PoolExhausted:
                break
            finally:
                assert master.log().startswith(slave.log())
                assert slaves.acked_offset() <= slave.store.log.wrote
        commit(slave)
        connection.master.close()
        assert slaves.acked_offset() == -1
    settle_with_few_buffers(master, slave, slaves)

    assert slave.log() == master.log()
    assert slaves.acked_offset() == master.store.log.wrote
    for topic, queues in master.store.queues.topics().items():
        for queue_id in queues:
            assert slave.world.bodies(topic, queue_id) == master.world.bodies(topic, queue_id)


def commit(slave: Node) -> None:
    slave.world.clock.advance(300)
    slave.store.commit_step()


def settle_with_few_buffers(master: Node, slave: Node, slaves: AckSet) -> None:
    """Carry all bytes, while a slave with full buffers ends its stream and continues with the next one."""
    while True:
        connection = Connection(master, slave, slaves)
        before = slave.store.log.wrote
        try:
            connection.settle()
            return
        except PoolExhausted:
            connection.master.close()
            commit(slave)
            assert slave.store.log.wrote > before, "a stream has brought the slave no further"


@settings(max_examples=150)
@given(st.integers(0, 1 << 30))
def test_corrupted_stream_is_closed_or_harmless(seed: int) -> None:
    """After a flipped bit, a repeated piece or a missing byte, the slave's log stays a prefix of its master's."""
    chance = random.Random(seed)
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    master.world.send("orders", chance.randrange(1, 40))
    connection = Connection(master, slave, slaves)
    corrupted_at = chance.randrange(40)

    def change(data: bytes) -> bytes:
        nonlocal corrupted_at
        corrupted_at -= 1
        if corrupted_at or not data:
            return data
        place = chance.randrange(len(data))
        return chance.choice((
            data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :],
            data[:place] + data, data[:place] + data[place + 1 :], data + data[place:],
        ))  # fmt: skip

    try:
        for _ in range(60):
            connection.carry(chance.choice((10, 200, 3_000)), change)
            assert master.log().startswith(slave.log())
    except (StreamBroken, CopyRefused, StoreError):
        pass
    assert master.log().startswith(slave.log())


def test_returning_master_cuts_its_unconfirmed_tail() -> None:
    """The cut is durable; after records of the same sizes were appended, a kill restores nothing old."""
    old, new, slaves = Node(1), Node(2), AckSet(acks_needed=1, is_flushed_wanted=False)
    old.world.send("orders", 30)
    connection = Connection(old, new, slaves)
    connection.settle()
    fork = new.store.log.wrote
    old.world.send("orders", 10)
    lost = [record for start, record in old.world.records.items() if start >= fork]
    connection.slave_store.promote([*new.store.identity.epochs, Epoch(2, fork)])
    new.store.dispatcher.release(new.store.log.wrote, keep_holding=False)
    new.world.send("orders", 10)

    connection = Connection(new, old, AckSet(acks_needed=1, is_flushed_wanted=False))
    connection.settle()

    assert old.log() == new.log()
    assert [epoch.epoch for epoch in old.store.identity.epochs] == [1, 2]
    old.store.flush()
    old.world.kill()
    old.world.open()
    assert old.log() == new.log()
    assert not any(record in old.log() for record in lost)
    assert old.world.bodies() == new.world.bodies()


def test_slave_ahead_in_the_same_epoch_is_refused() -> None:
    """The master has lost something: cutting the slave would destroy the only copy."""
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    slave.world.send("orders", 5)
    before = slave.log()
    connection = Connection(master, slave, slaves)

    connection.settle()

    assert connection.master.phase is MasterPhase.REFUSED
    assert connection.slave.refusal is not None and connection.slave.refusal.reason == "ahead"
    assert slave.log() == before
    assert len(slaves) == 0


def test_slave_with_other_bytes_in_the_same_epoch_is_refused() -> None:
    """The epochs agree, but the bytes differ: the offset is reported, exact to 4 KiB."""
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    master.world.send("orders", 60)
    slave.world.append([slave.world.draft("bills", 0)])
    slave.world.send("orders", 30)
    assert slave.store.log.wrote < master.store.log.wrote
    connection = Connection(master, slave, slaves)

    connection.settle()

    assert connection.slave.refusal is not None and connection.slave.refusal.reason == "fork"
    assert "from offset 0 on" in connection.slave.refusal.text


def test_late_slave_gets_everything_from_the_oldest_file() -> None:
    """The same holds where that file does not begin at 0, and for a slave that was away too long."""
    master, late, away = Node(0), Node(1), Node(2)
    master.world.send("orders", 20)
    slaves = AckSet(acks_needed=1, is_flushed_wanted=False)
    first = Connection(master, away, slaves)
    first.settle()
    first.master.close()
    master.world.send("orders", 400)
    master.store.flush_step()
    offset = 2 * TINY.mapped_file_size_commit_log
    trims = master.store.removal.measure(offset)
    master.store.removal.retire(offset, trims)
    master.store.removal.unlink()

    for slave in (late, away):
        Connection(master, slave, slaves).settle()

        assert slave.store.log.min_physical == master.store.log.min_physical == offset
        assert slave.log() == master.log()
        assert slave.world.bodies() == master.world.bodies()


def restart_with_damage(node: Node, number: int, *, lacks: int | None = None) -> None:
    """Restart with a damaged record, without the queues, and without the log file that begins at ``lacks``."""
    world, place = node.world, sorted(node.world.records)[number]
    world.store.flush_step()
    world.close()
    file_bytes = TINY.mapped_file_size_commit_log
    world.overwrite(f"commitlog/{place - place % file_bytes:020d}", place % file_bytes + 90, b"\xee\xee")
    world.disk.remove_tree(world.path("consumequeue"))
    for name in ("recovery-point.json", "checkpoint", *([] if lacks is None else [f"commitlog/{lacks:020d}"])):
        world.disk.remove(world.path(name))
    assert [start for start, _ in world.open().damaged] == [place]


@pytest.mark.parametrize("number", [0, 5])
def test_damage_is_forgotten_when_the_log_is_copied_again(number: int) -> None:
    """A slave with a hole copies the whole log again: earlier damage is no longer skipped."""
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    master.world.send("orders", 400)
    connection = Connection(master, slave, slaves)
    connection.settle()
    connection.master.close()
    slave.world.records.update(master.world.records)
    restart_with_damage(slave, number, lacks=TINY.mapped_file_size_commit_log)

    Connection(master, slave, slaves).settle()
    assert slave.store.is_log_discarded and slave.log() == master.log()
    assert slave.world.bodies() == master.world.bodies()
    assert not slave.store.guard.damage.damaged


def test_damage_in_a_cut_tail_hides_no_later_record() -> None:
    """Other records lie at that offset then, and consumers see all of them."""
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    slave.world.send("orders", 300)
    connection = Connection(slave, master, slaves)
    connection.settle()
    connection.master.close()
    slave.world.send("orders", 200)
    restart_with_damage(slave, 400)
    epochs = master.store.identity.epochs
    master.store.change_epochs([*epochs, Epoch(epochs[-1].epoch + 1, master.store.log.wrote)])
    for _ in range(10):
        master.world.append([master.world.draft(body=b"x" * 100) for _ in range(30)])

    Connection(master, slave, slaves).settle()
    assert slave.log() == master.log()
    assert slave.world.bodies() == master.world.bodies()


@pytest.mark.parametrize("secrets", [(SECRET, b""), (b"", SECRET), (SECRET, b"another")])
def test_peer_without_the_secret_is_refused(secrets: tuple[bytes, bytes]) -> None:
    """Both a slave and a master without the secret are refused."""
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    master.world.send("orders", 5)
    connection = Connection(master, slave, slaves, secrets=secrets)

    with suppress(StreamBroken):
        connection.settle()

    assert slave.store.log.wrote == 0
    assert len(slaves) == 0


def test_peer_with_the_secret_is_accepted() -> None:
    """With the same secret on both sides, the slave of the test above gets the log."""
    master, slave, slaves = Node(0), Node(1), AckSet(acks_needed=1, is_flushed_wanted=False)
    master.world.send("orders", 5)

    Connection(master, slave, slaves, secrets=(SECRET, SECRET)).settle()

    assert slave.log() == master.log()


def streaming(slaves: AckSet) -> tuple[Node, MasterSession, str]:
    """Return a master, its session with a slave that the test plays, and the identity of that slave's store."""
    master = Node(0)
    master.world.send("orders", 5)
    session = MasterSession(master.master_facts(), MasterStore(master.store), slaves)
    hello = Hello(
        cluster="c", broker_name="b", broker_id=1, store_uuid="u" * 32, epochs=[], begin=0, end=0,
        file_bytes=TINY.mapped_file_size_commit_log, promised_epoch=0,
    )  # fmt: skip
    session.receive(PREAMBLE + encode(hello), 0)
    session.receive(encode(Ready(start=0)), 0)
    session.pump(1 << 20)
    return master, session, "u" * 32


@pytest.mark.parametrize(
    "ack",
    [
        Ack(1, 1 << 60, 0, 0, 0), Ack(1, 10, 20, 0, 0), Ack(2, 10, 10, 0, 0), Ack(1, -2, -2, 0, 0),
        Ack(1, 100, 50, 0, 0),
    ],
    ids=["beyond-the-log", "flushed-beyond-received", "another-epoch", "negative", "backwards"],
)  # fmt: skip
def test_impossible_ack_ends_the_stream_and_does_not_count(ack: Ack) -> None:
    """In RocketMQ's stream even a port scanner's bytes count as acks."""
    slaves = AckSet(acks_needed=1, is_flushed_wanted=False)
    _, session, _ = streaming(slaves)
    session.receive(encode(Ack(1, 200, 200, 0, 0)), 0)
    assert slaves.acked_offset() == 200

    with pytest.raises(StreamBroken):
        session.receive(encode(ack), 1)

    assert slaves.acked_offset() == 200
    session.close()
    assert slaves.acked_offset() == -1


def test_identity_or_broker_id_is_counted_once() -> None:
    """A second connection with the same identity or broker id is refused; the first one continues."""
    slaves = AckSet(acks_needed=2, is_flushed_wanted=False)
    master, session, identity = streaming(slaves)
    session.receive(encode(Ack(1, 200, 200, 0, 0)), 0)
    slave = Node(1)

    connection = Connection(master, slave, slaves)
    connection.settle()

    assert connection.slave.refusal is not None and connection.slave.refusal.reason == "duplicate"
    assert slaves.join(identity, 2, 0.0) is None
    assert (len(slaves), slaves.acked_offset()) == (1, -1)


@settings(max_examples=300)
@given(st.binary(max_size=300), st.booleans())
def test_rogue_peers_change_nothing(noise: bytes, is_late: bool) -> None:
    """They send random bytes, before the first frame and after a valid beginning: none joins or changes the log."""
    slaves = AckSet(acks_needed=1, is_flushed_wanted=False)
    master = Node(0)
    master.world.send("orders", 5)
    before = master.log()
    session = MasterSession(master.master_facts(), MasterStore(master.store), slaves)
    with suppress(StreamBroken):
        session.receive((PREAMBLE if is_late else b"") + noise, 0)

    assert len(slaves) == 0 and slaves.acked_offset() == -1
    assert master.log() == before
    session.close()
