"""The base of the operator's HTTP clients: one session, as a context manager, and responses of a bounded size.

Redirections are not followed, proxies are not used and cookies are not kept: each could disclose a request to a third
party. The caller bounds the time of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import aiohttp

CONNECTIONS_PER_HOST_MAX: Final = 8
"""The most connections to one host at a time."""


class HttpClient:
    """Base class of HTTP clients, used as a context manager. Owned by the event loop; never instantiated itself."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max: Final = connections_max
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=self._connections_max, limit_per_host=CONNECTIONS_PER_HOST_MAX, ttl_dns_cache=5
        )
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(
        self, method: str, url: str, bytes_max: int, *, headers: Mapping[str, str], data: bytes | None = None,
        certificate: aiohttp.Fingerprint | bool = True,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Return status and body, at most ``bytes_max`` + 1 bytes of it. Raises aiohttp's errors and ``OSError``."""
        assert self._session is not None, "the client must be entered before it is used"
        async with self._session.request(
            method, url, data=data, headers=headers, allow_redirects=False, ssl=certificate
        ) as answer:
            body = await answer.content.read(bytes_max + 1)
            while len(body) <= bytes_max and not answer.content.at_eof():
                body += await answer.content.read(bytes_max + 1 - len(body))
            return answer.status, body
