"""Acks that arrive in one turn of the event loop are one request, and each call has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from proxy_world import ADDRESS, FakeBrokers, World, receipt_of
from test_proxy_processes import Sdk, cluster, running_proxy

from gantry_client.errors import Unavailable
from gantry_proxy import ack_batches
from gantry_proxy.handlers.acknowledging import begin_ack
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.translation.handles import read_receipt
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.pop import BatchAckMessages

BILLING, ORDERS = pb.Resource(name="billing"), pb.Resource(name="orders")
ACK, BATCH = RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE
ORDERED = receipt_of(6).replace(" 3 0 ", " 999 0 ")
"""A receipt of an ordered group, whose acks may be refused one by one."""


async def connected() -> World:
    one = World(FakeBrokers(is_connected=True, masters={"broker-a": ADDRESS, "broker-b": "10.0.0.2:10911"}))
    await one.topics.get("orders")
    return one


async def acked(one: World, *receipts: str) -> list[list[pb.AckMessageResponse]]:
    """Acknowledge each message by a call of its own, all in one turn; return the replies of each call."""
    finished: list[list[pb.AckMessageResponse]] = [[] for _ in receipts]
    for receipt, replies in zip(receipts, finished, strict=True):
        entry = pb.AckMessageEntry(message_id="id", receipt_handle=receipt)
        request = pb.AckMessageRequest(group=BILLING, topic=ORDERS, entries=[entry])
        assert begin_ack(one.core, one.context(), request, replies.append)
    assert one.brokers.begun == []
    await asyncio.sleep(0)
    return finished


def codes(one: World) -> list[int]:
    return [command.code for _, command, _, _ in one.brokers.begun]


def statuses(replies: list[list[pb.AckMessageResponse]]) -> list[Any]:
    return [reply.entries[0].status.code for [reply] in replies]


def bits(command: Command) -> list[tuple[int, str, int]]:
    """Return start offset, retry flag and bits of each checkpoint in a batch."""
    document = read_document(command.body, BatchAckMessages)
    return [(ack.start_offset, ack.retry, int.from_bytes(ack.bit_set, "little")) for ack in document.acks]


async def test_acks_of_one_turn_are_one_request() -> None:
    """Messages of one pop share an entry with their bits, and every call is answered by the one reply."""
    one = await connected()
    starts = [receipt_of(number).replace(f"{number} ", "5 ", 1) for number in (5, 6, 9)]
    replies = await acked(one, *starts, receipt_of(20), receipt_of(30).replace(" 3 0 ", " 3 1 "))

    [(address, command, _, on_outcome)] = one.brokers.begun
    assert (address, command.code) == (ADDRESS, BATCH)
    assert bits(command) == [(5, "0", 0b10011), (20, "0", 1), (30, "1", 1)]
    assert read_document(command.body, BatchAckMessages).broker_name == "broker-a"
    assert replies == [[]] * 5
    on_outcome(Command(code=ResponseCode.SUCCESS))
    assert statuses(replies) == [pb.OK] * 5


async def test_ack_of_another_turn_is_another_request() -> None:
    one = await connected()
    await acked(one, receipt_of(1), receipt_of(2))
    begun, one.brokers.begun = one.brokers.begun, []
    await acked(one, receipt_of(3))

    assert ([command.code for _, command, _, _ in begun], codes(one)) == ([BATCH], [ACK])


async def test_each_broker_gets_its_own_acks() -> None:
    one = await connected()
    await acked(one, *(receipt_of(number, broker=name) for number in (1, 2) for name in ("broker-a", "broker-b")))

    assert [(address, command.code) for address, command, _, _ in one.brokers.begun] == [
        (ADDRESS, BATCH), ("10.0.0.2:10911", BATCH),
    ]  # fmt: skip


@pytest.mark.parametrize("distance", [-1, ack_batches.DISTANCE_MAX])
async def test_ack_with_an_answer_of_its_own_is_sent_alone(distance: int) -> None:
    """Acks of ordered groups may be refused, and a receipt with an impossible distance is the broker's to judge."""
    one = await connected()
    far = receipt_of(7 + distance).replace(f"{7 + distance} ", "7 ", 1)
    await acked(one, receipt_of(1), ORDERED, receipt_of(2), far)

    assert codes(one) == [ACK, ACK, BATCH]
    assert bits(one.brokers.begun[-1][1]) == [(1, "0", 1), (2, "0", 1)]


