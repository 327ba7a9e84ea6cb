"""Client ids belong to the account that uses them first: other accounts neither end, replace nor block a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from proxy_world import FakeBrokers, FakeStream, World, consumer_settings, message, popped, receipt_of, send_reply
from test_proxy_access import headers
from test_proxy_receiving import BILLING, ORDERS, request
from test_proxy_service import serving

from gantry_proxy.clients import DISCONNECTED_MS
from gantry_proxy.context import CallContext
from gantry_proxy.handlers.acknowledging import ack_message
from gantry_proxy.handlers.receiving import receive_message
from gantry_proxy.handlers.sessions import accept_settings, heartbeat, notify_client_termination
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.consumers import ConsumerRunningInfo
from gantry_wire.commands.documents import read_document

ACCOUNTS = """
accounts:
  - {accessKey: billing-1, secretKey: billing-1-secret, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
  - {accessKey: billing-2, secretKey: billing-2-secret, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
  - {accessKey: producer-1, secretKey: producer-1-secret, topicPerms: [orders=PUB]}
  - {accessKey: other-1, secretKey: other-1-secret, topicPerms: [orders=PUB|SUB], groupPerms: [other=SUB]}
  - {accessKey: administrator, secretKey: administrator-secret, admin: true}
"""
HOME, ELSEWHERE = "192.0.2.7", "192.0.2.8"
END = pb.NotifyClientTerminationRequest(group=BILLING)


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    return file


@pytest.fixture
def one(accounts: Path) -> World:
    return World(FakeBrokers(popped=[popped(1)]), accounts=accounts)


async def context_of(one: World, key: str, peer: str = HOME, client_id: str = "client-1") -> CallContext:
    account = await one.guard.authenticate(headers(key, f"{key}-secret"), peer)
    return msgspec.structs.replace(one.context(client_id), account=account, peer=peer)


async def code_of(call: Awaitable[Any]) -> pb.Code:
    try:
        await call
    except ProxyError as error:
        return error.code
    return pb.OK


async def join(one: World, key: str = "billing-1", peer: str = HOME, group: str = "billing") -> FakeStream:
    stream = FakeStream()
    await accept_settings(one.core, await context_of(one, key, peer), consumer_settings(group), stream)
    return stream


async def _receive(one: World, context: CallContext, **fields: Any) -> list[Any]:
    return [reply async for reply in receive_message(one.core, context, request(**fields))]


def terminate(one: World, context: CallContext) -> Awaitable[Any]:
    return notify_client_termination(one.core, context, END)


def beat(one: World, context: CallContext) -> Awaitable[Any]:
    return heartbeat(one.core, context, pb.HeartbeatRequest(group=BILLING))


def replace_settings(one: World, context: CallContext) -> Awaitable[Any]:
    group = "other" if context.account_key == "other-1" else "billing"
    return accept_settings(one.core, context, consumer_settings(group), FakeStream())


def receive(one: World, context: CallContext) -> Awaitable[Any]:
    group = "other" if context.account_key == "other-1" else "billing"
    return _receive(one, context, group=pb.Resource(name=group))


CALLS = [terminate, beat, replace_settings, receive]
Call = Callable[[World, CallContext], Awaitable[Any]]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("key", "peer", "code"),
    [
        ("other-1", HOME, pb.FORBIDDEN), ("other-1", ELSEWHERE, pb.FORBIDDEN), ("billing-2", ELSEWHERE, pb.FORBIDDEN),
        ("billing-2", HOME, pb.OK), ("billing-1", ELSEWHERE, pb.OK), ("administrator", ELSEWHERE, pb.OK),
    ],
    ids=["account", "account elsewhere", "equal account elsewhere", "new key", "new address", "administrator"],
)  # fmt: skip
async def test_only_the_account_of_a_client_acts_for_it(
    one: World, call: Call, key: str, peer: str, code: pb.Code
) -> None:
    """A client keeps its id with a new address, and with a new key that has its permissions at its address."""
    stream = await join(one)
    client = one.clients.find("client-1")

    assert await code_of(call(one, await context_of(one, key, peer))) == code

    if code != pb.OK:
        assert one.clients.find("client-1") is client and not stream.is_closed
        assert client is not None and client.group == "billing" and client.account_key == "billing-1"


@pytest.mark.parametrize("call", CALLS)
async def test_without_accounts_every_call_acts_for_a_client(call: Call) -> None:
    """The twin: without access control there is no other owner."""
    one = World(FakeBrokers(popped=[popped(1)]))
    one.join_consumer()

    assert await code_of(call(one, msgspec.structs.replace(one.context(), peer=ELSEWHERE))) == pb.OK


@pytest.mark.parametrize(("key", "is_known"), [("billing-1", True), ("billing-2", False)])
async def test_ack_of_another_account_is_no_sign_of_life(one: World, key: str, is_known: bool) -> None:
    """Otherwise it could keep the messages of a client that is gone invisible."""
    stream = await join(one)
    one.clients.disconnect("client-1", stream)
    one.now_ms += DISCONNECTED_MS
    entry = pb.AckMessageEntry(message_id="id", receipt_handle=receipt_of(1))
    ack = pb.AckMessageRequest(topic=ORDERS, group=BILLING, entries=[entry])
    assert await code_of(ack_message(one.core, await signed_later(one, key), ack)) == pb.OK
    one.now_ms += 1
    one.clients.remove_silent()

    assert (one.clients.find("client-1") is not None) == is_known


async def signed_later(one: World, key: str) -> CallContext:
    """Return the context of a call, with an account that was verified before: the clock of the test has moved."""
    now_ms, one.now_ms = one.now_ms, World().now_ms
    context = await context_of(one, key)
    one.now_ms = now_ms
    return context


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 0}, {"attempt_id": "x" * 256},
        {"filter_expression": pb.FilterExpression(type=pb.SQL, expression="a >")},
    ],
    ids=["batch size", "attempt id", "filter"],
)  # fmt: skip
async def test_invalid_receive_leaves_no_client(one: World, fields: dict[str, Any]) -> None:
    """Receives of simple consumers make clients known; random ids with invalid requests would fill the table."""
    context, simple = await context_of(one, "billing-1"), {"auto_renew": False, "invisible_duration": {"seconds": 30}}

    assert await code_of(_receive(one, context, **simple, **fields)) not in (pb.OK, pb.MESSAGE_NOT_FOUND)
    assert len(one.clients) == 0
    assert await code_of(_receive(one, context, **simple)) == pb.OK
    assert len(one.clients) == 1


async def test_answers_count_only_on_the_stream_of_the_client() -> None:
    """A stream with the same id that has sent no settings may be that of another account."""
    ask = Command(
        code=RequestCode.GET_CONSUMER_RUNNING_INFO,
        ext={"consumerGroup": "billing", "clientId": "client-1", "jstackEnable": "true"},
    )
    async with serving() as one:
        own, other = await one.connect(), one.call("Telemetry")(metadata=(("x-mq-client-id", "client-1"),))
        answering = asyncio.ensure_future(one.world.client_requests.answer(ask, "10.0.0.1:10911"))
        nonce = (await own.read()).print_thread_stack_trace_command.nonce
        for stream, text in ((other, "forged"), (own, "own")):
            dump = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
            await stream.write(pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=dump))
        reply = await answering
        own.cancel()
        other.cancel()

    assert reply is not None and read_document(reply.body, ConsumerRunningInfo).jstack == "own"


# ------- limits of accounts


@pytest.mark.parametrize("limit", [2, 0])
async def test_clients_of_one_account_are_limited(accounts: Path, limit: int) -> None:
    """Other accounts find room, and a client that leaves makes room. The twin has no limit."""
    one = World(FakeBrokers(), limits=ProxyLimits(clients_per_account_max=limit), accounts=accounts)

    async def join_as(key: str, client_id: str) -> pb.Code:
        context = await context_of(one, key, client_id=client_id)
        return await code_of(accept_settings(one.core, context, consumer_settings(), FakeStream()))

    found = [await join_as("billing-1", f"client-{number}") for number in range(3)]
    again, other = await join_as("billing-1", "client-0"), await join_as("billing-2", "client-9")
    one.clients.leave("client-0")
    after = await join_as("billing-1", "client-8")

    assert found == [pb.OK, pb.OK, pb.TOO_MANY_REQUESTS if limit else pb.OK]
    assert [again, other, after] == [pb.OK] * 3


async def test_client_with_a_new_key_counts_for_its_new_account(accounts: Path) -> None:
    """Its old account has room again."""
    one = World(FakeBrokers(), limits=ProxyLimits(clients_per_account_max=1), accounts=accounts)
    await join(one, "billing-1")
    await join(one, "billing-2")
    second = await context_of(one, "billing-1", client_id="client-2")
    third = await context_of(one, "billing-2", client_id="client-3")

    assert await code_of(accept_settings(one.core, second, consumer_settings(), FakeStream())) == pb.OK
    assert await code_of(accept_settings(one.core, third, consumer_settings(), FakeStream())) == pb.TOO_MANY_REQUESTS


def metadata(key: str, client_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-mq-client-id", client_id), *headers(key, f"{key}-secret").items())


async def send_codes(accounts: Path, limits: ProxyLimits, callers: list[tuple[str, str]]) -> list[pb.Code]:
    """Hold one send of the first caller at the broker, and return how a send of each of the others ends."""
    held, is_held, found = asyncio.Event(), asyncio.Event(), []
    brokers = FakeBrokers()
    async with serving(limits, brokers, accounts) as one:

        async def answer(*_args: Any, **_options: Any) -> Command:
            if not is_held.is_set():
                is_held.set()
                await held.wait()
            return send_reply()

        async def send(key: str, client_id: str) -> pb.Code:
            call = pb.SendMessageRequest(messages=[message()])
            reply = await one.call("SendMessage")(call, metadata=metadata(key, client_id))
            return reply.status.code  # type: ignore[no-any-return]

        brokers.request = answer  # type: ignore[method-assign]
        first = asyncio.ensure_future(send(*callers[0]))
        await is_held.wait()
        for key, client_id in callers[1:]:
            found.append(await send(key, client_id))
        held.set()
        await first
    return found


async def test_slots_of_a_client_are_not_taken_by_other_accounts(accounts: Path) -> None:
    """Calls are counted for the account and the client id together."""
    limits = ProxyLimits(calls_per_client_max=1)
    callers = [("other-1", "client-1"), ("producer-1", "client-1"), ("other-1", "client-1")]

    assert await send_codes(accounts, limits, callers) == [pb.OK, pb.TOO_MANY_REQUESTS]


@pytest.mark.parametrize("limit", [1, 0])
async def test_calls_of_one_account_are_limited(accounts: Path, limit: int) -> None:
    """With any client ids; other accounts are served. The twin has no limit."""
    limits = ProxyLimits(calls_per_account_max=limit)
    callers = [("other-1", "client-1"), ("other-1", "client-2"), ("producer-1", "client-3")]

    found = await send_codes(accounts, limits, callers)

    assert found == [pb.TOO_MANY_REQUESTS if limit else pb.OK, pb.OK]
