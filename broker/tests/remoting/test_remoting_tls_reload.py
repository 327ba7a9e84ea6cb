"""A listener whose certificates change under load, which identifies its clients by theirs and survives a flood."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trustme

from gantry_remoting import (
    CannotConnect,
    Channel,
    CommandService,
    Connection,
    ConnectionClosed,
    Listener,
    ListenerSettings,
    RemotingError,
    TlsSettings,
)
from gantry_remoting.tls_contexts import client_context, server_context
from gantry_testing.certificates import Party, chain_of, served_serial, wait_for_other_serial
from gantry_testing.local import RawPeer, on_both_loops, wait_until
from gantry_wire import Command

CHECK_INTERVAL_S = 0.01
TIMEOUT_MS = 60_000


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def party(tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> Party:
    """The server's files, with a check in every short interval."""
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", CHECK_INTERVAL_S)
    return Party(tmp_path / "server", authority)


def echo(command: Command, connection: Connection) -> Command:
    """Return the body, and the peer's subject as the connection has it."""
    return command.reply(body=command.body, ext={"subject": connection.peer_subject})


@asynccontextmanager
async def listening(tls: TlsSettings, *, handshakes_max: int = 256) -> AsyncIterator[Listener]:
    settings = ListenerSettings(host="127.0.0.1", tls=tls, handshakes_max=handshakes_max)
    listener = Listener(CommandService(echo), settings)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


async def ask(listener: Listener, context: ssl.SSLContext | None, body: bytes = b"echo") -> Command:
    """Send one request over a new connection. Raises RemotingError."""
    channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=context, timeout_ms=TIMEOUT_MS)
    try:
        return await channel.request(Command(code=1, body=body), TIMEOUT_MS)
    finally:
        await channel.close()


def problem_of(listener: Listener) -> str | None:
    assert listener.certificates is not None
    return listener.certificates.reload_error


def is_beyond(counts: list[int], floor: list[int]) -> bool:
    return all(count >= least for count, least in zip(counts, floor, strict=True))


# ------- replaced


@on_both_loops
async def test_replacing_certificates_under_load_costs_no_request(party: Party, authority: trustme.CA) -> None:
    """Old connections continue, new ones get the new certificate, and every request is answered meanwhile."""
    async with listening(party.server()) as listener:
        context = party.client(shows_certificate=False).client_context()
        answered, is_over = [0, 0], False

        async def keep_asking() -> None:
            channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=context, timeout_ms=TIMEOUT_MS)
            while not is_over:
                body = b"%d" % answered[0]
                assert (await channel.request(Command(code=1, body=body), TIMEOUT_MS)).body == body
                answered[0] += 1
            await channel.close()

        async def keep_coming() -> None:
            while not is_over:
                assert (await ask(listener, context)).body == b"echo"
                answered[1] += 1

        clients = [asyncio.ensure_future(one()) for one in (keep_asking, keep_asking, keep_coming, keep_coming)]
        serials = [await served_serial(listener.port, context)]
        for _ in range(3):
            floor = [count + 5 for count in answered]
            party.replace(authority)
            serials.append(await wait_for_other_serial(listener.port, context, serials[-1]))
            await wait_until(partial(is_beyond, answered, floor))
        is_over = True
        await asyncio.gather(*clients)

        assert len(set(serials)) == 4


