"""S6 of the catalogue over real sockets: whoever may not is told so with code 16, before anything is stored.

Each promise has its twin: the same request with access control off goes through, so what denies it is the guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_access import Credentials, SignatureKind, signer
from gantry_broker.app import Broker
from gantry_testing.accounts import (
    ADMIN,
    BILLING,
    ORDERS,
    fill,
    guarded_broker,
    raw_dialogue,
    signed_dialogue,
    state,
)
from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    dialogue,
    properties_text,
    pull_ext,
    send_ext,
)
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.fastjson import dumps
from gantry_wire.hashing import java_string_hash
from gantry_wire.signatures import sign_v1

DENIED = ResponseCode.NO_PERMISSION


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A guarded broker that has the topics of both accounts, with a message in each."""
    async with guarded_broker(tmp_path) as one:
        await fill(one)
        yield one


@pytest.fixture
async def open_broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """The twin: the same without access control."""
    async with guarded_broker(tmp_path, aclEnable="false") as one:
        await fill(one)
        yield one


def heartbeat_body(group: str, topic: str) -> bytes:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    return dumps({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]})


# ------- who


async def test_signed_requests_of_an_account_are_served(broker: Broker) -> None:
    """S6: what the account may do works as without access control: send, pull, heartbeat, offsets."""
    async with signed_dialogue(broker, ORDERS) as client:
        for number in range(3):
            assert (await client.send_ok(b"more"))["queueOffset"] == str(number + 1)
        assert (await client.heartbeat("c")).code == 0
        assert [message.body for message in await client.read()] == [b"first", b"more", b"more", b"more"]
        offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
        assert (await client.ask(15, {**offset, "commitOffset": "2"})).code == 0
        assert (await client.ask(14, offset)).ext["offset"] == "2"


def unsigned(command: Command) -> None:
    """Nothing is added."""


def with_empty_key(command: Command) -> None:
    command.ext = {**sign_v1(command.ext, command.body, ORDERS), "AccessKey": ""}


def with_empty_secret(command: Command) -> None:
    command.ext = sign_v1(command.ext, command.body, Credentials("orders-key", "x"))
    command.ext["Signature"] = ""


def with_another_field(command: Command) -> None:
    command.ext = {**sign_v1(command.ext, command.body, ORDERS), "unitMode" if command.code == 10 else "k": "false"}


def with_another_body(command: Command) -> None:
    command.ext = sign_v1(command.ext, command.body, ORDERS)
    command.body += b"!"


IMPOSTORS: dict[str, Any] = {
    "unsigned": unsigned,
    "signed with another's secret": signer(Credentials("orders-key", "billing-secret")),
    "unknown account": signer(Credentials("nobody-key", "orders-secret")),
    "empty access key": with_empty_key,
    "empty signature": with_empty_secret,
    "a field added afterwards": with_another_field,
    "the body changed afterwards": with_another_body,
    "strict with another's secret": signer(Credentials("orders-key", "billing-secret"), SignatureKind.STRICT),
}


@pytest.mark.parametrize("code", [10, 310, 320])
@pytest.mark.parametrize("sign", IMPOSTORS.values(), ids=IMPOSTORS.keys())
async def test_a_send_of_an_impostor_is_denied_and_leaves_nothing(broker: Broker, sign: Any, code: int) -> None:
    """S6: whatever is wrong with who sends, the answer is 16, and neither message nor topic came to be."""
    before = state(broker)

    async with raw_dialogue(broker, sign) as client:
        for topic in (TOPIC, "MadeByASend"):
            reply = await client.send(code=code, topic=topic)
            assert reply.code == DENIED, reply.remark

    assert state(broker) == before


@pytest.mark.parametrize("code", [10, 310])
async def test_without_the_guard_an_impostor_sends(open_broker: Broker, code: int) -> None:
    """S6's twin: with access control off the same sends are stored and make topics."""
    before = state(open_broker)

    async with raw_dialogue(open_broker, unsigned) as client:
        for topic in (TOPIC, "MadeByASend"):
            assert (await client.send(code=code, topic=topic)).code == 0

    assert state(open_broker)[0] > before[0]
    assert "MadeByASend" in open_broker.core.topics.all


