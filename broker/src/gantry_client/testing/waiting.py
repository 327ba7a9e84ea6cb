"""Waiting for what another task will bring about, with an end."""

import asyncio
from collections.abc import Callable

POLL_INTERVAL_S = 0.002


async def wait_until(predicate: Callable[[], bool], *, timeout_s: float = 5.0, what: str = "the condition") -> None:
    """Return as soon as `predicate` holds. Raises TimeoutError that says what did not come about."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not predicate():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"{what} did not come about in {timeout_s} s")
        await asyncio.sleep(POLL_INTERVAL_S)
