"""Replication over TLS: which peers are accepted, the cost of half-open handshakes, and replaced certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trustme

from gantry_broker.app import Broker
from gantry_broker.ha import tls_port
from gantry_broker.ha.server import HANDSHAKE_S
from gantry_remoting import PeerContexts
from gantry_remoting.tls_contexts import client_context
from gantry_testing.certificates import Party, served_serial, wait_for_other_serial
from gantry_testing.local import RawPeer, dialogue, on_both_loops, running_broker, wait_until

CHECK_INTERVAL_S = 0.01
PATIENCE_S = HANDSHAKE_S / 2
"""Shorter than the time after which a master ends any silent stream: who is closed by then was refused."""
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(autouse=True)
def fast_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", CHECK_INTERVAL_S)


def broker_at(path: Path, **conf: str) -> AbstractAsyncContextManager[Broker]:
    """Return a broker with these settings."""
    return running_broker(path, disk=None, clock=None, **conf)


@asynccontextmanager
async def pair(tmp_path: Path, of_master: Party, of_slave: Party) -> AsyncIterator[tuple[Broker, Broker]]:
    """Return a master that waits for its slave, and the slave."""
    conf = of_master.replication()
    async with broker_at(tmp_path / "master", brokerRole="SYNC_MASTER", **conf) as master:
        address = master.settings.ha_address
        async with broker_at(tmp_path / "slave", haMasterAddress=address, **SLAVE, **of_slave.replication()) as slave:
            yield master, slave


def streams(master: Broker) -> int:
    return len(master.replication.master.server.streams)


async def follows(master: Broker) -> None:
    await wait_until(lambda: len(master.replication.acks) == 1)


async def send(master: Broker) -> int:
    async with dialogue(master) as peer:
        return (await peer.send(b"a")).code


def ha_port(master: Broker) -> int:
    port = master.settings.ha_listen_port
    assert port is not None
    return port


# ------- who gets in


@on_both_loops
async def test_group_moves_to_another_authority_without_restart(tmp_path: Path, authority: trustme.CA) -> None:
    """The steps: trust both authorities, present the new certificate, trust only the new authority."""
    of_master, of_slave = Party(tmp_path / "m", authority), Party(tmp_path / "s", authority)
    other = trustme.CA()
    old_member = of_slave.client().client_context()
    async with pair(tmp_path, of_master, of_slave) as (master, slave):
        await follows(master)
        assert await send(master) == 0
        first = contexts(master), contexts(slave)

        for party in (of_master, of_slave):
            party.trust(authority, other)
            party.replace(other)
        await wait_until(lambda: contexts(master) is not first[0] and contexts(slave) is not first[1])
        await wait_until(lambda: master.tls.problem is None and slave.tls.problem is None)
        assert len(master.replication.acks) == 1, "expected the existing stream to continue"
        assert await send(master) == 0

        for party in (of_master, of_slave):
            party.trust(other)
        await wait_until(lambda: is_trusting_only(master) and is_trusting_only(slave))
        master.replication.master.server.disconnect("its certificates are new")
        await wait_until(lambda: streams(master) == 1 and len(master.replication.acks) == 1)
        assert await send(master) == 0
        assert await is_turned_away(ha_port(master), old_member)


async def test_existing_stream_continues_after_certificate_change(tmp_path: Path, authority: trustme.CA) -> None:
    """Only the master's certificate is replaced: new streams use the new one."""
    of_master, of_slave = Party(tmp_path / "m", authority), Party(tmp_path / "s", authority)
    context = of_slave.client().client_context()
    async with pair(tmp_path, of_master, of_slave) as (master, slave):
        await follows(master)
        [stream] = master.replication.master.server.streams
        old, of_slave_before = await served_serial(ha_port(master), context), contexts(slave)

        of_master.replace(authority)
        await wait_for_other_serial(ha_port(master), context, old)

        assert await send(master) == 0
        assert stream in master.replication.master.server.streams and len(master.replication.acks) == 1
        master.replication.master.server.disconnect("to see it come again")
        await wait_until(lambda: streams(master) == 1 and len(master.replication.acks) == 1)
        assert await send(master) == 0 and contexts(slave) is of_slave_before


def contexts(broker: Broker) -> PeerContexts:
    """Return the TLS contexts that the next stream of this broker uses."""
    source = broker.tls.replication
    assert source is not None
    return source.current


def is_trusting_only(broker: Broker) -> bool:
    """Return whether only one authority is trusted in both directions."""
    both = contexts(broker)
    return [len(context.get_ca_certs()) for context in (both.server, both.client)] == [1, 1]


