"""TLS: one port for TLS and plain text, or TLS only; no message is lost, and a broken peer affects only itself."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from gantry_remoting import (
    CannotConnect,
    Channel,
    CommandService,
    ConnectionClosed,
    Listener,
    ListenerSettings,
    TlsMode,
    TlsSettings,
)
from gantry_remoting.tls_layer import TlsLayer
from gantry_testing.local import RawPeer, dialogue, on_both_loops, running_broker, send_ext, wait_until
from gantry_wire import Command

MIB = 1024 * 1024


@dataclass
class Certificates:
    """A certificate authority, a server's files and clients' contexts."""

    authority: trustme.CA
    authority_file: str
    certificate_file: str
    key_file: str

    def client(self, *, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if identity is not None:
            identity.configure_cert(context)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    path = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(path / "ca.pem"))
    server.private_key_pem.write_to_path(str(path / "key.pem"))
    for number, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(str(path / "cert.pem"), append=number > 0)
    return Certificates(authority, str(path / "ca.pem"), str(path / "cert.pem"), str(path / "key.pem"))


@asynccontextmanager
async def running_listener(
    certificates: Certificates, mode: TlsMode, *, needs_client: bool = False, knows_clients: bool = False
) -> AsyncIterator[Listener]:
    """Run a listener that replies to every request with its body."""
    tls = TlsSettings(
        mode,
        certificates.certificate_file,
        certificates.key_file,
        certificates.authority_file if knows_clients or needs_client else None,
        needs_client,
    )
    service = CommandService(lambda command, connection: command.reply(body=command.body))
    listener = Listener(service, ListenerSettings(host="127.0.0.1", tls=tls))
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


async def echo(listener: Listener, body: bytes = b"echo", *, tls: ssl.SSLContext | None = None) -> bytes:
    """Return the reply to `body` over a new connection. Raises the errors of the connection."""
    channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=tls)
    try:
        return (await channel.request(Command(code=1, body=body), 10_000)).body
    finally:
        await channel.close()


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["reason"] for record in caplog.records if record.getMessage() == "connection closed"]


@on_both_loops
async def test_permissive_port_accepts_tls_and_plain_text(certificates: Certificates) -> None:
    """Plain and TLS clients use one port at the same time; the first byte tells them apart."""
    async with running_listener(certificates, TlsMode.PERMISSIVE) as listener:
        bodies = [b"%d" % number for number in range(20)]
        contexts = [certificates.client() if number % 2 else None for number in range(20)]

        answers = await asyncio.gather(
            *(echo(listener, body, tls=context) for body, context in zip(bodies, contexts, strict=True))
        )

        assert answers == bodies


@on_both_loops
async def test_an_enforcing_port_refuses_plain_text(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Where TLS is enforced a plain client is closed at its first byte, with a line that gives the reason."""
    caplog.set_level(logging.INFO)
    async with running_listener(certificates, TlsMode.ENFORCING) as listener:
        assert await echo(listener, tls=certificates.client()) == b"echo"
        peer = await RawPeer.open(listener.port)
        await peer.send(Command(code=1).encode())
        assert await peer.is_closed_by_peer()
        await peer.close()
    assert "broke the protocol: plain text on a port that enforces TLS" in reasons(caplog)


@on_both_loops
async def test_large_messages_pass_through(certificates: Certificates) -> None:
    """Messages of many TLS records arrive whole and in order, both ways."""
    async with running_listener(certificates, TlsMode.ENFORCING) as listener:
        channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=certificates.client())
        bodies = [bytes([number]) * size for number, size in enumerate([0, 1, 16_384, 16_385, 5 * MIB, 12 * MIB])]

        replies = await asyncio.gather(*(channel.request(Command(code=1, body=body), 20_000) for body in bodies))

        assert [reply.body for reply in replies] == bodies
        await channel.close()


@on_both_loops
async def test_client_certificate_can_be_required(certificates: Certificates) -> None:
    """Where one is required a client without a certificate, or with one of another authority, is refused."""
    known = certificates.authority.issue_cert("client@example.org")
    stranger = trustme.CA().issue_cert("client@example.org")
    async with running_listener(certificates, TlsMode.ENFORCING, needs_client=True) as listener:
        assert await echo(listener, tls=certificates.client(identity=known)) == b"echo"
        for identity in (None, stranger):
            with pytest.raises((CannotConnect, ConnectionClosed)):
                await echo(listener, tls=certificates.client(identity=identity))
        assert await echo(listener, tls=certificates.client(identity=known)) == b"echo"


@on_both_loops
async def test_client_certificates_may_be_optional(certificates: Certificates) -> None:
    """With an authority but no requirement, clients with and without a certificate are served."""
    known = certificates.authority.issue_cert("client@example.org")
    async with running_listener(certificates, TlsMode.ENFORCING, knows_clients=True) as listener:
        assert await echo(listener, tls=certificates.client(identity=known)) == b"echo"
        assert await echo(listener, tls=certificates.client()) == b"echo"


@on_both_loops
async def test_client_verifies_the_server(certificates: Certificates) -> None:
    """A client that does not trust the authority does not talk to the server, and reports the reason."""
    async with running_listener(certificates, TlsMode.ENFORCING) as listener:
        with pytest.raises(CannotConnect, match=r"(?i)certificate"):
            await echo(listener, tls=ssl.create_default_context())


