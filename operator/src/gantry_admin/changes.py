"""Previews of changes to topics, groups and offsets, and their execution by token.

    preview --- token ---> execute: the plan is made again; if what it depends on differs, it is refused with 409,
                             otherwise the steps of the *first* plan are executed, one outcome for each

A token works once, for ten minutes, and in this process only. The steps of a plan go to the brokers that the name
servers of this broker know, all shards included. One change is executed at a time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_access import AccessFileError
from gantry_admin.broker_client import BrokerClient
from gantry_admin.change_bodies import ResetBody
from gantry_admin.change_plans import ChangeBody, ChangePlan, plan_change
from gantry_admin.errors import Problem
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.topics_file import FILE_BYTES_MAX, TopicsFile, parse_topics_file
from gantry_client import Admin, PullConsumer
from gantry_client.errors import ClientError, InvalidMessage, NoRoute
from gantry_client.offset_reset import OFFSETS_READER

TIMEOUT_S: Final = 30.0
"""How long a preview or an execution may take, in seconds."""

LIFETIME_S: Final = 600.0
"""How long a token can be used, in seconds."""

PREVIEWS_MAX: Final = 32
"""The most previews that wait for their execution; one more drops the oldest."""


class StepOutcome(NamedTuple):
    """What became of one step."""

    place: str
    is_done: bool
    reason: str
    """Why it was not done, or why that is unknown; empty if it was."""


class _Pending(NamedTuple):
    """A preview that waits for its execution."""

    body: ChangeBody
    plan: ChangePlan
    end_s: float


@final
class ChangeExecutor:
    """The previews and executions of one sidecar. Owned by the event loop."""

    def __init__(
        self, broker: ObservedBroker, client: BrokerClient, topics_file: Path | None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``topics_file`` declares topics and groups whose settings a change must not contradict; None for none."""
        self._broker: Final = broker
        self._client: Final = client
        self._topics_file: Final = topics_file
        self._now_s: Final = now_s
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._is_busy = False
        """Whether a change is being executed."""

    def __repr__(self) -> str:
        return f"<ChangeExecutor previews={len(self._pending)}>"

    async def preview(self, body: ChangeBody) -> tuple[str, ChangePlan]:
        """Return the plan of a change and the token for its execution. Raises ``Problem``."""
        plan = await self._plan(body)
        token = secrets.token_hex(16)
        while len(self._pending) >= PREVIEWS_MAX:
            self._pending.popitem(last=False)
        self._pending[token] = _Pending(body, plan, self._now_s() + LIFETIME_S)
        return token, plan

    def planned(self, token: str) -> ChangePlan:
        """Return the plan of a token that can still be used. Raises ``Problem`` 404."""
        pending = self._pending.get(token)
        if pending is None or pending.end_s <= self._now_s():
            self._pending.pop(token, None)
            raise Problem(404, "the preview is unknown, used or expired; make a new one")
        return pending.plan

    async def execute(self, token: str, name: str) -> list[StepOutcome]:
        """Execute the plan of a token, which cannot be used again. Raises ``Problem``.

        A step that fails does not keep the others from being executed.
        """
        plan = self.planned(token)
        if plan.needs_name and name != plan.name:
            raise Problem(409, f"confirm it with the name: expected {plan.name}")
        if self._is_busy:
            raise Problem(429, "another change is in progress", headers={"Retry-After": "2"})
        self._is_busy = True
        try:
            body = self._pending.pop(token).body
            if (await self._plan(body)).guard != plan.guard:
                raise Problem(409, "what would be changed has changed since the preview; make a new one")
            async with self._connected() as (admin, _):
                return [await _execute_step(admin, plan, number) for number in range(len(plan.steps))]
        finally:
            self._is_busy = False

    async def _plan(self, body: ChangeBody) -> ChangePlan:
        if isinstance(body, ResetBody) and (fault := body.fault()):
            raise Problem(400, fault)
        declared = await asyncio.to_thread(self._read_declared)
        async with self._connected() as (admin, reader):
            return await plan_change(admin, reader, body, declared)

    def _read_declared(self) -> TopicsFile:
        """Read the declared topics and groups; blocks. Raises ``Problem``: a change could be reverted otherwise."""
        if self._topics_file is None:
            return TopicsFile()
        try:
            with self._topics_file.open("rb") as file:
                return parse_topics_file(file.read(FILE_BYTES_MAX))[0]
        except (OSError, ValueError) as error:
            raise Problem(503, f"the file of declared topics cannot be read: {error}"[:300]) from error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[Admin, PullConsumer]]:
        """Connect clients for the block. Every error in it is raised as a ``Problem``."""
        self._broker.check_running("nothing can be changed")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                name_servers, settings = await self._client.name_servers(), await self._client.settings()
                async with (
                    Admin(name_servers, client_settings=settings) as admin,
                    PullConsumer(name_servers, OFFSETS_READER, client_settings=settings) as reader,
                ):
                    yield admin, reader
        except TimeoutError as error:
            raise Problem(
                504, f"timed out after {TIMEOUT_S:g} s; make a new preview to see what is in effect"
            ) from error
        except NoRoute as error:
            raise Problem(404, str(error)[:500]) from error
        except InvalidMessage as error:
            raise Problem(409, str(error)[:500]) from error
        except (ClientError, AccessFileError) as error:
            raise Problem(502, str(error)[:500]) from error


async def _execute_step(admin: Admin, plan: ChangePlan, number: int) -> StepOutcome:
    step = plan.steps[number]
    try:
        await step.execute(admin)
    except ClientError as error:
        is_unknown = getattr(error, "is_outcome_unknown", False)
        return StepOutcome(step.place, False, f"{'unknown: ' if is_unknown else ''}{error}"[:500])
    return StepOutcome(step.place, True, "")