async def test_an_unknown_account_and_a_wrong_secret_look_the_same(broker: Broker) -> None:
    """S6: nobody learns which accounts there are."""
    texts = []
    for credentials in (Credentials("orders-key", "wrong-secret"), Credentials("nobody-key", "wrong-secret")):
        async with signed_dialogue(broker, credentials) as client:
            texts.append(((await client.send()).remark or "").replace(credentials.access_key, "KEY"))

    assert texts[0] == texts[1] != ""


async def test_the_fast_port_asks_too(broker: Broker) -> None:
    """S6: both ports stand behind the guard."""
    port = broker.settings.fast_listen_port

    async with dialogue(broker, port=port) as client:
        assert (await client.send()).code == DENIED
    async with signed_dialogue(broker, ORDERS, port=port) as client:
        assert (await client.send()).code == 0


async def test_a_oneway_send_that_is_denied_is_dropped(broker: Broker) -> None:
    """S6: there is nobody to answer, and nothing is stored."""
    before = state(broker)

    async with dialogue(broker) as client:
        client.tell(310, send_ext(310), b"hello")
        assert (await client.send()).code == DENIED  # by then the first one was handled

    assert state(broker) == before


async def test_denied_and_permitted_sends_of_one_read_are_kept_apart(broker: Broker) -> None:
    """S6: frames that arrive together are judged one by one, and each gets its own answer."""
    ask = signer(ORDERS)
    assert ask is not None
    turn = iter(range(1_000))

    def every_second(command: Command) -> None:
        if next(turn) % 2 == 0:
            ask(command)

    async with raw_dialogue(broker, every_second) as client:
        commands = [Command(code=310, ext=send_ext(310), body=b"%d" % number) for number in range(20)]
        replies = await asyncio.gather(*(client.channel.request(command, 30_000) for command in commands))

    assert [reply.code for reply in replies] == [0, DENIED] * 10


# ------- what


