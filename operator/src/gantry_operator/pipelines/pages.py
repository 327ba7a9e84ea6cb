"""The client for the progress page of a running driver.

The page contains no secrets and takes no orders, so neither side authenticates. A driver that does not answer in time
has no present report; this is never an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol, final

import aiohttp

from gantry_operator.http_client import HttpClient
from gantry_operator.pipelines.naming import PAGE_PORT
from gantry_operator.pipelines.observed import parse_report
from gantry_remoting import join_address

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0
"""How long a driver may take to answer, in seconds."""

ANSWER_BYTES_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 64


class DriverPages(Protocol):
    """The progress pages of all drivers."""

    async def fetch(self, address: str) -> Mapping[str, Any] | None:
        """Return the report of the driver at this address; None without a usable answer in time."""


@final
class HttpDriverPages(HttpClient):
    """The progress pages, fetched over HTTP. Owned by the event loop, and used as a context manager."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, port: int = PAGE_PORT) -> None:
        super().__init__(CONNECTIONS_MAX)
        self._timeout_s: Final = timeout_s
        self._port: Final = port

    async def fetch(self, address: str) -> Mapping[str, Any] | None:
        url = f"http://{join_address(address, self._port)}/v1/pipeline"
        try:
            async with asyncio.timeout(self._timeout_s):
                status, body = await self._exchange("GET", url, ANSWER_BYTES_MAX, headers={"Connection": "close"})
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            log.debug("pipeline driver did not answer", extra={"url": url, "reason": str(error)})
            return None
        if status != 200 or len(body) > ANSWER_BYTES_MAX:
            return None
        return parse_report(body.decode("utf-8", "replace"))
