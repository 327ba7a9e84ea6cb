"""Calls to members of consumer groups: running info, consuming one message, status; also late and faulty members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.groups import members
from gantry_remoting import Channel
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode, decode_record
from gantry_wire.fastjson import ObjectKey, dumps, loads

RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO
CONSUME = RequestCode.CONSUME_MESSAGE_DIRECTLY
ASKED_STATUS = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS


@asynccontextmanager
async def member(
    broker: Broker, client_id: str, answer: Callable[[Command], Command | None]
) -> AsyncIterator[Dialogue]:
    """A member of the group that answers the broker's requests with ``answer``."""
    received: list[Command] = []

    def record_request(command: Command, channel: Channel) -> Command | None:
        received.append(command)
        return None if command.is_oneway else answer(command)

    channel = await Channel.connect(f"127.0.0.1:{broker.port}", on_request=record_request)
    one = Dialogue(channel, received)
    await one.heartbeat(client_id)
    try:
        yield one
    finally:
        await channel.close()


def find_request(one: Dialogue, code: int) -> Command:
    (found,) = [command for command in one.pushed if command.code == code]
    return found


def register_info(client_id: str, group: str = GROUP) -> dict[str, str]:
    return {"consumerGroup": group, "clientId": client_id, "jstackEnable": "true"}


# ------- passing on


async def test_answer_of_a_member_is_forwarded_completely(broker: Broker, client: Dialogue) -> None:
    """Code, text, fields and body are forwarded unchanged; the request reaches the member with all its fields."""
    full_answer = Command(code=7, remark="as you see", ext={"a": "b"}, body=b"{}")

    def answer(command: Command) -> Command:
        return command.reply(full_answer.code, full_answer.remark, ext=full_answer.ext, body=full_answer.body)

    async with member(broker, "c1", answer) as one, member(broker, "c2", lambda command: command.reply()) as two:
        reply = await client.ask(RUNNING, register_info("c1"))

        assert (reply.code, reply.remark, reply.ext, reply.body) == (7, "as you see", {"a": "b"}, b"{}")
        assert find_request(one, RUNNING).ext == register_info("c1")
        assert not two.count_pushed(RUNNING)


async def test_member_consumes_the_forwarded_message(broker: Broker, client: Dialogue) -> None:
    """It gets the record as it is in the log, and the name of the broker."""
    sent = await client.send_ok(b"the one")
    ext = {"consumerGroup": GROUP, "clientId": "c1", "msgId": sent["msgId"], "topic": TOPIC}

    async with member(broker, "c1", lambda command: command.reply(body=b'{"consumeResult":"CR_LATER"}')) as one:
        reply = await client.ask(CONSUME, ext)

        assert loads(reply.body) == {"consumeResult": "CR_LATER"}
        asked = find_request(one, CONSUME)
        assert decode_record(asked.body).body == b"the one"
        assert asked.ext == {**ext, "brokerName": "test-broker", "topicSysFlag": "0", "groupSysFlag": "0"}


@pytest.mark.parametrize(
    ("message_id", "expected"),
    [
        ("7F00000100002A9F0000000000FFFFFF", "can not find message by the offset, 16777215"),
        ("7F00000100002A9FFFFFFFFFFFFFFFFF", "can not find message by the offset, -1"),
        ("hello", "the message cannot be looked up"),
        ("", "the message cannot be looked up"),
    ],
    ids=["not there", "below zero", "no id", "nothing"],
)
async def test_missing_message_is_not_forwarded(
    broker: Broker, client: Dialogue, message_id: str, expected: str
) -> None:
    """The member is not asked at all."""
    async with member(broker, "c1", lambda command: command.reply()) as one:
        reply = await client.ask(CONSUME, {"consumerGroup": GROUP, "clientId": "c1", "msgId": message_id})

        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert expected in (reply.remark or "")
        assert not one.count_pushed(CONSUME)


async def test_missing_member_is_named(broker: Broker, client: Dialogue) -> None:
    """As in RocketMQ: code 1 and the name of the member; the client id may be missing, too."""
    async with member(broker, "c1", lambda command: command.reply()):
        for ext in (register_info("c2"), register_info("c1", "Strangers")):
            reply = await client.ask(RUNNING, ext)
            who = f"The Consumer <{ext['consumerGroup']}> <{ext['clientId']}> not online"
            assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, who)
        reply = await client.ask(CONSUME, {"consumerGroup": GROUP, "msgId": "x"})
        assert reply.remark == f"The Consumer <{GROUP}> <null> not online"


async def test_too_old_member_is_not_called(broker: Broker, client: Dialogue) -> None:
    """It would not know the code, and the administrator would wait in vain."""
    async with member(broker, "c1", lambda command: command.reply()) as one:
        (state,) = broker.core.clients.consumers[GROUP].members.values()
        state.version = 61

        assert "too low to finish" in ((await client.ask(RUNNING, register_info("c1"))).remark or "")
        assert not one.count_pushed(RUNNING)


