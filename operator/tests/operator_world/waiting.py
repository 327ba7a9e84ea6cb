"""Waiting for a condition in a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(predicate: Callable[[], bool], what: str = "it", seconds: float = 120.0) -> None:
    """Wait until the condition holds; a failure names the missing event."""
    try:
        async with asyncio.timeout(seconds):
            while not predicate():  # noqa: ASYNC110  (what is waited for has no event)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"it did not happen: {what}") from None
