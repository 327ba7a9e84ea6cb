"""TLS with invalid files, slow peers, and peers that renegotiate.

With any invalid certificate a start is refused with the name of the setting, and a replacement leaves the
whole of the old one in use.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from gantry_broker.ha import tls_port
from gantry_broker.server.core.tls import BrokerTls
from gantry_broker.setting_keys import broker_settings
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting import CertificateSource, Channel, CommandService, Listener, ListenerSettings
from gantry_testing.certificates import Party
from gantry_testing.local import RawPeer, local_conf, running_broker, wait_until
from gantry_wire import Command

OP_ALLOW_CLIENT_RENEGOTIATION = 0x100
"""OpenSSL's; Python has no name for it."""

GIB = 1024**3
BOUND_MS = 1_000
"""Half the time of a hundred bytes sent one by one; enough for an honest handshake on a busy machine."""


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def party(tmp_path: Path, authority: trustme.CA) -> Party:
    return Party(tmp_path / "party", authority)


# ------- files


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 * GIB)


INVALID_FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a directory": lambda path: path.mkdir(),
    "5 GiB": _large,
    "a pipe": lambda path: os.mkfifo(path),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "empty": lambda path: path.write_bytes(b""),
    "nonsense": lambda path: path.write_bytes(b"nonsense\n" * 50),
}


def keys_of(party: Party) -> dict[str, dict[str, Path]]:
    """Every certificate file that a broker has, by the key that names it."""
    return {
        "clients": {
            "tlsServerCertPath": party.chain, "tlsServerKeyPath": party.key, "tlsServerTrustCertPath": party.authority,
        },
        "name servers": {
            "tlsClientTrustCertPath": party.authority, "tlsClientCertPath": party.chain, "tlsClientKeyPath": party.key,
        },
        "brokers": {"haTlsCertPath": party.chain, "haTlsKeyPath": party.key, "haTlsTrustCertPath": party.authority},
    }  # fmt: skip


def tls_of(tmp_path: Path, party: Party, purpose: str) -> BrokerTls:
    """A broker's certificates for one purpose."""
    conf = {key: str(path) for key, path in keys_of(party)[purpose].items()}
    if purpose == "name servers":
        conf |= {"tlsEnable": "true", "namesrvAddr": "127.0.0.1:1"}
    return BrokerTls(broker_settings({**local_conf(tmp_path / "store"), **conf}))


FILE_SETTINGS = [
    ("clients", "tlsServerCertPath"), ("clients", "tlsServerKeyPath"), ("clients", "tlsServerTrustCertPath"),
    ("name servers", "tlsClientTrustCertPath"), ("name servers", "tlsClientCertPath"),
    ("name servers", "tlsClientKeyPath"),
    ("brokers", "haTlsCertPath"), ("brokers", "haTlsKeyPath"), ("brokers", "haTlsTrustCertPath"),
]  # fmt: skip


@pytest.mark.parametrize("corrupt", INVALID_FILES.values(), ids=INVALID_FILES.keys())
@pytest.mark.parametrize(("purpose", "key"), FILE_SETTINGS, ids=[key for _, key in FILE_SETTINGS])
async def test_invalid_certificate_file_is_named_by_its_setting(
    tmp_path: Path, party: Party, purpose: str, key: str, corrupt: Callable[[Path], object]
) -> None:
    """At a start it is refused; later the old certificate stays in use; both errors name the setting."""
    path = keys_of(party)[purpose][key]
    good = tls_of(tmp_path, party, purpose)
    [source] = good.sources
    source.load()
    first = source.current
    path.unlink()
    corrupt(path)

    assert not source.reload_if_changed() and not source.reload_if_changed()
    assert source.current is first
    assert f"{key}={path}" in str(source.reload_error), source.reload_error
    with pytest.raises(OSError) as refusal:
        await tls_of(tmp_path, party, purpose).start()
    assert f"{key}={path}" in str(refusal.value)


