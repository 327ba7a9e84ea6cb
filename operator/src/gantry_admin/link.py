"""The control socket: the broker's own word about its role, asked in the background, and orders that are passed on.

Whatever is asked for often is asked for here, once a second for everybody, with a short deadline. An order is passed on
when the broker seems to be there to obey it; one that stands still is not waited for.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from gantry_admin.errors import Problem
from gantry_status.moment import Now, now
from gantry_status.order_client import Check, OrderClient
from gantry_status.orders import (
    AnyOrder,
    AskStatus,
    BrokerUnreachable,
    HaStatus,
    OrderError,
    OrderFailed,
    OrderRefused,
    OrderUnanswered,
    Promised,
)

log = logging.getLogger(__name__)

ASK_INTERVAL_S: Final = 1.0
ASK_HURRIED_S: Final = 0.05
"""While somebody waits for slaves."""
ASK_TIMEOUT_S: Final = 0.5
FRESH_MS: Final = 10_000
"""So old may an answer be and still count for a verdict."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What the broker said last of its role, and when."""

    status: HaStatus | None = None
    at_boottime_ns: int | None = None
    fault: str = "it was not asked yet"
    """Why the last question was not answered; empty when it was."""

    def age_ms(self, now_ns: int) -> int | None:
        """Since the answer."""
        return None if self.at_boottime_ns is None else max(now_ns - self.at_boottime_ns, 0) // 1_000_000

    def fresh(self, now_ns: int) -> HaStatus | None:
        """The answer, while it is not too old to be judged by."""
        age = self.age_ms(now_ns)
        return self.status if age is not None and age <= FRESH_MS else None


@final
class BrokerLink:
    """Owned by the event loop. Asking has a connection of its own, so that an order that takes long delays no look."""

    def __init__(self, path: str, *, clock: Now = now) -> None:
        self.word: Word = Word()
        self._path: Final = path
        self._clock: Final = clock
        self._asking: Final = OrderClient(path)
        self._hurried = 0
        self._wake: Final = asyncio.Event()

    def __repr__(self) -> str:
        return f"<BrokerLink {self._path} {self.word.fault or 'answers'}>"

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        try:
            while True:
                await self._ask()
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_HURRIED_S if self._hurried else ASK_INTERVAL_S):
                        await self._wake.wait()
        finally:
            await self._asking.close()

    def hurry(self) -> None:
        """Somebody waits for what only the broker can say. Ended by ``relax``, once for each."""
        self._hurried += 1
        self._wake.set()

    def relax(self) -> None:
        self._hurried -= 1
        assert self._hurried >= 0, "whoever relaxes has hurried before"

    async def order(self, order: AnyOrder, *, timeout_s: float, check: Check | None = None) -> HaStatus | Promised:
        """Pass it on. Raises ``Problem`` with a status that says whose move it is.

        ``check`` sees the broker's status first, asked on the same connection and so of the same process, and raises
        ``Problem`` or ``OrderRefused`` when the order is not for such a broker.
        """
        try:
            async with OrderClient(self._path, is_one_connection=check is not None) as client:
                answer = await client.call_checked(order, check, timeout_s=timeout_s)
        except OrderRefused as error:
            raise Problem(409, error.reason) from error
        except BrokerUnreachable as error:
            raise Problem(503, str(error)) from error
        except OrderUnanswered as error:
            raise Problem(504, f"{error}; it may have been done: ask, or send the same order again") from error
        except OrderFailed as error:
            raise Problem(502, str(error)) from error
        if not isinstance(order, AskStatus):
            self._wake.set()
        return answer

    async def _ask(self) -> None:
        try:
            status = await self._asking.call(AskStatus(), timeout_s=ASK_TIMEOUT_S)
        except OrderError as error:
            self.word = Word(status=self.word.status, at_boottime_ns=self.word.at_boottime_ns, fault=str(error))
        else:
            self.word = Word(status=status, at_boottime_ns=self._clock().boottime_ns, fault="")
