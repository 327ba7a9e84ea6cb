"""Request and reply: a broker pushes replies to the requester, and answers the replier with the result."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.send import reply as reply_module
from gantry_remoting import Channel
from gantry_testing.local import (
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
    send_ext,
    wait_until,
)
from gantry_wire import Command
from gantry_wire.fastjson import dumps
from gantry_wire.properties import parse_properties

REPLIES = "TestCluster_REPLY_TOPIC"
REPLY, REPLY_V2, PUSH = 324, 325, 326
REQUESTER = "10.0.0.1@requester"
Answer = Callable[[Command], Command | None]


def accept_push(command: Command) -> Command:
    return command.reply()


class Requester:
    """A producer that records pushed requests, and answers them as configured."""

    def __init__(self, answer: Answer) -> None:
        self.pushed: list[Command] = []
        self._answer = answer

    def record_push(self, command: Command, channel: Channel) -> Command | None:
        self.pushed.append(command)
        return self._answer(command)


@asynccontextmanager
async def requester(broker: Broker, *, answer: Answer = accept_push, group: str = "askers") -> AsyncIterator[Requester]:
    """A client known to the broker as REQUESTER."""
    one = Requester(answer)
    channel = await Channel.connect(f"127.0.0.1:{broker.port}", on_request=one.record_push)
    beat = {"clientID": REQUESTER, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    assert (await channel.request(Command(code=34, body=dumps(beat)), 30_000)).code == 0
    try:
        yield one
    finally:
        await channel.close()


async def reply(client: Dialogue, body: bytes = b"an answer", *, code: int = REPLY_V2, **properties: str) -> Command:
    """Send a reply as Java's clients do; `properties` win."""
    pairs = {
        "UNIQ_KEY": UNIQUE_ID,
        "WAIT": "true",
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": REQUESTER,
        "TTL": "3000",
        **properties,
    }
    fields = {"topic": REPLIES, "properties": properties_text(**pairs)}
    # Code 324 has the long names of code 10.
    ext = send_ext(10 if code == REPLY else 310, **fields)
    return await client.ask(code, ext, body)