@pytest.mark.parametrize("purpose", ["clients", "name servers", "brokers"])
async def test_mounted_secret_is_reloaded_for_every_purpose(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, purpose: str
) -> None:
    """Kubernetes replaces the link `..data` under a running broker; the next connection uses the new files."""
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", 0.01)
    mount = tmp_path / "mount"
    old, new = Party(mount / "..old", authority), Party(mount / "..new", authority)
    (mount / "..data").symlink_to("..old")
    for path in (old.chain, old.key, old.authority):
        (mount / path.name).symlink_to(f"..data/{path.name}")
    conf = {key: str(mount / path.name) for key, path in keys_of(old)[purpose].items()}
    if purpose == "name servers":
        conf |= {"tlsEnable": "true", "namesrvAddr": "127.0.0.1:1"}
    tls = BrokerTls(broker_settings({**local_conf(tmp_path / "store"), **conf}))
    await tls.start()
    [source] = tls.sources
    first = source.current

    (mount / "..data_tmp").symlink_to("..new")
    (mount / "..data_tmp").replace(mount / "..data")
    await wait_until(lambda: source.current is not first)

    assert tls.problem is None and new.chain.read_bytes() == (mount / new.chain.name).read_bytes()
    await tls.close()


@pytest.mark.parametrize("purpose", ["clients", "name servers", "brokers"])
async def test_mismatched_key_names_both_settings(
    tmp_path: Path, party: Party, authority: trustme.CA, purpose: str
) -> None:
    """Which of the two is wrong is unknown, so the error names both."""
    party.key.write_bytes(party.issue(authority).private_key_pem.bytes())
    names = [key for key, path in keys_of(party)[purpose].items() if path in (party.chain, party.key)]

    with pytest.raises(OSError, match="does not belong to the certificate") as refusal:
        await tls_of(tmp_path, party, purpose).start()

    assert len(names) == 2 and all(f"{name}=" in str(refusal.value) for name in names)


async def test_expired_replacement_names_its_setting(tmp_path: Path, party: Party, authority: trustme.CA) -> None:
    """It is refused as a whole: key and chain of the old one stay in use together."""
    [source] = tls_of(tmp_path, party, "clients").sources
    source.load()
    first, now = source.current, datetime.now(UTC)
    party.replace(authority, not_before=now - timedelta(days=3), not_after=now - timedelta(days=1))

    assert not source.reload_if_changed() and not source.reload_if_changed()

    assert source.current is first
    assert f"tlsServerCertPath={party.chain}: it ended" in str(source.reload_error)


def test_one_file_for_two_settings_names_both(party: Party) -> None:
    """Chain and key may be in one file; and a name that is part of another path, or of a word, is left alone."""
    both, key = str(party.chain), str(party.key)
    source = CertificateSource(
        "x", [both], lambda: None, certificate=None, names={"one": both, "two": both, "three": key, "short": "e"}
    )

    assert source._with_setting_names(f"see {both}: with {key}.old and {key}") == (
        f"see one and two={both}: with {key}.old and three={key}"
    )


async def test_broker_without_usable_tls_leaves_its_store_alone(tmp_path: Path, party: Party) -> None:
    """The error is one that names the setting, and there is no store yet."""
    party.chain.unlink()
    party.chain.mkdir()
    conf = {"tlsMode": "enforcing", "tlsServerCertPath": str(party.chain), "tlsServerKeyPath": str(party.key)}

    with pytest.raises(OSError, match=f"tlsServerCertPath={party.chain}: it is a directory"):
        async with running_broker(tmp_path / "store", disk=None, clock=None, **conf):
            pass

    assert not (tmp_path / "store" / "commitlog").exists()


async def test_name_server_without_usable_tls_does_not_start(tmp_path: Path, party: Party) -> None:
    """The same there: the setting is named, and no port is open in plain text instead."""
    party.key.unlink()
    _large(party.key)
    settings = NameServerSettings(bind_address="127.0.0.1", listen_port=0, tls=party.server())
    server = NameServer(settings, tmp_path / "data")

    with pytest.raises(OSError, match=f"tlsServerKeyPath={party.key}: it has {5 * GIB} bytes"):
        await server.start()
    await server.close()


