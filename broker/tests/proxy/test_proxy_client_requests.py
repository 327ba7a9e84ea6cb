"""Requests of administrators to consumers of the proxy: thread dumps, and the consumption of one message."""

from __future__ import annotations

import asyncio

import pytest
from proxy_world import BROKER, NOW_MS, FakeStream, World, producer_settings

from gantry_proxy import client_requests
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_testing.local import wait_until
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command, oneway
from gantry_wire.commands.consumers import ConsumeResult, ConsumerRunningInfo
from gantry_wire.commands.documents import read_document
from gantry_wire.message import StoredMessage, encode_host, encode_record
from gantry_wire.properties import encode_properties


def stack_request(client_id: str = "client-1", group: str = "billing", jstack: str = "true") -> Command:
    ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": jstack}
    return Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext)


def consume_request(client_id: str = "client-1") -> Command:
    record = StoredMessage(
        topic="orders", queue_id=1, body=b"body", physical_offset=4711, queue_offset=7,
        born_host=encode_host("10.0.0.7", 1), store_host=encode_host("10.0.0.1", 10911), born_timestamp_ms=NOW_MS,
        store_timestamp_ms=NOW_MS, properties_bytes=encode_properties({"UNIQ_KEY": "id-7", "TAGS": "paid"}),
    )  # fmt: skip
    ext = {"consumerGroup": "billing", "clientId": client_id, "msgId": "x", "brokerName": BROKER}
    return Command(code=RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=ext, body=encode_record(record))


async def ask(one: World, stream: FakeStream, request: Command, *answers: pb.TelemetryCommand) -> Command:
    """Return the reply to a request whose client answers with ``answers``, each with the nonce that it was given."""
    task = asyncio.ensure_future(one.client_requests.answer(request, "10.0.0.1:10911"))
    await wait_until(lambda: bool(stream.written))
    [asked] = stream.written
    nonce = getattr(asked, asked.WhichOneof("command")).nonce
    for answer in answers:
        getattr(answer, answer.WhichOneof("command")).nonce = nonce
        one.client_requests.on_answer("client-1", answer)
    reply = await task
    assert reply is not None
    return reply


async def test_thread_dump_comes_from_the_client() -> None:
    """The reply has the stacks, the group's subscription and how the client consumes, as mqadmin needs them."""
    one = World()
    stream = one.join_consumer()
    trace = pb.TelemetryCommand(
        status=pb.Status(code=pb.OK), thread_stack_trace=pb.ThreadStackTrace(thread_stack_trace="thread main\n at f")
    )

    reply = await ask(one, stream, stack_request(), trace)

    info = read_document(reply.body, ConsumerRunningInfo)
    assert (reply.code, info.jstack) == (ResponseCode.SUCCESS, "thread main\n at f")
    assert [subscription.topic for subscription in info.subscription_set] == ["orders"]
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) == NOW_MS


async def test_state_without_a_dump_needs_no_answer_of_the_client() -> None:
    """mqadmin lists all consumers of a group without their stacks first."""
    one = World()
    stream = one.join_consumer()

    reply = await one.client_requests.answer(stack_request(jstack="false"), "10.0.0.1:10911")

    assert reply is not None
    assert (reply.code, read_document(reply.body, ConsumerRunningInfo).jstack) == (ResponseCode.SUCCESS, None)
    assert stream.written == []


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (pb.OK, "CR_SUCCESS"),
        (pb.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (pb.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
    ],
)
async def test_verified_message_has_the_result_of_the_listener(status: pb.Code, result: str) -> None:
    """The client gets the whole message, without a receipt, and its outcome is reported by RocketMQ's names."""
    one = World()
    stream = one.join_consumer()
    answer = pb.TelemetryCommand(
        status=pb.Status(code=status, message="why"), verify_message_result=pb.VerifyMessageResult()
    )

    reply = await ask(one, stream, consume_request(), answer)

    sent = stream.written[0].verify_message_command.message
    assert (sent.topic.name, sent.body, sent.system_properties.tag) == ("orders", b"body", "paid")
    assert (sent.system_properties.message_id, sent.system_properties.receipt_handle) == ("id-7", "")
    found = read_document(reply.body, ConsumeResult)
    assert (reply.code, found.consume_result, found.remark) == (ResponseCode.SUCCESS, result, "why")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (pb.NOT_IMPLEMENTED, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        (pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED, ResponseCode.NO_PERMISSION),
        (pb.INTERNAL_ERROR, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_client_that_cannot_verify_is_an_error(status: pb.Code, code: int) -> None:
    """A simple consumer has no listener, for example."""
    one = World()
    stream = one.join_consumer()
    answer = pb.TelemetryCommand(status=pb.Status(code=status), verify_message_result=pb.VerifyMessageResult())

    reply = await ask(one, stream, consume_request(), answer)

    assert (reply.code, reply.body) == (code, b"")


async def test_answer_of_another_client_does_not_count() -> None:
    """A client cannot answer for another one, even if it guesses the nonce."""
    one = World()
    stream = one.join_consumer()
    task = asyncio.ensure_future(one.client_requests.answer(stack_request(), "10.0.0.1:10911"))
    await wait_until(lambda: bool(stream.written))
    nonce = stream.written[0].print_thread_stack_trace_command.nonce
    forged = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="forged")
    true = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="true")

    one.client_requests.on_answer("client-2", pb.TelemetryCommand(thread_stack_trace=forged))
    one.client_requests.on_answer(
        "client-1", pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=true)
    )

    reply = await task
    assert reply is not None
    assert read_document(reply.body, ConsumerRunningInfo).jstack == "true"


async def test_silent_client_is_reported_before_the_broker_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK that does not know the command answers nothing."""
    monkeypatch.setattr(client_requests, "ANSWER_TIMEOUT_S", 0.01)
    one = World()
    one.join_consumer()

    reply = await one.client_requests.answer(stack_request(), "10.0.0.1:10911")

    assert reply is not None
    assert (reply.code, reply.remark) == (ResponseCode.CONSUME_MSG_TIMEOUT, client_requests.CLIENT_SILENT)
    assert repr(one.client_requests) == "<ClientRequests pending=0>"


async def test_client_without_a_stream_is_not_online() -> None:
    """Neither is an unknown client, one of another group, or a producer."""
    one = World()
    one.clients.disconnect("client-1", one.join_consumer())
    one.join_consumer("shipping", "client-2")
    one.clients.register("client-3", producer_settings(), FakeStream())

    for client_id in ("client-1", "client-2", "client-3", "client-4"):
        reply = await one.client_requests.answer(stack_request(client_id), "10.0.0.1:10911")
        assert reply is not None
        assert (reply.code, "not online" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_requests_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the administrator gets the code for a busy server."""
    monkeypatch.setattr(client_requests, "PENDING_MAX", 0)
    one = World()
    one.join_consumer()

    reply = await one.client_requests.answer(stack_request(), "10.0.0.1:10911")

    assert reply is not None
    assert reply.code == ResponseCode.SYSTEM_BUSY


async def test_other_requests_of_brokers_are_answered_or_ignored() -> None:
    """A notice of a changed group needs no answer; offsets are kept by the broker only."""
    one = World()
    notice = oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "billing"})
    status = Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext={"topic": "orders", "group": "billing"})
    invalid = Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO)

    assert await one.client_requests.answer(notice, "10.0.0.1:10911") is None
    replies = [await one.client_requests.answer(request, "10.0.0.1:10911") for request in (status, invalid)]
    assert [reply.code for reply in replies if reply is not None] == [
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR,
    ]  # fmt: skip
