"""Servers and clients with IPv6 addresses, alone or beside IPv4: from the route to the record and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_client import (
    Admin,
    ConsumerSettings,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
)
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.client import wait_until as wait_for
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_testing.ports import free_port, free_ports
from gantry_wire import RequestCode
from gantry_wire.message import FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6, StoredMessage, decode_host

V6 = {"bindAddress": "::1", "brokerIP1": "::1"}
SMALL_FILES = {"mappedFileSizeCommitLog": str(1 << 20), "maxMessageSize": str(1 << 16)}
IPV6_FLAGS = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6


@asynccontextmanager
async def named_broker(path: Path, **conf: str) -> AsyncIterator[tuple[Broker, str]]:
    """A broker and the address of the name server that knows it; both on ::1 only."""
    settings = NameServerSettings(bind_address="::1", listen_port=free_port())
    server = NameServer(settings, path / "ns")
    await server.start()
    try:
        address = f"[::1]:{server.port}"
        async with running_broker(path / "store", disk=None, clock=None, namesrvAddr=address, **{**V6, **conf}) as one:
            async with Admin(address) as admin:
                await wait_for(lambda: is_known(admin), timeout_s=120, what="the registration")
            yield one, address
    finally:
        await server.close()


async def is_known(admin: Admin) -> bool:
    return bool(await admin.brokers.all())


async def read_all(address: str, topic: str = TOPIC) -> list[ReceivedMessage]:
    async with PullConsumer(address, "reader") as consumer:
        found: list[ReceivedMessage] = []
        for queue in await consumer.queues(topic):
            found += (await consumer.fetch(queue, 0)).messages
        return found


async def open_dialogue(broker: Broker) -> Dialogue:
    return await Dialogue.open(f"[::1]:{broker.port}")


async def test_clients_find_send_and_read_over_ipv6(tmp_path: Path) -> None:
    """The route has brackets, ids have 56 digits, the hosts are ::1, and every way to find a message finds it."""
    async with named_broker(tmp_path) as (broker, address):
        async with Admin(address) as admin:
            await admin.topics.create(TOPIC, queues=2)
            (known,) = await admin.brokers.all()
            assert known.address == f"[::1]:{broker.port}"
        async with Producer(address, "p") as producer:
            receipt = await producer.send(Message(TOPIC, b"hello", keys=["order-1"]))
            await producer.send_batch([Message(TOPIC, b"batch-%d" % number) for number in range(3)])
        assert len(receipt.message_id) == 56 and receipt.message_id.startswith("0" * 31 + "1")
        assert len(receipt.offset_message_id) == 56 and int(receipt.offset_message_id[32:40], 16) == broker.port

        found = await read_all(address)
        assert sorted(one.body for one in found) == [b"batch-0", b"batch-1", b"batch-2", b"hello"]
        assert {one.store_host for one in found} == {f"[::1]:{broker.port}"}
        assert all(one.born_host.startswith("[::1]:") for one in found)
        async with Admin(address) as admin:
            viewed = await admin.messages.view(receipt.offset_message_id, TOPIC)
            assert (viewed.body, viewed.queue.broker_name) == (b"hello", "test-broker")
            assert [one.body for one in await admin.messages.by_key(TOPIC, "order-1")] == [b"hello"]
            assert [one.body for one in await admin.messages.by_id(TOPIC, receipt.message_id)] == [b"hello"]


async def test_group_consumes_and_is_listed_over_ipv6(tmp_path: Path) -> None:
    """A message arrives, and administrators see the address of the group's client in a readable form."""
    taken: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        taken.append(message.body)

    async with named_broker(tmp_path) as (_, address):
        async with Admin(address) as admin:
            await admin.topics.create(TOPIC, queues=2)
        settings = ConsumerSettings(start_from=StartFrom.FIRST)
        async with (
            PushConsumer(address, GROUP, topics=TOPIC, handler=handle, settings=settings),
            Producer(address) as producer,
        ):
            await producer.send(Message(TOPIC, b"x"))
            await wait_for(lambda: taken == [b"x"], timeout_s=120)
            async with Admin(address) as admin:
                listing = await admin.groups.members(GROUP)
        assert listing is not None
        (member,) = listing.connection_set
        assert member.client_addr.startswith("[::1]:") and member.client_id.startswith("::1@")


async def test_listener_on_all_addresses_stores_each_host_in_its_family(tmp_path: Path) -> None:
    """Records of IPv4 and IPv6 senders are in one queue, and one pull reads all of them."""
    async with running_broker(tmp_path, bindAddress="::", brokerIP1="127.0.0.1") as broker:
        for number, host in enumerate(("127.0.0.1", "[::1]", "127.0.0.1", "[::1]")):
            one = await Dialogue.open(f"{host}:{broker.port}")
            await one.send_ok(b"%d" % number)
            await one.close()
        async with dialogue(broker) as one:
            found = await one.read()

    assert [message.body for message in found] == [b"0", b"1", b"2", b"3"]
    assert [decode_host(message.born_host)[0] for message in found] == ["127.0.0.1", "::1"] * 2
    assert [message.sys_flag & IPV6_FLAGS for message in found] == [0, FLAG_BORN_HOST_V6] * 2
    assert {decode_host(message.store_host)[0] for message in found} == {"127.0.0.1"}


