"""Clients outside of the network: a separate listener, external addresses, and only requests that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.external_addresses import ExternalAddresses, parse_external_addresses
from gantry_client import Message, Producer
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting import Channel
from gantry_testing.local import running_broker, wait_until
from gantry_testing.ports import free_ports
from gantry_wire import Command, RequestCode
from gantry_wire.fastjson import loads

TOPIC = "BenchmarkTest"


@asynccontextmanager
async def name_server(path: Path) -> AsyncIterator[tuple[str, str]]:
    """Run a name server, and return its address for each side."""
    inside, outside = free_ports(2)
    settings = NameServerSettings(bind_address="127.0.0.1", listen_port=inside, external_listen_port=outside)
    server = NameServer(settings, path / "names")
    await server.start()
    try:
        yield f"127.0.0.1:{inside}", f"127.0.0.1:{outside}"
    finally:
        await server.close()


async def ask(address: str, code: int, ext: dict[str, str] | None = None) -> tuple[int, Any]:
    """Return the code and the document of an answer."""
    channel = await Channel.connect(address)
    reply = await channel.request(Command(code=code, ext=ext or {}), 60_000)
    await channel.close()
    return reply.code, loads(reply.body) if reply.body else None


async def addresses(server: str) -> dict[str, str]:
    """Return the broker's addresses in the route of a topic, as one side gets them."""
    code, route = await ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    found: dict[str, str] = route["brokerDatas"][0]["brokerAddrs"] if code == 0 else {}
    return found


async def wait_for_addresses(server: str, wanted: dict[str, str]) -> None:
    """Wait until that side gets these addresses."""
    async with asyncio.timeout(120):
        while await addresses(server) != wanted:  # noqa: ASYNC110 - the answer comes over a socket
            await asyncio.sleep(0.01)


async def check_twice(known: ExternalAddresses) -> None:
    """Check the file as often as the watch does before it uses a change."""
    for _ in range(2):
        await known.check()


async def test_each_side_gets_reachable_addresses(tmp_path: Path) -> None:
    """Routes and lists of brokers have internal addresses inside and external ones outside."""
    (tmp_path / "outside").write_text("master=203.0.113.7:31000\n2=203.0.113.8:31001\n")
    async with name_server(tmp_path) as (inside, outside):
        making = running_broker(tmp_path / "store", namesrvAddr=inside, externalAddressPath=f"{tmp_path}/outside")
        async with making as broker:
            await wait_until(lambda: len(broker.registration.registered) == 1)

            assert await addresses(inside) == {"0": broker.settings.address}
            assert await addresses(outside) == {"0": "203.0.113.7:31000"}
            _, cluster = await ask(outside, RequestCode.GET_BROKER_CLUSTER_INFO)
            _, topics_inside = await ask(inside, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
            _, topics_outside = await ask(outside, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    assert topics_inside["brokerAddr"] == broker.settings.address
    assert topics_outside == topics_inside | {"brokerAddr": "203.0.113.7:31000"}
    assert cluster["brokerAddrTable"]["test-broker"]["brokerAddrs"] == {"0": "203.0.113.7:31000"}
    assert cluster["clusterAddrTable"] == {"TestCluster": ["test-broker"]}


async def test_broker_without_external_address_is_hidden_outside(tmp_path: Path) -> None:
    """An external client could not reach its internal address."""
    async with (
        name_server(tmp_path) as (inside, outside),
        running_broker(tmp_path / "store", namesrvAddr=inside) as broker,
    ):
        await wait_until(lambda: len(broker.registration.registered) == 1)

        assert await addresses(inside) == {"0": broker.settings.address}
        assert await ask(outside, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}) == (17, None)
        _, cluster = await ask(outside, RequestCode.GET_BROKER_CLUSTER_INFO)
        _, topics = await ask(outside, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    assert topics.get("brokerAddr") is None and "test-broker" in topics["topicList"]
    assert cluster == {"brokerAddrTable": {}, "clusterAddrTable": {"TestCluster": []}}


async def test_external_address_can_be_added_without_unregistering(tmp_path: Path) -> None:
    """A load balancer takes its time; the broker stays in the routes inside all the time."""
    path = tmp_path / "outside"
    async with name_server(tmp_path) as (inside, outside):
        making = running_broker(tmp_path / "store", namesrvAddr=inside, externalAddressPath=str(path))
        async with making as broker:
            await wait_until(lambda: len(broker.registration.registered) == 1)
            assert await addresses(outside) == {}

            path.write_text("master=lb.example:10911\n")
            await check_twice(broker.external_addresses)
            assert broker.registration._pending_unregistrations[inside] == []
            await wait_for_addresses(outside, {"0": "lb.example:10911"})

            assert await addresses(inside) == {"0": broker.settings.address}


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        9999,
    ],
)
async def test_external_clients_cannot_change_anything(tmp_path: Path, code: int) -> None:
    """A request that is not a client's query is refused with a code that clients understand, before it is parsed."""
    async with name_server(tmp_path) as (_, outside):
        assert (await ask(outside, code))[0] == 16


