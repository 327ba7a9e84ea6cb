"""`gantry message describe`: what became of a message in each group, and why, with a real broker and real groups."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from admin_scene import Child, broker_process
from click.testing import CliRunner, Result

from gantry_cli.main import cli
from gantry_cli.messages.places import parse_place
from gantry_client import (
    ConsumerSettings,
    Message,
    NoRoute,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendReceipt,
    StartFrom,
)
from gantry_testing.loop_thread import LoopThread
from gantry_testing.ports import free_ports
from gantry_testing.tree import ROOT

FIRST = ConsumerSettings(start_from=StartFrom.FIRST)
LONG_LEVEL = 18


class Shop:
    """Three orders in one queue, and groups that have done different things with the second one."""

    def __init__(self, name_server: str, receipts: list[SendReceipt]) -> None:
        self.name_server = name_server
        self.places = [f"orders/{one.queue.broker_name}/{one.queue.queue_id}@{one.queue_offset}" for one in receipts]
        self.ids = [one.message_id for one in receipts]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A broker without property filters; `paid` and `stopped` keep their consumers, the other groups have none."""
    folder = tmp_path_factory.mktemp("message")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server = Child("gantry_nameserver", ["--listen", address, "--data", str(folder / "ns")], "name server listening")
    try:
        with broker_process(folder / "store", namesrvAddr=address, brokerName="orders-0"), LoopThread("shop") as loop:
            context = groups_of_shop(address)
            receipts = loop.run(context.__aenter__())
            yield Shop(address, receipts)
            loop.run(context.__aexit__(None, None, None))
    finally:
        server.end()


@asynccontextmanager
async def groups_of_shop(address: str) -> AsyncIterator[list[SendReceipt]]:
    """Send the orders, have all groups consume, and keep two of them connected during the context."""
    seen: dict[str, list[int]] = {name: [] for name in ("billing", "audit", "later", "steady", "stopped")}

    changed = asyncio.Condition()

    async def until(predicate: Callable[[], bool]) -> None:
        async with changed:
            await changed.wait_for(predicate)

    def consumer(group: str) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            async with changed:
                seen[group].append(message.reconsume_times)
                changed.notify_all()
            if message.properties.get("number") == "1":
                if group == "billing":
                    raise RetryLater(-1)
                if group == "later":
                    raise RetryLater(LONG_LEVEL)
                if group == "audit" and message.reconsume_times == 0:
                    raise RetryLater(1)

        return PushConsumer(address, group, topics="orders", handler=handle, settings=FIRST)

    async with AsyncExitStack() as stack, asyncio.timeout(120):
        async with Producer(address, "shop") as producer:
            receipts = [await send(producer, 0, None)]
            async with consumer("stopped"):
                await until(lambda: len(seen["stopped"]) == 1)
            receipts += [await send(producer, number, receipts[0]) for number in (1, 2)]
        paid = PushConsumer(address, "paid", topics={"orders": "paid"}, handler=ignore, settings=FIRST)
        await stack.enter_async_context(paid)
        async with consumer("billing"), consumer("later"), consumer("audit"), consumer("steady"):
            await until(lambda: [len(seen[name]) for name in seen] == [3, 4, 3, 3, 1])
        yield receipts


async def ignore(message: ReceivedMessage) -> None:
    return


async def send(producer: Producer, number: int, first: SendReceipt | None) -> SendReceipt:
    """Send an order to the queue of the first one, as soon as the broker has registered."""
    message = Message("orders", b"order %d" % number, tags="new", properties={"number": str(number)})
    while True:
        with suppress(NoRoute):
            return await producer.send(message, queue=None if first is None else first.queue)
        await asyncio.sleep(0.02)


def gantry(shop: Shop, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "-n", shop.name_server])


