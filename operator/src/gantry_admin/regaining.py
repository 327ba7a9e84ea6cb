"""A broker that was killed gets its role back from who stands beside it, when nobody who decides is there to give one.

    no role, and would take its own again --- a moment for who decides --- Lease and peers asked now --- one order

What may be ordered is decided by ``gantry_spec.regaining``; why that is safe stands there. Here is only who is asked,
and when. Whoever decides comes first: an election is as fast, and moves the role where it belongs; so where the Lease
can be read, and he is likely to be about, he gets a few seconds. Where it cannot, he cannot either.

The order goes over the connection on which the broker has just said the same as when all others were asked: another
process of it may have promised something in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from gantry_admin.errors import Problem
from gantry_admin.lease_keeper import KeptLease, LeaseError, LeaseKeeper
from gantry_spec.observed import Report
from gantry_spec.regaining import Alone, Regain, Rejoin, Stay, regained
from gantry_status import orders
from gantry_status.broker_state import view_of
from gantry_status.order_client import Check
from gantry_status.orders import AnyOrder, AskStatus, HaRole, HaStatus, Promised

log = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5
READ_TIMEOUT_S: Final = 2.0
ASK_TIMEOUT_S: Final = 1.0
ORDER_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 5.0
"""For whoever decides, where the Lease can be read."""


class Peering(Protocol):
    """Whom to ask about roles."""

    async def now(self, own: HaStatus) -> dict[int, Report]:
        """What the others of the shard say now, by their numbers."""


class Link(Protocol):
    """Whoever passes orders on to the broker."""

    async def __call__(self, order: AnyOrder, *, timeout_s: float, check: Check | None = None) -> HaStatus | Promised:
        """Its answer. Raises ``Problem``."""


@final
class RoleRegaining:
    """Owned by the event loop."""

    def __init__(
        self, keeper: LeaseKeeper, peers: Peering, word: Callable[[], HaStatus | None], order: Link, *,
        patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        """``word`` is what the broker said lately of its role; None if it said nothing, or stands still."""
        self.reason = ""
        """Why it has not got its role back; empty where there is nothing to be got."""
        self._keeper: Final = keeper
        self._peers: Final = peers
        self._word: Final = word
        self._order: Final = order
        self._patience_s: Final = patience_s
        self._since_s: float | None = None

    def __repr__(self) -> str:
        return f"<RoleRegaining {self.reason}>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(INTERVAL_S)

    async def step(self) -> None:
        """Look once, and give the role back if it is right to."""
        word = self._word()
        if word is None or word.role is not HaRole.UNASSIGNED or not word.may_regain:
            self._since_s, self.reason = None, ""
            return
        self._since_s = time.monotonic() if self._since_s is None else self._since_s
        try:
            own = await self._order(AskStatus(), timeout_s=ASK_TIMEOUT_S)
            assert isinstance(own, HaStatus), "the client compares kinds"
            await self._decide(own)
        except Problem as problem:
            self._say(f"the broker did not take it: {problem.reason}")

    async def _decide(self, own: HaStatus) -> None:
        kept, peers = await asyncio.gather(self._read(), self._peers.now(own))
        assert self._since_s is not None, "it has begun to wait"
        if kept is not None and time.monotonic() - self._since_s < self._patience_s:
            self._say("whoever decides comes first")
            return
        found = regained(_alone(own, kept, peers))
        match found:
            case Stay(why=why):
                self._say(why)
                return
            case Regain(epoch=epoch):
                order: AnyOrder = orders.Regain(epoch=epoch)
            case Rejoin(epoch=epoch, master=master):
                order = orders.Follow(epoch=epoch, master=master)
        await self._order(order, timeout_s=ORDER_TIMEOUT_S, check=_still(own))
        facts = {"role": "slave" if isinstance(found, Rejoin) else "master", "epoch": epoch, "peers": sorted(peers)}
        log.warning("the broker has its role again", extra=facts | {"is_lease_read": kept is not None})

    async def _read(self) -> KeptLease | None:
        try:
            return await self._keeper.read(timeout_s=READ_TIMEOUT_S)
        except LeaseError:
            return None

    def _say(self, reason: str) -> None:
        if reason != self.reason:
            log.info("the broker has no role yet", extra={"reason": reason})
        self.reason = reason


def _alone(own: HaStatus, kept: KeptLease | None, peers: dict[int, Report]) -> Alone:
    return Alone(
        report=view_of(own, Report, asked_ms=0, answered_ms=0),
        peers=peers,
        is_lease_read=kept is not None,
        record=None if kept is None else kept.record,
    )


def _still(own: HaStatus) -> Check:
    """It says the same as before. Or it is another process, or somebody else was faster."""

    def check(word: HaStatus) -> None:
        before = (own.role, own.epoch, own.promised_epoch, own.identity, own.wrote)
        if (word.role, word.epoch, word.promised_epoch, word.identity, word.wrote) != before:
            raise Problem(409, "the broker is not where it was when its peers were asked")

    return check
