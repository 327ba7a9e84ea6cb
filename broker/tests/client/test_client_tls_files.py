"""A client with certificates in files: whom it believes, what it shows, and that it reads them again."""

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
    """A name server's address; `subjects` gets who asked."""

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
    """Raises what the client raises."""
    settings = ClientSettings(tls=tls, request_timeout_ms=10_000, connect_timeout_ms=10_000)
    async with Admin(address, client_settings=settings) as admin:
        return await admin.topics.all(with_internal=True)


async def test_a_server_of_the_authority_is_believed(tmp_path: Path, authority: trustme.CA) -> None:
    """With the authority's file a client needs nothing else; without it the system's are asked, and know nothing."""
    party = Party(tmp_path, authority)
    async with serving(party.server()) as address:
        assert await topics(address, party.client(shows_certificate=False)) == ["orders"]
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await topics(address, ClientTlsSettings())


@pytest.mark.parametrize("is_checked", [True, False], ids=["checked", "unchecked"])
async def test_a_certificate_is_for_one_host(tmp_path: Path, authority: trustme.CA, is_checked: bool) -> None:
    """A holder of some certificate of the authority is not every server, unless the client is told not to look."""
    party = Party(tmp_path, authority, "elsewhere.example")
    tls = replace(party.client(shows_certificate=False), is_host_name_checked=is_checked)
    async with serving(party.server()) as address:
        if is_checked:
            with pytest.raises(Unavailable, match=r"(?i)certificate"):
                await topics(address, tls)
        else:
            assert await topics(address, tls) == ["orders"]


async def test_a_client_may_be_told_to_believe_everybody(tmp_path: Path, authority: trustme.CA) -> None:
    """As RocketMQ's clients do it: encrypted, and nobody is checked."""
    party = Party(tmp_path, authority, "elsewhere.example")
    async with serving(party.server()) as address:
        assert await topics(address, ClientTlsSettings(is_server_verified=False)) == ["orders"]


async def test_a_clients_certificate_is_read_again(tmp_path: Path, authority: trustme.CA) -> None:
    """The next connection shows what is in the files then; nobody restarts a client for that."""
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


async def test_files_that_cannot_be_used_are_an_error_with_their_name(tmp_path: Path, authority: trustme.CA) -> None:
    """A client whose key is missing says so; it does not speak plain text instead."""
    party = Party(tmp_path, authority)
    party.key.unlink()
    async with serving(party_server_elsewhere(tmp_path, authority)) as address:
        with pytest.raises(Unavailable, match=r"key\.pem"):
            await topics(address, party.client())


def party_server_elsewhere(tmp_path: Path, authority: trustme.CA) -> TlsSettings:
    return Party(tmp_path / "server", authority).server()


def test_half_a_certificate_is_refused() -> None:
    """A certificate without its key is a mistake that shows at once."""
    with pytest.raises(ValueError, match="go together"):
        ClientTlsSettings(certificate_file="a.pem")


def test_a_context_made_by_hand_is_taken_as_it_is() -> None:
    """Programs that know better give an `ssl.SSLContext`."""
    context = ssl.create_default_context()

    assert ClientSettings(tls=context).tls is context