def described(shop: Shop, *which: str) -> dict[str, Any]:
    done = gantry(shop, "message", "describe", *which, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_group_has_an_outcome_and_its_reason(shop: Shop) -> None:
    """Dead letter, a retry that succeeded, one that waits, a filter, a delivery without a failure, and none yet."""
    document = described(shop, shop.places[1])
    groups = {one["group"]: one for one in document["groups"]}

    assert {name: one["outcome"] for name, one in groups.items()} == {
        "audit": "consumed", "billing": "dead letter", "later": "retrying", "paid": "left out", "steady": "consumed",
        "stopped": "waiting",
    }  # fmt: skip
    assert groups["stopped"]["why"] == "it is next; no consumer is connected"
    assert groups["paid"]["why"] == "the filter of the group does not accept it: TAG paid"
    assert (groups["paid"]["members"], groups["paid"]["is_accepted"]) == (1, False)
    assert groups["audit"]["why"] == "1 failed delivery, and then none"
    assert "no failed delivery is known" in groups["steady"]["why"]
    assert groups["billing"]["copies"][0]["topic"] == "%DLQ%billing"
    assert groups["later"]["copies"][0]["topic"] == "SCHEDULE_TOPIC_XXXX"
    assert "it waits for its delay; no consumer is connected" in groups["later"]["why"]
    assert document["message"]["properties"]["number"] == "1" and document["sent_again"] == []


def test_message_without_failures_has_no_copies(shop: Shop) -> None:
    """The twin: the neighbour of the failed message was consumed by all groups whose filter accepts it."""
    groups = described(shop, shop.places[2])["groups"]

    assert {one["group"]: one["outcome"] for one in groups} == {
        "audit": "consumed", "billing": "consumed", "later": "consumed", "paid": "left out", "steady": "consumed",
        "stopped": "waiting",
    }  # fmt: skip
    assert [one["why"] for one in groups if one["group"] == "stopped"] == [
        "1 message before it; no consumer is connected"
    ]
    assert all(one["copies"] == [] for one in groups)


def test_id_and_place_name_the_same_message(shop: Shop) -> None:
    """The id of the producer and of the broker need the topic; tables show the message and a next command."""
    by_place = described(shop, shop.places[1])

    assert described(shop, shop.ids[1], "--topic", "orders") == by_place
    assert described(shop, by_place["message"]["offset_message_id"], "--topic", "orders") == by_place
    screen = gantry(shop, "message", "describe", shop.places[1]).stdout
    assert "number = 1" in screen and "UNIQ_KEY" not in screen and "order 1" in screen
    assert f"gantry message resend {shop.places[1]} -n {shop.name_server}" in screen


def test_dead_letter_stands_for_its_original(shop: Shop) -> None:
    """The place of a copy, which another command printed, leads to the message that was sent."""
    by_place = described(shop, shop.places[1])
    [letter] = next(one["copies"] for one in by_place["groups"] if one["group"] == "billing")
    place = f"{letter['topic']}/{letter['broker']}/{letter['queue_id']}@{letter['queue_offset']}"

    assert described(shop, place) == by_place


def test_search_leads_to_the_description_without_a_property_filter_of_the_broker(shop: Shop) -> None:
    """This broker refuses SQL92, so the command filters; the next command is that of the first hit."""
    done = gantry(shop, "search", "orders", "--sql", "number = '1'", "--format", "{offset}")

    assert done.stdout.strip() == shop.places[1].rpartition("@")[2]
    assert f"gantry message describe {shop.places[1]} -n {shop.name_server}" in done.stderr
    assert "scanned 3 of 3 messages" in done.stderr


def test_message_that_was_sent_again_is_named(shop: Shop) -> None:
    """A resend has the same id, so the description of the first one names the place of the second."""
    assert gantry(shop, "message", "resend", shop.places[0]).exit_code == 0

    [again] = described(shop, shop.places[0])["sent_again"]
    assert parse_place(again).topic == "orders" and again != shop.places[0]
    assert described(shop, again)["sent_again"] == []


@pytest.mark.parametrize(
    ("words", "exit_code", "part"),
    [
        (("orders/orders-0/0@999999",), 3, "no message at orders/orders-0/0@999999"),
        (("orders/orders-0/77@0",), 3, "has no queue 77"),
        (("0" * 32, "--topic", "orders"), 3, "no message with the id"),
        (("orders",), 2, "an ID needs --topic"),
        (("orders/orders-0/0@1", "--topic", "orders"), 2, "--topic is for an ID"),
        (("orders/orders-0/x@1",), 2, "expected TOPIC/BROKER/QUEUE@OFFSET"),
    ],
)
def test_message_that_is_not_there_is_an_error_with_a_remedy(
    shop: Shop, words: tuple[str, ...], exit_code: int, part: str
) -> None:
    """Unknown places and ids exit with 3, and invalid ones with 2."""
    done = gantry(shop, "message", "describe", *words)

    assert (done.exit_code, part in done.stderr) == (exit_code, True), done.stderr


def test_lost_order_is_found_explained_and_sent_again_with_three_commands(shop: Shop) -> None:
    """Each command after the first is the one that the command before printed."""
    found = gantry(shop, "search", "orders", "--sql", "number = '2'")
    described_by = found.stderr.splitlines()[-1].partition(": gantry ")[2]
    explained = CliRunner().invoke(cli, shlex.split(described_by))
    assert "the filter of the group does not accept it" in explained.stdout
    sent_by = explained.stdout.splitlines()[-1].partition(": gantry ")[2]
    sent = CliRunner().invoke(cli, shlex.split(sent_by))

    assert (sent.exit_code, sent.output) == (0, "sent to orders: 1\n")
    assert "in a terminal: 3 commands" in (ROOT / "docs/search.md").read_text()
