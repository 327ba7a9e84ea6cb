"""Talking to the sidecars of a group's pods: what their brokers say now, and orders for them.

Every call has a deadline and a connection of its own pool, so a pod that hangs costs whoever asked it, and nobody else.
What is in an answer is not believed beyond its form: who is who is compared by whoever asked.

Where sidecars speak TLS (``access.tlsSecret``), the group's token goes to no sidecar that has not proven to know it
(``gantry_spec.sidecar_proof``). Pods share no names that a certificate could be checked for, and the operator may not
read the authority's Secret. So each address is asked for a proof once, over a connection of its own that carries no
token; from then on connections to it are closed before a byte is sent if another certificate is shown. After a
certificate was replaced, or an address was given to another pod, the proof is asked for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, final

import aiohttp
import msgspec

from gantry_operator.errors import SidecarDenied, SidecarRefused, SidecarSilent
from gantry_operator.http_client import HttpClient
from gantry_remoting import join_address
from gantry_spec.executor import Expected
from gantry_spec.sidecar_proof import NONCE_CHARACTERS, is_proven
from gantry_status.orders import AnyOrder, Drain, Follow

LOOK_TIMEOUT_S: Final = 1.0
ORDER_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 << 20
PROOF_BYTES_MAX: Final = 16 << 10
CONNECTIONS_MAX: Final = 512
REASON_MAX: Final = 300
REFUSED: Final = frozenset({400, 409, 412, 413, 422})


class Peer(NamedTuple):
    """Where a sidecar listens, and what it believes."""

    host: str
    port: int
    token: str
    is_tls: bool = False

    @property
    def base(self) -> str:
        return f"http{'s' if self.is_tls else ''}://{join_address(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"<Peer {self.base}>"


class Sidecars(Protocol):
    """Those of all groups. Every call raises leaves of ``errors.SidecarError``."""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        """What the broker says of itself now, by the names of the control socket."""

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> None:
        """Have it obey; with ``expected`` only if the broker still is that."""

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        """The document of its topics."""


@final
class HttpSidecars(HttpClient):
    """Owned by the event loop; entered and left."""

    def __init__(self, *, look_timeout_s: float = LOOK_TIMEOUT_S, order_timeout_s: float = ORDER_TIMEOUT_S) -> None:
        super().__init__(CONNECTIONS_MAX)
        self._look_timeout_s: Final = look_timeout_s
        self._order_timeout_s: Final = order_timeout_s
        self._proven: Final = ProvenCertificates()

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        timeout_ms = int(self._look_timeout_s * 800)
        return await self._ask(peer, "GET", f"/v1/role/now?timeout_ms={timeout_ms}", None, self._look_timeout_s)

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        return await self._ask(peer, "GET", "/v1/topics?limit=1000", None, self._look_timeout_s)

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> None:
        name, body = request_of(order, expected)
        timeout_s = self._order_timeout_s + (order.timeout_ms / 1000 if isinstance(order, Drain) else 0)
        path = f"/v1/role/{name}?timeout_ms={int(self._order_timeout_s * 900)}"
        await self._ask(peer, "POST", path, body, timeout_s)

    async def _ask(
        self, peer: Peer, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Mapping[str, Any]:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    status, text = await self._shown(peer, method, path, data)
                except aiohttp.ServerFingerprintMismatch:
                    self._proven.forget(peer)
                    status, text = await self._shown(peer, method, path, data)
                return _document(peer, status, text)
        except TimeoutError:
            raise SidecarSilent(f"{peer.base}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SidecarSilent(f"{peer.base}: {str(error)[:REASON_MAX]}") from error

    async def _shown(self, peer: Peer, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Status and text. With TLS the token is shown only to a peer that has proven to know it."""
        headers = {"Authorization": f"Bearer {peer.token}", "Content-Type": "application/json"}
        proven: aiohttp.Fingerprint | bool = True
        if peer.is_tls:
            proven = aiohttp.Fingerprint(await self._proven.fingerprint(peer))
        url = peer.base + path
        return await self._exchange(method, url, ANSWER_BYTES_MAX, data=data, headers=headers, certificate=proven)


def request_of(order: AnyOrder, expected: Expected | None) -> tuple[str, dict[str, Any]]:
    """The name of an order in the sidecar's API, and its body: the fields of the control socket."""
    body: dict[str, Any] = msgspec.to_builtins(order)
    tag = body.pop("order")
    if expected is not None:
        body["expected"] = msgspec.to_builtins(expected)
    return "demote" if isinstance(order, Follow) else tag, body


def _document(peer: Peer, status: int, text: bytes) -> Mapping[str, Any]:
    if len(text) > ANSWER_BYTES_MAX:
        raise SidecarSilent(f"{peer.base}: its answer is longer than {ANSWER_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SidecarSilent(f"{peer.base}: its answer ({status}) is no JSON") from error
    if not isinstance(document, dict):
        raise SidecarSilent(f"{peer.base}: its answer ({status}) is no object")
    if status == 200:
        return document
    reason = str(document.get("reason", ""))[:REASON_MAX]
    if status in (401, 403):
        raise SidecarDenied(f"{peer.base}: {reason} ({status})")
    if status in REFUSED:
        raise SidecarRefused(reason)
    raise SidecarSilent(f"{peer.base}: {reason} ({status})")


def _accepting_context() -> ssl.SSLContext:
    """A client's context that accepts any certificate: whose it is is proven afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@final
class ProvenCertificates:
    """The certificate that the sidecar at each address has proven to be its own. Owned by the event loop."""

    def __init__(self) -> None:
        self._context: Final = _accepting_context()
        self._known: Final[dict[Peer, bytes]] = {}

    def __repr__(self) -> str:
        return f"<ProvenCertificates addresses={len(self._known)}>"

    def forget(self, peer: Peer) -> None:
        """Ask for a proof again: another certificate is shown there now."""
        self._known.pop(peer, None)

    async def fingerprint(self, peer: Peer) -> bytes:
        """The SHA-256 of the certificate there, whose owner knows the token. Raises leaves of ``SidecarError``."""
        if peer not in self._known:
            self._known[peer] = await self._ask(peer.host, peer.port, peer.token)
        return self._known[peer]

    async def _ask(self, host: str, port: int, token: str) -> bytes:
        nonce = secrets.token_hex(NONCE_CHARACTERS // 2)
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._context)
        except OSError as error:
            raise SidecarSilent(f"{host}:{port}: {error}") from error
        try:
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.write(f"GET /v1/proof?nonce={nonce} HTTP/1.0\r\nHost: sidecar\r\n\r\n".encode())
            answer = await reader.read(PROOF_BYTES_MAX)
            while len(answer) < PROOF_BYTES_MAX and (piece := await reader.read(PROOF_BYTES_MAX)):
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
