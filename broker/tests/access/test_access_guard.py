"""Access control over real sockets: requests without permission get code 16 before anything is stored.

S6 and S7 are rows of the fault catalogue (`faults/rows.py`). The groups of denied requests have twins: with access
control off the same requests are not denied, so it is the guard that denies them here.
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
    fill_topics,
    guarded_broker,
    protected_state,
    raw_dialogue,
    signed_dialogue,
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
        await fill_topics(one)
        yield one


@pytest.fixture
async def open_broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """The twin: the same broker without access control."""
    async with guarded_broker(tmp_path, aclEnable="false") as one:
        await fill_topics(one)
        yield one


def heartbeat_body(group: str, topic: str) -> bytes:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
    return dumps({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]})


# ------- authentication


async def test_signed_requests_of_an_account_are_served(broker: Broker) -> None:
    """S6: what the account is permitted works as without access control: send, pull, heartbeat, offsets."""
    async with signed_dialogue(broker, ORDERS) as client:
        for number in range(3):
            assert (await client.send_ok(b"more"))["queueOffset"] == str(number + 1)
        assert (await client.heartbeat("c")).code == 0
        assert [message.body for message in await client.read()] == [b"first", b"more", b"more", b"more"]
        offset = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
        assert (await client.ask(15, {**offset, "commitOffset": "2"})).code == 0
        assert (await client.ask(14, offset)).ext["offset"] == "2"


def unsigned(command: Command) -> None:
    """Leave the command without a signature."""


def with_empty_key(command: Command) -> None:
    command.ext = {**sign_v1(command.ext, command.body, ORDERS), "AccessKey": ""}


def with_empty_signature(command: Command) -> None:
    command.ext = sign_v1(command.ext, command.body, Credentials("orders-key", "x"))
    command.ext["Signature"] = ""


def with_another_field(command: Command) -> None:
    command.ext = {**sign_v1(command.ext, command.body, ORDERS), "unitMode" if command.code == 10 else "k": "false"}


def with_another_body(command: Command) -> None:
    command.ext = sign_v1(command.ext, command.body, ORDERS)
    command.body += b"!"


FAULTY_SIGNERS: dict[str, Any] = {
    "unsigned": unsigned,
    "signed with another's secret": signer(Credentials("orders-key", "billing-secret")),
    "unknown account": signer(Credentials("unknown-key", "orders-secret")),
    "empty access key": with_empty_key,
    "empty signature": with_empty_signature,
    "a field added afterwards": with_another_field,
    "the body changed afterwards": with_another_body,
    "strict with another's secret": signer(Credentials("orders-key", "billing-secret"), SignatureKind.STRICT),
}


@pytest.mark.parametrize("code", [10, 310, 320])
@pytest.mark.parametrize("sign", FAULTY_SIGNERS.values(), ids=FAULTY_SIGNERS.keys())
async def test_unauthenticated_send_is_denied_and_stores_nothing(broker: Broker, sign: Any, code: int) -> None:
    """S6: any fault of the authentication gives code 16, and neither message nor topic is created."""
    before = protected_state(broker)

    async with raw_dialogue(broker, sign) as client:
        for topic in (TOPIC, "MadeByASend"):
            reply = await client.send(code=code, topic=topic)
            assert reply.code == DENIED, reply.remark

    assert protected_state(broker) == before


@pytest.mark.parametrize("code", [10, 310])
async def test_unauthenticated_send_succeeds_without_guard(open_broker: Broker, code: int) -> None:
    """S6's twin: with access control off the same sends are stored and create topics."""
    before = protected_state(open_broker)

    async with raw_dialogue(open_broker, unsigned) as client:
        for topic in (TOPIC, "MadeByASend"):
            assert (await client.send(code=code, topic=topic)).code == 0

    assert protected_state(open_broker)[0] > before[0]
    assert "MadeByASend" in open_broker.core.topics.all


