"""Executes the decided actions of one group: at most one at a time for each target, and none waits for another.

A target is a broker, a shard's Lease, the requests of people for a shard, or all processes of a shard. A drain takes a
while, and a request to a sidecar that hangs lasts until its deadline; meanwhile actions for other targets are executed.
An action for a busy target is dropped: the next round decides again. ``gantry_spec.executor`` defines how an action is
executed; this module supplies its two ports to a cluster. No error of an action ends the group's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import msgspec

from gantry_operator.api import GROUPS, Kubernetes, Object, ObjectRef, annotations_of, ref_of, revision_of, uid_of
from gantry_operator.errors import Conflict, NamespaceTerminating, OperatorError, SidecarUnavailable
from gantry_operator.execute.leases import LeaseWriter
from gantry_operator.execute.pods import PodExecutor
from gantry_operator.observe.group_objects import GroupObjects
from gantry_operator.sidecars import Peer, Sidecars
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of
from gantry_spec.executor import ActionExecutor, Expected
from gantry_spec.manifest.annotations import without_disk_replacement, without_request
from gantry_spec.manifest.group import BrokerGroup
from gantry_status.orders import AnyOrder, HaStatus, OrderRefused, status_of

log = logging.getLogger(__name__)

Target = tuple[int, str]
"""The shard, and the part of it: a member's number, ``lease``, ``request`` or ``hibernate``."""

OnExecuted = Callable[[act.Action, str], None]
"""Called after each action with the reason why it was refused, which is empty if it was executed."""