async def test_external_client_can_send(tmp_path: Path) -> None:
    """A client that knows only the external side gets its message through."""
    path = tmp_path / "outside"
    async with name_server(tmp_path) as (inside, outside):
        making = running_broker(tmp_path / "store", namesrvAddr=inside, externalAddressPath=str(path))
        async with making as broker:
            path.write_text(f"master=localhost:{broker.settings.listen_port}\n")
            await check_twice(broker.external_addresses)
            await wait_for_addresses(outside, {"0": path.read_text().strip().removeprefix("master=")})

            async with Producer(outside) as producer:
                receipt = await producer.send(Message("FromOutside", b"hello"))

    assert receipt.queue.broker_name == "test-broker"


def test_invalid_address_lines_are_ignored() -> None:
    """A line without a member, a host or a port, or with broker id 0, gives no address."""
    text = "master=203.0.113.7:10911\n2=[2001:db8::1]:10911\n3=host\n4=:1\nx=a:1\n\n0=a:1\n5=lb.example:31000\n"

    assert parse_external_addresses(text) == {
        "master": "203.0.113.7:10911",
        "2": "[2001:db8::1]:10911",
        "5": "lb.example:31000",
    }


async def test_missing_address_file_changes_nothing(tmp_path: Path) -> None:
    """External addresses stay until there are others; each change is published once."""
    changes: list[int] = []
    path = tmp_path / "outside"
    known = ExternalAddresses(str(path), lambda: changes.append(1))
    path.write_text("master=a.example:1\n3=b.example:2\n")

    await check_twice(known)
    await check_twice(known)
    path.unlink()
    await check_twice(known)

    assert (known.find(0), known.find(3), known.find(2)) == ("a.example:1", "b.example:2", "")
    assert len(changes) == 1


async def test_file_that_is_being_written_is_not_used(tmp_path: Path) -> None:
    """A cut address looks valid, and missing lines look like members without an address: both must be read twice."""
    changes: list[int] = []
    path = tmp_path / "outside"
    before, after = "master=203.0.113.7:10911\n2=203.0.113.8:10911\n", "master=203.0.113.9:10911\n2=203.0.113.8:10911\n"
    path.write_text(before)
    known = ExternalAddresses(str(path), lambda: changes.append(1))
    await known.start()
    try:
        assert (known.find(0), known.find(2), changes) == ("203.0.113.7:10911", "203.0.113.8:10911", [1])

        path.write_text(after[:22])
        await known.check()
        assert (known.find(0), known.find(2), changes) == ("203.0.113.7:10911", "203.0.113.8:10911", [1])

        path.write_text(after)
        await check_twice(known)
        assert (known.find(0), known.find(2), changes) == ("203.0.113.9:10911", "203.0.113.8:10911", [1, 1])
    finally:
        await known.close()
