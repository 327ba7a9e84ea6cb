"""Faults that are planted into the operator, so that the interruptions must find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from gantry_operator.api import ref_of, uid_of
from gantry_operator.execute.pods import PodExecutor
from gantry_spec import actions as act
from gantry_spec.executor import ActionExecutor


def act_twice(stack: ExitStack) -> None:
    """Remove a member twice, by the present number of replicas: the second removal takes one that stays."""
    remove = PodExecutor._remove

    async def remove_twice(executor: PodExecutor, action: act.Remove) -> None:
        await remove(executor, action)
        await executor._scale(executor._objects.stateful_sets(action.shard).slave, action.member - 3)

    stack.enter_context(patch.object(PodExecutor, "_remove", remove_twice))


def forget_a_fence(stack: ExitStack) -> None:
    """Promote the new master of a switchover without draining the old one."""
    execute = ActionExecutor.execute

    async def execute_without_drains(executor: ActionExecutor, action: act.Action) -> None:
        if not isinstance(action, act.Drain):
            await execute(executor, action)

    stack.enter_context(patch.object(ActionExecutor, "execute", execute_without_drains))


def delete_before_the_fence(stack: ExitStack) -> None:
    """Delete the volume of a removed member before its broker has stopped."""
    remove = PodExecutor._remove

    async def remove_with_claim(executor: PodExecutor, action: act.Remove) -> None:
        claim = executor._objects.claim(action.shard, action.member)
        if claim is not None:
            await executor._api.delete(ref_of(claim), uid=uid_of(claim))
        await remove(executor, action)

    stack.enter_context(patch.object(PodExecutor, "_remove", remove_with_claim))


TWINS: Final[dict[str, Callable[[ExitStack], None]]] = {
    "act twice": act_twice,
    "forget a fence": forget_a_fence,
    "delete before the fence": delete_before_the_fence,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a fault within the context; nothing for an empty name."""
    with ExitStack() as stack:
        if name:
            TWINS[name](stack)
        yield
