"""The client of the sidecars of a group's pods: it requests the status of their brokers, and sends orders.

Every call has a deadline, and no two calls share a connection at the same time, so a pod that hangs delays only its own
callers. Only the form of an answer is checked here: ``GroupObserver`` compares the identity of the broker that
reported. Orders name their broker, and its sidecar refuses those for another one: an order goes to the address that the
broker's pod had last, which may belong to another pod of the same group by now.

Where sidecars use TLS (``access.tlsSecret``), the group's token is only sent to a sidecar that has proven to know it
(``gantry_spec.sidecar_proof``). Pods share no host name for which a certificate could be checked, and the operator may
not read the Secret with the authority. So a proof is requested from each address once, over a connection of its own
that carries no token. From then on, a connection to this address is closed before anything is sent if it presents
another certificate: it was replaced, or the address was given to a pod of another group. Then a new proof is requested.
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
from urllib.parse import urlencode

import aiohttp
import msgspec

from gantry_operator.errors import SidecarRefused, SidecarUnauthorized, SidecarUnavailable
from gantry_operator.http_client import HttpClient
from gantry_remoting import join_address
from gantry_spec.executor import Expected
from gantry_spec.sidecar_proof import NONCE_CHARACTERS, is_proven
from gantry_status.orders import AnyOrder, Drain, Follow

STATUS_TIMEOUT_S: Final = 1.0
"""How long a request for the status may take, in seconds."""

ORDER_TIMEOUT_S: Final = 10.0
"""How long an order may take, in seconds."""

ANSWER_BYTES_MAX: Final = 4 << 20
PROOF_BYTES_MAX: Final = 16 << 10
"""The longest answer to a request for a proof."""

CONNECTIONS_MAX: Final = 512
REASON_MAX: Final = 300
"""The most characters of a reason that are kept."""

REFUSED: Final = frozenset({400, 409, 412, 413, 422})
"""The HTTP statuses with which a sidecar or its broker refuses an order."""


class Peer(NamedTuple):
    """The address of a sidecar, the token that it accepts, and the broker for which it is asked."""

    host: str
    port: int
    token: str
    is_tls: bool = False
    broker_name: str = ""
    """The name of the broker; empty for any, as its number."""

    member: int | None = None
    """The number of the broker; None for any."""

    @property
    def base(self) -> str:
        return f"http{'s' if self.is_tls else ''}://{join_address(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"<Peer {self.base}>"


class Sidecars(Protocol):
    """The sidecars of all groups. Every call raises leaves of ``errors.SidecarError``."""

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        """Return the present status of the broker, with the field names of the control socket."""

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        """Send an order; with ``expected`` it is executed only if the broker's state still matches.

        Return the state of the broker afterwards, as far as the sidecar reports it.
        """

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        """Return the document of the broker's topics."""


