"""Requests of pop consumption are checked in RocketMQ's order; forged receipts have no effect."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gantry_broker.server.pop.handlers import HeldPop, PopHandlers
from gantry_broker.server.pop.modes import allocate_averagely, allocate_by_circle
from gantry_broker.server.pop.requests import INVISIBLE_MS_MAX
from gantry_client.pop import make_batch_ack
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_testing.popping import Popped, ack, ack_ext, pop, pop_ext, pop_nothing, send
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.documents import write_document
from gantry_wire.message import decode_records

SIZES = [*range(1, 5), 7, 16]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic[unknown] not exist"),
        ({"queueId": 4096}, ResponseCode.INVALID_PARAMETER, "queueId[4096] is illegal"),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER, "greater than 32"),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER, "at least 1"),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER, "invisibleTime 0 is illegal"),
        ({"invisibleTime": -5}, ResponseCode.INVALID_PARAMETER, "expected 1 to"),
        ({"invisibleTime": INVISIBLE_MS_MAX + 1}, ResponseCode.INVALID_PARAMETER, "3 days"),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "does not exist"),
        ({"consumerGroup": "g" * 250}, ResponseCode.INVALID_PARAMETER, "retry topic"),
        ({"exp": "a >", "expType": "SQL92"}, ResponseCode.SYSTEM_ERROR, "does not support"),
        ({"exp": "||", "expType": "TAG"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "forbidden"),
    ],
)
async def test_invalid_pop_is_refused(tmp_path: Path, fields: dict[str, object], code: int, text: str) -> None:
    """Each invalid pop has RocketMQ's code, and a text that names the value; nothing is popped."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(**fields))
        assert (reply.code, text in (reply.remark or "")) == (code, True), reply.remark
        assert broker.pops.journal.state.inflight_count == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": 99}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 7}, ResponseCode.NO_MESSAGE),
        ({"offset": -1}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": "nonsense"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 2 3"}, ResponseCode.SYSTEM_ERROR),
        ({"extraInfo": "0 1 2 0 9 test-broker 0 0"}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "thieves"}, ResponseCode.SUCCESS),
        ({"queueId": 1, "offset": 0}, ResponseCode.SUCCESS),
        ({"offset": 2}, ResponseCode.SUCCESS),
    ],
)
async def test_forged_ack_changes_nothing(tmp_path: Path, fields: dict[str, object], code: int) -> None:
    """An ack of another group, queue or offset has RocketMQ's code, and the message stays unacked."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        await send(peer, b"2", queue_id=1)
        [receipt, *_] = (await pop(peer, queueId=0)).receipts
        await send(peer, b"3", b"4")
        reply = await ack(peer, receipt, **fields)
        assert reply.code == code, reply.remark
        assert broker.pops.journal.state.inflight_count == 1
        for forged in (
            receipt._replace(broker_name="other"),
            receipt._replace(pop_time_ms=1),
            receipt._replace(start_offset=1),
        ):
            assert (await ack(peer, receipt, extraInfo=forged.text)).code == ResponseCode.SUCCESS
            change = ack_ext(receipt, extraInfo=forged.text, invisibleTime=1000)
            assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == ResponseCode.NO_MESSAGE
        assert broker.pops.journal.state.inflight_count == 1


@pytest.mark.parametrize("invisible_ms", [-1, INVISIBLE_MS_MAX + 1])
async def test_invalid_change_is_refused(tmp_path: Path, invisible_ms: int) -> None:
    """A negative invisible time, or one of more than three days, is refused; 0 makes the message visible at once."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        [receipt] = (await pop(peer)).receipts
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        reply = await peer.ask(code, ack_ext(receipt, invisibleTime=invisible_ms))
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert (await peer.ask(code, ack_ext(receipt, invisibleTime=0))).code == ResponseCode.SUCCESS
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        assert (await pop(peer)).bodies == [b"1"]


