"""Role recovery: a broker that was killed regains its role from its sidecar if no operator or supervisor assigns one.

    no role, may regain it --- wait for an election --- read the Lease and ask the peers --- one order

``gantry_spec.role_recovery`` decides which order is safe, and explains why. This module only collects its inputs, and
decides when. An election has priority, because it is as fast and considers every member. If the Lease is readable, an
operator is likely to be running, too, and gets a few seconds to elect. If it is not readable, the API server is likely
to be unavailable, without which there is no election; so none is waited for. An operator that does elect from another
place meanwhile does no harm, as ``gantry_spec.role_recovery`` explains.

The order is sent on the connection on which the broker has just reported the same state as when its peers were asked,
because another process of the broker may have made a promise in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from gantry_admin.errors import Problem
from gantry_admin.lease_client import LeaseClient, LeaseError, LeaseSnapshot
from gantry_spec.observed import Report
from gantry_spec.role_recovery import RecoveryInput, Regain, Rejoin, StayUnassigned, decide_recovery
from gantry_status import orders
from gantry_status.broker_state import view_of
from gantry_status.order_client import Check
from gantry_status.orders import AnyOrder, HaRole, HaStatus, Promised, StatusRequest

log = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5
"""The interval between two checks, in seconds."""

READ_TIMEOUT_S: Final = 2.0
ASK_TIMEOUT_S: Final = 1.0
ORDER_TIMEOUT_S: Final = 30.0
ELECTION_WAIT_S: Final = 5.0
"""The time that the supervisor or operator gets to elect a master first, where the Lease can be read."""


class RoleSource(Protocol):
    """The source of the other brokers' current roles."""

    async def ask_all(self, own: HaStatus) -> dict[int, Report]:
        """Return the current reports of the other brokers of the shard, by their numbers."""


class OrderSender(Protocol):
    """The function that passes orders on to the broker."""

    async def __call__(self, order: AnyOrder, *, timeout_s: float, check: Check | None = None) -> HaStatus | Promised:
        """Send the order, and return the broker's answer. Raises ``Problem``."""


@final
class RoleRecovery:
    """Gives a broker its role back, as master or slave, after its process ended. Owned by the event loop."""

    def __init__(
        self, client: LeaseClient, peers: RoleSource, state: Callable[[], HaStatus | None], order: OrderSender, *,
        election_wait_s: float = ELECTION_WAIT_S,
    ) -> None:  # fmt: skip
        """``state`` returns the broker's recent report about its role; None without one."""
        self.reason = ""
        """Why the broker has not regained its role yet; empty if there is none to regain."""
        self._client: Final = client
        self._peers: Final = peers
        self._fresh_state: Final = state
        self._order: Final = order
        self._election_wait_s: Final = election_wait_s
        self._since_s: float | None = None

    def __repr__(self) -> str:
        return f"<RoleRecovery {self.reason}>"

    async def run(self) -> None:
        """Check the broker's role again and again, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(INTERVAL_S)

    async def step(self) -> None:
        """Check once, and give the broker its role back if the rules allow it."""
        state = self._fresh_state()
        if state is None or state.role is not HaRole.UNASSIGNED or not state.may_regain:
            self._since_s, self.reason = None, ""
            return
        self._since_s = time.monotonic() if self._since_s is None else self._since_s
        try:
            own = await self._order(StatusRequest(), timeout_s=ASK_TIMEOUT_S)
            assert isinstance(own, HaStatus), "the client checks the kind of the answer"
            await self._decide(own)
        except Problem as problem:
            self._set_reason(f"the order to the broker failed: {problem.reason}")

    async def _decide(self, own: HaStatus) -> None:
        """Collect the inputs of the decision, and send its order, if there is one."""
        lease, peers = await asyncio.gather(self._read(), self._peers.ask_all(own))
        assert self._since_s is not None, "the wait has started"
        if lease is not None and time.monotonic() - self._since_s < self._election_wait_s:
            self._set_reason("waiting for an election first")
            return
        found = decide_recovery(_recovery_input(own, lease, peers))
        match found:
            case StayUnassigned(why=why):
                self._set_reason(why)
                return
            case Regain(epoch=epoch):
                order: AnyOrder = orders.Regain(epoch=epoch)
            case Rejoin(epoch=epoch, master=master):
                order = orders.Follow(epoch=epoch, master=master)
        await self._order(order, timeout_s=ORDER_TIMEOUT_S, check=_unchanged_check(own))
        facts = {"role": "slave" if isinstance(found, Rejoin) else "master", "epoch": epoch, "peers": sorted(peers)}
        log.warning("broker regained its role", extra=facts | {"is_lease_read": lease is not None})

    async def _read(self) -> LeaseSnapshot | None:
        try:
            return await self._client.read(timeout_s=READ_TIMEOUT_S)
        except LeaseError:
            return None

    def _set_reason(self, reason: str) -> None:
        if reason != self.reason:
            log.info("broker has not regained its role yet", extra={"reason": reason})
        self.reason = reason


def _recovery_input(own: HaStatus, lease: LeaseSnapshot | None, peers: dict[int, Report]) -> RecoveryInput:
    return RecoveryInput(
        report=view_of(own, Report, asked_ms=0, answered_ms=0),
        peers=peers,
        is_lease_read=lease is not None,
        record=None if lease is None else lease.record,
    )


def _unchanged_check(own: HaStatus) -> Check:
    """Return a check that the broker still has the role, epochs, store and log end that it had before."""

    def check(state: HaStatus) -> None:
        before = (own.role, own.epoch, own.promised_epoch, own.identity, own.wrote)
        if (state.role, state.epoch, state.promised_epoch, state.identity, state.wrote) != before:
            raise Problem(409, "the broker's state has changed since its peers were asked")

    return check