@pytest.mark.parametrize("code", [REPLY, REPLY_V2], ids=["long names", "one-letter names"])
async def test_reply_reaches_its_requester(broker: Broker, client: Dialogue, code: int) -> None:
    """The requester gets body, properties and origin by its client id, and the replier gets code 0 after that."""
    async with requester(broker) as asker:
        replier_answer = await reply(client, b"an answer", code=code, extra="mine")

        assert (replier_answer.code, replier_answer.remark) == (0, None)
        (push,) = asker.pushed
        properties = parse_properties(push.ext["properties"])
        assert (push.code, push.is_oneway, push.body) == (PUSH, False, b"an answer")
        assert (properties["CORRELATION_ID"], properties["extra"]) == ("c-1", "mine")
        assert int(properties["PUSH_REPLY_TIME"]) == int(push.ext["storeTimestamp"]) > 0
        assert push.ext["bornHost"].startswith("127.0.0.1:") and push.ext["storeHost"] == broker.settings.address
        wanted = {"producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "flag"}
        assert wanted | {"bornTimestamp"} <= push.ext.keys()


async def test_copy_of_a_reply_is_stored(broker: Broker, client: Dialogue) -> None:
    """The reply topic has a copy, and the answer its position; clients read msgId, queueId and queueOffset."""
    async with requester(broker):
        replier_answer = await reply(client)

    (stored,) = await client.read(topic=REPLIES)
    assert (stored.body, stored.properties["CORRELATION_ID"]) == (b"an answer", "c-1")
    assert replier_answer.ext["msgId"] == stored.offset_message_id
    assert (replier_answer.ext["queueId"], replier_answer.ext["queueOffset"]) == ("0", "0")
    assert replier_answer.ext["MSG_REGION"] == "DefaultRegion" and "PUSH_REPLY_TIME" not in stored.properties


async def test_no_copy_of_a_reply_is_stored_if_switched_off(tmp_path: Path) -> None:
    """With storeReplyMessageEnable=false nothing is stored, and the answer still has the fields that clients read."""
    async with running_broker(tmp_path, storeReplyMessageEnable="false") as broker, dialogue(broker) as client:
        async with requester(broker) as asker:
            replier_answer = await reply(client)

        assert (replier_answer.code, len(asker.pushed)) == (0, 1)
        assert (replier_answer.ext["msgId"], replier_answer.ext["queueId"], replier_answer.ext["queueOffset"]) == (
            "0",
            "0",
            "0",
        )
        assert broker.store.log.wrote == 0


async def test_missing_requester_is_answered_with_an_error(broker: Broker, client: Dialogue) -> None:
    """An unknown client id is answered with code 1 and named in the text. The copy is stored, as in RocketMQ."""
    replier_answer = await reply(client)

    assert replier_answer.code == 1
    assert replier_answer.remark == f"push reply message fail, channel of <{REQUESTER}> not found."
    assert len(await client.read(topic=REPLIES)) == 1


async def test_reply_without_a_requester_is_answered_with_an_error(client: Dialogue) -> None:
    """A reply without REPLY_TO_CLIENT cannot be pushed: code 1 names the missing property."""
    fields = {"topic": REPLIES, "properties": properties_text(UNIQ_KEY=UNIQUE_ID)}
    replier_answer = await client.ask(REPLY_V2, send_ext(310, **fields), b"an answer")

    assert (replier_answer.code, "REPLY_TO_CLIENT" in (replier_answer.remark or "")) == (1, True)


async def test_refusal_of_a_requester_is_answered(broker: Broker, client: Dialogue) -> None:
    """A requester that answers with an error has not received its reply: code 1 with its text."""
    async with requester(broker, answer=lambda command: command.reply(1, "process reply message fail")):
        replier_answer = await reply(client)

    assert (replier_answer.code, "process reply message fail" in (replier_answer.remark or "")) == (1, True)


async def test_silent_requester_delays_only_its_replier(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a requester does not answer, only its replier waits, until the timeout."""
    monkeypatch.setattr(reply_module, "PUSH_TIMEOUT_MS", 500)
    async with requester(broker, answer=lambda command: None) as asker:
        waiting = asyncio.ensure_future(reply(client))
        await wait_until(lambda: len(asker.pushed) == 1)

        assert (await client.send_ok(b"meanwhile"))["queueOffset"] == "0"
        assert not waiting.done()
        replier_answer = await waiting
        assert (replier_answer.code, "500 ms" in (replier_answer.remark or "")) == (1, True)


async def test_disconnected_requester_is_answered_at_once(broker: Broker, client: Dialogue) -> None:
    """A connection that closes while its answer is waited for ends the wait."""
    async with requester(broker, answer=lambda command: None) as asker:
        waiting = asyncio.ensure_future(reply(client))
        await wait_until(lambda: len(asker.pushed) == 1)

    replier_answer = await waiting
    assert (replier_answer.code, "was closed" in (replier_answer.remark or "")) == (1, True)


async def test_pending_replies_are_limited(broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit a reply is refused as busy and nothing of it is stored; below it there is room again."""
    monkeypatch.setattr(reply_module, "PUSH_BYTES_MAX", reply_module.PUSH_OVERHEAD_BYTES * 2)
    answers: list[Command] = []

    def late(command: Command) -> None:
        answers.append(command)

    async with requester(broker, answer=late) as asker:
        waiting = asyncio.ensure_future(reply(client))
        await wait_until(lambda: len(asker.pushed) == 1)
        before = broker.store.log.wrote
        busy = await reply(client)
        assert (busy.code, broker.store.log.wrote) == (2, before)
    assert (await waiting).code == 1

    async with requester(broker):
        assert (await reply(client)).code == 0


async def test_requester_is_known_until_its_last_group_is_removed(broker: Broker, client: Dialogue) -> None:
    """A client in two producer groups receives replies until it has left both, or until its connection closes."""
    async with requester(broker, group="one") as asker:
        registry = broker.core.clients
        (connection,) = registry.producers["one"]
        registry.producers.setdefault("two", {})[connection] = registry.producers["one"][connection]

        registry.unregister(connection, "one", None)
        assert (await reply(client)).code == 0
        registry.unregister(connection, "two", None)
        assert (await reply(client)).code == 1
    assert len(asker.pushed) == 1


async def test_newest_connection_of_a_requester_gets_the_reply(broker: Broker, client: Dialogue) -> None:
    """With two connections of a client the newer one gets the reply; when all have closed the client is unknown."""
    async with requester(broker) as older, requester(broker) as newest:
        assert (await reply(client)).code == 0
        assert (len(older.pushed), len(newest.pushed)) == (0, 1)
    async with requester(broker) as last:
        pass
    await wait_until(lambda: broker.core.clients.producers_by_id.get(REQUESTER) is None)
    assert not last.pushed and (await reply(client)).code == 1


async def test_reply_arrives_after_an_older_connection_has_closed(broker: Broker, client: Dialogue) -> None:
    """The end of a connection does not remove a client that has a newer one."""
    async with AsyncExitStack() as stack:
        older = await stack.enter_async_context(requester(broker))
        async with requester(broker) as newest:
            await stack.aclose()
            await wait_until(lambda: len(broker.core.clients.producers["askers"]) == 1)

            assert (await reply(client)).code == 0

            assert (len(older.pushed), len(newest.pushed)) == (0, 1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%GroupTest"}, 13),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16),
        ({"topic": "bad/../name"}, 29),
        ({"queueId": "7"}, 29),
        ({"batch": "true"}, 13),
        ({"properties": properties_text(REPLY_TO_CLIENT=REQUESTER, TRAN_MSG="true")}, 13),
        ({"properties": "REPLY_TO_CLIENT\x01a\x01b\x02"}, 13),
    ],
    ids=["retry topic", "system topic", "bad name", "bad queue", "batch", "transaction", "bad property"],
)
async def test_bad_reply_is_neither_pushed_nor_stored(
    broker: Broker, client: Dialogue, changes: dict[str, str], code: int
) -> None:
    """The checks of a send come first; a refused reply is not pushed."""
    fields = {"topic": REPLIES, "properties": properties_text(REPLY_TO_CLIENT=REQUESTER), **changes}
    async with requester(broker) as asker:
        replier_answer = await client.ask(REPLY_V2, send_ext(310, **fields), b"an answer")

    assert (replier_answer.code, asker.pushed, broker.store.log.wrote) == (code, [], 0)


async def test_oneway_reply_is_pushed_and_not_answered(broker: Broker, client: Dialogue) -> None:
    """A one-way reply is not answered; the requester gets its reply."""
    pairs = properties_text(UNIQ_KEY=UNIQUE_ID, REPLY_TO_CLIENT=REQUESTER, CORRELATION_ID="c-1")
    async with requester(broker) as asker:
        client.send_oneway(REPLY_V2, send_ext(310, topic=REPLIES, properties=pairs), b"an answer")
        await wait_until(lambda: len(asker.pushed) == 1)
        assert (await client.send_ok(topic=TOPIC))["queueOffset"] == "0"


# ------- traces


async def test_trace_topic_exists_if_configured(tmp_path: Path) -> None:
    """traceTopicEnable makes the topic, with one queue, known to name servers; traces are found by their keys."""
    async with running_broker(tmp_path, traceTopicEnable="true") as broker, dialogue(broker) as client:
        config = broker.core.topics.find("RMQ_SYS_TRACE_TOPIC")
        assert config is not None and (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
        assert "RMQ_SYS_TRACE_TOPIC" in broker.core.topics.document().topic_config_table

        traced = "AC11000100002A9F4B8C000000000001"
        properties = properties_text(UNIQ_KEY=UNIQUE_ID, KEYS=f"{traced} order-7")
        await client.send_ok(b"Pub\x01...", topic="RMQ_SYS_TRACE_TOPIC", properties=properties)
        for key in (traced, "order-7"):
            found = await client.ask(
                12, {"topic": "RMQ_SYS_TRACE_TOPIC", "key": key, "maxNum": "64", "beginTimestamp": "0",
                     "endTimestamp": str((1 << 63) - 1)},
            )  # fmt: skip
            assert found.code == 0 and b"Pub\x01..." in found.body


@pytest.mark.parametrize(
    ("conf", "name"),
    [({}, None), ({"traceTopicEnable": "true", "msgTraceTopicName": "traces"}, "traces")],
    ids=["by default none", "another name"],
)
async def test_trace_topic_has_the_configured_name(tmp_path: Path, conf: dict[str, str], name: str | None) -> None:
    """Without the switch there is none, as in RocketMQ; with another name that one belongs to the system."""
    async with running_broker(tmp_path, disk=None, clock=None, **conf) as broker:
        topics = broker.core.topics
        assert topics.find("RMQ_SYS_TRACE_TOPIC") is None
        assert name is None or (name in topics and topics.is_system(name))
