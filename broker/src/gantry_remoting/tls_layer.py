"""TLS inside a protocol: encrypted bytes in, plain bytes out, no socket.

A permissive port learns from a connection's first byte whether it is TLS (0x16 is a handshake record, and no frame of
16 MiB or less starts with it). asyncio cannot start TLS after bytes were read, so this layer does it over memory
buffers, which also makes it testable without a socket.
"""

import ssl
from typing import Final, cast, final

from gantry_remoting.subject import subject_text

TLS_HANDSHAKE_BYTE: Final = 0x16
_READ_BYTES: Final = 256 * 1024
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""What a peer may send before its handshake is over. An honest one takes a few kilobytes, with a chain of certificates
some 20; OpenSSL alone would gather 130 and take more than twice as much memory for it."""


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
