"""The net port: both twins carry bytes, and the one in memory cuts, holds and chops on purpose."""

from __future__ import annotations

import asyncio

import pytest

from gantry_broker.ports import Net, SystemClock, SystemNet
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_net import FaultyNet


class Ear(asyncio.Protocol):
    """Collects what arrives."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    async def heard(self, count: int) -> bytes:
        """Wait for ``count`` bytes in all."""
        async with asyncio.timeout(60):
            while sum(map(len, self.pieces)) < count:
                self.news.clear()
                await self.news.wait()
        return b"".join(self.pieces)


async def join(net: Net) -> tuple[Ear, Ear]:
    """A connected pair: client's ear, server's ear."""
    accepted: asyncio.Future[Ear] = asyncio.get_running_loop().create_future()

    class Host(Ear):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            accepted.set_result(self)

    listener = await net.listen(Host, "127.0.0.1", 0)
    _, client = await net.connect(Ear, "127.0.0.1", listener.port)
    assert isinstance(client, Ear)
    server = await asyncio.wait_for(accepted, 60)
    await listener.close()
    return client, server


@pytest.mark.parametrize("net", [SystemNet(), FaultyNet()], ids=["real", "faulty"])
async def test_bytes_travel_both_ways_and_closing_is_heard(net: Net) -> None:
    """What is written on one end arrives on the other, in order; then the end of the connection does."""
    client, server = await join(net)
    assert client.transport is not None and server.transport is not None

    client.transport.write(b"ping")
    assert await server.heard(4) == b"ping"
    server.transport.write(b"pong")
    server.transport.write(b"!")
    assert await client.heard(5) == b"pong!"
    client.transport.close()
    assert await asyncio.wait_for(server.lost, 60) is None
    assert await asyncio.wait_for(client.lost, 60) is None


@pytest.mark.parametrize("net", [SystemNet(), FaultyNet()], ids=["real", "faulty"])
async def test_connecting_to_nobody_is_an_error(net: Net) -> None:
    """A port that nobody listens on refuses."""
    listener = await net.listen(Ear, "127.0.0.1", 0)
    await listener.close()

    with pytest.raises(OSError, match=r"."):
        await net.connect(Ear, "127.0.0.1", listener.port)


async def test_held_bytes_arrive_after_the_release_in_order() -> None:
    """A delay is exactly as long as the test wants."""
    net = FaultyNet()
    client, server = await join(net)
    assert client.transport is not None
    net.connections[0].hold()

    client.transport.write(b"one")
    client.transport.write(b"two")
    for _ in range(10):
        await asyncio.sleep(0)
    assert server.pieces == []
    net.connections[0].release()

    assert await server.heard(6) == b"onetwo"


async def test_chopped_bytes_arrive_in_small_pieces() -> None:
    """Readers must not count on one read being one frame."""
    net = FaultyNet()
    client, server = await join(net)
    assert client.transport is not None
    net.connections[0].chop(2)

    client.transport.write(b"hello")

    assert await server.heard(5) == b"hello"
    assert server.pieces == [b"he", b"ll", b"o"]


async def test_a_cut_is_a_reset_at_both_ends_and_loses_what_was_under_way() -> None:
    """After a cut nothing arrives any more."""
    net = FaultyNet()
    client, server = await join(net)
    assert client.transport is not None
    client.transport.write(b"hello")

    net.connections[0].cut()

    assert isinstance(await asyncio.wait_for(server.lost, 60), ConnectionResetError)
    assert isinstance(await asyncio.wait_for(client.lost, 60), ConnectionResetError)
    assert server.pieces == []


async def test_a_refused_port_can_be_let_in_again() -> None:
    """Partition and heal, on the connecting side."""
    net = FaultyNet()
    listener = await net.listen(Ear, "127.0.0.1", 0)
    net.refuse(listener.port)
    with pytest.raises(ConnectionRefusedError):
        await net.connect(Ear, "127.0.0.1", listener.port)

    net.refuse(listener.port, is_refused=False)

    await net.connect(Ear, "127.0.0.1", listener.port)
    with pytest.raises(OSError, match="in use"):
        await net.listen(Ear, "127.0.0.1", listener.port)


async def test_a_paused_reader_gets_its_bytes_when_it_resumes() -> None:
    """Flow control works as on a socket."""
    net = FaultyNet()
    client, server = await join(net)
    assert client.transport is not None and server.transport is not None
    server.transport.pause_reading()
    client.transport.write(b"hello")
    for _ in range(5):
        await asyncio.sleep(0)
    assert server.pieces == []
    assert client.transport.get_write_buffer_size() == 5

    server.transport.resume_reading()

    assert await server.heard(5) == b"hello"


def test_the_clocks_move_as_clocks_do() -> None:
    """The system's monotonic clock never goes back; the fake one moves when told, its wall clock even backward."""
    system = SystemClock()
    assert system.monotonic_ms() <= system.monotonic_ms()
    assert system.wall_ms() > 1_600_000_000_000
    fake = FakeClock(1_000)
    before = fake.monotonic_ms()
    fake.advance(5)
    fake.jump_wall(-100)
    assert (fake.wall_ms(), fake.monotonic_ms()) == (905, before + 5)