async def test_refused_batch_is_repeated_one_by_one() -> None:
    """Each call gets the answer to its own ack, such as from a broker that knows no batches."""
    one = await connected()
    replies = await acked(one, receipt_of(1), receipt_of(2))
    one.brokers.begun.pop()[3](Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    assert codes(one) == [ACK, ACK]
    first, second = (on_outcome for _, _, _, on_outcome in one.brokers.begun)
    first(Command(code=ResponseCode.NO_MESSAGE))
    second(Command(code=ResponseCode.SUCCESS))

    assert [status == pb.OK for status in statuses(replies)] == [False, True]


async def test_lost_connection_fails_every_ack_of_a_batch() -> None:
    """Whether the broker has them is unknown: the SDKs repeat them. Lost before the request begins, it is the same."""
    one = await connected()
    replies = await acked(one, receipt_of(1), receipt_of(2))
    one.brokers.begun.pop()[3](Unavailable("lost"))
    later = [[], []]  # type: list[list[pb.AckMessageResponse]]
    for receipt, finished in zip((receipt_of(3), receipt_of(4)), later, strict=True):
        entry = pb.AckMessageEntry(message_id="id", receipt_handle=receipt)
        request = pb.AckMessageRequest(group=BILLING, topic=ORDERS, entries=[entry])
        assert begin_ack(one.core, one.context(), request, finished.append)
    one.brokers.is_connected = False
    await asyncio.sleep(0)

    assert statuses(replies) == [pb.HA_NOT_AVAILABLE] * 2
    assert statuses(later) == [pb.HA_NOT_AVAILABLE] * 2


async def test_call_that_fails_does_not_take_the_others_with_it() -> None:
    """Every ack of a batch gets its outcome, also after one whose call has an error."""
    brokers = FakeBrokers(is_connected=True)
    batches, outcomes = ack_batches.AckBatches(brokers), list[object]()

    def fail(_: object) -> None:
        raise AssertionError("an error in a call")

    for number, on_outcome in enumerate((fail, outcomes.append)):
        receipt = read_receipt(receipt_of(number), now_ms=0)
        ack = ack_batches.PendingAck("orders", "billing", receipt.receipt, receipt.text, on_outcome)
        assert batches.begin(ADDRESS, ack)
    await asyncio.sleep(0)
    reply = Command(code=ResponseCode.SUCCESS)
    brokers.begun[0][3](reply)

    assert outcomes == [reply]


async def test_large_turn_is_several_requests() -> None:
    one = await connected()
    await acked(one, *(receipt_of(number) for number in range(2 * ack_batches.ACKS_MAX + 1)))

    counts = [sum(mask.bit_count() for *_, mask in bits(command)) for _, command, _, _ in one.brokers.begun]
    assert counts == [ack_batches.ACKS_MAX, ack_batches.ACKS_MAX, 1]


async def test_batched_acks_are_final_at_a_broker(tmp_path: Path) -> None:
    """Messages that are acknowledged at once by many calls through a real broker are never delivered again."""
    limits = {"pollMsMin": 100, "invisibleMsMin": 1_000}
    async with cluster(tmp_path) as address, running_proxy(tmp_path / "a", address, limits=limits) as proxy:
        sdk = Sdk(proxy)
        await sdk.receive(0, auto_renew=False)
        await asyncio.gather(*(sdk.send(number) for number in range(60)))
        found = {one.body: one for one in await sdk.receive(60, auto_renew=False, invisible_s=4)}
        kept = [found.pop(f"body {number}".encode()) for number in (7, 50)]
        replies = await asyncio.gather(*(sdk.ack([one]) for one in found.values()))
        again: set[bytes] = set()
        async for body in until(sdk, {one.body for one in kept}):
            again.add(body)

    assert {reply.entries[0].status.code for reply in replies} == {pb.OK}
    assert again == {one.body for one in kept}


async def until(sdk: Sdk, wanted: set[bytes]) -> AsyncIterator[bytes]:
    """Receive until these bodies have come, and then what else there is."""
    seen: set[bytes] = set()
    while not wanted <= seen:
        for one in await sdk.receive(1, auto_renew=False, invisible_s=60):
            seen.add(one.body)
            yield one.body
    for one in await sdk.receive(0, auto_renew=False, invisible_s=60):
        yield one.body