# ------- peers


@asynccontextmanager
async def listening(party: Party, *, timeout_ms: int = 30_000) -> AsyncIterator[Listener]:
    """A listener that enforces TLS and answers every request with its body."""
    service = CommandService(lambda command, connection: command.reply(body=command.body))
    listener = Listener(service, ListenerSettings(host="127.0.0.1", tls=party.server(), frame_timeout_ms=timeout_ms))
    await listener.start()
    try:
        yield listener
    finally:
        await listener.close()


def client_hello(party: Party) -> bytes:
    """The first message of a valid handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = party.client().client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def send_byte_by_byte(peer: RawPeer, data: bytes) -> int:
    """Send one byte after the other until the peer closes; return the number of sent bytes."""
    received = 0
    for byte in data:
        if peer.reader.at_eof() or peer.writer.is_closing():
            break
        try:
            await peer.send(bytes([byte]))
        except OSError:
            break
        received += 1
        await asyncio.sleep(0.02)
    return received


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("timeout_ms", [BOUND_MS, 600_000], ids=["bounded", "not bounded, the twin"])
async def test_slow_handshake_is_disconnected(party: Party, monkeypatch: pytest.MonkeyPatch, timeout_ms: int) -> None:
    """Each byte is in time, and the whole is not: what counts is when it began. Others are served meanwhile."""
    monkeypatch.setattr("gantry_remoting.server.SWEEP_INTERVAL_S", 0.02)
    hello = client_hello(party)[:100]
    async with listening(party, timeout_ms=timeout_ms) as listener:
        peer = await RawPeer.open(listener.port)
        dribbling = asyncio.ensure_future(send_byte_by_byte(peer, hello))
        channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=party.client().client_context())
        assert (await channel.request(Command(code=1, body=b"x"), 20_000)).body == b"x"

        received = await dribbling

        assert (received < len(hello)) == (timeout_ms == BOUND_MS)
        await channel.close()
        await peer.close()


async def test_slow_slave_handshake_is_disconnected(
    tmp_path: Path, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replication port, too, asks when the handshake began."""
    monkeypatch.setattr(tls_port, "HANDSHAKE_S", 0.2)
    hello = client_hello(party)[:100]
    async with running_broker(tmp_path / "store", disk=None, clock=None, **party.replication()) as broker:
        port = broker.settings.ha_listen_port
        assert port is not None
        peer = await RawPeer.open(port)

        assert await send_byte_by_byte(peer, hello) < len(hello)
        await peer.close()


@pytest.mark.needs_openssl
@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "not refused, the twin"])
async def test_tls_renegotiation_is_refused(party: Party, is_refused: bool) -> None:
    """A client that renegotiates is disconnected; a context without the option accepts it."""
    async with listening(party) as listener:
        context = listener.tls_context
        assert context is not None
        if not is_refused:
            context.options = (context.options | OP_ALLOW_CLIENT_RENEGOTIATION) & ~ssl.OP_NO_RENEGOTIATION
        process = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{listener.port}",
            "-CAfile", str(party.authority),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        async with asyncio.timeout(120):
            while b"Verify return code" not in await process.stdout.readline():
                pass
            process.stdin.write(b"R\n")
            received = await process.stdout.readuntil(b"RENEGOTIATING\n")
            while line := await process.stdout.readline():
                received += line
                if b"verify return" in line:
                    break
            if process.returncode is None:
                process.stdin.close()
            await process.wait()

        assert (b"no renegotiation" in received) == is_refused
        assert (b"verify return" in received) != is_refused
        channel = await Channel.connect(f"127.0.0.1:{listener.port}", tls=party.client().client_context())
        assert (await channel.request(Command(code=1, body=b"x"), 20_000)).body == b"x"
        await channel.close()
