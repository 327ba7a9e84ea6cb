"""The control socket: the broker's report about its role, polled in the background, and the orders that are passed on.

The role is polled here once a second for all readers, with a short deadline. Callers pass on an order that
changes something only while the broker's event loop runs, so that it does not wait for a stalled broker.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from gantry_admin.errors import Problem
from gantry_status.clocks import Clock, now
from gantry_status.order_client import Check, OrderClient
from gantry_status.orders import (
    AnyOrder,
    BrokerUnreachable,
    HaStatus,
    OrderError,
    OrderFailed,
    OrderRefused,
    OrderUnanswered,
    Promised,
    StatusRequest,
)

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 1.0
"""The interval between two polls, in seconds."""
FAST_POLL_INTERVAL_S: Final = 0.05
"""The interval while a caller waits for the acknowledgements of slaves."""
POLL_TIMEOUT_S: Final = 0.5
"""How long the broker may take to answer a poll."""
REPORT_AGE_MS_MAX: Final = 10_000
"""The age up to which a report is used for a verdict."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReport:
    """The broker's last report about its role, and its time."""

    status: HaStatus | None = None
    """The report; None before the first one."""

    at_boottime_ns: int | None = None
    """When it arrived, on the machine's boot-time clock."""

    fault: str = "not requested yet"
    """Why the last request failed; empty if it succeeded."""

    def age_ms(self, now_ns: int) -> int | None:
        """Return the age of the report in ms; None without a report."""
        return None if self.at_boottime_ns is None else max(now_ns - self.at_boottime_ns, 0) // 1_000_000

    def fresh_status(self, now_ns: int) -> HaStatus | None:
        """Return the report's status; None if it is too old to be used for a verdict."""
        age = self.age_ms(now_ns)
        return self.status if age is not None and age <= REPORT_AGE_MS_MAX else None


@final
class BrokerLink:
    """The control socket of one broker. Owned by the event loop.

    Polling has its own connection, so that a slow order delays no report.
    """

    def __init__(self, path: str, *, clock: Clock = now) -> None:
        self.role_report: RoleReport = RoleReport()
        self._path: Final = path
        self._clock: Final = clock
        self._poll_client: Final = OrderClient(path)
        self._fast_pollers = 0
        self._poll_now: Final = asyncio.Event()

    def __repr__(self) -> str:
        return f"<BrokerLink {self._path} {self.role_report.fault or 'answers'}>"

    async def run(self) -> None:
        """Poll the broker's role again and again, until cancelled."""
        try:
            while True:
                await self._poll()
                self._poll_now.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(FAST_POLL_INTERVAL_S if self._fast_pollers else POLL_INTERVAL_S):
                        await self._poll_now.wait()
        finally:
            await self._poll_client.close()

    def start_fast_polling(self) -> None:
        """Poll at short intervals, for a caller that waits for a report. Each call needs one ``stop_fast_polling``."""
        self._fast_pollers += 1
        self._poll_now.set()

    def stop_fast_polling(self) -> None:
        self._fast_pollers -= 1
        assert self._fast_pollers >= 0, "each stop follows a start"

    async def order(self, order: AnyOrder, *, timeout_s: float, check: Check | None = None) -> HaStatus | Promised:
        """Pass an order on to the broker. Raises ``Problem``, whose status says whether to retry it.

        ``check`` gets the broker's status first, from the same connection and so from the same process, and raises
        ``Problem`` or ``OrderRefused`` if the order must not be executed in that state.
        """
        try:
            async with OrderClient(self._path, is_one_connection=check is not None) as client:
                answer = await client.call_checked(order, check, timeout_s=timeout_s)
        except OrderRefused as error:
            raise Problem(409, error.reason) from error
        except BrokerUnreachable as error:
            raise Problem(503, str(error)) from error
        except OrderUnanswered as error:
            raise Problem(
                504, f"{error}; the order may have been executed; query the status, or send the same order again"
            ) from error
        except OrderFailed as error:
            raise Problem(502, str(error)) from error
        if not isinstance(order, StatusRequest):
            self._poll_now.set()
        return answer

    async def _poll(self) -> None:
        try:
            status = await self._poll_client.call(StatusRequest(), timeout_s=POLL_TIMEOUT_S)
        except OrderError as error:
            self.role_report = RoleReport(
                status=self.role_report.status, at_boottime_ns=self.role_report.at_boottime_ns, fault=str(error)
            )
        else:
            self.role_report = RoleReport(status=status, at_boottime_ns=self._clock().boottime_ns, fault="")
