"""Many small requests, begun in their order, a bounded number of them without an answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


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