async def test_unknown_account_and_wrong_secret_give_the_same_reply(broker: Broker) -> None:
    """S6: a reply does not reveal which accounts exist."""
    texts = []
    for credentials in (Credentials("orders-key", "wrong-secret"), Credentials("unknown-key", "wrong-secret")):
        async with signed_dialogue(broker, credentials) as client:
            texts.append(((await client.send()).remark or "").replace(credentials.access_key, "KEY"))

    assert texts[0] == texts[1] != ""


async def test_fast_port_is_guarded(broker: Broker) -> None:
    """S6: both ports are behind the guard."""
    port = broker.settings.fast_listen_port

    async with dialogue(broker, port=port) as client:
        assert (await client.send()).code == DENIED
    async with signed_dialogue(broker, ORDERS, port=port) as client:
        assert (await client.send()).code == 0


async def test_denied_oneway_send_is_dropped(broker: Broker) -> None:
    """S6: there is no reply, and nothing is stored."""
    before = protected_state(broker)

    async with dialogue(broker) as client:
        client.send_oneway(310, send_ext(310), b"hello")
        assert (await client.send()).code == DENIED  # the first one is handled by then

    assert protected_state(broker) == before


async def test_sends_in_one_read_are_authorized_separately(broker: Broker) -> None:
    """S6: frames that arrive together are checked one by one, and each gets its own reply."""
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


# ------- authorization


