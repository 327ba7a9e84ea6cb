"""The progress of a message through its consumer groups, its copies for redelivery, its trace, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_scene import TOKEN, SidecarChild, broker_process, sidecar_process, wait_for
from console_scene import Group, console_group

from gantry_admin import message_progress
from gantry_admin.inventory import make_inventory
from gantry_admin.message_progress import progress_of
from gantry_admin.message_trace import trace_steps
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles, queue_messages
from gantry_client import ConsumerSettings, Message, Producer, PushConsumer, ReceivedMessage, RetryLater, StartFrom
from gantry_testing.local import TOPIC
from gantry_wire.message import StoredMessage
from gantry_wire.names import TRACE_TOPIC, dead_letter_topic, retry_topic

FIRST = ConsumerSettings(start_from=StartFrom.FIRST)
CONF = {"brokerRole": "ASYNC_MASTER", "traceTopicEnable": "true"}
SENT = 3


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A broker with three orders: `billing` gives each up, `audit` retries each once, `stopped` has taken only one."""
    with console_group(tmp_path_factory.mktemp("progress"), members=1, conf=CONF) as started:
        asyncio.run(asyncio.wait_for(consume_orders(started.name_server), 120))
        wait_for(lambda: bool(progress(started, 0).get("groups")), "the offsets are known")
        yield started