async def test_invalid_batches_of_acks_are_refused(tmp_path: Path) -> None:
    """A batch without acks, with an unknown flag or too many bits is refused; unknown queues are ignored."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        [receipt] = (await pop(peer)).receipts
        code = RequestCode.BATCH_ACK_MESSAGE
        assert (await peer.ask(code)).code == ResponseCode.NO_MESSAGE
        assert (await peer.ask(code, {}, b'{"acks":[]}')).code == ResponseCode.NO_MESSAGE
        assert (await peer.ask(code, {}, b"[")).code == ResponseCode.SYSTEM_ERROR
        body = make_batch_ack(TOPIC, GROUP, [receipt.text])
        [entry] = body.acks
        for change, expected in (
            ({"retry": "7"}, ResponseCode.SYSTEM_ERROR),
            ({"bit_set": b"\x01" * (1 << 18)}, ResponseCode.INVALID_PARAMETER),
            ({"topic": "unknown"}, ResponseCode.SUCCESS),
            ({"queue_id": 77}, ResponseCode.SUCCESS),
            ({"bit_set": b""}, ResponseCode.SUCCESS),
            ({"bit_set": b"\xfe\xff"}, ResponseCode.SUCCESS),
        ):
            saved = {name: getattr(entry, name) for name in change}
            for name, value in change.items():
                setattr(entry, name, value)
            assert (await peer.ask(code, {}, write_document(body))).code == expected, change
            for name, value in saved.items():
                setattr(entry, name, value)
            assert broker.pops.journal.state.inflight_count == 1
        body.acks = [entry] * 1025
        assert (await peer.ask(code, {}, write_document(body))).code == ResponseCode.INVALID_PARAMETER


async def test_batch_queue_topic_cannot_be_popped(tmp_path: Path) -> None:
    """A topic whose batches RocketMQ stores as one record is refused, with the reason."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        broker.core.topics.put(TopicConfig(topic_name="batches", attributes={"queue.type": "BatchCQ"}))
        reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(topic="batches"))
        assert (reply.code, "consume it by pulling" in (reply.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        assert broker.pops.journal.state.queues == {}


async def test_peek_shows_messages_and_claims_none(tmp_path: Path) -> None:
    """A peek returns the messages of the next pop; an empty queue is answered with code 19."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "32"}
        for _ in range(2):
            reply = await peer.ask(RequestCode.PEEK_MESSAGE, ext)
            assert [message.body for message in decode_records(reply.body)] == [b"1", b"2"]
        assert (await pop(peer)).bodies == [b"1", b"2"]
        assert (await peer.ask(RequestCode.PEEK_MESSAGE, ext)).code == ResponseCode.PULL_NOT_FOUND
        refused = await peer.ask(RequestCode.PEEK_MESSAGE, {**ext, "maxMsgNums": "65"})
        assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_notification_waits_for_messages(tmp_path: Path) -> None:
    """A notification is answered when a pop would find something, and at its deadline."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer, dialogue(broker) as producer:
        await send(producer, b"0")
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "pollTime": "0", "bornTime": "0"}
        assert (await peer.ask(RequestCode.NOTIFICATION, ext)).ext["hasMsg"] == "true"
        await pop(peer)
        assert (await peer.ask(RequestCode.NOTIFICATION, ext)).ext["hasMsg"] == "false"
        waiting = asyncio.ensure_future(peer.ask(RequestCode.NOTIFICATION, {**ext, "pollTime": "60000"}))
        await wait_until(lambda: broker.pulls.hold.count == 1)
        await send(producer, b"1")
        reply = await waiting
        assert (reply.ext["hasMsg"], reply.ext["pollingFull"]) == ("true", "false")


async def test_polls_are_counted_and_limited(tmp_path: Path) -> None:
    """Waiting pops are counted by group and queue; without room a pop is answered with code 209."""
    async with (
        running_broker(tmp_path, pullThreadPoolQueueCapacity="2") as broker,
        dialogue(broker) as peer,
        dialogue(broker) as other,
    ):
        await send(other, b"0")
        await pop(other)
        polls = [asyncio.ensure_future(peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000))) for _ in range(2)]
        await wait_until(lambda: broker.pulls.hold.count == 2)
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"}
        assert (await other.ask(RequestCode.POLLING_INFO, ext)).ext["pollingNum"] == "2"
        assert (await other.ask(RequestCode.POLLING_INFO, {**ext, "consumerGroup": "else"})).ext["pollingNum"] == "0"
        full = await other.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000))
        assert full.code == ResponseCode.POLLING_FULL
        notified = {**ext, "pollTime": "60000", "bornTime": "0"}
        assert (await other.ask(RequestCode.NOTIFICATION, notified)).ext["pollingFull"] == "true"
        await send(other, b"1")
        await wait_until(lambda: any(poll.done() for poll in polls))
        [done] = [poll for poll in polls if poll.done()]
        assert Popped(await done).bodies == [b"1"]
        await send(other, b"2")
        await asyncio.gather(*polls)


async def test_pop_ends_at_its_deadline_and_at_a_stop(tmp_path: Path) -> None:
    """A held pop is answered with code 210 when its time is over, and when the broker stops."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0")
        await pop(peer)
        await pop_nothing(peer, pollTime=50)
        waiting = asyncio.ensure_future(pop_nothing(peer, pollTime=60_000))
        await wait_until(lambda: broker.pulls.hold.count == 1)
        broker.pulls.hold.stop()
        await waiting


async def test_slave_and_fast_port_refuse_pops(tmp_path: Path) -> None:
    """A broker that is not the master answers 14, and the fast port does not know the requests that may be held."""
    async with running_broker(tmp_path) as broker:
        fast = next(one.port for one in broker.listeners.opened if one.port != broker.port)
        async with dialogue(broker, port=fast) as peer, dialogue(broker) as main:
            await send(main, b"0")
            for code in (RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION):
                reply = await peer.ask(code, pop_ext())
                assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            [receipt] = (await pop(main)).receipts
            broker.core.gate.refuse_changes("this broker is a slave")
            for code, ext in (
                (RequestCode.POP_MESSAGE, pop_ext()),
                (RequestCode.ACK_MESSAGE, ack_ext(receipt)),
                (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ack_ext(receipt, invisibleTime=1)),
                (RequestCode.BATCH_ACK_MESSAGE, {}),
            ):
                assert (await main.ask(code, ext)).code == ResponseCode.SERVICE_NOT_AVAILABLE, code
            broker.core.gate.accept_all()


async def test_clients_cannot_write_checkpoints(tmp_path: Path) -> None:
    """A send to the topic of checkpoints is refused: a forged ack would make messages disappear."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        await pop(peer)
        reply = await peer.send(b"{}", topic=broker.pops.journal.topic)
        assert reply.code == ResponseCode.NO_PERMISSION