@pytest.mark.verify
async def test_other_requests_do_not_wait_for_a_member(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During the call both connections serve other requests; after the timeout the answer is 207."""
    monkeypatch.setattr(members, "CALL_TIMEOUT_MS", 1500)
    async with member(broker, "c1", lambda command: None) as one:
        asking = asyncio.ensure_future(client.ask(RUNNING, register_info("c1")))
        await wait_until(lambda: one.count_pushed(RUNNING) == 1)

        await client.send_ok()
        assert len(await one.read(0)) == 1
        assert not asking.done()

        reply = await asking
        assert reply.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert (reply.remark or "").startswith(f"consumer <{GROUP}> <c1> Timeout: ")


async def test_disconnected_member_ends_the_call(broker: Broker, client: Dialogue) -> None:
    """Its connection closes during the call, and the administrator is answered at once."""
    async with member(broker, "c1", lambda command: None) as one:
        asking = asyncio.ensure_future(client.ask(RUNNING, register_info("c1")))
        await wait_until(lambda: one.count_pushed(RUNNING) == 1)

    async with asyncio.timeout(60):
        reply = await asking
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith(f"invoke consumer <{GROUP}> <c1> Exception: ")


async def test_reconnected_client_is_called_on_its_new_connection(broker: Broker, client: Dialogue) -> None:
    """The old connection may hang for two minutes."""
    async with (
        member(broker, "c1", lambda command: None) as old,
        member(broker, "c1", lambda command: command.reply(body=b"new")),
    ):
        assert (await client.ask(RUNNING, register_info("c1"))).body == b"new"
        assert not old.count_pushed(RUNNING)


@pytest.mark.verify
async def test_too_many_concurrent_calls_are_refused(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes memory until the member answers; a refused call can be repeated."""
    monkeypatch.setattr(members, "CALLS_MAX", 1)
    monkeypatch.setattr(members, "CALL_TIMEOUT_MS", 1500)
    async with member(broker, "c1", lambda command: None) as one:
        asking = asyncio.ensure_future(client.ask(RUNNING, register_info("c1")))
        await wait_until(lambda: one.count_pushed(RUNNING) == 1)

        assert (await client.ask(RUNNING, register_info("c1"))).code == ResponseCode.SYSTEM_BUSY
        assert (await asking).code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert (await client.ask(RUNNING, register_info("c1"))).code == ResponseCode.CONSUME_MSG_TIMEOUT


# ------- how far members are


def queue_key(queue_id: int) -> ObjectKey:
    return ObjectKey({"brokerName": "test-broker", "queueId": queue_id, "topic": TOPIC})


def answer_offset(offset: int) -> Callable[[Command], Command | None]:
    return lambda command: command.reply(body=dumps({"messageQueueTable": {queue_key(0): offset}}))


async def statuses(client: Dialogue, **fields: str) -> Any:
    document = await client.ask_json(STATUS, {"topic": TOPIC, "group": GROUP, **fields})
    assert document["messageQueueTable"] == {}
    return document["consumerTable"]


async def test_status_of_every_member_is_answered(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members without an answer, with an unreadable one or with an error are left out; all are called at once."""
    monkeypatch.setattr(members, "STATUS_TIMEOUT_MS", 1500)
    async with (
        member(broker, "c1", answer_offset(3)) as one,
        member(broker, "c2", answer_offset(5)),
        member(broker, "silent", lambda command: None),
        member(broker, "refuses", lambda command: command.reply(1, "no")),
        member(broker, "lies", lambda command: command.reply(body=b"[")),
    ):
        assert await statuses(client) == {"c1": {queue_key(0): 3}, "c2": {queue_key(0): 5}}
        assert find_request(one, ASKED_STATUS).ext == {"topic": TOPIC, "group": GROUP}


async def test_status_of_more_members_than_may_be_called_at_once_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are called one after the other; where other requests have used up the calls, members are left out."""
    monkeypatch.setattr(members, "STATUS_CALLS_MAX", 1)
    async with (
        running_broker(tmp_path) as broker,
        dialogue(broker) as client,
        member(broker, "c1", answer_offset(3)),
        member(broker, "c2", answer_offset(5)),
    ):
        assert await statuses(client) == {"c1": {queue_key(0): 3}, "c2": {queue_key(0): 5}}
        monkeypatch.setattr(members, "CALLS_MAX", 0)
        assert await statuses(client) == {}


async def test_status_of_a_single_member_can_be_requested(broker: Broker, client: Dialogue) -> None:
    """The client id selects it; an unknown id selects none."""
    async with member(broker, "c1", answer_offset(3)) as one, member(broker, "c2", answer_offset(5)):
        assert await statuses(client, clientAddr="c2") == {"c2": {queue_key(0): 5}}
        assert await statuses(client, clientAddr="c3") == {}
        assert not one.count_pushed(ASKED_STATUS)


async def test_status_of_a_group_without_members_is_refused(client: Dialogue) -> None:
    """RocketMQ fails for an unknown group; here it is answered like a group without members."""
    reply = await client.ask(STATUS, {"topic": TOPIC, "group": GROUP})

    assert (reply.code, reply.remark) == (1, f"No Any Consumer online in the consumer group: [{GROUP}]")
