"""A run that sends messages again: every message of its plan has one outcome, also if the run is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gantry_client import Admin, InvalidMessage, Producer, PullConsumer, Sql
from gantry_client.resend_plan import OutcomeKind, Position, ResendOutcome, ResendRequest
from gantry_client.resend_run import FAILURES_MAX, STOPPED, ResendRun
from gantry_testing.client import FakeCluster, wait_until
from gantry_testing.client.sending import send as fake_send
from gantry_wire.codes import RequestCode
from gantry_wire.message import StoredMessage
from gantry_wire.properties import encode_properties

GROUP = "billing"
DEAD = f"%DLQ%{GROUP}"
SEND = RequestCode.SEND_MESSAGE_V2
PLAIN = ResendRequest(group=GROUP)
SELECTION = ResendRequest(group=GROUP, keeps_progress=False)
SENT, FAILED, UNKNOWN, SKIPPED = OutcomeKind


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as fake:
        fake.add_topic("orders", queues=1)
        fake.add_topic(DEAD, queues=1)
        for number in range(6):
            pairs = {"UNIQ_KEY": f"{number:032d}", "RETRY_TOPIC": "orders"}
            fake.broker().state.log.append(
                StoredMessage(topic=DEAD, queue_id=0, body=b"%d" % number, properties_bytes=encode_properties(pairs))
            )
        yield fake


@asynccontextmanager
async def run_of(cluster: FakeCluster, request: ResendRequest) -> AsyncIterator[ResendRun]:
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(PullConsumer(cluster.name_server, request.reader))
        producer = await stack.enter_async_context(Producer(cluster.name_server))
        admin = await stack.enter_async_context(Admin(cluster.name_server))
        yield ResendRun(request, reader, producer, admin)


def kinds(outcomes: list[ResendOutcome]) -> list[OutcomeKind]:
    return [one.kind for one in outcomes]


@pytest.mark.parametrize(
    ("request_", "failures"), [(PLAIN, 1), (SELECTION, FAILURES_MAX)], ids=["with progress", "selection"]
)
async def test_run_stops_after_failures_in_a_row(cluster: FakeCluster, request_: ResendRequest, failures: int) -> None:
    """With progress at the first one, which progress must not pass; a selection after three. The others are skipped."""
    outcomes: list[ResendOutcome] = []
    async with run_of(cluster, request_) as run:
        plan = await run.plan(100)
        cluster.broker().refuse(SEND, 13, times=10)
        await run.execute(plan, outcomes.append)

    assert [one.message for one in outcomes] == plan.messages
    assert kinds(outcomes) == [FAILED] * failures + [SKIPPED] * (6 - failures)
    assert outcomes[-1].reason == STOPPED
    assert cluster.broker().state.offsets == {}


async def test_cancelled_run_has_an_unknown_outcome(cluster: FakeCluster) -> None:
    """The message whose reply is missing is unknown; progress has what was acknowledged before, and no more."""
    outcomes: list[ResendOutcome] = []
    async with run_of(cluster, PLAIN) as run:
        plan = await run.plan(100)
        state = cluster.broker().state
        cluster.broker().fault(SEND, lambda command, connection: fake_send(state, command, connection), times=2)
        cluster.broker().ignore(SEND, times=10)
        task = asyncio.create_task(run.execute(plan, outcomes.append))
        await wait_until(lambda: cluster.broker().received[SEND] == 3, what="a send that is not answered")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert [one.message for one in outcomes] == plan.messages
    assert kinds(outcomes) == [SENT] * 2 + [UNKNOWN] + [SKIPPED] * 3
    assert list(cluster.broker().state.offsets.values()) == [2]


async def test_message_that_has_expired_since_the_plan_is_not_sent(cluster: FakeCluster) -> None:
    """The others are sent; the outcome of the missing one is a failure with its reason."""
    outcomes: list[ResendOutcome] = []
    async with run_of(cluster, SELECTION) as run:
        plan = await run.plan(100)
        cluster.broker().state.log.queue(DEAD, 0).min_offset = 1
        await run.execute(plan, outcomes.append)

    assert kinds(outcomes) == [FAILED] + [SENT] * 5
    assert "expired" in outcomes[0].reason


async def test_plans_continue_where_the_last_one_ended(cluster: FakeCluster) -> None:
    """Plans of two messages list each message once, and what remains."""
    async with run_of(cluster, PLAIN) as run:
        plans = [await run.plan(2) for _ in range(4)]

    assert [[one.position.offset for one in plan.messages] for plan in plans] == [[0, 1], [2, 3], [4, 5], []]
    assert [plan.remaining for plan in plans] == [4, 2, 0, 0]


async def test_plan_examines_a_limited_number(cluster: FakeCluster) -> None:
    """A filter that accepts nothing reads no more than the limit, and counts the others."""
    request = ResendRequest(group=GROUP, filter=Sql("region = 'eu'"), keeps_progress=False)
    async with run_of(cluster, request) as run:
        plan = await run.plan(100, examined_max=4)

    assert (plan.messages, plan.remaining) == ([], 2)


async def test_plan_reads_a_limited_number_of_bytes(cluster: FakeCluster) -> None:
    """Bodies of one byte: after three of them, the others remain."""
    async with run_of(cluster, SELECTION) as run:
        plan = await run.plan(100, examined_bytes_max=3)

    assert (len(plan.messages), plan.remaining) == (3, 3)


@pytest.mark.parametrize(
    "request_",
    [
        ResendRequest(group=GROUP, to_topic="orders"),
        ResendRequest(group=GROUP, key="k"),
        ResendRequest(topic="orders", positions=(Position("broker-a", 0, 0),)),
        ResendRequest(group=GROUP, to_topic="bad/name", keeps_progress=False),
        ResendRequest(group="bad/name"),
    ],
    ids=["progress and target", "progress and key", "progress and topic", "bad target", "bad group"],
)
async def test_contradictory_request_is_refused(cluster: FakeCluster, request_: ResendRequest) -> None:
    """Progress of a selection would pass messages that were not selected."""
    with pytest.raises(InvalidMessage):
        request_.check()
