"""Which certificate the sidecar at an address has proven to be its own (``gantry_spec.sidecar_proof``).

Pods share no names that a certificate could be checked for, and the operator may not read the authority's Secret. So
each address is asked for a proof once, over a connection of its own that carries no token; from then on connections to
it are closed before a byte is sent if another certificate is shown. After a certificate was replaced, or an address was
given to another pod, the proof is asked for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import ssl
from contextlib import suppress
from typing import Final, final

from gantry_operator.errors import SidecarDenied, SidecarSilent
from gantry_spec.sidecar_proof import NONCE_CHARACTERS, is_proven

ANSWER_BYTES_MAX: Final = 16 << 10


def believing() -> ssl.SSLContext:
    """A client's context that takes any certificate: what is believed of it is decided afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@final
class Proven:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self._context: Final = believing()
        self._known: Final[dict[tuple[str, int, str], bytes]] = {}

    def __repr__(self) -> str:
        return f"<Proven addresses={len(self._known)}>"

    def forget(self, host: str, port: int, token: str) -> None:
        """Another certificate is shown there now."""
        self._known.pop((host, port, token), None)

    async def fingerprint(self, host: str, port: int, token: str) -> bytes:
        """Of the certificate that whoever knows the token has there. Raises leaves of ``SidecarError``."""
        key = (host, port, token)
        if key not in self._known:
            self._known[key] = await self._ask(host, port, token)
        return self._known[key]

    async def _ask(self, host: str, port: int, token: str) -> bytes:
        nonce = secrets.token_hex(NONCE_CHARACTERS // 2)
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._context)
        except OSError as error:
            raise SidecarSilent(f"{host}:{port}: {error}") from error
        try:
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.write(f"GET /v1/proof?nonce={nonce} HTTP/1.0\r\nHost: sidecar\r\n\r\n".encode())
            answer = await reader.read(ANSWER_BYTES_MAX)
            while len(answer) < ANSWER_BYTES_MAX and (piece := await reader.read(ANSWER_BYTES_MAX)):
                answer += piece
        except OSError as error:
            raise SidecarSilent(f"{host}:{port}: {error}") from error
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        shown = hashlib.sha256(certificate or b"").digest()
        if not is_proven(_proof_in(answer), token, nonce, shown):
            raise SidecarDenied(
                f"{host}:{port}: it does not prove that it is a sidecar of the group; no token is shown"
            )
        return shown


def _proof_in(answer: bytes) -> object:
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        document = json.loads(body) if head.split(b" ", 2)[1:2] == [b"200"] else None
    except (ValueError, RecursionError):
        return None
    return document.get("proof") if isinstance(document, dict) else None
