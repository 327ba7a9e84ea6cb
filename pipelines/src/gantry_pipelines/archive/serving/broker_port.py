"""The TCP port of an archive server: brokers of other machines prove there that they know a secret, then send requests.

No request is served before that, and requests of unknown peers cost little: their frames are small, and their
connections are limited. The secret is read for each new connection, so a changed file needs no restart. The certificate
is reloaded, too.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Final, final

from gantry_remoting import (
    CertificateSource,
    CommandService,
    Connection,
    Listener,
    ListenerSettings,
    TlsMode,
    TlsSettings,
    read_secret,
)
from gantry_remoting.log_deduplicator import LogDeduplicator
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.archive import (
    ArchiveChallenge,
    ArchiveCode,
    ArchiveHello,
    ArchiveWelcome,
    broker_proof,
    server_proof,
)
from gantry_wire.commands.fields import FieldError
from gantry_wire.limits import WireLimits
from gantry_wire.proofs import is_same_proof

NONCE_BYTES: Final = 16
CONNECTIONS_MAX: Final = 1024
"""Each broker has one connection."""

FRAME_BYTES_MAX: Final = 64 << 10
"""The largest request, that of a filter with a long expression, and its header."""

FIRST_FRAME_BYTES_MAX: Final = 4 << 10
"""The largest request of a peer that has not authenticated."""

Answer = Command | Awaitable[Command]
Serve = Callable[[Command], Answer]


@final
@dataclass(frozen=True, slots=True)
class PortParameters:
    """The parameters of the TCP port."""

    host: str
    """`::` for all addresses of both families."""

    port: int
    secret_file: str
    certificate_file: str = ""
    """PEM file with the whole chain; empty: no TLS."""

    key_file: str = ""

    def read_secret(self) -> bytes:
        """Return the secret that brokers must know. Raises OSError that names the setting."""
        return read_secret(self.secret_file, "serving.secretFile", "any process could read the archive")


@final
class BrokerPort:
    """The TCP port and its connections. Owned by the event loop."""

    def __init__(self, parameters: PortParameters, serve: Serve, on_warning: Callable[[str, str], None]) -> None:
        """``serve`` answers a request of an authenticated broker.

        ``on_warning`` is called with the reason and the text of a refusal, once for each peer.
        """
        self._parameters: Final = parameters
        self._serve: Final = serve
        self._on_warning: Final = on_warning
        self._warned: Final = LogDeduplicator()
        self._challenges: Final[dict[Connection, str]] = {}
        service = CommandService(self._dispatch, disconnected=self._forget)
        tls = _tls(parameters)
        settings = ListenerSettings(
            host=parameters.host,
            port=parameters.port,
            connections_max=CONNECTIONS_MAX,
            connections_per_address_max=CONNECTIONS_MAX // 4,
            is_guarded=True,
            first_frame_bytes_max=FIRST_FRAME_BYTES_MAX,
            wire=WireLimits(frame_bytes_max=FRAME_BYTES_MAX, header_bytes_max=FRAME_BYTES_MAX),
            tls=tls,
        )
        self._certificates: Final = None if tls is None else _certificates(tls)
        self._listener: Final = Listener(service, settings, certificates=self._certificates)

    def __repr__(self) -> str:
        return f"<BrokerPort {self._listener!r}>"

    @property
    def port(self) -> int:
        """The number of the port, once it is open."""
        return self._listener.port

    async def start(self) -> None:
        """Load secret and certificate, and listen. Raises OSError."""
        await asyncio.to_thread(self._parameters.read_secret)
        if self._certificates is not None:
            await self._certificates.start()
        await self._listener.start()

    async def close(self) -> None:
        await self._listener.close()
        if self._certificates is not None:
            await self._certificates.close()

    def _dispatch(self, command: Command, connection: Connection) -> Answer:
        if command.code == ArchiveCode.CHALLENGE:
            nonce = self._challenges[connection] = token_hex(NONCE_BYTES)
            return command.reply(ext=ArchiveChallenge(nonce=nonce).write())
        if command.code == ArchiveCode.AUTHENTICATE:
            return self._authenticate(command, connection)
        if not connection.is_authenticated:
            return command.reply(ResponseCode.NO_PERMISSION, "a broker must first prove that it knows the secret")
        return self._serve(command)

    async def _authenticate(self, command: Command, connection: Connection) -> Command:
        """Check the proof of a broker, and return that of the server. A challenge is valid for one proof."""
        challenge = self._challenges.pop(connection, "")
        try:
            hello = ArchiveHello.read(command.ext)
            secret = await asyncio.to_thread(self._parameters.read_secret)
        except FieldError as error:
            return command.reply(ResponseCode.INVALID_PARAMETER, str(error))
        except OSError as error:
            self._warn("CannotReadSecret", f"refusing all brokers: {error}")
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "the archive server cannot read its secret")
        if not challenge or not is_same_proof(hello.proof, broker_proof(secret, challenge, hello.nonce)):
            self._warn("WrongSecret", f"refused a broker at {connection.peer[0]}: its secret is another one")
            text = "the broker's secret differs from that of the archive server"
            return command.reply(ResponseCode.NO_PERMISSION, text)
        connection.is_authenticated = True
        return command.reply(ext=ArchiveWelcome(proof=server_proof(secret, challenge, hello.nonce)).write())

    def _forget(self, connection: Connection) -> None:
        self._challenges.pop(connection, None)

    def _warn(self, reason: str, text: str) -> None:
        if self._warned.is_new(text):
            self._on_warning(reason, text)


def _tls(parameters: PortParameters) -> TlsSettings | None:
    if not parameters.certificate_file:
        return None
    return TlsSettings(TlsMode.ENFORCING, parameters.certificate_file, parameters.key_file)


def _certificates(tls: TlsSettings) -> CertificateSource[ssl.SSLContext]:
    files = {"serving.tls.certificateFile": tls.certificate_file, "serving.tls.keyFile": tls.key_file}
    return CertificateSource(
        "brokers", list(files.values()), tls.server_context, certificate=tls.certificate_file, names=files
    )
