"""Which of the decided actions are under way: at most one for each broker and each Lease, and none waits for another.

A drain takes its time, and a sidecar that hangs takes its whole deadline. Meanwhile the others are executed: each
broker, and each Lease, has its own errand, and what is decided for it while that is under way is left alone; the next
round decides again. How an action is executed is ``gantry_spec.executor``'s; the two ports of a cluster are here. What
comes of an errand is put down, and nothing that an errand raises ends the group's task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

import msgspec

from gantry_operator.acting.leases import Leases
from gantry_operator.acting.pods import Pods
from gantry_operator.api import GROUPS, Kubernetes, Object, Place, annotations_of, place_of, revision_of, uid_of
from gantry_operator.errors import Conflict, OperatorError, SidecarSilent, Terminating
from gantry_operator.observing.group_objects import GroupObjects
from gantry_operator.sidecars import Peer, Sidecars
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of
from gantry_spec.executor import ActionExecutor, Expected
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, REPLACE_DISK, RESTORE, RESTORING, without
from gantry_spec.manifest.group import BrokerGroup
from gantry_status.orders import AnyOrder, HaStatus, OrderRefused

log = logging.getLogger(__name__)

Errand = tuple[int, str]
"""Shard, and what in it: a member's number, ``lease``, ``request`` or ``sleep``."""


class Told(Protocol):
    """Who hears what came of an action; an empty refusal means that it is done."""

    def __call__(self, action: act.Action, refusal: str) -> None: ...


@final
class ActionScheduler:
    """Of one group; owned by its task, which closes it."""

    def __init__(
        self, objects: GroupObjects, api: Kubernetes, sidecars: Sidecars, leases: Leases, *,
        told: Told, wake: Callable[[], None], empty_end: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        self._objects: Final = objects
        self._api: Final = api
        self._sidecars: Final = sidecars
        self._leases: Final = leases
        self._pods: Final = Pods(objects, api)
        self._told: Final = told
        self._wake: Final = wake
        self._empty_end: Final = empty_end
        self._errands: Final[dict[Errand, asyncio.Task[bool]]] = {}
        self._refusals: Final[dict[Errand, str]] = {}
        """What each was refused last, so that the same is logged once."""

        self._newest: Final[dict[Errand, act.Action]] = {}

    def __repr__(self) -> str:
        return f"<ActionScheduler {'/'.join(self._objects.key)} errands={sorted(self._errands)}>"

    @property
    def is_busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._errands)

    def do(self, actions: Sequence[act.Action], group: BrokerGroup, token: str) -> None:
        """Begin whatever is not under way already."""
        for action in actions:
            errand = errand_of(action)
            if errand is None or errand in self._errands:
                continue
            name = f"gantry-{'/'.join(self._objects.key)}-{errand[0]}-{errand[1]}"
            task = asyncio.create_task(self._one(errand, action, group, token), name=name)
            self._errands[errand] = task
            task.add_done_callback(lambda task, errand=errand: self._ended(errand, task))  # type: ignore[misc]

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self._errands:
            await asyncio.wait(list(self._errands.values()))

    async def close(self) -> None:
        """Break off whatever is under way. What was sent may be done."""
        tasks = list(self._errands.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, errand: Errand, task: asyncio.Task[bool]) -> None:
        if self._errands.get(errand) is task:
            del self._errands[errand]
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "unexpected error while executing action", extra={"errand": str(errand)}, exc_info=task.exception()
            )
        elif not task.cancelled() and task.result():
            self._wake()  # what was refused is tried again when the time comes, and not at once

    async def _one(self, errand: Errand, action: act.Action, group: BrokerGroup, token: str) -> bool:
        """Whether it is done, and was not the last time."""
        refusal, is_leaving = "", False
        try:
            await self._executor(group, token).execute(action)
        except (OperatorError, OrderRefused) as error:
            is_leaving = isinstance(error, Terminating)
            refusal = f"{type(error).__name__}: {error}"
        is_old = bool(refusal) and self._refusals.get(errand) == refusal
        self._refusals[errand] = refusal
        level = logging.WARNING if refusal else logging.INFO
        level = logging.DEBUG if is_old or is_leaving or isinstance(action, act.Start) else level
        facts = {"group": "/".join(self._objects.key), "action": line_of(action), "refusal": refusal}
        log.log(level, "action failed" if refusal else "action executed", extra=facts)
        self._told(action, refusal)
        is_again, self._newest[errand] = self._newest.get(errand) == action, action
        return not refusal and not is_again  # a pod that was told to go takes its time, and is told again meanwhile

    def _executor(self, group: BrokerGroup, token: str) -> ActionExecutor:
        brokers = SidecarBrokers(self._objects, self._sidecars, token)
        surroundings = ClusterSurroundings(self._objects, self._api, self._leases, self._pods, group, self._empty_end)
        return ActionExecutor(brokers, surroundings, name="the operator")


