"""``ActionExecutor`` executes what was decided: the one mapping from actions to orders, with the checks before.

    Action --.--> LeaseAction                   replace_lease    compare-and-swap
             |--> OrderAction --> order_of ---> give             an order to a broker, with what it expects
             |--> ProcessAction, Sleep          change_process   processes, pods, volumes
             `--> ClearRequest                  clear_request    the order of a person that has come to its end

How an order reaches its broker, and where Leases and processes are, is behind two ports: a Unix socket and files on one
machine, sidecars and the API server in a cluster, sockets and memory for ``gantry ha``. Nothing is decided here, and
nothing waited for but answers; a refusal is raised to whoever has decided, who observes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, final

import msgspec

from gantry_spec import actions as act
from gantry_status.orders import (
    AnyOrder,
    AskPromise,
    Drain,
    Fence,
    Follow,
    HaRole,
    HaStatus,
    OrderRefused,
    Promote,
)

CLOSE_TIMEOUT_MS: Final = 5_000
"""For draining the master of a shard on which nothing is left."""


@final
class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker must still be when it is promoted: a power cut may have come since it was named."""

    last_epoch: int
    end: int
    continues: int = 0
    """Of which epoch it must be the master up to now; 0 if its log stands still, since it has promised."""


class Brokers(Protocol):
    """The way to the brokers of a group. Raises errors of its own, or ``OrderRefused``."""

    async def status(self, shard: int, member: int) -> HaStatus | None:
        """What a broker reports now; None if no process of it can take a message."""

    async def give(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        """Have a broker obey. With ``expected`` the very process that obeys is asked first (``check_promotion``)."""


class Surroundings(Protocol):
    """Everything else that actions change. Raises errors of its own."""

    async def replace_lease(self, action: act.LeaseAction) -> None:
        """Raises when the Lease has another version by now."""

    async def change_process(self, action: act.ProcessAction | act.Sleep) -> None:
        """Start, stop or replace the processes or the volume that the action names."""

    async def clear_request(self, action: act.ClearRequest) -> None:
        """Take the order of a person off the list."""

    def empty_end(self, shard: int) -> int | None:
        """Where the log of a shard ended when nothing was found on it; None if something was, or it is not known."""

    def closed(self, shard: int) -> None:
        """The master of a shard on which nothing is left takes no sends any more."""


def in_order(actions: Iterable[act.Action]) -> tuple[list[act.LeaseAction], list[act.Action]]:
    """Return the actions that are executed first, one after the other, and those that may then be side by side.

    The Lease comes first: an order with an epoch must not be given before that epoch is recorded.
    """
    actions = list(actions)
    first = [action for action in actions if isinstance(action, act.LeaseAction)]
    return first, [action for action in actions if not isinstance(action, act.LeaseAction)]


@final
class ActionExecutor:
    """Executes single actions. Keeps no state, so any number may be under way at once."""

    def __init__(self, brokers: Brokers, surroundings: Surroundings, *, name: str) -> None:
        """``name`` is who asks for promises, for people."""
        self._brokers: Final = brokers
        self._surroundings: Final = surroundings
        self._name: Final = name

    async def execute(self, action: act.Action) -> None:
        """Execute one action. Raises ``OrderRefused`` or an error of a port when it is not done."""
        match action:
            case act.LeaseAction():
                await self._surroundings.replace_lease(action)
            case act.ClearRequest():
                await self._surroundings.clear_request(action)
            case act.Remove(holds_nothing=True):
                await self._close_shard(action)
                await self._surroundings.change_process(action)
            case act.ProcessAction() | act.Sleep():
                await self._surroundings.change_process(action)
            case act.OrderAction():
                order = order_of(action, self._name)
                await self._brokers.give(action.shard, action.member, order, expected_of(action))
            case _:
                raise AssertionError(f"no way to execute {action}")

    async def _close_shard(self, action: act.Remove) -> None:
        """Drain the master of a shard that goes. Raises ``OrderRefused`` when a message came since it was found empty.

        A master that was drained in vain takes sends again by the next decision (``Resume``).
        """
        shard, member = action.shard, action.member
        status = await self._brokers.status(shard, member)
        if status is None or status.role is not HaRole.MASTER:
            return
        await self._brokers.give(shard, member, Drain(timeout_ms=CLOSE_TIMEOUT_MS), None)
        after, known = await self._brokers.status(shard, member), self._surroundings.empty_end(shard)
        if after is None or not after.is_draining:
            raise OrderRefused(f"member {member} of shard {shard} does not report that it is drained")
        if after.wrote is None or after.wrote != known:
            raise OrderRefused(f"a message has come to shard {shard}: its log ends at {after.wrote}, not {known}")
        self._surroundings.closed(shard)


def order_of(action: act.OrderAction, name: str = "") -> AnyOrder:
    """The order that an action is. ``name`` is who gives it, for people."""
    match action:
        case act.Promise(epoch=epoch):
            return AskPromise(epoch=epoch, to=name)
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
        case act.Withdraw(timeout_ms=timeout_ms, goes_on=goes_on):
            return Drain(timeout_ms=timeout_ms, withdraw=True, goes_on=goes_on)
        case _:
            raise AssertionError(f"no order: {action}")


def expected_of(action: act.OrderAction) -> Expected | None:
    """What must still be true of a broker when it obeys; None where the order's epoch is enough."""
    if not isinstance(action, act.Promote):
        return None
    return Expected(last_epoch=action.last_epoch, end=action.end, continues=action.continues)


def promotion_check(order: AnyOrder, expected: Expected | None) -> Callable[[HaStatus], None] | None:
    """What the process that obeys ``order`` is asked first; None where nothing is expected of it."""
    if expected is None:
        return None
    assert isinstance(order, Promote), "only promotions expect anything"
    return partial(check_promotion, order.epoch, expected)


def check_promotion(epoch: int, expected: Expected, status: HaStatus) -> None:
    """Raise ``OrderRefused`` unless a broker still is what was named for ``epoch``; one that is promoted already is."""
    if status.epoch == epoch:
        return
    if expected.continues and (status.role, status.epoch) != (HaRole.MASTER, expected.continues):
        raise OrderRefused(f"it was to go on as the master of epoch {expected.continues}, and is {status.role}")
    if status.place < (expected.last_epoch, expected.end):
        named = f"it was named for a log that ends at {expected.end} of epoch {expected.last_epoch}"
        raise OrderRefused(f"{named}, and ends at {status.wrote} of epoch {status.last_epoch} now")
