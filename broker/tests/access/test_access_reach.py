"""Row S6 of the fault catalogue (`faults/rows.py`), for attackers with an account.

They send ambiguous requests and forged records, and try to end transactions or take replies of others. Some tests have
a twin, in which the protection is removed and the attack succeeds.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantry_access import Credentials, SignatureKind, signer
from gantry_broker.app import Broker
from gantry_broker.server.core import access
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
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    RawPeer,
    dialogue,
    properties_text,
    pull_ext,
    send_ext,
    wait_until,
)
from gantry_wire import Command, RequestCode, ResponseCode, decode_command
from gantry_wire.fastjson import dumps
from gantry_wire.frame import Serialization
from gantry_wire.message import decode_record, encode_record
from gantry_wire.signatures import sign_v1

DENIED = ResponseCode.NO_PERMISSION
SECRET = b"for accounts of billing only"
EARLY_CHECKS: dict[str, Any] = {"transactionTimeOut": "100", "transactionCheckInterval": "200"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A guarded broker that has the topics of both accounts, with a message in each."""
    async with guarded_broker(tmp_path) as one:
        await fill_topics(one)
        yield one


# ------- ambiguous frames


async def send_raw(broker: Broker, header: str, body: bytes = b"") -> Command:
    """Send a header exactly as written, with its duplicates."""
    peer = await RawPeer.open(broker.port)
    try:
        data = header.encode()
        await peer.send(struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body)
        return decode_command(await peer.frame())
    finally:
        await peer.close()


@pytest.mark.parametrize("topics", [("Billing", TOPIC), (TOPIC, "Billing")], ids=["own last", "foreign last"])
@pytest.mark.parametrize("code", [10, 310, 320])
async def test_duplicate_field_is_read_as_one_value(broker: Broker, code: int, topics: tuple[str, str]) -> None:
    """S6: guard and handler use the same of two values: a permitted send is stored in the permitted topic."""
    name = "topic" if code == 10 else "b"
    signed = sign_v1(send_ext(code, topic=topics[1], **({"batch": "true"} if code == 320 else {})), b"twice", ORDERS)
    fields = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in signed.items() if key != name)
    both = ", ".join(f'"{name}": "{topic}"' for topic in topics)
    before = broker.core.store.log.wrote

    reply = await send_raw(broker, f'{{"code":{code},"opaque":7,"extFields":{{{both}, {fields}}}}}', b"twice")

    assert (reply.code == DENIED) == (topics[1] == "Billing"), reply.remark
    record = broker.core.store.guard.message_at(before)
    assert (None if record is None else decode_record(record).topic) in (None, TOPIC)
    assert (record is not None) == (code != 320 and topics[1] == TOPIC)


async def test_duplicate_code_is_read_as_one_code(broker: Broker) -> None:
    """S6: v1 does not sign the code; whichever of two is used, neither gives administrator rights."""
    before = protected_state(broker)
    ext = sign_v1({"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
                   "perm": "6", "topicFilterType": "SINGLE_TAG"}, b"", ORDERS)  # fmt: skip

    for codes in ('"code":310,"code":17', '"code":17,"code":310'):
        reply = await send_raw(broker, f'{{{codes},"opaque":7,"extFields":{json.dumps(ext)}}}')
        assert reply.code in (DENIED, ResponseCode.SYSTEM_ERROR)

    assert protected_state(broker) == before


@pytest.mark.parametrize("topic", [TOPIC, "Billing"])
@pytest.mark.parametrize("credentials", [ORDERS, None], ids=["signed", "unsigned"])
async def test_binary_header_is_authorized_like_json(
    broker: Broker, topic: str, credentials: Credentials | None
) -> None:
    """S6: the serialization makes no difference for sends and pulls."""
    expected = 0 if credentials is not None and topic == TOPIC else DENIED
    peer = await RawPeer.open(broker.port)
    sign = signer(credentials)
    for command in (
        Command(code=310, ext=send_ext(310, topic=topic), body=b"x"),
        Command(code=11, ext=pull_ext(0, topic=topic)),
    ):
        if sign is not None:
            sign(command)
        await peer.send(command.encode(Serialization.ROCKETMQ))
        assert decode_command(await peer.frame()).code == expected
    await peer.close()


