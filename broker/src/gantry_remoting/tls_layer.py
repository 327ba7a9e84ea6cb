"""TLS without a socket: encrypted bytes in, plain bytes out.

A permissive port detects TLS by a connection's first byte (0x16 is a handshake record, and no frame of 16 MiB or less
starts with it). asyncio cannot start TLS after bytes were read, so this layer does it over memory buffers, which also
makes it testable without a socket.

A handshake costs a server memory for as long as its peer takes. An ordinary one is over in milliseconds, so a port with
too many closes the oldest (`Handshakes`): a flood displaces itself.
"""

import ssl
from typing import Final, Protocol, cast, final

from gantry_remoting.close_log import CloseReason

TLS_HANDSHAKE_BYTE: Final = 0x16
_READ_BYTES: Final = 256 * 1024
"""How many plain bytes are taken from OpenSSL at a time."""
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""The bytes that a peer may send before its handshake is complete. An ordinary one takes a few kilobytes, with a chain
of certificates some 20; OpenSSL alone would buffer 130 and take more than twice as much memory for them."""

_SHORT: Final = {
    "commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
"""The usual short names of the parts of a subject."""
_SPECIAL: Final = frozenset(',+"\\<>;=')

_Names = tuple[tuple[tuple[str, str], ...], ...]


@final
class TlsLayer:
    """The server side of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes = 0
        self.is_ready = False
        """Whether the handshake has succeeded."""
        self.is_closed = False
        """Whether the peer has ended the encrypted stream."""

    def receive(self, data: bytes) -> bytes:
        """Add encrypted bytes and return the plain bytes in them. Raises ssl.SSLError for an invalid record."""
        self._incoming.write(data)
        if not self.is_ready:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._handshake_bytes += len(data)
                if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                    raise ssl.SSLError(f"a handshake of more than {HANDSHAKE_BYTES_MAX} bytes") from None
                return b""
            self.is_ready = True
        plain: list[bytes] = []
        try:
            while part := self._tls.read(_READ_BYTES):
                plain.append(part)
            self.is_closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_closed = True
        return b"".join(plain)

    def encrypt(self, data: bytes) -> bytes:
        """Return `data` encrypted, preceded by pending output of the layer itself."""
        self._tls.write(data)
        return self._outgoing.read()

    def peer_subject(self) -> str:
        """Return the subject of the peer's verified certificate; empty without one."""
        certificate = self._tls.getpeercert()
        return subject_text(cast(dict[str, object], certificate)) if certificate else ""

    def pending_output(self) -> bytes:
        """Return handshake bytes and alerts to be sent to the peer."""
        return self._outgoing.read()


class HandshakingConnection(Protocol):
    """A connection during its handshake."""

    def close(self, text: str, reason: CloseReason) -> None: ...


@final
class Handshakes:
    """The pending handshakes of one port, oldest first. Owned by the event loop."""

    def __init__(self, handshakes_max: int) -> None:
        self._handshakes_max = handshakes_max
        self._pending: dict[HandshakingConnection, None] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, connection: HandshakingConnection) -> None:
        """Add a handshake. At the limit the oldest is closed."""
        if len(self._pending) >= self._handshakes_max:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            oldest.close("was closed for a newer TLS handshake", CloseReason.HANDSHAKES)
        self._pending[connection] = None

    def end(self, connection: HandshakingConnection) -> None:
        """Remove a handshake that is complete or whose connection is closed."""
        self._pending.pop(connection, None)


def subject_text(certificate: dict[str, object]) -> str:
    """Return the subject of a certificate as one line for logs: `CN=billing,OU=payments,O=Example`.

    `certificate` is the result of `getpeercert`. The most specific part is first, as in LDAP names. For a certificate
    without a subject its first alternative name is used, if any. The applicant for a certificate chooses its name, so
    every character that could end a field or a line of a log is escaped with a backslash.
    """
    subject = cast(_Names, certificate.get("subject") or ())
    parts = ["+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in subject]
    if parts:
        return ",".join(reversed(parts))
    others = cast(tuple[tuple[str, str], ...], certificate.get("subjectAltName") or ())
    return next((f"{kind.replace(' ', '')}:{_escaped(value)}" for kind, value in others), "")


def _escaped(value: str) -> str:
    return "".join(_character(character) for character in value)


def _character(character: str) -> str:
    if character in _SPECIAL:
        return "\\" + character
    if character.isprintable() and character != " ":
        return character
    return "".join(f"\\{byte:02X}" for byte in character.encode("utf-8", "backslashreplace"))