async def consume_orders(name_server: str) -> None:
    """Send orders to one queue, and consume them in three groups."""
    done: dict[str, list[int]] = {"audit": [], "stopped": []}

    async def give_up(message: ReceivedMessage) -> None:
        raise RetryLater(-1)

    async def retry_once(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            raise RetryLater(1)
        done["audit"].append(message.queue_offset)

    async def take(message: ReceivedMessage) -> None:
        done["stopped"].append(message.queue_offset)

    def consumer(name: str, handler: Any) -> PushConsumer:
        return PushConsumer(name_server, name, topics="orders", handler=handler, settings=FIRST)

    async with Producer(name_server, "shop") as producer:
        first = await producer.send(Message("orders", b"order 0"))
        async with consumer("stopped", take):
            while not done["stopped"]:  # noqa: ASYNC110 - it comes from another process
                await asyncio.sleep(0.05)
        for number in range(1, SENT):
            await producer.send(Message("orders", f"order {number}".encode()), queue=first.queue)
        async with consumer("billing", give_up), consumer("audit", retry_once):
            while len(done["audit"]) < SENT:  # noqa: ASYNC110 - it comes from another process
                await asyncio.sleep(0.05)


def orders(group: Group) -> list[dict[str, Any]]:
    """Return the stored orders, the oldest first."""
    found: list[dict[str, Any]] = group.sidecars[0].get("/v1/topics/orders/messages", token=TOKEN).json()["messages"]
    return found[::-1]


def progress(group: Group, number: int) -> dict[str, Any]:
    """Return the progress of one of the orders."""
    order = orders(group)[number]
    path = f"/v1/queues/orders/{order['queue_id']}/{order['queue_offset']}/progress"
    found: dict[str, Any] = group.sidecars[0].get(path, token=TOKEN).json()
    return found


def of_group(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next((one for one in document.get("groups", []) if one["group"] == name), {})
    return found


def test_progress_tells_passed_waiting_retried_and_dead_apart(group: Group) -> None:
    """A group that gave the message up has passed it, too; its dead letter shows that the handler failed."""
    wait_for(lambda: len(of_group(progress(group, 2), "billing").get("dead_letters", [])) == 1, "it is given up")
    wait_for(lambda: len(of_group(progress(group, 2), "audit").get("retries", [])) == 1, "its retry can be read")
    wait_for(lambda: of_group(progress(group, 2), "audit").get("state") == "passed", "the offset is committed")
    document = progress(group, 2)
    billing, audit, stopped = (of_group(document, name) for name in ("billing", "audit", "stopped"))
    order = orders(group)[2]

    assert (billing["state"], billing["waiting_before"], billing["is_search_complete"]) == ("passed", None, True)
    assert [copy["topic"] for copy in billing["dead_letters"]] == [dead_letter_topic("billing")]
    assert [(copy["topic"], copy["reconsume_times"]) for copy in audit["retries"]] == [(retry_topic("audit"), 1)]
    assert audit["dead_letters"] == []
    assert (stopped["state"], stopped["consumed"], stopped["waiting_before"]) == ("waiting", 1, 1)
    assert (document["topic"], document["queue_offset"]) == ("orders", order["queue_offset"])
    assert of_group(progress(group, 0), "stopped")["state"] == "passed"


async def test_present_consumers_and_their_filter_are_known(group: Group) -> None:
    """How many consumers of a group are connected, and whether their filter accepts the message."""

    async def take(message: ReceivedMessage) -> None:
        return

    def reading_in(name: str) -> Any:
        return of_group(progress(group, 1), name).get("reading")

    async with PushConsumer(
        group.name_server, "filtered", topics={"orders": "paid || sent"}, handler=take, settings=FIRST
    ):
        expected = {"clients": 1, "filter": "TAG paid || sent", "is_accepted": False}
        await asyncio.to_thread(wait_for, lambda: reading_in("filtered") == expected, "the filter is known")
        assert reading_in("stopped") == {"clients": 0, "filter": None, "is_accepted": None}


def test_copy_leads_to_its_original(group: Group) -> None:
    """The dead letter names the broker's id and the topic of the message that it is a copy of."""
    wait_for(lambda: len(of_group(progress(group, 1), "billing").get("dead_letters", [])) == 1, "it is given up")
    [copy] = of_group(progress(group, 1), "billing")["dead_letters"]
    path = f"/v1/queues/{copy['topic'].replace('%', '%25')}/{copy['queue_id']}/messages?from={copy['queue_offset']}"
    [letter] = group.sidecars[0].get(path, token=TOKEN).json()["messages"][:1]

    assert letter["properties"]["ORIGIN_MESSAGE_ID"] == orders(group)[1]["offset_message_id"]
    assert letter["properties"]["RETRY_TOPIC"] == "orders"


def test_queue_without_messages_is_empty(group: Group) -> None:
    """A queue that has no files because it never had a message is no unknown queue."""
    sidecar, used = group.sidecars[0], orders(group)[0]["queue_id"]
    answers = [sidecar.get(f"/v1/topics/orders/messages?queue_id={(used + 1) % 4}", token=TOKEN) for _ in range(2)]

    assert [(one.status_code, one.json()["messages"], one.json()["older"]) for one in answers] == [(200, [], None)] * 2
    assert sidecar.get("/v1/topics/orders/messages?queue_id=9", token=TOKEN).status_code == 404


def test_unknown_message_has_no_progress(group: Group) -> None:
    """416 beyond the end of the queue, 404 for an unknown queue, 401 without a token that may read."""
    sidecar = group.sidecars[0]
    queue_id = orders(group)[0]["queue_id"]

    assert sidecar.get(f"/v1/queues/orders/{queue_id}/999/progress", token=TOKEN).status_code == 416
    assert sidecar.get("/v1/queues/orders/99/0/progress", token=TOKEN).status_code == 404
    assert sidecar.get(f"/v1/queues/orders/{queue_id}/x/progress", token=TOKEN).status_code == 422


def stored_orders(group: Group) -> tuple[StoreFiles, Span, list[StoredMessage]]:
    """Return the files of the broker, their readable part, and the orders in it."""
    files, span = StoreFiles(group.brokers[0].store), Span(0, group.brokers[0].log_end)
    return files, span, list(queue_messages(files, span, "orders", orders(group)[0]["queue_id"], 0, 10).messages)


def test_search_for_copies_is_bounded_and_its_bound_is_reported(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound of one message for each topic, the second copy is not found, and the answer is not complete."""
    wait_for(lambda: len(of_group(progress(group, 2), "billing").get("dead_letters", [])) == 1, "all are given up")
    files, span, messages = stored_orders(group)
    inventory = make_inventory({}, {"billing"}, {"orders@billing": {messages[1].queue_id: 3}}, {}, 0)
    whole = progress_of(files, span, inventory, messages[1]).groups[0]
    monkeypatch.setattr(message_progress, "SEARCHED_MAX", 2)
    bounded = progress_of(files, span, inventory, messages[0]).groups[0]

    assert (len(whole.dead_letters), whole.is_search_complete) == (1, True)
    assert bounded.is_search_complete is False
    assert (bounded.state, bounded.consumed) == ("passed", 3)


# -- traces ------------------------------------------------------------------------------------------------------------


def trace_body(message_id: str, other_id: str) -> bytes:
    """Return a body as RocketMQ's clients 5.1 send it: a send, a delivery, its end, and a send of another message."""
    fields = (
        ("Pub", "1700000000000", "DefaultRegion", "shop", "orders", message_id, "created", "order-7", "10.0.0.1:10911",
         "7", "12", "0", "0A00", "true", "10.0.0.9"),
        ("SubBefore", "1700000000500", "DefaultRegion", "billing", "request-1", message_id, "2", "order-7"),
        ("SubAfter", "request-1", message_id, "31", "false", "order-7", "1", "1700000000531", "billing"),
        ("Pub", "1700000000000", "DefaultRegion", "shop", "orders", other_id, "", "", "", "7", "12", "0", "", "true"),
    )  # fmt: skip
    return b"".join("\x01".join(one).encode() + b"\x02" for one in fields)


def test_trace_of_a_message_is_shown_if_clients_send_one(group: Group) -> None:
    """The broker's index has traces by the message's id: what was sent, delivered and consumed, when and how."""
    order = orders(group)[0]
    assert progress(group, 0)["trace"] == {"state": "none", "reason": None, "steps": []}

    async def send() -> None:
        async with Producer(group.name_server, "tracer") as producer:
            body = trace_body(order["message_id"], "another")
            await producer.send(Message(TRACE_TOPIC, body, keys=[order["message_id"]]))

    asyncio.run(asyncio.wait_for(send(), 60))
    wait_for(lambda: progress(group, 0)["trace"]["state"] == "found", "the index has the trace")
    sent, delivered, consumed = progress(group, 0)["trace"]["steps"]

    assert (sent["step"], sent["group"], sent["client_host"], sent["cost_ms"]) == ("sent", "shop", "10.0.0.9", 12)
    assert (sent["is_success"], sent["wall_ms"]) == (True, 1_700_000_000_000)
    assert (delivered["step"], delivered["attempt"], delivered["is_success"]) == ("delivered", 2, None)
    assert (consumed["step"], consumed["group"], consumed["is_success"]) == ("consumed", "billing", False)


def test_malformed_trace_is_skipped() -> None:
    """Records with missing fields, other types, and numbers that are none neither fail nor show anything wrong."""
    body = b"\x02".join(
        [b"", b"Pub", b"Pub\x01x\x01r\x01g\x01t\x01id", b"SubAfter\x01r\x01id\x01-1", b"X\x01id", b"\xff"]
    )
    steps = trace_steps([StoredMessage(topic=TRACE_TOPIC, queue_id=0, body=body)], "id")

    assert [(step.step, step.group, step.wall_ms, step.is_success, step.cost_ms) for step in steps] == [
        ("sent", "g", None, None, None),
        ("consumed", "", None, None, None),
    ]


def test_trace_is_off_without_its_topic(tmp_path: Path) -> None:
    """A broker without the topic of traces has none, and progress is answered from files while the broker is gone."""
    with broker_process(tmp_path) as broker, sidecar_process(tmp_path, "--open-reads") as sidecar:
        sidecar.wait_ready()
        broker.send(1, body=b"one")
        path = f"/v1/queues/{TOPIC}/0/0/progress"
        wait_for(lambda: sidecar.get(path).status_code == 200, "it is confirmed")
        document = sidecar.get(path).json()
        broker.child.end()
        wait_for(lambda: sidecar.get(path).json().get("source") == "disk", "the broker is gone")

    assert (document["groups"], document["trace"]) == ([], {"state": "off", "reason": None, "steps": []})


# -- clients -----------------------------------------------------------------------------------------------------------


def test_connected_clients_of_a_group_are_shown(group: Group) -> None:
    """Each with its id and address, and the group's subscription; none after the client has left; 404 for no name."""
    sidecar = group.sidecars[0]
    seen: list[dict[str, Any]] = []

    def clients(sidecar: SidecarChild, name: str) -> dict[str, Any]:
        found: dict[str, Any] = sidecar.get(f"/v1/groups/{name}/clients", token=TOKEN).json()
        return found

    async def connect() -> None:
        async def take(message: ReceivedMessage) -> None:
            return

        async with PushConsumer(
            group.name_server, "watched", topics="orders", handler=take, settings=FIRST
        ):  # fmt: skip
            while not seen or not seen[-1]["clients"]:
                seen.append(await asyncio.to_thread(clients, sidecar, "watched"))

    asyncio.run(asyncio.wait_for(connect(), 60))
    [client] = seen[-1]["clients"]

    assert client["client_id"] and client["address"].startswith("127.0.0.1:")
    assert [(one["topic"], one["expression"]) for one in seen[-1]["subscriptions"] if one["topic"] == "orders"] == [
        ("orders", "*")
    ]
    assert seen[-1]["message_model"] == "CLUSTERING"
    wait_for(lambda: clients(sidecar, "watched")["clients"] == [], "it has left")
    assert clients(sidecar, "never-seen")["clients"] == []
    assert sidecar.get("/v1/groups/a%2Bb/clients", token=TOKEN).status_code == 422