@pytest.mark.parametrize("topic", ["", "ТopicTest", "TopicTest\u200b", "TopicTest\0", " TopicTest", "topictest"])
async def test_similar_topic_name_is_a_different_topic(broker: Broker, topic: str) -> None:
    """S6: names are compared exactly; an empty one is missing. Nothing is stored, for any code."""
    before = protected_state(broker)

    async with signed_dialogue(broker, ORDERS) as client:
        for code in (10, 310, 320):
            assert (await client.send(code=code, topic=topic)).code in (DENIED, ResponseCode.SYSTEM_ERROR)
        assert (await client.ask(11, pull_ext(0, topic=topic))).code in (DENIED, ResponseCode.SYSTEM_ERROR)

    assert protected_state(broker) == before


# ------- forged records


async def store_misleading_record(client: Dialogue, broker: Broker) -> int:
    """Send a message whose body begins a forged record over the next 32 KiB; return its offset."""
    await client.send_ok(b"where am I")
    end = broker.core.store.log.wrote
    pattern = decode_record(broker.core.store.guard.message_at(first_log_offset(broker)) or b"")
    prelude = record_start(pattern.size, len(pattern.body), len(pattern.properties_bytes))
    made_up = msgspec.structs.replace(
        pattern, physical_offset=end + prelude, properties_bytes=b"x" * 32_760, body=b"", body_crc=0
    )
    head = encode_record(made_up)[: -len(made_up.properties_bytes)]
    await client.send_ok(head)
    return end + prelude


def first_log_offset(broker: Broker) -> int:
    queue = broker.core.store.queues.get(TOPIC, 0)
    unit = None if queue is None else queue.unit(0)
    assert unit is not None
    return unit[0]


def record_start(size: int, body: int, properties: int) -> int:
    """Return the position of the body in a record: after everything but body, topic and properties."""
    return size - body - properties - 2 - len(TOPIC) - 1


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
async def test_forged_record_does_not_expose_other_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """S6: a body may contain the forged head of a record that extends over messages of other accounts.

    Without the check of the queue, the twin, such a record is valid by all its lengths and checksums.
    """
    if not is_guarded:
        monkeypatch.setattr(access, "is_in_its_queue", lambda store, message, offset: True)
    async with signed_dialogue(broker, ORDERS) as client, signed_dialogue(broker, ADMIN) as admin:
        offset = await store_misleading_record(client, broker)
        for _ in range(400):
            await admin.send_ok(SECRET, topic="Billing")
        reply = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})

    assert (SECRET in reply.body) is not is_guarded
    assert reply.code == (DENIED if is_guarded else 0), reply.remark


# ------- transactions


async def prepare(client: Dialogue, topic: str, body: bytes) -> dict[str, str]:
    """Send a half message of the group "producers"."""
    text = properties_text(UNIQ_KEY=UNIQUE_ID, TRAN_MSG="true", PGROUP="producers")
    now = str(int(time.time() * 1000))
    return await client.send_ok(body, topic=topic, properties=text, bornTimestamp=now, sysFlag="4")


def end_ext(half: dict[str, str], **fields: str) -> dict[str, str]:
    return {
        "producerGroup": "producers",
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        **fields,
    }


async def test_send_to_half_message_topics_is_denied(broker: Broker) -> None:
    """S6: half messages are sent to their own topic; sends to internal topics are refused, even to administrators."""
    before = protected_state(broker)
    for credentials in (ORDERS, ADMIN):
        async with signed_dialogue(broker, credentials) as client:
            for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
                for code in (10, 310, 320):
                    assert (await client.send(code=code, topic=topic)).code == DENIED
    assert protected_state(broker) == before


@pytest.mark.parametrize("how", ["8", "12"], ids=["commit", "roll back"])
async def test_transaction_of_another_account_cannot_be_ended(broker: Broker, how: str) -> None:
    """S6: neither by the offset of the half message nor by that of an own message; its producer still can."""
    async with signed_dialogue(broker, ORDERS) as client, signed_dialogue(broker, ADMIN) as admin:
        own = await prepare(client, TOPIC, b"own")
        half = await prepare(admin, "Billing", b"of another")
        before = protected_state(broker)
        assert (await client.ask(37, end_ext(half, commitOrRollback=how))).code == DENIED
        mine = str(int(own["msgId"][16:], 16))
        crossed = await client.ask(37, end_ext(half, commitOrRollback=how, commitLogOffset=mine))
        assert crossed.code == ResponseCode.SYSTEM_ERROR and "offset wrong" in (crossed.remark or "")
        assert protected_state(broker) == before and len(broker.transactions.journal.halves) == 2
        assert (await admin.ask(37, end_ext(half, commitOrRollback=how))).code == 0
        asked = await client.ask(37, end_ext(half, commitOrRollback=how, commitLogOffset=mine))
        assert asked.code == ResponseCode.SYSTEM_ERROR  # nor does it receive the outcome of that transaction
        assert (await client.ask(37, end_ext(own, commitOrRollback=how))).code == 0