BROKEN = {
    "nonsense after the first byte": b"\x16" + b"nonsense" * 20,
    "an old version": bytes.fromhex("160301002f0100002b0301") + bytes(64),
    "a record that is too long": b"\x16\x03\x01\xff\xff" + bytes(200),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_handshake_costs_its_connection(
    certificates: Certificates, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer whose handshake is broken is closed with one line; others are served."""
    caplog.set_level(logging.INFO)
    async with running_listener(certificates, TlsMode.PERMISSIVE) as listener:
        peer = await RawPeer.open(listener.port)
        await peer.send(data)
        assert await peer.is_closed_by_peer()
        await peer.close()
        assert await echo(listener, tls=certificates.client()) == b"echo"
        assert await echo(listener) == b"echo"
    assert len([reason for reason in reasons(caplog) if reason.startswith("TLS failed")]) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_incomplete_handshake_is_overdue(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends its handshake too slowly is closed like one that sends a frame too slowly."""
    monkeypatch.setattr("gantry_remoting.server.SWEEP_INTERVAL_S", 0.02)
    tls = TlsSettings(TlsMode.PERMISSIVE, certificates.certificate_file, certificates.key_file)
    service = CommandService(lambda command, connection: command.reply())
    listener = Listener(service, ListenerSettings(host="127.0.0.1", tls=tls, frame_timeout_ms=100))
    await listener.start()
    peer = await RawPeer.open(listener.port)

    await peer.send(b"\x16\x03\x01")

    assert await peer.is_closed_by_peer()
    await peer.close()
    await listener.close()


async def test_completed_handshake_has_no_timeout(certificates: Certificates) -> None:
    """A TLS client that sends nothing between its frames is idle, not slow."""
    async with running_listener(certificates, TlsMode.PERMISSIVE) as listener:
        channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=certificates.client())
        await channel.request(Command(code=1), 30_000)
        [connection] = listener.connections
        now = asyncio.get_running_loop().time()

        assert connection.timeout_reason(now + listener.settings.frame_timeout_ms / 1000 + 1) is None
        assert connection.timeout_reason(now + listener.settings.idle_timeout_ms / 1000 + 1) is not None
        await channel.close()


async def test_tls_close_notify_closes_the_connection(certificates: Certificates) -> None:
    """After TLS's close_notify the connection ends, and its slot is free."""
    async with running_listener(certificates, TlsMode.ENFORCING) as listener:
        channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=certificates.client())
        await channel.request(Command(code=1), 5000)
        await channel.close()
        await wait_until(lambda: not listener.connections)


async def test_invalid_certificate_files_are_named(tmp_path: Path, certificates: Certificates) -> None:
    """A listener does not start without valid files; the error names the file or the fault."""
    for certificate, key in (
        (str(tmp_path / "missing.pem"), certificates.key_file),
        (certificates.key_file, certificates.key_file),
    ):
        settings = ListenerSettings(host="127.0.0.1", tls=TlsSettings(TlsMode.ENFORCING, certificate, key))
        with pytest.raises(OSError, match=certificate):
            await Listener(CommandService(lambda command, connection: None), settings).start()
    authority = str(tmp_path / "no-authority.pem")
    tls = TlsSettings(TlsMode.ENFORCING, certificates.certificate_file, certificates.key_file, authority)
    with pytest.raises(OSError, match=r"cannot read tlsServerTrustCertPath=.*no-authority"):
        await Listener(CommandService(lambda command, connection: None), ListenerSettings(tls=tls)).start()


async def test_a_broker_speaks_tls_on_both_ports(tmp_path: Path, certificates: Certificates) -> None:
    """The settings of a broker.conf make main and fast port speak TLS; a message goes through."""
    async with running_broker(
        tmp_path,
        tlsMode="enforcing",
        tlsServerCertPath=certificates.certificate_file,
        tlsServerKeyPath=certificates.key_file,
    ) as broker:
        for port in (broker.settings.listen_port, broker.settings.fast_listen_port):
            channel = await Channel.connect(f"127.0.0.1:{port}", tls=certificates.client())
            reply = await channel.request(Command(code=310, ext=send_ext(310), body=b"x" * 100_000), 10_000)
            assert reply.code == 0
            await channel.close()
        async with dialogue(broker) as plain:
            with pytest.raises(ConnectionClosed):
                await plain.send()


# ------- the layer by itself


class ClientEnd:
    """The client's side of a handshake in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def handshake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_tls_records_may_arrive_in_any_pieces(certificates: Certificates, piece: int) -> None:
    """Encrypted bytes that arrive in pieces give the same plain bytes as those that arrive at once."""
    settings = TlsSettings(TlsMode.ENFORCING, certificates.certificate_file, certificates.key_file)
    server, client = TlsLayer(settings.server_context()), ClientEnd(certificates.client())
    plain = bytearray()

    def pour() -> None:
        data = client.outgoing.read()
        for position in range(0, len(data), piece):
            plain.extend(server.receive(data[position : position + piece]))
        client.incoming.write(server.pending_output())

    while not client.handshake():
        pour()
    pour()
    client.tls.write(b"hello " * 5000)
    pour()

    assert server.is_ready
    assert plain == b"hello " * 5000
    big = bytes(range(256)) * 40_000
    client.incoming.write(server.encrypt(big))
    received = bytearray()
    while len(received) < len(big):
        received += client.tls.read(1 << 20)
    assert received == big