OTHERS = {"consumerGroup": "BillingGroup", "topic": "Billing", "queueId": "0"}
CROSS: list[tuple[str, int, dict[str, str], bytes]] = [
    ("send 10 to another's topic", 10, send_ext(10, topic="Billing"), b"x"),
    ("send 310 to another's topic", 310, send_ext(310, topic="Billing"), b"x"),
    ("batch to another's topic", 320, send_ext(320, topic="Billing", batch="true"), b"x"),
    ("send to a new topic", 310, send_ext(310, topic="MadeByASend"), b"x"),
    ("send to another's retry topic", 310, send_ext(310, topic="%RETRY%BillingGroup"), b"x"),
    ("pull another's topic", 11, pull_ext(0, topic="Billing"), b""),
    ("pull as another's group", 11, pull_ext(0, consumerGroup="BillingGroup"), b""),
    ("pull another's retry topic", 11, pull_ext(0, topic="%RETRY%BillingGroup"), b""),
    ("lite pull of another's topic", 361, pull_ext(0, topic="Billing"), b""),
    ("query another's messages", 12,
     {"topic": "Billing", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}, b""),
    ("read another's offset", 14, OTHERS, b""),
    ("set another's offset", 15, {**OTHERS, "commitOffset": "9"}, b""),
    ("set an offset as a new group", 15, {**OTHERS, "consumerGroup": "New", "topic": TOPIC, "commitOffset": "9"}, b""),
    ("search another's queue", 29, {"topic": "Billing", "queueId": "0", "timestamp": "0"}, b""),
    ("end of another's queue", 30, {"topic": "Billing", "queueId": "0"}, b""),
    ("heartbeat as another's group", 34, {}, heartbeat_body("BillingGroup", TOPIC)),
    ("heartbeat as a new group", 34, {}, heartbeat_body("NewGroup", TOPIC)),
    ("heartbeat for another's topic", 34, {}, heartbeat_body(GROUP, "Billing")),
    ("members of another's group", 38, {"consumerGroup": "BillingGroup"}, b""),
    ("sign another's group off", 35, {"clientID": "c", "consumerGroup": "BillingGroup"}, b""),
    ("lock another's queue", 41, {}, dumps({"consumerGroup": "BillingGroup", "clientId": "c", "mqSet": []})),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext", "body"), [row[1:] for row in CROSS], ids=[row[0] for row in CROSS])
async def test_nobody_reaches_anothers_topic_or_group(
    broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6: a right signature is not enough; the answer is 16, and neither message, offset, group nor topic changed."""
    before = state(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        reply = await client.ask(code, ext, body)

    assert reply.code == DENIED, f"{reply.code}: {reply.remark}"
    assert state(broker) == before
    assert broker.core.offsets.groups_of("Billing") == []


@pytest.mark.parametrize(("code", "ext", "body"), [row[1:] for row in CROSS], ids=[row[0] for row in CROSS])
async def test_without_the_guard_anybody_reaches_them(
    open_broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6's twin: with access control off none of these is answered with 16."""
    async with dialogue(open_broker) as client:
        assert (await client.ask(code, ext, body)).code != DENIED


async def test_a_message_is_shown_and_moved_only_to_whoever_may_read_its_topic(broker: Broker) -> None:
    """S6: codes 33 and 36 name an offset of the log; what decides is the topic of the message there."""
    own, others = offsets_of(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        back = {"group": GROUP, "delayLevel": "0", "originTopic": TOPIC}
        assert (await client.ask(33, {"offset": str(others), "topic": TOPIC})).code == DENIED
        before = state(broker)
        assert (await client.ask(36, {**back, "offset": str(others)})).code == DENIED
        assert state(broker) == before
        assert (await client.ask(33, {"offset": str(own)})).code == 0
        assert (await client.ask(36, {**back, "offset": str(own)})).code == 0


async def test_nobody_looks_where_a_message_may_be_in_a_moment(broker: Broker) -> None:
    """S6: the guard looks before this turn's sends are appended, so an offset beyond the end is not free either."""
    end = broker.core.store.log.wrote

    async with signed_dialogue(broker, ORDERS) as client, signed_dialogue(broker, ADMIN) as admin:
        send = asyncio.ensure_future(admin.send(b"secret", topic="Billing"))
        look = asyncio.ensure_future(client.ask(33, {"offset": str(end)}))
        assert (await look).code == DENIED
        assert (await send).code == 0
        assert (await admin.ask(33, {"offset": str(1 << 40)})).code == ResponseCode.SYSTEM_ERROR


async def test_a_query_finds_nothing_of_another_topic(broker: Broker) -> None:
    """S6: the index knows hashes only, and whoever asks chooses the key, and so the hash. The twin is the index."""
    async with signed_dialogue(broker, ADMIN) as admin:
        keyed = properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="k")
        await admin.send_ok(b"of another topic", topic="Billing", properties=keyed)
    key, end = colliding_key(TOPIC, "Billing", "k"), 1 << 50

    async with signed_dialogue(broker, ORDERS) as client:
        query = {"topic": TOPIC, "key": key, "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(end)}
        assert (await client.ask(12, query)).code == ResponseCode.QUERY_NOT_FOUND
    assert len(broker.core.store.keys.records(TOPIC, key, 9, 0, end)[0]) == 1


def colliding_key(topic: str, other: str, key: str) -> str:
    """A key that has in `topic` the hash that `key` has in `other`: Java's hashes are numbers in base 31."""
    length, first = 7, ord("0")
    least = sum(first * 31**place for place in range(length))
    rest = (java_string_hash(f"{other}#{key}") - java_string_hash(f"{topic}#") * 31**length - least) % (1 << 32)
    characters = []
    for _ in range(length):
        rest, digit = divmod(rest, 31)
        characters.append(chr(first + digit))
    return "".join(reversed(characters))


async def test_without_the_guard_a_message_goes_to_whoever_asks(open_broker: Broker) -> None:
    """S6's twin."""
    _, others = offsets_of(open_broker)

    async with dialogue(open_broker) as client:
        assert (await client.ask(33, {"offset": str(others), "topic": TOPIC})).code == 0
        back = {"group": GROUP, "delayLevel": "0", "originTopic": TOPIC, "offset": str(others)}
        assert (await client.ask(36, back)).code == 0


def offsets_of(broker: Broker) -> tuple[int, int]:
    """Where the first messages of the two topics lie in the log."""
    first = broker.core.store.guard.message_at(0)
    assert first is not None
    return 0, len(first)


async def test_a_delayed_message_is_its_topics(broker: Broker) -> None:
    """S6: while it waits it lies in a topic of the broker's own; by its id only its topic's readers find it."""
    offset = broker.core.store.log.wrote
    async with signed_dialogue(broker, ADMIN) as admin:
        delayed = properties_text(DELAY="18")
        await admin.send_ok(b"later", topic="Billing", properties=delayed)

    async with signed_dialogue(broker, BILLING) as owner, signed_dialogue(broker, ORDERS) as other:
        assert (await owner.ask(33, {"offset": str(offset)})).code == 0
        assert (await other.ask(33, {"offset": str(offset)})).code == DENIED
        for client in (owner, other):
            assert (await client.ask(11, pull_ext(0, topic="SCHEDULE_TOPIC_XXXX", queueId="17"))).code == DENIED


FOR_ADMINISTRATORS = [
    (17, {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
          "topicFilterType": "SINGLE_TAG", "order": "false"}, b""),
    (215, {"topic": TOPIC}, b""),
    (200, {}, dumps({"groupName": "New"})),
    (207, {"groupName": GROUP}, b""),
    (21, {}, b""), (43, {}, b""), (45, {}, b""), (201, {}, b""), (26, {}, b""), (28, {}, b""), (204, {}, b""),
    (329, {}, b""), (306, {}, b""),
]  # fmt: skip


@pytest.mark.parametrize(("code", "ext", "body"), FOR_ADMINISTRATORS, ids=[str(row[0]) for row in FOR_ADMINISTRATORS])
async def test_administration_is_for_administrators(
    broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6: whoever may publish and consume may not administer; an administrator is not denied."""
    before = state(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        assert (await client.ask(code, ext, body)).code == DENIED
    assert state(broker) == before

    async with signed_dialogue(broker, ADMIN) as admin:
        assert (await admin.ask(code, ext, body)).code != DENIED


@pytest.mark.parametrize("ext", [{}, {"rocketmqHome": "/tmp/x"}, {"brokerPermission": "4"}])
async def test_the_configuration_is_changed_by_administrators_only(broker: Broker, ext: dict[str, str]) -> None:
    """S7: code 25 from a user is denied, whatever it asks for; so is a code that nobody knows."""
    body = "".join(f"{key}={value}\n" for key, value in ext.items()).encode()

    async with signed_dialogue(broker, ORDERS) as client:
        for code in (RequestCode.UPDATE_BROKER_CONFIG, 9999):
            assert (await client.ask(code, {}, body)).code == DENIED


async def test_without_the_guard_anybody_changes_it(open_broker: Broker) -> None:
    """S7's twin: with access control off whoever asks changes what is on the list; the list itself guards the rest."""
    async with dialogue(open_broker) as client:
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxBatchMessages=9\n")).code == 0
        assert open_broker.core.settings.batch_messages_max == 9
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"rocketmqHome=/tmp/x\n")).code == DENIED


@pytest.mark.parametrize(("code", "ext", "body"), FOR_ADMINISTRATORS, ids=[str(row[0]) for row in FOR_ADMINISTRATORS])
async def test_without_the_guard_anybody_administers(
    open_broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6's twin: with access control off none of these is answered with 16."""
    async with dialogue(open_broker) as client:
        assert (await client.ask(code, ext, body)).code != DENIED