async def test_transaction_can_be_ended_without_guard(tmp_path: Path) -> None:
    """S6's twin: with access control off any client ends any transaction."""
    async with guarded_broker(tmp_path, aclEnable="false") as one, dialogue(one) as client:
        half = await prepare(client, "Billing", b"of another")
        assert (await client.ask(37, end_ext(half))).code == 0


def heartbeat_body(client_id: str = "c") -> bytes:
    return dumps({"clientID": client_id, "producerDataSet": [{"groupName": "producers"}], "consumerDataSet": []})


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
async def test_transaction_checks_go_only_to_permitted_producers(tmp_path: Path, is_guarded: bool) -> None:
    """S6: any client may claim a producer group, and a check contains the whole message."""
    on: dict[str, Any] = {"aclEnable": "true" if is_guarded else "false"}
    async with (
        guarded_broker(tmp_path, **on, **EARLY_CHECKS) as one,
        signed_dialogue(one, BILLING) as stranger,
        signed_dialogue(one, ORDERS) as producer,
        signed_dialogue(one, ADMIN) as admin,
    ):
        await admin.send_ok()
        assert (await stranger.ask(34, body=heartbeat_body("s"))).code == 0
        await prepare(producer, TOPIC, SECRET)
        if is_guarded:
            assert (await producer.ask(34, body=heartbeat_body("p"))).code == 0
            await wait_until(lambda: producer.count_pushed(39) > 1)
        else:
            await wait_until(lambda: stranger.count_pushed(39) > 0)

        assert (stranger.count_pushed(39) > 0) is not is_guarded


# ------- replies


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
async def test_replies_of_another_account_cannot_be_taken(tmp_path: Path, is_guarded: bool) -> None:
    """S6: replies go to a client id, which any client may claim; while in use, only its account may take it over."""
    on: dict[str, Any] = {"aclEnable": "true" if is_guarded else "false"}
    async with (
        guarded_broker(tmp_path, **on) as one,
        signed_dialogue(one, BILLING) as stranger,
        signed_dialogue(one, ORDERS) as requester,
        signed_dialogue(one, ORDERS) as again,
    ):
        assert (await requester.ask(34, body=heartbeat_body("requester"))).code == 0
        owner = one.core.clients.producers_by_id.get("requester")
        for client_id in ("requester", "another", "requester"):
            assert (await stranger.ask(34, body=heartbeat_body(client_id))).code == 0
        assert (one.core.clients.producers_by_id.get("requester") is owner) is is_guarded
        if is_guarded:
            assert (await again.ask(34, body=heartbeat_body("requester"))).code == 0
            assert one.core.clients.producers_by_id.get("requester") not in (owner, None)


# ------- identity


async def test_strict_mode_accepts_strictly_signed_administration(tmp_path: Path) -> None:
    """S6: in strict mode a v1 signature of an administrator is denied; the same request, signed strictly, works."""
    async with guarded_broker(tmp_path, aclMode="STRICT") as one:
        body = dumps({"groupName": "New"})
        async with signed_dialogue(one, ADMIN) as weak:
            assert (await weak.ask(200, body=body)).code == DENIED
        assert "New" not in one.core.groups.all
        async with signed_dialogue(one, ADMIN, SignatureKind.STRICT) as strong:
            assert (await strong.ask(200, body=body)).code == 0
        assert "New" in one.core.groups.all


async def test_concurrent_signatures_are_not_mixed_up(broker: Broker) -> None:
    """S6: requests of several accounts that arrive together on separate connections are authenticated separately."""
    async with (
        signed_dialogue(broker, ORDERS) as orders,
        signed_dialogue(broker, ADMIN) as admin,
        raw_dialogue(broker, None) as anonymous,
    ):
        asked = [one.ask(200, body=dumps({"groupName": "New"})) for one in (orders, admin, anonymous) * 5]
        codes = [reply.code for reply in await asyncio.gather(*asked)]

    assert codes == [DENIED, 0, DENIED] * 5