# ------- modes and assignments


async def set_mode(peer: Dialogue, **fields: object) -> int:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, **fields}
    return (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode())).code


async def assignment(peer: Dialogue, client_id: str, **fields: object) -> object:
    body = {
        "topic": TOPIC, "consumerGroup": GROUP, "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING", **fields,
    }  # fmt: skip
    return await peer.ask_json(RequestCode.QUERY_ASSIGNMENT, {}, body)


def rows(answer: object) -> list[tuple[str, int]]:
    assert isinstance(answer, dict)
    return [(one["mode"], one["messageQueue"]["queueId"]) for one in answer["messageQueueAssignments"]]


async def test_mode_decides_how_queues_are_assigned(tmp_path: Path) -> None:
    """Members that pull share the queues; with pop each gets any queue, or its own and those of its neighbours."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer, dialogue(broker) as other:
        await send(peer, b"1")
        assert await assignment(peer, "a") == {}, "a group without members is not assigned anything"
        await peer.heartbeat("a", group=GROUP)
        await other.heartbeat("b", group=GROUP)
        count = broker.core.topics.all[TOPIC].read_queue_nums
        half = count // 2
        assert rows(await assignment(peer, "a")) == [("PULL", number) for number in range(half)]
        assert rows(await assignment(peer, "b")) == [("PULL", number) for number in range(half, count)]
        assert await assignment(peer, "a", strategyName="MINE") == {}
        assert await set_mode(peer) == 0
        assert rows(await assignment(peer, "a")) == [("POP", -1)]
        assert await peer.ask_json(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE) == {
            "messageRequestModeMap": {
                TOPIC: {GROUP: {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}}
            }
        }
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await peer.heartbeat("a", group=GROUP)
        assert rows(await assignment(peer, "a")) == [("POP", -1)], "the mode is kept over a restart"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_invalid_mode_is_refused(tmp_path: Path, fields: dict[str, object], code: int) -> None:
    """A mode of a retry topic, an unknown topic or an unknown mode is refused."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        assert await set_mode(peer, **fields) == code


@pytest.mark.parametrize("members", SIZES)
@pytest.mark.parametrize("queues", SIZES)
def test_each_queue_has_one_member(members: int, queues: int) -> None:
    """Both strategies give each queue to exactly one member, and no member has two more than another."""
    every = [MessageQueue(topic="t", broker_name="b", queue_id=number) for number in range(queues)]
    names = [f"c{number}" for number in range(members)]
    for allocate in (allocate_averagely, allocate_by_circle):
        shares = [allocate(name, every, names) for name in names]
        assert sorted(one.queue_id for share in shares for one in share) == list(range(queues))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert allocate("stranger", every, names) == []


async def test_acks_and_messages_retry_only_pops_that_may_be_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 held pops of a group, an ack retries none, and a message one."""
    retried: list[HeldPop] = []
    attempt = PopHandlers.attempt_pop

    def count(self: PopHandlers, held: HeldPop, must_answer: bool) -> Command | None:
        retried.append(held)
        return attempt(self, held, must_answer)

    async with running_broker(tmp_path) as broker, dialogue(broker) as peer, dialogue(broker) as waiting:
        await send(peer, b"1", b"2")
        receipts = (await pop(peer)).receipts
        pops = [
            asyncio.ensure_future(waiting.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000, maxMsgNums=1)))
            for _ in range(50)
        ]
        await wait_until(lambda: broker.pulls.hold.count == 50)
        monkeypatch.setattr(PopHandlers, "attempt_pop", count)
        assert (await ack(peer, receipts[0])).code == 0
        assert (await ack(peer, receipts[1])).code == 0
        assert retried == []
        await send(peer, b"3")
        await wait_until(lambda: broker.pulls.hold.count == 49)
        assert len(retried) == 1
        monkeypatch.undo()
        await send(peer, *(b"%d" % n for n in range(49)))
        bodies = [Popped(reply).bodies[0] for reply in await asyncio.gather(*pops)]
        assert sorted(bodies) == sorted([b"3", *(b"%d" % n for n in range(49))])
