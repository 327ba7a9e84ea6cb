"""A client with certificate files: verification of servers, its own certificate, and reloading."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from gantry_client import Admin, ClientSettings, ClientTlsSettings, Unavailable
from gantry_remoting import CommandService, Connection, Listener, ListenerSettings, TlsSettings
from gantry_testing.certificates import Party
from gantry_wire import Command
from gantry_wire.commands.admin import TopicListing
from gantry_wire.commands.documents import write_document


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def serving(tls: TlsSettings, subjects: list[str] | None = None) -> AsyncIterator[str]:
    """Run a name server; `subjects` collects the certificate subjects of its clients."""

    def answer(command: Command, connection: Connection) -> Command:
        if subjects is not None:
            subjects.append(connection.peer_subject)
        return command.reply(body=write_document(TopicListing(topic_list=["orders"])))

    listener = Listener(CommandService(answer), ListenerSettings(host="127.0.0.1", tls=tls))
    await listener.start()
    try:
        yield f"127.0.0.1:{listener.port}"
    finally:
        await listener.close()


async def topics(address: str, tls: ClientTlsSettings) -> list[str]:
    """List the topics; raises what the client raises."""
    settings = ClientSettings(tls=tls, request_timeout_ms=10_000, connect_timeout_ms=10_000)
    async with Admin(address, client_settings=settings) as admin:
        return await admin.topics.all(with_internal=True)


async def test_server_certificate_of_the_authority_is_accepted(tmp_path: Path, authority: trustme.CA) -> None:
    """The CA file alone suffices; without it the system's CAs are used, which do not include it."""
    party = Party(tmp_path, authority)
    async with serving(party.server()) as address:
        assert await topics(address, party.client(shows_certificate=False)) == ["orders"]
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await topics(address, ClientTlsSettings())


@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "unchecked"])
async def test_certificate_must_match_the_host(tmp_path: Path, authority: trustme.CA, is_checked: bool) -> None:
    """Another certificate of the same CA is refused, unless the check of the host name is off."""
    party = Party(tmp_path, authority, "elsewhere.example")
    tls = replace(party.client(shows_certificate=False), is_host_name_checked=is_checked)
    async with serving(party.server()) as address:
        if is_checked:
            with pytest.raises(Unavailable, match=r"(?i)certificate"):
                await topics(address, tls)
        else:
            assert await topics(address, tls) == ["orders"]


async def test_server_verification_can_be_disabled(tmp_path: Path, authority: trustme.CA) -> None:
    """As in RocketMQ's clients, the connection is then encrypted and not authenticated."""
    party = Party(tmp_path, authority, "elsewhere.example")
    async with serving(party.server()) as address:
        assert await topics(address, ClientTlsSettings(is_server_verified=False)) == ["orders"]


async def test_client_certificate_is_reloaded(tmp_path: Path, authority: trustme.CA) -> None:
    """The next connection uses the present files, without a restart of the client."""
    server = Party(tmp_path / "server", authority)
    client = Party(tmp_path / "client", authority, "one.example", common_name="one")
    subjects: list[str] = []
    async with serving(server.server(needs_client=True), subjects) as address:
        settings = ClientSettings(tls=client.client(), request_timeout_ms=10_000)
        async with Admin(address, client_settings=settings) as admin:
            await admin.topics.all(with_internal=True)
            another = Party(tmp_path / "another", authority, "two.example", common_name="two")
            client.chain.write_bytes(another.chain.read_bytes())
            client.key.write_bytes(another.key.read_bytes())
            await admin.topics.all(with_internal=True)
            pool = admin._session.pool
            for channel in list(pool._channels.values()):
                await channel.close()
            await admin.topics.all(with_internal=True)

    assert [subject.split(",")[0] for subject in subjects] == ["CN=one", "CN=one", "CN=two"]


async def test_unusable_certificate_file_is_named(tmp_path: Path, authority: trustme.CA) -> None:
    """A client without its key fails with the file name, and does not use plain text instead."""
    party = Party(tmp_path, authority)
    party.key.unlink()
    async with serving(other_party_server(tmp_path, authority)) as address:
        with pytest.raises(Unavailable, match=r"key\.pem"):
            await topics(address, party.client())


def other_party_server(tmp_path: Path, authority: trustme.CA) -> TlsSettings:
    return Party(tmp_path / "server", authority).server()


def test_certificate_without_key_is_refused() -> None:
    """A certificate without its key is refused when the settings are created."""
    with pytest.raises(ValueError, match="go together"):
        ClientTlsSettings(certificate_file="a.pem")


def test_ssl_context_is_used_unchanged() -> None:
    """Programs can pass their own `ssl.SSLContext`."""
    context = ssl.create_default_context()

    assert ClientSettings(tls=context).tls is context