async def is_turned_away(port: int, context: ssl.SSLContext) -> bool:
    """Return whether a peer with this context is disconnected without data.

    In TLS 1.3 a client completes its handshake before the server has verified its certificate.
    """
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except OSError:
        return True
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("is_guarded", [True, False], ids=["with an authority", "without"])
async def test_peer_without_valid_certificate_never_reaches_the_protocol(
    tmp_path: Path, authority: trustme.CA, is_guarded: bool
) -> None:
    """Its data is not read and no stream is made for it; without a configured authority every peer gets one."""
    party = Party(tmp_path / "party", authority)
    conf = party.replication()
    if not is_guarded:
        del conf["haTlsTrustCertPath"]
    stranger = Party(tmp_path / "stranger", trustme.CA())
    contexts = {
        "none": client_context(is_server_verified=False),
        "another authority's": client_context(
            None, str(stranger.chain), str(stranger.key), is_server_verified=False
        ),
    }  # fmt: skip
    async with broker_at(tmp_path / "master", brokerRole="SYNC_MASTER", **conf) as master:
        for context in contexts.values():
            if is_guarded:
                assert await is_turned_away(ha_port(master), context)
                assert streams(master) == 0
            else:
                _, writer = await asyncio.open_connection("127.0.0.1", ha_port(master), ssl=context)
                await wait_until(lambda: streams(master) == 1)
                writer.transport.abort()
                await wait_until(lambda: streams(master) == 0)


async def test_plain_text_is_refused_with_tls(tmp_path: Path, authority: trustme.CA) -> None:
    """A slave without TLS gets nothing from a master with TLS."""
    party = Party(tmp_path / "party", authority)
    async with broker_at(tmp_path / "master", brokerRole="SYNC_MASTER", **party.replication()) as master:
        address = master.settings.ha_address
        async with broker_at(tmp_path / "slave", haMasterAddress=address, **SLAVE) as slave:
            await wait_until(lambda: getattr(slave.replication.slave.follower, "problem", None) is not None)
            assert streams(master) == 0 and len(master.replication.acks) == 0


async def test_invalid_replacement_keeps_the_old_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    """A key that does not fit is reported, and slaves connect with the old certificate."""
    of_master, of_slave = Party(tmp_path / "m", authority), Party(tmp_path / "s", authority)
    async with pair(tmp_path, of_master, of_slave) as (master, _):
        await follows(master)
        context = of_slave.client().client_context()
        serial = await served_serial(ha_port(master), context)

        of_master.key.write_bytes(of_slave.key.read_bytes())
        await wait_until(lambda: master.tls.problem is not None)

        assert str(of_master.key) in str(master.tls.problem)
        assert await served_serial(ha_port(master), context) == serial
        master.replication.master.server.disconnect("to see it come again")
        await wait_until(lambda: streams(master) == 1 and len(master.replication.acks) == 1)
        assert await send(master) == 0


async def test_unusable_certificate_stops_the_start(tmp_path: Path, authority: trustme.CA) -> None:
    """A group that requires TLS must not run without it, and its store is not touched."""
    party = Party(tmp_path / "party", authority)
    party.key.unlink()
    with pytest.raises(OSError, match=r"key\.pem"):
        async with broker_at(tmp_path / "store", **party.replication()):
            pass
    assert not (tmp_path / "store" / "commitlog").exists()


async def test_taken_port_is_named(tmp_path: Path, authority: trustme.CA) -> None:
    """An administrator has to know which of several ports is taken, with TLS, too."""
    party = Party(tmp_path / "party", authority)
    async with broker_at(tmp_path / "first") as first:
        port = str(ha_port(first))
        with pytest.raises(OSError, match=f"address already in use: 127.0.0.1:{port}"):
            async with broker_at(tmp_path / "second", **party.replication() | {"haListenPort": port}):
                pass


# ------- what handshakes cost


@pytest.mark.parametrize("timeout_s", [0.1, 600.0], ids=["bounded", "unbounded"])
async def test_handshake_times_out(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """A peer that begins a handshake and then is silent is disconnected; without the limit it would stay."""
    monkeypatch.setattr(tls_port, "HANDSHAKE_S", timeout_s)
    party = Party(tmp_path / "party", authority)
    async with broker_at(tmp_path / "master", **party.replication()) as master:
        peer = await RawPeer.open(ha_port(master))
        await peer.send(b"\x16\x03\x01")
        port = master.replication.master.server._tls_port
        assert port is not None
        await wait_until(lambda: port.handshakes == 1)

        if timeout_s < 1:
            assert await peer.is_closed_by_peer()
            await wait_until(lambda: port.handshakes == 0)
        else:
            await asyncio.sleep(0.3)
            assert port.handshakes == 1
        await peer.close()


@on_both_loops
async def test_flood_of_handshakes_does_not_block_a_slave(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of handshakes is limited, the oldest is cancelled first, and a slave can connect."""
    monkeypatch.setattr(tls_port, "HANDSHAKES_MAX", 3)
    party = Party(tmp_path / "party", authority)
    async with broker_at(tmp_path / "master", brokerRole="SYNC_MASTER", **party.replication()) as master:
        port = master.replication.master.server._tls_port
        assert port is not None
        peers = [await RawPeer.open(ha_port(master)) for _ in range(9)]
        for peer in peers[:6]:
            assert await peer.is_closed_by_peer()
        assert port.handshakes == 3

        address = master.settings.ha_address
        async with broker_at(
            tmp_path / "slave", haMasterAddress=address, **SLAVE, **party.replication()
        ):  # fmt: skip
            await follows(master)
            assert await send(master) == 0
        for peer in peers:
            await peer.close()