async def test_records_with_both_address_families_survive_restarts(tmp_path: Path) -> None:
    """A broker that gets another address keeps its log; a lost index and lost queues are rebuilt over all records."""
    main = free_port()
    expected: list[tuple[bytes, int]] = []
    lives: list[dict[str, Any]] = [dict(V6), {}, dict(V6)]
    for round_number, conf in enumerate(lives):
        host = "[::1]" if conf else "127.0.0.1"
        async with running_broker(tmp_path, disk=None, clock=None, listenPort=str(main), **conf) as broker:
            one = await Dialogue.open(f"{host}:{main}")
            for number in range(5):
                body = b"%d-%d" % (round_number, number)
                await one.send_ok(body, properties=properties_text(KEYS=f"key-{body.decode()}", TAGS="t"))
                expected.append((body, IPV6_FLAGS if conf else 0))
            found = await one.read()
            assert [(message.body, message.sys_flag & IPV6_FLAGS) for message in found] == expected
            await one.close()
        if round_number == 1:
            for derived in [*(tmp_path / "index").iterdir(), *(tmp_path / "consumequeue").rglob("0*")]:
                if derived.is_file():
                    derived.unlink()
            (tmp_path / "abort").touch()
    async with running_broker(tmp_path, listenPort=str(main)) as broker, dialogue(broker) as one:
        assert [(message.body, message.sys_flag & IPV6_FLAGS) for message in await one.read()] == expected
        for body, _ in expected:
            asked = {"topic": TOPIC, "key": f"key-{body.decode()}", "maxNum": "32", "beginTimestamp": "0",
                     "endTimestamp": str(2**62)}  # fmt: skip
            reply = await one.ask(RequestCode.QUERY_MESSAGE, asked)
            assert reply.code == 0 and body in reply.body


@pytest.mark.verify
async def test_messages_appended_again_keep_the_born_host(tmp_path: Path) -> None:
    """Delayed, failed and half messages are appended again: with the old born host and this store host."""
    short = {"messageDelayLevel": "1s 1s 1s", "transactionTimeOut": "100"}
    async with running_broker(tmp_path, disk=None, clock=None, **V6, **short) as broker:
        one = await open_dialogue(broker)
        await one.send_ok(b"late", properties=properties_text(DELAY="1"))
        await one.send_ok(b"failing", topic="failing")
        (failing,) = await one.read(topic="failing")
        await one.heartbeat("c@1", topic="failing")
        again = {"offset": str(failing.physical_offset), "group": GROUP, "delayLevel": "1", "originTopic": "failing"}
        assert (await one.ask(RequestCode.CONSUMER_SEND_MSG_BACK, again)).code == 0
        text = properties_text(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="A" * 56)
        half = await one.send_ok(b"half", topic="whole", sysFlag="4", properties=text)
        assert len(half["msgId"]) == 56
        end = {
            "producerGroup": "p", "tranStateTableOffset": half["queueOffset"], "commitOrRollback": "8",
            "commitLogOffset": str(int(half["msgId"][40:], 16)), "fromTransactionCheck": "false", "msgId": "A" * 56,
        }  # fmt: skip
        assert (await one.ask(RequestCode.END_TRANSACTION, end)).code == 0

        copies: list[StoredMessage] = []
        for topic in (TOPIC, f"%RETRY%{GROUP}", "whole"):
            found: list[StoredMessage] = []
            async with asyncio.timeout(120):
                while not found:
                    found = await one.read(topic=topic, queueId="0")
                    await asyncio.sleep(0.02)
            copies += found
        sender = one.channel.local
        await one.close()
        own = ("::1", broker.port)

    assert [copy.body for copy in copies] == [b"late", b"failing", b"half"]
    for copy in copies:
        assert (decode_host(copy.store_host), decode_host(copy.born_host)) == (own, sender)
        assert copy.sys_flag & IPV6_FLAGS == IPV6_FLAGS


@pytest.mark.parametrize("kind", ["our stream", "RocketMQ's stream"])
async def test_slaves_copy_over_ipv6(tmp_path: Path, kind: str) -> None:
    """Both streams run over ::1; the copy is the log, byte for byte, and clients read it at the slave's address."""
    replication = free_ports(1)[0]
    classic = {"haClassicPeers": "true"} if kind != "our stream" else {}
    async with AsyncExitStack() as stack:
        conf = {**V6, "haListenPort": str(replication), **SMALL_FILES, **classic}
        master = await stack.enter_async_context(running_broker(tmp_path / "master", disk=None, clock=None, **conf))
        one = await open_dialogue(master)
        for number in range(20):
            await one.send_ok(b"%d" % number)
        conf = {**V6, **SMALL_FILES, "brokerRole": "SLAVE", "brokerId": "1", "haListenPort": "-1"}
        conf["haMasterAddress"] = f"[::1]:{replication}"
        if classic:
            conf |= {"haMasterIsClassic": "true", "haMasterBrokerAddress": f"[::1]:{master.port}"}
        slave = await stack.enter_async_context(running_broker(tmp_path / "slave", disk=None, clock=None, **conf))
        await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)
        await one.close()

        assert bytes(slave.store.log.view(0)) == bytes(master.store.log.view(0))
        at_slave = await open_dialogue(slave)
        found: list[StoredMessage] = []
        async with asyncio.timeout(120):
            while not found:  # a slave of RocketMQ's asks for the topics every few seconds
                found = await at_slave.read()
                await asyncio.sleep(0.02)
        await at_slave.close()
        assert [message.body for message in found] == [b"%d" % number for number in range(20)]
        assert {decode_host(message.store_host) for message in found} == {("::1", master.port)}
