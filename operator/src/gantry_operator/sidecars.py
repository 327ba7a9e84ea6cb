"""Talking to the sidecars of a group's pods: what their brokers say now, and orders for them.

Every call has a deadline and a connection of its own pool, so a pod that hangs costs whoever asked it, and nobody else.
What is in an answer is not believed beyond its form: who is who is compared by whoever asked.

Where sidecars speak TLS (``access.tlsSecret``), it goes to nobody who has not proven to know it (``certificates``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, final

import aiohttp
import msgspec

from gantry_operator.certificates import Proven
from gantry_operator.errors import SidecarDenied, SidecarRefused, SidecarSilent
from gantry_operator.http_client import HttpClient
from gantry_spec.executor import Expected
from gantry_status.orders import AnyOrder, Drain, Follow

LOOK_TIMEOUT_S: Final = 1.0
ORDER_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 << 20
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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}"

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
        self._proven: Final = Proven()

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
                    self._proven.forget(peer.host, peer.port, peer.token)
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
            proven = aiohttp.Fingerprint(await self._proven.fingerprint(peer.host, peer.port, peer.token))
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
