"""Asking a running driver how far it is. It has no secret to tell and takes no order, so nothing is proven first.

One that does not answer in time is a driver that says nothing now, and never an error of the operator's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol, final

import aiohttp

from gantry_operator.pipelines.naming import PAGE_PORT
from gantry_operator.pipelines.observed import words_of

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 64


class Pages(Protocol):
    """Those of all drivers."""

    async def ask(self, address: str) -> Mapping[str, Any] | None:
        """What the run at this address says of itself; None: nothing of use in time."""


@final
class HttpPages:
    """Owned by the event loop; entered and left."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, port: int = PAGE_PORT) -> None:
        self._timeout_s: Final = timeout_s
        self._port: Final = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpPages:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, address: str) -> Mapping[str, Any] | None:
        assert self._session is not None, "entered before it is used"
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/v1/pipeline"
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._session.get(url, allow_redirects=False) as answer:
                    body = await answer.content.read(ANSWER_BYTES_MAX)
                    if answer.status != 200 or not answer.content.at_eof():
                        return None
                    return words_of(body.decode("utf-8", "replace"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.debug("pipeline driver did not answer", extra={"url": url, "reason": str(error)})
            return None