async def test_a_broken_pair_changes_nothing(
    party: Party, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate without its key is refused with both names, and clients are served with the old one."""
    async with listening(party.server()) as listener:
        context = party.client(shows_certificate=False).client_context()
        serial = await served_serial(listener.port, context)
        new = party.issue(authority)

        party.chain.write_bytes(chain_of(new))
        await wait_until(lambda: problem_of(listener) is not None)

        assert await served_serial(listener.port, context) == serial
        assert str(party.chain) in str(problem_of(listener)) and str(party.key) in str(problem_of(listener))
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        party.key.write_bytes(new.private_key_pem.bytes())
        await wait_for_other_serial(listener.port, context, serial)
        assert problem_of(listener) is None


async def test_authority_can_be_replaced(tmp_path: Path, party: Party, authority: trustme.CA) -> None:
    """After a reload clients of the old authority are refused, and those of the new one served."""
    other = trustme.CA()
    of_old = Party(tmp_path / "of-old", authority).client().client_context()
    of_new = Party(tmp_path / "of-new", other, trusts=authority).client().client_context()
    async with listening(party.server(needs_client=True)) as listener:
        assert (await ask(listener, of_old)).body == b"echo"
        with pytest.raises(RemotingError):
            await ask(listener, of_new)

        old = listener.tls_context
        party.trust(other)
        await wait_until(lambda: listener.tls_context is not old)

        assert (await ask(listener, of_new)).body == b"echo"
        with pytest.raises(RemotingError):
            await ask(listener, of_old)


# ------- known clients


@on_both_loops
async def test_connection_has_the_subject_of_its_client(tmp_path: Path, party: Party, authority: trustme.CA) -> None:
    """The subject is that of a verified certificate, and empty for a client without one."""
    named = Party(tmp_path / "client", authority, "a.example", common_name="billing", organization_name="Example Ltd")
    optional = TlsSettings(party.server().mode, str(party.chain), str(party.key), str(party.authority))
    async with listening(optional) as listener:
        known = await ask(listener, named.client().client_context())
        unknown = await ask(listener, named.client(shows_certificate=False).client_context())

    subject = known.ext["subject"]
    assert subject.startswith("CN=billing,") and subject.endswith("O=Example\\20Ltd")
    assert unknown.ext["subject"] == ""


@pytest.mark.parametrize("is_needed", [True, False], ids=["asked for", "not asked for"])
async def test_unverified_client_is_refused_before_its_first_request(
    tmp_path: Path, party: Party, is_needed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a certificate is required no byte of a client without a valid one reaches the service."""
    stranger = Party(tmp_path / "stranger", trustme.CA())
    stranger.authority.write_bytes(party.authority.read_bytes())
    asked: list[bytes] = []

    def note(command: Command, connection: Connection) -> Command:
        asked.append(command.body)
        return command.reply()

    listener = Listener(
        CommandService(note), ListenerSettings(host="127.0.0.1", tls=party.server(needs_client=is_needed))
    )
    await listener.start()
    refused = 0
    for shows in (True, False):
        try:
            await ask(listener, stranger.client(shows_certificate=shows).client_context(), b"secret")
        except (CannotConnect, ConnectionClosed):
            refused += 1
    await listener.close()

    assert (refused, len(asked)) == ((2, 0) if is_needed else (0, 2))


# ------- bounds


@pytest.mark.parametrize("most", [4, 100], ids=["bounded", "unbounded"])
async def test_flood_of_incomplete_handshakes_displaces_itself(party: Party, most: int) -> None:
    """Their number is limited, the oldest is closed first, and an honest client gets in; without the limit all stay."""
    async with listening(party.server(), handshakes_max=most) as listener:
        peers = []
        for _ in range(12):
            peers.append(await RawPeer.open(listener.port))
            await peers[-1].send(b"\x16\x03\x01")
        kept = min(most, 12)
        await wait_until(lambda: len(listener.handshakes) == kept and len(listener.connections) == kept)

        context = party.client(shows_certificate=False).client_context()
        assert (await ask(listener, context)).body == b"echo"

        if most < len(peers):
            for peer in peers[: len(peers) - most]:
                assert await peer.is_closed_by_peer()
        for peer in peers:
            await peer.close()
        await wait_until(lambda: len(listener.handshakes) == 0)


async def test_completed_handshake_is_not_counted(party: Party) -> None:
    """Open connections are no handshakes, however many there are."""
    async with listening(party.server(), handshakes_max=2) as listener:
        context = party.client(shows_certificate=False).client_context()
        channels = [await Channel.connect(f"127.0.0.1:{listener.port}", tls=context) for _ in range(6)]

        for channel in channels:
            assert (await channel.request(Command(code=1), TIMEOUT_MS)).code == 0
        assert len(listener.handshakes) == 0
        for channel in channels:
            await channel.close()


# ------- protocol versions and suites


def test_contexts_refuse_outdated_tls(party: Party) -> None:
    """TLS 1.2 and later, forward secrecy and authenticated encryption, no compression, no renegotiation."""
    for context in (party.server().server_context(), party.client().client_context()):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_COMPRESSION and context.options & ssl.OP_NO_RENEGOTIATION
        suites = context.get_ciphers()
        assert suites and all(suite["aead"] for suite in suites)
        assert all(suite["name"].startswith(("ECDHE-", "TLS_")) for suite in suites)


@pytest.mark.parametrize("is_hardened", [True, False], ids=["hardened", "as OpenSSL likes it"])
async def test_a_client_with_old_suites_only_is_refused(party: Party, is_hardened: bool) -> None:
    """Suites without authenticated encryption are refused; a context without that restriction accepts them."""
    old = client_context(str(party.authority))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    async with listening(party.server()) as listener:
        if not is_hardened:
            assert listener.tls_context is not None
            listener.tls_context.set_ciphers("ECDHE+AES")
            assert (await ask(listener, old)).body == b"echo"
        else:
            with pytest.raises(CannotConnect):
                await ask(listener, old)


async def test_java_8_client_is_served(party: Party) -> None:
    """TLS 1.2 with the suite that Java 8 offers first works."""
    java = client_context(str(party.authority))
    java.maximum_version = ssl.TLSVersion.TLSv1_2
    java.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    async with listening(party.server()) as listener:
        assert (await ask(listener, java)).body == b"echo"


def test_client_verification_needs_an_authority(party: Party) -> None:
    """Without an authority no client is asked for a certificate, with any value of the second setting."""
    files = str(party.chain), str(party.key)

    assert server_context(*files, requires_client_certificate=True).verify_mode == ssl.CERT_NONE
    assert server_context(*files, str(party.authority)).verify_mode == ssl.CERT_OPTIONAL
    verified = server_context(*files, str(party.authority), requires_client_certificate=True)
    assert verified.verify_mode == ssl.CERT_REQUIRED