@final
class SidecarBrokers:
    """The brokers of one group, through their sidecars."""

    def __init__(self, objects: GroupObjects, sidecars: Sidecars, token: str) -> None:
        self._objects: Final = objects
        self._sidecars: Final = sidecars
        self._token: Final = token

    async def status(self, shard: int, member: int) -> HaStatus | None:
        peer = self._peer(shard, member)
        if peer is None:
            return None
        try:
            return msgspec.convert(await self._sidecars.status(peer), HaStatus)
        except msgspec.ValidationError as error:
            raise SidecarSilent(f"{peer.base}: its answer is no status: {error}") from error

    async def give(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        peer = self._peer(shard, member)
        if peer is None:
            raise SidecarSilent(f"member {member} of shard {shard} has no address")
        await self._sidecars.order(peer, order, expected)

    def _peer(self, shard: int, member: int) -> Peer | None:
        return self._objects.peer(shard, member, self._token)


@final
class ClusterSurroundings:
    """Leases, pods and annotations of one group."""

    def __init__(
        self, objects: GroupObjects, api: Kubernetes, leases: Leases, pods: Pods, group: BrokerGroup,
        empty_end: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        self._objects: Final = objects
        self._api: Final = api
        self._leases: Final = leases
        self._pods: Final = pods
        self._group: Final = group
        self.empty_end: Final = empty_end

    async def replace_lease(self, action: act.LeaseAction) -> None:
        await self._leases.replace(self._group, action.shard, action.expected, action.record)

    async def change_process(self, action: act.ProcessAction | act.Sleep) -> None:
        await self._pods.do(action)
        if isinstance(action, act.ReplaceDisk):
            await self._change_orders(
                lambda annotations: without_disk_replacement(annotations, action.shard, action.member)
            )

    async def clear_wish(self, action: act.ClearWish) -> None:
        await self._change_orders(lambda annotations: without_request(annotations, action.wish))

    def closed(self, shard: int) -> None:
        """Nothing: the end of its log is remembered where it is observed."""

    async def _change_orders(self, change: Callable[[dict[str, str]], dict[str, str | None]]) -> None:
        namespace, name = self._objects.key
        document = self._objects.cache.get(Place(GROUPS, namespace, name))
        if document is None:
            raise Conflict(name, "the group is gone")
        self._objects.cache.put(await remove_order(self._api, document, change(annotations_of(document))))


def errand_of(action: act.Action) -> Errand | None:
    """Whose errand it is; None for what is nothing to do."""
    match action:
        case act.Wait():
            return None
        case act.LeaseAction(shard=shard):
            return shard, "lease"
        case act.ClearWish(shard=shard):
            return shard, "request"
        case act.Sleep(shard=shard):
            return shard, "sleep"
        case act.MemberAction(shard=shard, member=member):
            return shard, str(member)
        case _:
            raise AssertionError(f"nobody knows whose {action} is")


def without_request(annotations: dict[str, str], request: str) -> dict[str, Any]:
    """The change that removes a promotion request or a restore. With the last promotion goes the accepted loss."""
    if request.startswith(RESTORING):
        text = annotations.get(RESTORE, "")
        rest = without(text, request.removeprefix(RESTORING))
        return {} if rest == text else {RESTORE: rest or None}
    text = annotations.get(PROMOTE, "")
    rest = without(text, request)
    if rest == text:
        return {}
    return {PROMOTE: rest} if rest else {PROMOTE: None, ACCEPT_LOSS: None}


def without_disk_replacement(annotations: dict[str, str], shard: int, member: int) -> dict[str, Any]:
    """The change that removes the order to replace the disk of a member."""
    text = annotations.get(REPLACE_DISK, "")
    rest = without(text, f"{shard}/{member}")
    return {} if rest == text else {REPLACE_DISK: rest or None}


async def remove_order(api: Kubernetes, document: Object, change: dict[str, Any]) -> Object:
    """Remove just what was read. Raises ``Conflict`` if the group was changed since: it must be read again first."""
    if not change:
        return document
    patch = {"metadata": {"annotations": change}}
    return await api.patch(place_of(document), patch, uid=uid_of(document), revision=revision_of(document))
