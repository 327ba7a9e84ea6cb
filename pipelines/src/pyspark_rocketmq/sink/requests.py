"""Requests of the sink: repeated while the failure is transient, and a bounded number of them at the same time.

A failover ends within half a minute, but an invalid request never succeeds: only errors that `is_transient` accepts are
retried.

Every request of the sink may be repeated: sends are at least once anyway, half messages that no marker lists are never
delivered, and repeated ends and markers have no further effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from gantry_client import (
    BrokerRefused,
    ClientError,
    InvalidMessage,
    is_transient,
)
from gantry_wire.codes import ResponseCode
from pyspark_rocketmq.errors import NotStored, Refused
from pyspark_rocketmq.settings import ReadSettings

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)

DENIED_CODES: Final = frozenset({ResponseCode.NO_PERMISSION})
"""The response codes with which a broker denies access."""

PAUSE_FIRST_MS: Final = 50
"""The pause after the first failure; it doubles with each further one."""

PAUSE_MAX_MS: Final = 2_000


async def call_with_retries(
    attempt: Callable[[int], Awaitable[T]],
    what: str,
    settings: ReadSettings,
    *,
    refresh: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """Return the result of `attempt`, which gets its timeout in ms. Raises NotStored or Refused.

    ``refresh`` is called between attempts: it updates the route to a broker that was promoted.
    """
    patience_ms, attempt_ms = settings.patience_ms, settings.request_timeout_ms
    loop = asyncio.get_running_loop()
    end, pause_ms = loop.time() + patience_ms / 1000, PAUSE_FIRST_MS
    while True:
        try:
            return await attempt(attempt_ms)
        except InvalidMessage as error:
            raise NotStored(f"{what}: {error}") from error
        except ClientError as error:
            if isinstance(error, BrokerRefused) and error.code in DENIED_CODES:
                raise Refused(f"{what}: {error}") from error
            if not is_transient(error):
                raise NotStored(f"{what}: {error}") from error
            if loop.time() + pause_ms / 1000 >= end:
                raise NotStored(
                    f"{what}: timed out after {patience_ms / 1000:.0f} s (option patience): {error}"
                ) from error
            log.info("request failed; retrying", extra={"what": what, "reason": str(error)})
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)
        if refresh is not None:
            try:
                async with asyncio.timeout(attempt_ms / 1000):
                    await refresh()
            except (ClientError, TimeoutError) as error:
                log.info("failed to refresh route", extra={"what": what, "reason": str(error)})


async def map_concurrently(items: Iterable[T], do: Callable[[T], Awaitable[R]], *, window: int) -> list[R]:
    """Return the result of `do` for each item, in their order. The first failure cancels the rest, and is raised."""
    results: list[R] = []
    pending: deque[asyncio.Future[R]] = deque()
    try:
        for item in items:
            if len(pending) >= window:
                results.append(await pending.popleft())
            pending.append(asyncio.ensure_future(do(item)))
        while pending:
            results.append(await pending.popleft())
    finally:
        for rest in pending:
            rest.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return results
