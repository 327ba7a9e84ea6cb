"""Sending dead letters and other messages again on an order over HTTP, with the project's client.

    preview --- digest ---> start: the same plan is made again, and refused with 409 if its digest differs
                              job: one outcome for each message of the plan, kept until later jobs displace it

It does the same as ``gantry group resend``, with the same code. It uses the name servers that the broker itself
registers at; a caller cannot name others. An order is refused while another one is executed, because two would send the
same messages twice.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_access import AccessFileError
from gantry_admin.broker_client import BrokerClient
from gantry_admin.errors import Problem
from gantry_admin.limits import ConcurrencyLimit
from gantry_admin.observed_broker import ObservedBroker
from gantry_client import Admin, Producer, PullConsumer
from gantry_client.errors import ClientError, InvalidMessage, NoRoute
from gantry_client.resend_plan import OutcomeKind, Position, ResendOutcome, ResendPlan, ResendRequest, reader_fault
from gantry_client.resend_run import ResendRun

PRODUCER_GROUP: Final = "GANTRY_RESEND"
"""The producer group that sends messages again."""

TIMEOUT_S: Final = 60.0
"""How long a preview, or an order that is answered when it is complete, may take, in seconds."""

EXAMINED_MAX: Final = 20_000
"""The most messages that a preview reads to find those that its filter accepts: about ten seconds of reading."""

EXAMINED_BYTES_MAX: Final = 256 << 20
"""The most bytes of bodies that a preview reads, also if its filter accepts none: a few seconds of a network."""

PREVIEWS_MAX: Final = 2
"""The previews that are made at a time, each of which keeps the broker busy with reading; a read token is enough."""

JOBS_MAX: Final = 16
"""The jobs whose outcomes are kept; one more drops the oldest. The outcomes of a job are as many as its messages."""


class DeadLetterPosition(NamedTuple):
    """The position of a dead letter; on this broker if no broker is named."""

    queue_id: int
    offset: int
    broker_name: str | None = None


class JobState(Enum):
    """The life of a job: running, then one of the others."""

    RUNNING = "running"
    COMPLETE = "complete"
    """Every message of the plan has its outcome, and the run was not stopped."""
    STOPPED = "stopped"
    """A caller has stopped it; the messages that were not attempted are skipped."""


@final
@dataclass(slots=True, kw_only=True)
class ResendJob:
    """The execution of one plan in the background."""

    id: str
    request: ResendRequest
    plan: ResendPlan
    started_wall_ms: int
    state: JobState = JobState.RUNNING
    outcomes: list[ResendOutcome] = field(default_factory=list)
    ended_wall_ms: int | None = None
    task: asyncio.Task[None] | None = None

    def counts(self) -> dict[str, int]:
        """Return the number of outcomes of each kind, zeros included."""
        kinds = [one.kind for one in self.outcomes]
        return {kind.value: kinds.count(kind) for kind in OutcomeKind}


@final
class MessageResender:
    """Executes resend orders, and refuses an order while another one is executed. Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, client: BrokerClient) -> None:
        self._broker: Final = broker
        self._client: Final = client
        self._jobs: OrderedDict[str, ResendJob] = OrderedDict()
        self._previews: Final = ConcurrencyLimit(PREVIEWS_MAX, "previews are being made already", retry_after_s=2)
        self._is_busy = False
        """Whether an order is executed, in the background or not."""

    def __repr__(self) -> str:
        return f"<MessageResender {'resending' if self._is_busy else 'idle'} jobs={len(self._jobs)}>"

    async def close(self) -> None:
        """Stop the job that is running, and wait for its end."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def preview(self, request: ResendRequest, messages_max: int) -> ResendPlan:
        """Return what would be sent now. Raises ``Problem``, 429 while too many previews are made."""
        self._previews.check()
        with self._previews.hold():
            return await self._plan(request, messages_max)

    async def _plan(self, request: ResendRequest, messages_max: int) -> ResendPlan:
        async with self._run(request) as run:
            return await run.plan(
                messages_max, examined_max=EXAMINED_MAX, examined_bytes_max=EXAMINED_BYTES_MAX
            )  # fmt: skip

    async def start(
        self, request: ResendRequest, messages_max: int, digest: str, on_end: Callable[[ResendJob], None]
    ) -> ResendJob:
        """Start the execution of the plan with this digest. ``on_end`` is called when it has ended.

        Raises ``Problem``: 409 if the plan differs from the one with this digest, 429 while another order is executed.
        """
        self._occupy()
        try:
            plan = await self._plan(request, messages_max)
            if plan.digest != digest:
                raise Problem(409, "the messages to send have changed since the preview; make a new preview")
        except BaseException:
            self._is_busy = False
            raise
        job = ResendJob(
            id=secrets.token_hex(8), request=request, plan=plan, started_wall_ms=time.time_ns() // 1_000_000
        )  # fmt: skip
        while len(self._jobs) >= JOBS_MAX:
            self._jobs.popitem(last=False)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._execute(job, on_end), name="gantry-resend")
        return job

    def jobs(self) -> list[ResendJob]:
        """Return the jobs whose outcomes are kept, the newest first."""
        return list(reversed(self._jobs.values()))

    def job(self, job_id: str) -> ResendJob:
        """Return a job. Raises ``Problem`` 404 if it is unknown, or was displaced by later ones."""
        found = self._jobs.get(job_id)
        if found is None:
            raise Problem(404, "resend not found; the sidecar keeps the last ones, until it stops")
        return found

    async def stop(self, job_id: str) -> ResendJob:
        """Stop a job, and wait for its end. A job that has ended is unchanged."""
        job = self.job(job_id)
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)
        return job

    async def run(
        self, order: ResendRequest, messages_max: int, position: DeadLetterPosition | None = None
    ) -> tuple[ResendPlan, list[ResendOutcome]]:
        """Execute an order at once, or resend only the dead letter at ``position``. Raises ``Problem``.

        The next order does not resend what was acknowledged until then. A single dead letter is always resent, and does
        not change the progress.
        """
        if position is not None:
            order = self._single(order, position)
        self._occupy()
        outcomes: list[ResendOutcome] = []
        try:
            async with self._run(order) as run:
                plan = await run.plan(messages_max)
                if position is not None and not plan.messages[0].message_id:
                    raise Problem(404, "dead letter not found")
                await run.execute(plan, outcomes.append)
        finally:
            self._is_busy = False
        return plan, outcomes

    def _single(self, order: ResendRequest, position: DeadLetterPosition) -> ResendRequest:
        reading = self._broker.reading
        own = "" if reading is None else reading.origin.broker_name
        at = Position(position.broker_name or own, position.queue_id, position.offset)
        return ResendRequest(group=order.group, positions=(at,), is_from_start=True, keeps_progress=False)

    def _occupy(self) -> None:
        if self._is_busy:
            raise Problem(429, "another resend is in progress", headers={"Retry-After": "2"})
        self._is_busy = True

    async def _execute(self, job: ResendJob, on_end: Callable[[ResendJob], None]) -> None:
        """Send the messages of a job. A fault outside of the run, such as of the account file, fails what is left."""
        reason = ""
        try:
            async with self._run(job.request, timeout_s=None) as run:
                await run.execute(job.plan, job.outcomes.append)
            job.state = JobState.COMPLETE
        except asyncio.CancelledError:
            job.state, reason = JobState.STOPPED, "the resend was stopped"
        except Problem as problem:
            job.state, reason = JobState.STOPPED, problem.reason
        finally:
            for message in job.plan.messages[len(job.outcomes) :]:
                job.outcomes.append(ResendOutcome(message=message, kind=OutcomeKind.SKIPPED, reason=reason))
            job.ended_wall_ms = time.time_ns() // 1_000_000
            self._is_busy = False
            on_end(job)

    @asynccontextmanager
    async def _run(self, request: ResendRequest, *, timeout_s: float | None = TIMEOUT_S) -> AsyncIterator[ResendRun]:
        """Connect the clients of a run. Every error in the block is raised as a ``Problem``."""
        if request.group is not None and reader_fault(request.group) is not None:
            raise Problem(404, "invalid group name")
        self._broker.check_running("messages cannot be resent")
        try:
            async with asyncio.timeout(timeout_s):
                name_servers, settings = await self._client.name_servers(), await self._client.settings()
                async with (
                    PullConsumer(name_servers, request.reader, client_settings=settings) as reader,
                    Producer(name_servers, PRODUCER_GROUP, client_settings=settings) as producer,
                    Admin(name_servers, client_settings=settings) as admin,
                ):
                    yield ResendRun(request, reader, producer, admin)
        except TimeoutError as error:
            raise Problem(504, f"timed out after {TIMEOUT_S:g} s; send the same order again to continue") from error
        except NoRoute as error:
            raise Problem(404, f"there are no such messages here: {error}"[:500]) from error
        except InvalidMessage as error:
            raise Problem(409, str(error)[:500]) from error
        except (ClientError, AccessFileError) as error:
            raise Problem(502, str(error)[:500]) from error
