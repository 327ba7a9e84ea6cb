"""The name server with TLS: TLS and plain text on one port, or TLS only, with and without client certificates."""

import ssl
from pathlib import Path

import pytest
import trustme

from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.client import Channel
from gantry_remoting.errors import RemotingError
from gantry_remoting.settings import TlsMode, TlsSettings
from gantry_wire.command import Command

TIMEOUT_MS = 60_000
CLUSTER_INFO = 106


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def server_settings(
    folder: Path, authority: trustme.CA, mode: TlsMode, *, asks_clients: bool = False
) -> NameServerSettings:
    """Return TLS settings with certificates of `authority` in `folder`."""
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    chain, key, root = folder / "chain.pem", folder / "key.pem", folder / "root.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))
    tls = TlsSettings(mode, str(chain), str(key), str(root) if asks_clients else None, asks_clients)
    return NameServerSettings(bind_address="127.0.0.1", listen_port=0, tls=tls)


def client_context(authority: trustme.CA, *, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if with_certificate:
        authority.issue_cert("client.example").configure_cert(context)
    return context


async def answers(server: NameServer, tls: ssl.SSLContext | None) -> bool:
    """Return whether a client with this context gets a reply."""
    try:
        channel = await Channel.connect(f"127.0.0.1:{server.port}", timeout_ms=TIMEOUT_MS, tls=tls)
    except RemotingError:
        return False
    try:
        return (await channel.request(Command(code=CLUSTER_INFO), TIMEOUT_MS)).code == 0
    except RemotingError:
        return False
    finally:
        await channel.close()


@pytest.mark.parametrize(
    ("mode", "plain_works"), [(TlsMode.PERMISSIVE, True), (TlsMode.ENFORCING, False)], ids=["permissive", "enforcing"]
)
async def test_plain_text_works_only_in_permissive_mode(
    tmp_path: Path, authority: trustme.CA, mode: TlsMode, plain_works: bool
) -> None:
    """TLS and plain text share one port and are distinguished by the first byte."""
    server = NameServer(server_settings(tmp_path, authority, mode), tmp_path / "data")
    await server.start()
    try:
        assert await answers(server, client_context(authority))
        assert await answers(server, None) == plain_works
    finally:
        await server.close()


async def test_client_without_required_certificate_is_refused(tmp_path: Path, authority: trustme.CA) -> None:
    """With a CA for clients, only certificates of the CA are accepted."""
    server = NameServer(server_settings(tmp_path, authority, TlsMode.ENFORCING, asks_clients=True), tmp_path / "data")
    await server.start()
    try:
        assert await answers(server, client_context(authority, with_certificate=True))
        assert not await answers(server, client_context(authority))
    finally:
        await server.close()
