"""Waiting for what comes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(predicate: Callable[[], bool], what: str = "it", seconds: float = 120.0) -> None:
    """Until it is so; a failure says what did not happen."""
    try:
        async with asyncio.timeout(seconds):
            while not predicate():  # noqa: ASYNC110  (what is waited for has no event)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"it did not happen: {what}") from None
