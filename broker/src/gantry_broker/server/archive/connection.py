"""The connection to an archive server: over a Unix socket, or over TCP, where both sides prove that they know a secret.

The secret and the CA of the server are read for each new connection, so that changed files need no restart. A server
that has another secret, or no certificate of this CA, gets no request.
"""

from __future__ import annotations

import asyncio
import ssl
from secrets import token_hex
from typing import Final, final

from gantry_broker.archive_settings import ArchiveSettings
from gantry_remoting import CertificateSource, Channel, ClientTlsSettings, RemotingError, read_secret
from gantry_status.socket_path import socket_address
from gantry_wire import Command, ResponseCode
from gantry_wire.commands.archive import (
    ArchiveChallenge,
    ArchiveCode,
    ArchiveHello,
    ArchiveWelcome,
    broker_proof,
    server_proof,
)
from gantry_wire.commands.fields import FieldError
from gantry_wire.proofs import is_same_proof

NONCE_BYTES: Final = 16
CONNECT_MS_MAX: Final = 5_000
"""How long a connection may take, since further requests wait for it."""

_TLS_KEYS: Final = ("archiveTlsTrustCertPath", "", "")
"""The keys of the settings with the CA, the certificate and its key, for error texts."""


@final
class ArchiveUnavailable(Exception):
    """The archive server cannot be reached, or has failed. The text is for the client."""


@final
class ArchiveConnection:
    """The connection of one broker, which is opened when it is needed. Owned by the event loop."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings: Final = settings
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._channel: Channel | None = None
        self._certificates: Final = _certificates(settings)

    def __repr__(self) -> str:
        return f"<ArchiveConnection {self._settings.place} {self._channel!r}>"

    async def request(self, command: Command, timeout_ms: int) -> Command:
        """Send a request and return the reply. Raises ArchiveUnavailable, also for an error of the server."""
        try:
            channel = await self._open_channel(timeout_ms)
            reply = await channel.request(command, timeout_ms)
        except (RemotingError, OSError) as error:
            raise ArchiveUnavailable(str(error)) from error
        if reply.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE):
            raise ArchiveUnavailable(reply.remark or "the archive server has failed")
        return reply

    def abort(self) -> None:
        """Close the connection at once; the next request opens another one."""
        if self._channel is not None:
            self._channel.abort()

    async def _open_channel(self, timeout_ms: int) -> Channel:
        async with self._connecting:
            channel = self._channel
            if channel is None or not channel.is_open:
                channel = self._channel = await self._connect(min(timeout_ms, CONNECT_MS_MAX))
        return channel

    async def _connect(self, timeout_ms: int) -> Channel:
        """Return a new connection. Raises RemotingError, OSError or ArchiveUnavailable."""
        settings = self._settings
        if settings.socket_path:
            with socket_address(settings.socket_path) as address:
                return await Channel.connect_to_socket(address, timeout_ms=timeout_ms)
        secret = await asyncio.to_thread(
            read_secret, settings.secret_path, "archiveSecretPath", "any process could answer as the archive"
        )
        tls = None if self._certificates is None else await self._certificates.load_current()
        channel = await Channel.connect(settings.address, timeout_ms=timeout_ms, tls=tls)
        try:
            await _authenticate(channel, secret, timeout_ms)
        except BaseException:
            channel.abort()
            raise
        return channel


def _certificates(settings: ArchiveSettings) -> CertificateSource[ssl.SSLContext] | None:
    if not settings.tls_authority:
        return None
    return ClientTlsSettings(authority_file=settings.tls_authority, names=_TLS_KEYS).source("the archive server")


async def _authenticate(channel: Channel, secret: bytes, timeout_ms: int) -> None:
    """Prove to the server that the broker knows the secret, and check its proof.

    Raises RemotingError or ArchiveUnavailable.
    """
    nonce = token_hex(NONCE_BYTES)
    try:
        reply = await channel.request(Command(code=ArchiveCode.CHALLENGE), timeout_ms)
        _check_accepted(reply)
        challenge = ArchiveChallenge.read(reply.ext).nonce
        hello = ArchiveHello(nonce=nonce, proof=broker_proof(secret, challenge, nonce))
        reply = await channel.request(Command(code=ArchiveCode.AUTHENTICATE, ext=hello.write()), timeout_ms)
        _check_accepted(reply)
        welcome = ArchiveWelcome.read(reply.ext)
    except FieldError as error:
        raise ArchiveUnavailable(f"{channel.address} is no archive server: {error}") from error
    if not is_same_proof(welcome.proof, server_proof(secret, challenge, nonce)):
        raise ArchiveUnavailable("the archive server's secret differs from that in archiveSecretPath")


def _check_accepted(reply: Command) -> None:
    if reply.code != ResponseCode.SUCCESS:
        raise ArchiveUnavailable(reply.remark or f"the archive server refused the connection with code {reply.code}")