@final
class ActionScheduler:
    """Starts the decided actions of one group as tasks. Owned by the task of the group's loop, which closes it."""

    def __init__(
        self, objects: GroupObjects, api: Kubernetes, sidecars: Sidecars, leases: LeaseWriter, *,
        on_executed: OnExecuted, wake: Callable[[], None], empty_log_end: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        """``wake`` starts the next round early. ``empty_log_end`` returns the end of an empty shard's log, if known."""
        self._objects: Final = objects
        self._api: Final = api
        self._sidecars: Final = sidecars
        self._leases: Final = leases
        self._pods: Final = PodExecutor(objects, api)
        self._executed: Final = on_executed
        self._wake: Final = wake
        self._empty_log_end: Final = empty_log_end
        self._running: Final[dict[Target, asyncio.Task[bool]]] = {}
        self._refusals: Final[dict[Target, str]] = {}
        """Why the last action of each target was refused, so that the same reason is logged once."""

        self._last_actions: Final[dict[Target, act.Action]] = {}

    def __repr__(self) -> str:
        return f"<ActionScheduler {'/'.join(self._objects.key)} running={sorted(self._running)}>"

    @property
    def is_busy(self) -> bool:
        """Whether an action is under way."""
        return bool(self._running)

    def start(self, actions: Sequence[act.Action], group: BrokerGroup, token: str) -> None:
        """Start the actions whose target has none under way."""
        restarted = restarted_targets(actions)
        for action in actions:
            target = target_of(action)
            if target is None or target in self._running or (isinstance(action, act.Start) and target in restarted):
                continue
            name = f"gantry-{'/'.join(self._objects.key)}-{target[0]}-{target[1]}"
            task = asyncio.create_task(self._run(target, action, group, token), name=name)
            self._running[target] = task
            task.add_done_callback(lambda task, target=target: self._on_done(target, task))  # type: ignore[misc]

    async def settle(self) -> None:
        """Wait until no action is under way."""
        while self._running:
            await asyncio.wait(list(self._running.values()))

    async def close(self) -> None:
        """Cancel the actions that are under way. An order that was sent may still be obeyed."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, target: Target, task: asyncio.Task[bool]) -> None:
        if self._running.get(target) is task:
            del self._running[target]
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "unexpected error while executing action", extra={"target": str(target)}, exc_info=task.exception()
            )
        elif not task.cancelled() and task.result():
            self._wake()  # a refused action waits for the next tick instead

    async def _run(self, target: Target, action: act.Action, group: BrokerGroup, token: str) -> bool:
        """Execute an action. Return whether it succeeded, and differs from the last action of its target."""
        refusal, is_terminating = "", False
        try:
            await self._executor(group, token).execute(action)
        except (OperatorError, OrderRefused) as error:
            is_terminating = isinstance(error, NamespaceTerminating)
            refusal = f"{type(error).__name__}: {error}"
        is_repeated = bool(refusal) and self._refusals.get(target) == refusal
        self._refusals[target] = refusal
        level = logging.WARNING if refusal else logging.INFO
        level = logging.DEBUG if is_repeated or is_terminating or isinstance(action, act.Start) else level
        facts = {"group": "/".join(self._objects.key), "action": line_of(action), "refusal": refusal}
        log.log(level, "action failed" if refusal else "action executed", extra=facts)
        self._executed(action, refusal)
        is_same_action, self._last_actions[target] = self._last_actions.get(target) == action, action
        return not refusal and not is_same_action  # repeated until its effect is observed, such as a deletion

    def _executor(self, group: BrokerGroup, token: str) -> ActionExecutor:
        brokers = SidecarBrokers(self._objects, self._sidecars, token)
        environment = ClusterEnvironment(self._objects, self._api, self._leases, self._pods, group, self._empty_log_end)
        return ActionExecutor(brokers, environment, name="the operator")


@final
class SidecarBrokers:
    """The brokers of one group, reached through their sidecars."""

    def __init__(self, objects: GroupObjects, sidecars: Sidecars, token: str) -> None:
        self._objects: Final = objects
        self._sidecars: Final = sidecars
        self._token: Final = token

    async def status(self, shard: int, member: int) -> HaStatus | None:
        peer = self._peer(shard, member)
        if peer is None:
            return None
        try:
            return status_of(await self._sidecars.status(peer))
        except msgspec.ValidationError as error:
            raise SidecarUnavailable(f"{peer.base}: the answer is not a status: {error}") from error

    async def send_order(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        peer = self._peer(shard, member)
        if peer is None:
            raise SidecarUnavailable(f"member {member} of shard {shard} has no address")
        await self._sidecars.order(peer, order, expected)

    def _peer(self, shard: int, member: int) -> Peer | None:
        return self._objects.peer(shard, member, self._token)


@final
class ClusterEnvironment:
    """The Leases, pods and annotations of one group."""

    def __init__(
        self, objects: GroupObjects, api: Kubernetes, leases: LeaseWriter, pods: PodExecutor, group: BrokerGroup,
        empty_log_end: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        self._objects: Final = objects
        self._api: Final = api
        self._leases: Final = leases
        self._pods: Final = pods
        self._group: Final = group
        self.empty_log_end: Final = empty_log_end

    async def replace_lease(self, action: act.LeaseAction) -> None:
        await self._leases.replace(self._group, action.shard, action.expected, action.record)

    async def change_process(self, action: act.ProcessAction | act.Hibernate) -> None:
        await self._pods.execute(action)
        if isinstance(action, act.ReplaceDisk):
            await self._change_requests(
                lambda annotations: without_disk_replacement(annotations, action.shard, action.member)
            )

    async def clear_request(self, action: act.ClearRequest) -> None:
        await self._change_requests(lambda annotations: without_request(annotations, action.request))

    def note_shard_closed(self, shard: int) -> None:
        """Do nothing: the observer remembers the end of the shard's log."""

    async def _change_requests(self, change: Callable[[dict[str, str]], dict[str, str | None]]) -> None:
        namespace, name = self._objects.key
        document = self._objects.cache.get(ObjectRef(GROUPS, namespace, name))
        if document is None:
            raise Conflict(name, "the group does not exist any more")
        self._objects.cache.put(await patch_requests(self._api, document, change(annotations_of(document))))


def restarted_targets(actions: Sequence[act.Action]) -> set[Target | None]:
    """Return the targets that are restarted, which replaces their start.

    A pod may be pending with a template that no machine can take. To start it means to wait for it, which would never
    end; its restart creates it from the present template.
    """
    return {target_of(action) for action in actions if isinstance(action, act.Restart)}


def target_of(action: act.Action) -> Target | None:
    """Return the target that an action changes; None where there is nothing to execute."""
    match action:
        case act.Wait():
            return None
        case act.LeaseAction(shard=shard):
            return shard, "lease"
        case act.ClearRequest(shard=shard):
            return shard, "request"
        case act.Hibernate(shard=shard):
            return shard, "hibernate"
        case act.MemberAction(shard=shard, member=member):
            return shard, str(member)
        case _:
            raise AssertionError(f"action without a target: {action}")


async def patch_requests(api: Kubernetes, document: Object, change: dict[str, Any]) -> Object:
    """Change the annotations of the group as it was read. Raises ``Conflict`` if the group has changed since."""
    if not change:
        return document
    patch = {"metadata": {"annotations": change}}
    return await api.patch(ref_of(document), patch, uid=uid_of(document), revision=revision_of(document))
