"""TLS of the client: it is used where it is configured, and failures are reported."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from gantry_client import Admin, ClientSettings, Unavailable
from gantry_remoting.server import CommandService, Connection, Listener
from gantry_remoting.settings import ListenerSettings, TlsMode, TlsSettings
from gantry_wire.command import Command
from gantry_wire.commands.admin import TopicListing
from gantry_wire.commands.documents import write_document


def answer(command: Command, connection: Connection) -> Command:
    """Reply to any request with a list of one topic."""
    return command.reply(body=write_document(TopicListing(topic_list=["orders"])))


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def address(authority: trustme.CA, tmp_path: Path) -> AsyncIterator[str]:
    """Run a name server that accepts TLS only."""
    certificate = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    tls = TlsSettings(TlsMode.ENFORCING, str(chain), str(key))
    listener = Listener(CommandService(answer), ListenerSettings(host="127.0.0.1", tls=tls))
    await listener.start()
    yield f"127.0.0.1:{listener.port}"
    await listener.close()


async def test_client_with_the_right_authority_connects(authority: trustme.CA, address: str) -> None:
    """The TLS context of the settings is used for every connection."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with Admin(address, client_settings=ClientSettings(tls=context)) as admin:
        assert await admin.topics.all(with_internal=True) == ["orders"]


@pytest.mark.parametrize("context", [None, ssl.create_default_context()], ids=["plain", "stranger"])
async def test_tls_mismatch_raises_unavailable(address: str, context: ssl.SSLContext | None) -> None:
    """Plain text, and a certificate of an unknown authority, raise Unavailable."""
    settings = ClientSettings(tls=context, request_timeout_ms=1000)
    async with Admin(address, client_settings=settings) as admin:
        with pytest.raises(Unavailable):
            await admin.topics.all(with_internal=True)
