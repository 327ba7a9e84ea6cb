"""How the sink makes requests: repeated while a failure may pass, and a bounded number of them side by side.

A failover takes half a minute, a typo for ever: `is_passing` says which refusals are worth another attempt.

Every request of the sink may be repeated: sends are at least once anyway, half messages that nobody lists are never
delivered, ends and markers count once however often they come.
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
    is_passing,
)
from gantry_wire.codes import ResponseCode
from pyspark_rocketmq.errors import NotStored, Refused
from pyspark_rocketmq.settings import ReadSettings

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger(__name__)

DENIED_CODES: Final = frozenset({ResponseCode.NO_PERMISSION})
PAUSE_FIRST_MS: Final = 50
PAUSE_MAX_MS: Final = 2_000


async def patiently(
    attempt: Callable[[int], Awaitable[T]],
    what: str,
    settings: ReadSettings,
    *,
    refresh: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """What `attempt` returns, which is told how many ms it may take. Raises NotStored or Refused.

    ``refresh`` is called between attempts: the route to a broker that was promoted.
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
            if not is_passing(error):
                raise NotStored(f"{what}: {error}") from error
            if loop.time() + pause_ms / 1000 >= end:
                raise NotStored(
                    f"{what}, though tried for {patience_ms / 1000:.0f} s (option patience): {error}"
                ) from error
            log.info("tried again", extra={"what": what, "reason": str(error)})
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)
        if refresh is not None:
            try:
                async with asyncio.timeout(attempt_ms / 1000):
                    await refresh()
            except (ClientError, TimeoutError) as error:
                log.info("the route could not be asked for", extra={"what": what, "reason": str(error)})


async def flow(items: Iterable[T], do: Callable[[T], Awaitable[R]], *, window: int) -> list[R]:
    """What `do` returns for each, in the order of the items. The first failure ends all, and is raised."""
    results: list[R] = []
    under_way: deque[asyncio.Future[R]] = deque()
    try:
        for item in items:
            if len(under_way) >= window:
                results.append(await under_way.popleft())
            under_way.append(asyncio.ensure_future(do(item)))
        while under_way:
            results.append(await under_way.popleft())
    finally:
        for rest in under_way:
            rest.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    return results
