"""Asking a running driver how far it is. It has no secret to tell and takes no order, so nothing is proven first.

One that does not answer in time is a driver that says nothing now, and never an error of the operator's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol, final

import aiohttp

from gantry_operator.http_client import HttpClient
from gantry_operator.pipelines.naming import PAGE_PORT
from gantry_operator.pipelines.observed import words_of
from gantry_remoting import join_address

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 64


class Pages(Protocol):
    """Those of all drivers."""

    async def ask(self, address: str) -> Mapping[str, Any] | None:
        """What the run at this address says of itself; None: nothing of use in time."""


@final
class HttpPages(HttpClient):
    """Owned by the event loop; entered and left."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, port: int = PAGE_PORT) -> None:
        super().__init__(CONNECTIONS_MAX)
        self._timeout_s: Final = timeout_s
        self._port: Final = port

    async def ask(self, address: str) -> Mapping[str, Any] | None:
        url = f"http://{join_address(address, self._port)}/v1/pipeline"
        try:
            async with asyncio.timeout(self._timeout_s):
                status, body = await self._exchange("GET", url, ANSWER_BYTES_MAX, headers={"Connection": "close"})
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.debug("pipeline driver did not answer", extra={"url": url, "reason": str(error)})
            return None
        if status != 200 or len(body) > ANSWER_BYTES_MAX:
            return None
        return words_of(body.decode("utf-8", "replace"))
