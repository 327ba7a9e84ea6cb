"""TLS inside a protocol: encrypted bytes in, plain bytes out, no socket.

A permissive port learns from a connection's first byte whether it is TLS (0x16 is a handshake record, and no frame of
16 MiB or less starts with it). asyncio cannot start TLS after bytes were read, so this layer does it over memory
buffers, which also makes it testable without a socket.

A handshake costs a server memory for as long as its peer may take. An honest one is over in milliseconds, so a port
that has too many closes the oldest (`Handshakes`): a flood displaces itself.
"""

import ssl
from typing import Final, Protocol, cast, final

from gantry_remoting.closings import CloseReason

TLS_HANDSHAKE_BYTE: Final = 0x16
_READ_BYTES: Final = 256 * 1024
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""What a peer may send before its handshake is over. An honest one takes a few kilobytes, with a chain of certificates
some 20; OpenSSL alone would gather 130 and take more than twice as much memory for it."""

_SHORT: Final = {
    "commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_SPECIAL: Final = frozenset(',+"\\<>;=')

_Names = tuple[tuple[tuple[str, str], ...], ...]


@final
class TlsLayer:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes = 0
        self.is_ready = False
        self.is_closed = False

    def receive(self, data: bytes) -> bytes:
        """Take encrypted bytes, return the plain bytes in them. Raises ssl.SSLError for a broken peer."""
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
        """`data`, encrypted, behind whatever the layer itself has to say."""
        self._tls.write(data)
        return self._outgoing.read()

    def peer_subject(self) -> str:
        """Who the peer proved to be; empty when it showed no certificate, or none that an authority was asked about."""
        certificate = self._tls.getpeercert()
        return subject_text(cast(dict[str, object], certificate)) if certificate else ""

    def pending_output(self) -> bytes:
        """Handshake bytes and alerts that the peer has yet to get."""
        return self._outgoing.read()


class Shaking(Protocol):
    """A connection, as far as it matters here."""

    def close(self, text: str, reason: CloseReason) -> None: ...


@final
class Handshakes:
    """Those of one port, oldest first. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: dict[Shaking, None] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connection: Shaking) -> None:
        """One more; the oldest goes when there is no room for it."""
        if len(self._under_way) >= self._most:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            oldest.close("made room for a younger TLS handshake", CloseReason.HANDSHAKES)
        self._under_way[connection] = None

    def end(self, connection: Shaking) -> None:
        """It is done, or gone."""
        self._under_way.pop(connection, None)


def subject_text(certificate: dict[str, object]) -> str:
    """Whom a certificate is about, as one line for logs: `CN=billing,OU=payments,O=Example`.

    It takes what `getpeercert` gives. The most specific part is first, as LDAP writes names. A certificate without a
    subject is known by its first other name, or not at all. The applicant for a certificate chooses its name, so
    everything that could end a field or a line of a log is written with a backslash.
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
