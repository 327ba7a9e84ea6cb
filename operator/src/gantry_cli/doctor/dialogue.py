"""One connection to a server with the cause if it fails, which the error of an ordinary client does not keep.

An address is first connected to without TLS, which separates a server that is not reachable from one whose certificate
is not valid. Every step has a timeout, so that an address without a host behind it delays a check by that time only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final, final

from gantry_access import signer
from gantry_cli.doctor.facts import Connection, ConnectionFault
from gantry_client import ClientSettings
from gantry_remoting import Channel, ClientTlsSettings, ConnectionClosed, split_address
from gantry_remoting.errors import CannotConnect, RemotingTimeout, RequestTooLarge
from gantry_wire import Command, RequestCode
from gantry_wire.commands.fields import Fields

CERTIFICATE_NAME_CODES: Final = frozenset({62, 63, 64})
"""OpenSSL's errors for a certificate of another host, mail address or IP address."""
CERTIFICATE_TIME_CODES: Final = frozenset({9, 10, 13, 14})
"""OpenSSL's errors for a certificate that is expired, or not valid yet."""


@final
class CannotTalk(Exception):
    """A server cannot be talked to. `connection` has the cause."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.detail or f"{connection.fault}")
        self.connection: Final = connection


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with the times around it."""

    reply: Command
    asked_wall_ms: int
    """The wall clock of this machine before the request was sent."""
    round_trip_ms: int
    """The time until the reply was read, by the monotonic clock."""


@final
class Dialogue:
    """One connection to a server. Owned by one event loop; close it."""

    def __init__(self, channel: Channel, timeout_ms: int, *, is_on_this_machine: bool, uses_tls: bool) -> None:
        self._channel: Final = channel
        self._timeout_ms: Final = timeout_ms
        self.is_on_this_machine: Final = is_on_this_machine
        self._uses_tls: Final = uses_tls

    @classmethod
    async def open(cls, address: str, settings: ClientSettings, timeout_ms: int) -> Dialogue:
        """Connect to a server, with TLS if the settings have it. Raises CannotTalk, and OSError for unusable files."""
        tls = await _tls_context(settings)
        is_on_this_machine = await _connect_plain(address, timeout_ms)
        sign = signer(settings.credentials, settings.signature)
        try:
            channel = await Channel.connect(address, timeout_ms=timeout_ms, tls=tls, sign=sign)
        except CannotConnect as error:
            cause = classify(error.__cause__, uses_tls=tls is not None)
            if cause is ConnectionFault.TIMED_OUT:  # only the handshake: it has accepted a connection before
                cause = ConnectionFault.SILENT
            names = await _certificate_names(address, settings, timeout_ms, cause)
            raise CannotTalk(
                Connection(fault=cause, detail=_detail(error.__cause__ or error), certificate_names=names)
            ) from error
        return cls(channel, timeout_ms, is_on_this_machine=is_on_this_machine, uses_tls=tls is not None)

    async def ask(self, code: RequestCode, header: Fields | None = None) -> Answer:
        """Send a request, and return the reply with any response code. Raises CannotTalk."""
        command = Command(code=code, ext={} if header is None else header.write())
        asked_wall_ms, started = time.time_ns() // 1_000_000, time.monotonic()
        try:
            reply = await self._channel.request(command, self._timeout_ms)
        except RemotingTimeout as error:
            detail = f"no answer within {self._timeout_ms / 1000:g} s"
            raise CannotTalk(Connection(fault=ConnectionFault.SILENT, detail=detail)) from error
        except (ConnectionClosed, RequestTooLarge) as error:
            raise CannotTalk(Connection(fault=await self._cause_of_close(str(error)), detail=str(error))) from error
        return Answer(reply, asked_wall_ms, int((time.monotonic() - started) * 1000))

    async def close(self) -> None:
        await self._channel.close()

    async def _cause_of_close(self, text: str) -> ConnectionFault:
        """Return why the server has closed the connection at a request."""
        if self._uses_tls:
            is_certificate = "CERTIFICATE" in text.upper()
            return ConnectionFault.CERTIFICATE_REQUIRED if is_certificate else ConnectionFault.CLOSED
        accepts_tls = await _accepts_tls(self._channel.address, self._timeout_ms)
        return ConnectionFault.TLS_REQUIRED if accepts_tls else ConnectionFault.CLOSED


def classify(error: BaseException | None, *, uses_tls: bool) -> ConnectionFault:
    """Return why connecting failed, from the error of the operating system or of OpenSSL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in CERTIFICATE_NAME_CODES:
            return ConnectionFault.CERTIFICATE_NAME
        is_time = error.verify_code in CERTIFICATE_TIME_CODES
        return ConnectionFault.CERTIFICATE_EXPIRED if is_time else ConnectionFault.CERTIFICATE_AUTHORITY
    if isinstance(error, ssl.SSLError) and "certificate required" in str(error).lower().replace("_", " "):
        return ConnectionFault.CERTIFICATE_REQUIRED
    if isinstance(error, socket.gaierror):
        return ConnectionFault.UNKNOWN_HOST
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFault.REFUSED
    if isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError) and uses_tls:
        return ConnectionFault.NO_TLS
    if isinstance(error, TimeoutError):
        return ConnectionFault.TIMED_OUT
    return ConnectionFault.UNREACHABLE


async def _connect_plain(address: str, timeout_ms: int) -> bool:
    """Connect once without TLS. Return whether both ends have the same host. Raises CannotTalk."""
    try:
        host, port = split_address(address)
        async with asyncio.timeout(timeout_ms / 1000):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError) as error:
        cause = classify(error, uses_tls=False)
        detail = f"no connection within {timeout_ms / 1000:g} s" if isinstance(error, TimeoutError) else _detail(error)
        raise CannotTalk(Connection(fault=cause, detail=detail)) from error
    local, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
    await _close(writer)
    # A loopback address such as 127.0.1.1 is reached from another one, 127.0.0.1.
    return bool(local and peer and (local[0] == peer[0] or ipaddress.ip_address(peer[0]).is_loopback))


async def _accepts_tls(address: str, timeout_ms: int) -> bool:
    """Return whether a server completes a TLS handshake. Its certificate is not verified, and nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "certificate" in str(error).lower()  # a server that requires a client certificate
    except OSError:
        return False
    await _close(writer)
    return True


async def _certificate_names(
    address: str, settings: ClientSettings, timeout_ms: int, cause: ConnectionFault
) -> tuple[str, ...]:
    """Return the names in a certificate that is valid, but for other names; empty for any other cause."""
    if cause is not ConnectionFault.CERTIFICATE_NAME or not isinstance(settings.tls, ClientTlsSettings):
        return ()
    context = await settings.tls.source("servers").load_current()
    context.check_hostname = False
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError:
        return ()
    certificate = writer.get_extra_info("peercert") or {}
    await _close(writer)
    return tuple(str(value) for _, value in certificate.get("subjectAltName", ()))


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.wait_closed()


async def _tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """Return a new TLS context, None for plain text. Raises OSError for unusable files."""
    tls = settings.tls
    return await tls.source("servers").load_current() if isinstance(tls, ClientTlsSettings) else tls


def _detail(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return str(getattr(error, "strerror", None) or error)
