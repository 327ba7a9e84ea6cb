"""Waiting for the effect of another task or process, with a time limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

POLL_INTERVAL_S: Final = 0.002


async def wait_until(
    predicate: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = 120.0, what: str = "the condition"
) -> None:
    """Return as soon as `predicate` holds. Raises TimeoutError with a description of the condition."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await _answer(predicate()):  # noqa: ASYNC110 - the condition has no event to wait for
                await asyncio.sleep(POLL_INTERVAL_S)
    except TimeoutError as error:
        raise TimeoutError(f"{what} did not happen within {timeout_s} s") from error


async def _answer(value: bool | Awaitable[bool]) -> bool:
    return value if isinstance(value, bool) else await value
