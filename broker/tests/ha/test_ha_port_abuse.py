"""The replication port before authentication: what an unidentified peer can make a master buffer."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.ha.frames import (
    PREAMBLE,
    TABLE_BYTES_MAX,
    FrameKind,
    FrameReader,
    Hello,
    StreamBroken,
    Table,
    encode,
)
from gantry_broker.ha.master_session import MasterFacts, MasterSession, Phase
from gantry_broker.ha.server import STREAMS_MAX, UNREAD_BYTES_MAX, MasterStream, ReplicationServer
from gantry_broker.ha.store_log import MasterStore
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import RawPeer, wait_until
from gantry_testing.store_world import TINY, StoreWorld


def head(kind: int, size: int) -> bytes:
    """Return the head of a frame whose rest never arrives."""
    return struct.pack(">IB3xI", size, kind, 0)


def session(phase: Phase = Phase.HELLO) -> MasterSession:
    """Return a master's session of a stream, in this phase."""
    world = StoreWorld(FaultyDisk(), "/node0", TINY)
    world.open()
    facts = MasterFacts("c", "b", TINY.mapped_file_size_commit_log, world.store.identity.epoch)
    one = MasterSession(facts, MasterStore(world.store), AckSet(acks_needed=1, is_flushed_wanted=False))
    one.receive(PREAMBLE, 0.0)
    one.phase = phase
    return one


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind is not FrameKind.HELLO])
def test_unidentified_peer_may_send_only_a_hello(kind: FrameKind) -> None:
    """The stream ends at the head of any other frame, before a byte of it is kept."""
    one = session()
    with pytest.raises(StreamBroken):
        one.receive(head(kind, 100) + bytes(50), 0.0)


def test_slave_may_not_send_a_table_in_any_phase() -> None:
    """Only a master sends tables: the head of one of 60 MiB ends the stream, and none of it is kept."""
    for phase in Phase:
        if phase not in (Phase.REFUSED, Phase.PREAMBLE):
            with pytest.raises(StreamBroken, match="TABLE of"):
                session(phase).receive(head(FrameKind.TABLE, 60 << 20) + bytes(100), 0.0)


def test_without_limit_a_part_of_a_table_is_buffered() -> None:
    """The twin: without that rule the part is kept until the connection ends."""
    reader = FrameReader()
    reader.feed(head(FrameKind.TABLE, TABLE_BYTES_MAX) + bytes(1 << 20))

    assert reader.buffered > 1 << 20


def test_hello_may_arrive_in_pieces() -> None:
    """An expected frame may arrive byte by byte."""
    one = session()
    hello = Hello(cluster="x", broker_name="y", broker_id=1, store_uuid="u", epochs=[], begin=0, end=0,
                  file_bytes=1, promised_epoch=0, nonce="n", proof="")  # fmt: skip
    data = encode(hello)

    answers = b"".join(one.receive(data[place : place + 1], 0.0) for place in range(len(data)))

    assert answers and one.refusal is not None and one.refusal.reason == "stranger"


@asynccontextmanager
async def listening() -> AsyncIterator[ReplicationServer]:
    world = StoreWorld(FaultyDisk(), "/node0", TINY)
    world.open()
    facts = MasterFacts("c", "b", TINY.mapped_file_size_commit_log, world.store.identity.epoch)
    slaves = AckSet(acks_needed=1, is_flushed_wanted=False)
    server = ReplicationServer(lambda: facts, MasterStore(world.store), slaves, on_acks=lambda: None)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


async def test_unidentified_peers_make_room_for_new_connections() -> None:
    """When all connections are in use the oldest unidentified one is closed, so that slaves can always connect."""
    async with listening() as server:
        peers = [await RawPeer.open(server.port) for _ in range(STREAMS_MAX)]
        await wait_until(lambda: len(server.streams) == STREAMS_MAX)

        late = await RawPeer.open(server.port)
        await late.send(PREAMBLE)
        assert await late.reader.read(1), "expected the master's challenge"

        assert len(server.streams) == STREAMS_MAX
        assert await peers[0].is_closed_by_peer()
        for peer in (late, *peers):
            await peer.close()


async def test_streaming_slaves_do_not_make_room() -> None:
    """A streaming slave is never disconnected for a new connection."""
    async with listening() as server:
        peers = [await RawPeer.open(server.port) for _ in range(STREAMS_MAX)]
        await wait_until(lambda: len(server.streams) == STREAMS_MAX)
        for stream in server.streams:
            assert isinstance(stream.session, MasterSession)
            stream.session.phase = Phase.STREAMING
        late = await RawPeer.open(server.port)

        assert await late.is_closed_by_peer()
        assert len(server.streams) == STREAMS_MAX
        for stream in server.streams:
            assert isinstance(stream.session, MasterSession)
            stream.session.phase = Phase.HELLO
        for peer in (late, *peers):
            await peer.close()


class FullTransport(asyncio.Transport):
    """A transport whose peer reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting_bytes = 0
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return "127.0.0.1", 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.waiting_bytes += len(data)

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def abort(self) -> None:
        self.is_aborted = True


async def test_slave_that_does_not_read_is_disconnected() -> None:
    """Changed tables are sent even if the slave has not read earlier ones, up to a limit."""
    async with listening() as server:
        stream, transport = MasterStream(server), FullTransport()
        stream.connection_made(transport)
        assert isinstance(stream.session, MasterSession)
        stream.session.phase = Phase.STREAMING
        table = Table(1, "topics", bytes(16 << 20))

        for _ in range(3):
            stream.send_tables([table])
        kept = not transport.is_aborted
        stream.send_tables([table, table])

        assert kept and transport.is_aborted
        assert transport.waiting_bytes <= UNREAD_BYTES_MAX + (33 << 20)