OTHERS = {"consumerGroup": "BillingGroup", "topic": "Billing", "queueId": "0"}
FOREIGN_REQUESTS: list[tuple[str, int, dict[str, str], bytes]] = [
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
EACH_FOREIGN_REQUEST = pytest.mark.parametrize(
    ("code", "ext", "body"), [row[1:] for row in FOREIGN_REQUESTS], ids=[row[0] for row in FOREIGN_REQUESTS]
)


@EACH_FOREIGN_REQUEST
async def test_topics_and_groups_of_other_accounts_are_denied(
    broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6: a valid signature is not enough; the reply is 16, and no message, offset, group or topic changes."""
    before = protected_state(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        reply = await client.ask(code, ext, body)

    assert reply.code == DENIED, f"{reply.code}: {reply.remark}"
    assert protected_state(broker) == before
    assert broker.core.offsets.groups_of("Billing") == []


@EACH_FOREIGN_REQUEST
async def test_topics_and_groups_are_open_without_guard(
    open_broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6's twin: with access control off none of these is answered with 16."""
    async with dialogue(open_broker) as client:
        assert (await client.ask(code, ext, body)).code != DENIED


async def test_message_by_log_offset_needs_permission_for_its_topic(broker: Broker) -> None:
    """S6: codes 33 and 36 name an offset of the log; the topic of the message there decides."""
    own, others = offsets_of(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        back = {"group": GROUP, "delayLevel": "0", "originTopic": TOPIC}
        assert (await client.ask(33, {"offset": str(others), "topic": TOPIC})).code == DENIED
        before = protected_state(broker)
        assert (await client.ask(36, {**back, "offset": str(others)})).code == DENIED
        assert protected_state(broker) == before
        assert (await client.ask(33, {"offset": str(own)})).code == 0
        assert (await client.ask(36, {**back, "offset": str(own)})).code == 0


async def test_offset_beyond_log_end_is_denied(broker: Broker) -> None:
    """S6: the guard checks before the sends of this pass are appended, so an offset beyond the end is denied, too."""
    end = broker.core.store.log.wrote

    async with signed_dialogue(broker, ORDERS) as client, signed_dialogue(broker, ADMIN) as admin:
        send = asyncio.ensure_future(admin.send(b"secret", topic="Billing"))
        look = asyncio.ensure_future(client.ask(33, {"offset": str(end)}))
        assert (await look).code == DENIED
        assert (await send).code == 0
        assert (await admin.ask(33, {"offset": str(1 << 40)})).code == ResponseCode.SYSTEM_ERROR


async def test_query_by_key_returns_only_its_topic(broker: Broker) -> None:
    """S6: the index has hashes only, and a client can choose a key for its hash: the index finds the other record."""
    async with signed_dialogue(broker, ADMIN) as admin:
        keyed = properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="k")
        await admin.send_ok(b"of another topic", topic="Billing", properties=keyed)
    key, end = colliding_key(TOPIC, "Billing", "k"), 1 << 50

    async with signed_dialogue(broker, ORDERS) as client:
        query = {"topic": TOPIC, "key": key, "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(end)}
        assert (await client.ask(12, query)).code == ResponseCode.QUERY_NOT_FOUND
    assert len(broker.core.store.keys.records(TOPIC, key, 9, 0, end)[0]) == 1


def colliding_key(topic: str, other: str, key: str) -> str:
    """Return a key whose hash in `topic` is that of `key` in `other`: Java's hashes are numbers in base 31."""
    length, first = 7, ord("0")
    least = sum(first * 31**place for place in range(length))
    rest = (java_string_hash(f"{other}#{key}") - java_string_hash(f"{topic}#") * 31**length - least) % (1 << 32)
    characters = []
    for _ in range(length):
        rest, digit = divmod(rest, 31)
        characters.append(chr(first + digit))
    return "".join(reversed(characters))


async def test_message_by_log_offset_is_open_without_guard(open_broker: Broker) -> None:
    """S6's twin: with access control off any client reads and sends back any message."""
    _, others = offsets_of(open_broker)

    async with dialogue(open_broker) as client:
        assert (await client.ask(33, {"offset": str(others), "topic": TOPIC})).code == 0
        back = {"group": GROUP, "delayLevel": "0", "originTopic": TOPIC, "offset": str(others)}
        assert (await client.ask(36, back)).code == 0


def offsets_of(broker: Broker) -> tuple[int, int]:
    """Return the log offsets of the first messages of the two topics."""
    first = broker.core.store.guard.message_at(0)
    assert first is not None
    return 0, len(first)


async def test_delayed_message_belongs_to_its_topic(broker: Broker) -> None:
    """S6: while it waits in an internal topic, only accounts that may read its own topic find it by its id."""
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
async def test_administrative_requests_need_an_administrator(
    broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6: an account that may publish and consume is denied; an administrator is not."""
    before = protected_state(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        assert (await client.ask(code, ext, body)).code == DENIED
    assert protected_state(broker) == before

    async with signed_dialogue(broker, ADMIN) as admin:
        assert (await admin.ask(code, ext, body)).code != DENIED


@pytest.mark.parametrize("ext", [{}, {"rocketmqHome": "/tmp/x"}, {"brokerPermission": "4"}])
async def test_configuration_change_needs_an_administrator(broker: Broker, ext: dict[str, str]) -> None:
    """S7: code 25 from a user is denied for any key; so is an unknown code."""
    body = "".join(f"{key}={value}\n" for key, value in ext.items()).encode()

    async with signed_dialogue(broker, ORDERS) as client:
        for code in (RequestCode.UPDATE_BROKER_CONFIG, 9999):
            assert (await client.ask(code, {}, body)).code == DENIED


async def test_configuration_change_is_open_without_guard(open_broker: Broker) -> None:
    """S7's twin: with access control off any client changes the keys of the allow list, and no others."""
    async with dialogue(open_broker) as client:
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxBatchMessages=9\n")).code == 0
        assert open_broker.core.settings.batch_messages_max == 9
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"rocketmqHome=/tmp/x\n")).code == DENIED


@pytest.mark.parametrize(("code", "ext", "body"), FOR_ADMINISTRATORS, ids=[str(row[0]) for row in FOR_ADMINISTRATORS])
async def test_administrative_requests_are_open_without_guard(
    open_broker: Broker, code: int, ext: dict[str, str], body: bytes
) -> None:
    """S6's twin: with access control off none of these is answered with 16."""
    async with dialogue(open_broker) as client:
        assert (await client.ask(code, ext, body)).code != DENIED
