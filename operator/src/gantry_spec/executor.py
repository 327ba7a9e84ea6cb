"""``ActionExecutor`` executes decided actions: the only mapping from actions to orders, with the checks before them.

    Action --.--> LeaseAction                    replace_lease    compare-and-swap
             |--> OrderAction --> order_of --->  send_order       an order to a broker, with the state it expects
             |--> ProcessAction, Hibernate       change_process   processes, pods, volumes
             `--> ClearRequest                   clear_request    a person's request that is finished

Two ports hide how an order reaches its broker and where Leases and processes are: a Unix socket and files on one
machine, sidecars and the API server in a cluster, sockets and memory for ``gantry ha``. This module decides nothing and
waits only for answers. A refusal is raised to the caller, which observes the group again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, final

import msgspec

from gantry_spec import actions as act
from gantry_status.orders import (
    AnyOrder,
    Drain,
    Fence,
    Follow,
    HaRole,
    HaStatus,
    OrderRefused,
    PromiseRequest,
    Promote,
)

CLOSE_TIMEOUT_MS: Final = 5_000
"""The timeout for draining the master of an empty shard before its members are removed."""


@final
class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a broker must still have when it is promoted, since a power loss may have changed it."""

    last_epoch: int
    end: int
    continues: int = 0
    """The epoch of which it must still be the master; 0 if it was elected, and its promise keeps its log unchanged."""


class BrokerConnections(Protocol):
    """The port to the brokers of a group. Methods raise ``OrderRefused`` or errors of the implementation."""

    async def status(self, shard: int, member: int) -> HaStatus | None:
        """Return a broker's status; None if the broker has no process that could answer."""

    async def send_order(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        """Give an order to a broker. With ``expected`` the same process is checked first (``check_promotion``)."""


class Environment(Protocol):
    """The port to Leases, processes, volumes and requests. Methods raise errors of the implementation."""

    async def replace_lease(self, action: act.LeaseAction) -> None:
        """Replace the record in the Lease. Raises an error if the Lease has another version by now."""

    async def change_process(self, action: act.ProcessAction | act.Hibernate) -> None:
        """Start, stop or replace the processes or the volume that the action names."""

    async def clear_request(self, action: act.ClearRequest) -> None:
        """Remove a person's request that is finished."""

    def empty_log_end(self, shard: int) -> int | None:
        """Return the end of a shard's log when the shard was found empty; None if it was not empty or not checked."""

    def note_shard_closed(self, shard: int) -> None:
        """Record that the master of an empty shard is drained and takes no more sends."""


def split_lease_actions(actions: Iterable[act.Action]) -> tuple[list[act.LeaseAction], list[act.Action]]:
    """Return the Lease actions, to execute first and one after the other, and the rest, to execute then in parallel.

    An order with an epoch must not be given before that epoch is recorded.
    """
    actions = list(actions)
    first = [action for action in actions if isinstance(action, act.LeaseAction)]
    return first, [action for action in actions if not isinstance(action, act.LeaseAction)]


@final
class ActionExecutor:
    """Executes single actions. It keeps no state, so any number of actions may be executed at the same time."""

    def __init__(self, brokers: BrokerConnections, environment: Environment, *, name: str) -> None:
        """``name`` is the name of the caller, which promise requests carry for people."""
        self._brokers: Final = brokers
        self._environment: Final = environment
        self._name: Final = name

    async def execute(self, action: act.Action) -> None:
        """Execute one action. Raises ``OrderRefused`` or an error of a port if the action fails."""
        match action:
            case act.LeaseAction():
                await self._environment.replace_lease(action)
            case act.ClearRequest():
                await self._environment.clear_request(action)
            case act.Remove(is_empty=True):
                await self._close_shard(action)
                await self._environment.change_process(action)
            case act.ProcessAction() | act.Hibernate():
                await self._environment.change_process(action)
            case act.OrderAction():
                order = order_of(action, self._name)
                await self._brokers.send_order(action.shard, action.member, order, expected_of(action))
            case _:
                raise AssertionError(f"no way to execute {action}")

    async def _close_shard(self, action: act.Remove) -> None:
        """Drain the member if it is the master of a shard that is removed.

        Raises ``OrderRefused`` if it is not drained afterwards, or if messages came since the shard was found empty. In
        that case the next decision lets the master take sends again (``Resume``).
        """
        shard, member = action.shard, action.member
        status = await self._brokers.status(shard, member)
        if status is None or status.role is not HaRole.MASTER:
            return
        await self._brokers.send_order(shard, member, Drain(timeout_ms=CLOSE_TIMEOUT_MS), None)
        after, known = await self._brokers.status(shard, member), self._environment.empty_log_end(shard)
        if after is None or not after.is_draining:
            raise OrderRefused(f"member {member} of shard {shard} is not drained")
        if after.wrote is None or after.wrote != known:
            raise OrderRefused(f"shard {shard} has new messages: its log ends at {after.wrote}, expected {known}")
        self._environment.note_shard_closed(shard)


def order_of(action: act.OrderAction, name: str = "") -> AnyOrder:
    """Return the order for an action. ``name`` is the name of the caller, for people."""
    match action:
        case act.Promise(epoch=epoch):
            return PromiseRequest(epoch=epoch, to=name)
        case act.Promote(epoch=epoch, electable=electable, force=force):
            return Promote(epoch=epoch, electable=list(electable), force=force)
        case act.Resume(epoch=epoch, electable=electable):
            return Promote(epoch=epoch, electable=list(electable))
        case act.Follow(epoch=epoch, master=master):
            return Follow(epoch=epoch, master=master)
        case act.Fence(epoch=epoch):
            return Fence(epoch=epoch)
        case act.Drain(timeout_ms=timeout_ms):
            return Drain(timeout_ms=timeout_ms)
        case act.Withdraw(timeout_ms=timeout_ms, clients_only=clients_only):
            return Drain(timeout_ms=timeout_ms, withdraw=True, clients_only=clients_only)
        case _:
            raise AssertionError(f"no order: {action}")


def expected_of(action: act.OrderAction) -> Expected | None:
    """Return the state that a broker must still have when it executes an action; None for all but promotions."""
    if not isinstance(action, act.Promote):
        return None
    return Expected(last_epoch=action.last_epoch, end=action.end, continues=action.continues)


def promotion_check(order: AnyOrder, expected: Expected | None) -> Callable[[HaStatus], None] | None:
    """Return the check to make before ``order`` in the same process; None if nothing is expected."""
    if expected is None:
        return None
    assert isinstance(order, Promote), "only promotions expect anything"
    return partial(check_promotion, order.epoch, expected)


def check_promotion(epoch: int, expected: Expected, status: HaStatus) -> None:
    """Raise ``OrderRefused`` unless a broker still matches the election of ``epoch`` or is already promoted in it."""
    if status.epoch == epoch:
        return
    if expected.continues and (status.role, status.epoch) != (HaRole.MASTER, expected.continues):
        present = f"{status.role} of epoch {status.epoch}"
        raise OrderRefused(f"expected the master of epoch {expected.continues}, but the broker is {present}")
    if status.log_position < (expected.last_epoch, expected.end):
        requirement = f"expected a log that ends at {expected.end} of epoch {expected.last_epoch} or later"
        raise OrderRefused(f"{requirement}, but it ends at {status.wrote} of epoch {status.last_epoch}")