@final
class HttpSidecars(HttpClient):
    """The sidecars, reached over HTTP. Owned by the event loop, and used as a context manager."""

    def __init__(self, *, status_timeout_s: float = STATUS_TIMEOUT_S, order_timeout_s: float = ORDER_TIMEOUT_S) -> None:
        super().__init__(CONNECTIONS_MAX)
        self._status_timeout_s: Final = status_timeout_s
        self._order_timeout_s: Final = order_timeout_s
        self._proven: Final = ProvenCertificates()

    async def status(self, peer: Peer) -> Mapping[str, Any]:
        timeout_ms = int(self._status_timeout_s * 800)
        return await self._ask(peer, "GET", f"/v1/role/now?timeout_ms={timeout_ms}", None, self._status_timeout_s)

    async def topics(self, peer: Peer) -> Mapping[str, Any]:
        return await self._ask(peer, "GET", "/v1/topics?limit=1000", None, self._status_timeout_s)

    async def order(self, peer: Peer, order: AnyOrder, expected: Expected | None = None) -> Mapping[str, Any]:
        name, body = request_of(order, expected)
        timeout_s = self._order_timeout_s + (order.timeout_ms / 1000 if isinstance(order, Drain) else 0)
        query: dict[str, object] = {"timeout_ms": int(self._order_timeout_s * 900)}
        if peer.broker_name and peer.member is not None:
            query |= {"broker_name": peer.broker_name, "broker_id": peer.member}
        path = f"/v1/role/{name}?{urlencode(query)}"
        return await self._ask(peer, "POST", path, body, timeout_s)

    async def _ask(
        self, peer: Peer, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Mapping[str, Any]:
        """Send a request, and return the document of the answer. Raises leaves of ``SidecarError``."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    status, text = await self._send_with_token(peer, method, path, data)
                except aiohttp.ServerFingerprintMismatch:
                    self._proven.forget(peer)
                    status, text = await self._send_with_token(peer, method, path, data)
                return _parse_answer(peer, status, text)
        except TimeoutError:
            raise SidecarUnavailable(f"{peer.base}: no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SidecarUnavailable(f"{peer.base}: {str(error)[:REASON_MAX]}") from error

    async def _send_with_token(self, peer: Peer, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Return status and body. With TLS the token is sent only to a peer that has proven to know it."""
        headers = {"Authorization": f"Bearer {peer.token}", "Content-Type": "application/json"}
        proven: aiohttp.Fingerprint | bool = True
        if peer.is_tls:
            proven = aiohttp.Fingerprint(await self._proven.fingerprint(peer))
        url = peer.base + path
        return await self._exchange(method, url, ANSWER_BYTES_MAX, data=data, headers=headers, certificate=proven)


def request_of(order: AnyOrder, expected: Expected | None) -> tuple[str, dict[str, Any]]:
    """Return the name of an order in the sidecar's API, and its body with the field names of the control socket."""
    body: dict[str, Any] = msgspec.to_builtins(order)
    tag = body.pop("order")
    if expected is not None:
        body["expected"] = msgspec.to_builtins(expected)
    return "demote" if isinstance(order, Follow) else tag, body


def _parse_answer(peer: Peer, status: int, text: bytes) -> Mapping[str, Any]:
    """Return the document of an answer, or raise the error that its status stands for."""
    if len(text) > ANSWER_BYTES_MAX:
        raise SidecarUnavailable(f"{peer.base}: the answer is longer than {ANSWER_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SidecarUnavailable(f"{peer.base}: the answer ({status}) is not JSON") from error
    if not isinstance(document, dict):
        raise SidecarUnavailable(f"{peer.base}: the answer ({status}) is not a JSON object")
    if status == 200:
        return document
    reason = str(document.get("reason", ""))[:REASON_MAX]
    if status in (401, 403):
        raise SidecarUnauthorized(f"{peer.base}: {reason} ({status})")
    if status in REFUSED:
        raise SidecarRefused(reason)
    raise SidecarUnavailable(f"{peer.base}: {reason} ({status})")


def _accepting_context() -> ssl.SSLContext:
    """Return a client's TLS context that accepts any certificate: its owner is verified afterwards, by the proof."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@final
class ProvenCertificates:
    """The certificates of sidecars that have proven to know the token, by address. Owned by the event loop."""

    def __init__(self) -> None:
        self._context: Final = _accepting_context()
        self._known: Final[dict[Peer, bytes]] = {}

    def __repr__(self) -> str:
        return f"<ProvenCertificates addresses={len(self._known)}>"

    def forget(self, peer: Peer) -> None:
        """Forget the certificate of a peer, which presents another one now, so that a new proof is requested."""
        self._known.pop(peer, None)

    async def fingerprint(self, peer: Peer) -> bytes:
        """Return the SHA-256 of the peer's certificate, after a proof. Raises leaves of ``SidecarError``."""
        if peer not in self._known:
            self._known[peer] = await self._verify(peer.host, peer.port, peer.token)
        return self._known[peer]

    async def _verify(self, host: str, port: int, token: str) -> bytes:
        """Request a proof over a new connection, and return the fingerprint of its certificate."""
        nonce = secrets.token_hex(NONCE_CHARACTERS // 2)
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._context)
        except OSError as error:
            raise SidecarUnavailable(f"{host}:{port}: {error}") from error
        try:
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.write(f"GET /v1/proof?nonce={nonce} HTTP/1.0\r\nHost: sidecar\r\n\r\n".encode())
            answer = await reader.read(PROOF_BYTES_MAX)
            while len(answer) < PROOF_BYTES_MAX and (piece := await reader.read(PROOF_BYTES_MAX)):
                answer += piece
        except OSError as error:
            raise SidecarUnavailable(f"{host}:{port}: {error}") from error
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        presented = hashlib.sha256(certificate or b"").digest()
        if not is_proven(_parse_proof(answer), token, nonce, presented):
            raise SidecarUnauthorized(
                f"{host}:{port}: it did not prove that it is a sidecar of the group; the token was not sent"
            )
        return presented


def _parse_proof(answer: bytes) -> object:
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        document = json.loads(body) if head.split(b" ", 2)[1:2] == [b"200"] else None
    except (ValueError, RecursionError):
        return None
    return document.get("proof") if isinstance(document, dict) else None
