"""Registration: name servers know this broker and its topics from its start to its stop, over all their failures."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting import Channel, CommandService, Connection, Listener, ListenerSettings
from gantry_testing.local import TOPIC, dialogue, running_broker, wait_until
from gantry_testing.ports import free_ports
from gantry_wire import Command
from gantry_wire.commands.nameserver import QueueData
from gantry_wire.fastjson import loads
from gantry_wire.message import parse_offset_message_id

CREATE = {
    "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip


@asynccontextmanager
async def name_server(path: Path, port: int) -> AsyncIterator[NameServer]:
    """Run a real name server in this process."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=port), path)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def route(port: int, topic: str) -> dict[str, Any] | None:
    """Return a client's route of a topic; None if no broker has it."""
    channel = await Channel.connect(f"127.0.0.1:{port}")
    reply = await channel.request(Command(code=105, ext={"topic": topic, "acceptStandardJsonOnly": "true"}), 60_000)
    await channel.close()
    assert reply.code in (0, 17)
    found: dict[str, Any] | None = loads(reply.body) if reply.code == 0 else None
    return found


async def test_started_broker_is_in_the_routes(tmp_path: Path) -> None:
    """Clients find a broker's topics with its address; after a clean stop the routes are removed at once."""
    [port] = free_ports(1)
    async with name_server(tmp_path / "names", port):
        async with running_broker(tmp_path / "store", namesrvAddr=f"127.0.0.1:{port}") as broker:
            await wait_until(lambda: len(broker.registration.registered) == 1)

            found = await route(port, "BenchmarkTest")

            assert found is not None
            assert found["brokerDatas"] == [
                {
                    "brokerAddrs": {"0": broker.settings.address},
                    "brokerName": "test-broker",
                    "cluster": "TestCluster",
                    "enableActingMaster": False,
                }
            ]
            [queues] = found["queueDatas"]
            assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (1024, 1024, 6)
        assert await route(port, "BenchmarkTest") is None


async def test_created_topic_is_in_the_routes_when_it_is_answered(tmp_path: Path) -> None:
    """A created topic, or its new number of queues, can be found as soon as the request is answered."""
    [port] = free_ports(1)
    async with (
        name_server(tmp_path / "names", port),
        running_broker(tmp_path / "store", namesrvAddr=f"127.0.0.1:{port}") as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: len(broker.registration.registered) == 1)

        assert (await client.ask(17, CREATE)).code == 0
        found = await route(port, "Made")
        assert found is not None and found["queueDatas"][0]["writeQueueNums"] == 3

        assert (await client.ask(17, CREATE | {"writeQueueNums": "5"})).code == 0
        found = await route(port, "Made")
        assert found is not None and found["queueDatas"][0]["writeQueueNums"] == 5


async def test_auto_created_topic_is_registered_at_once(tmp_path: Path) -> None:
    """The topic of a first message is in the routes long before the next regular registration."""
    [port] = free_ports(1)
    async with (
        name_server(tmp_path / "names", port),
        running_broker(tmp_path / "store", namesrvAddr=f"127.0.0.1:{port}") as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: len(broker.registration.registered) == 1)
        await client.send_ok()
        await broker.registration.wait_until_published()

        assert await route(port, TOPIC) is not None


@pytest.mark.verify
async def test_restarted_name_server_gets_all_registrations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name server that restarts without data gets everything again; its absence costs one log line."""
    [port] = free_ports(1)
    async with AsyncExitStack() as first_life, AsyncExitStack() as stack:
        await first_life.enter_async_context(name_server(tmp_path / "names", port))
        address = f"127.0.0.1:{port}"
        broker = await stack.enter_async_context(running_broker(tmp_path / "store", namesrvAddr=address))
        for absences in (1, 2):
            await wait_until(lambda: len(broker.registration.registered) == 1)
            await first_life.aclose()
            await wait_until(lambda: not broker.registration.registered)
            assert caplog.text.count("name server is not reachable") == absences

            await first_life.enter_async_context(name_server(tmp_path / "names", port))
            await wait_until(lambda: len(broker.registration.registered) == 1)
            assert await route(port, "BenchmarkTest") is not None
    assert caplog.text.count("name server is not reachable") == 2


async def test_absent_name_server_does_not_affect_others(tmp_path: Path) -> None:
    """Each name server has its own task; an unreachable one delays neither registration nor stop."""
    here, nowhere = free_ports(2)
    addresses = f"127.0.0.1:{nowhere};127.0.0.1:{here}"
    async with name_server(tmp_path / "names", here):
        async with running_broker(tmp_path / "store", namesrvAddr=addresses) as broker:
            await wait_until(lambda: broker.registration.registered == {f"127.0.0.1:{here}"})
            assert await route(here, "BenchmarkTest") is not None
        assert await route(here, "BenchmarkTest") is None


# ------- against a name server of the test's


class ScriptedNameServer:
    """A name server that records requests and answers as the test defines."""

    def __init__(self, answer: Callable[[Command], Command | None]) -> None:
        self.received: list[Command] = []
        self._answer = answer

    def dispatch(self, command: Command, connection: Connection) -> Command | None:
        self.received.append(command)
        return self._answer(command)

    def count(self, code: int) -> int:
        return sum(1 for command in self.received if command.code == code)


@asynccontextmanager
async def run_scripted_name_server(
    answer: Callable[[Command], Command | None],
) -> AsyncIterator[tuple[ScriptedNameServer, str]]:
    script = ScriptedNameServer(answer)
    listener = Listener(CommandService(script.dispatch), ListenerSettings(host="127.0.0.1"))
    await listener.start()
    try:
        yield script, f"127.0.0.1:{listener.port}"
    finally:
        await listener.close()


async def test_registration_has_all_fields_that_java_checks(tmp_path: Path) -> None:
    """The fields and the body that Java's name server checks: checksum, two topics or more, version, addresses."""
    async with run_scripted_name_server(lambda command: command.reply()) as (script, address):
        async with running_broker(tmp_path, namesrvAddr=address) as broker:
            await wait_until(lambda: len(broker.registration.registered) == 1)
        first, *_, last = script.received

    settings = broker.settings
    assert first.code == 103
    assert first.version >= 37
    assert first.ext == {
        "brokerName": "test-broker",
        "brokerAddr": settings.address,
        "clusterName": "TestCluster",
        "haServerAddr": f"127.0.0.1:{settings.ha_port}",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(first.body) & 0x7FFFFFFF),
    }
    wrapper = loads(first.body)["topicConfigSerializeWrapper"]
    assert len(wrapper["topicConfigTable"]) >= 2
    assert set(wrapper["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
    assert wrapper["topicConfigTable"]["TBW102"]["perm"] == 7
    assert last.code == 104
    assert last.ext == {
        "brokerName": "test-broker", "brokerAddr": settings.address, "clusterName": "TestCluster", "brokerId": "0",
    }  # fmt: skip


async def test_master_is_registered_under_its_moving_address(tmp_path: Path) -> None:
    """With brokerMasterIP the master's address, in routes and in message ids, is one that follows the role."""
    async with run_scripted_name_server(lambda command: command.reply()) as (script, address):
        making = running_broker(tmp_path, namesrvAddr=address, brokerMasterIP="127.0.0.9")
        async with making as broker, dialogue(broker) as client:
            await wait_until(lambda: len(broker.registration.registered) == 1)
            broker.register(3)
            await wait_until(lambda: any(one.ext.get("brokerId") == "3" for one in script.received if one.code == 103))
            sent = await client.send_ok()

    port = broker.settings.listen_port
    registered = {one.ext["brokerId"]: one.ext["brokerAddr"] for one in script.received if one.code == 103}
    assert registered == {"0": f"127.0.0.9:{port}", "3": f"127.0.0.1:{port}"}
    assert parse_offset_message_id(sent["msgId"])[:2] == ("127.0.0.9", port)
    assert broker.settings.ha_address.startswith("127.0.0.1:")


@pytest.mark.parametrize("master_ip", ["", "127.0.0.9"], ids=["one address", "brokerMasterIP"])
async def test_promoted_slave_stays_in_the_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master_ip: str
) -> None:
    """The only remaining member takes the master's broker id, and perhaps address: every topic always has a route."""
    [port] = free_ports(1)
    reply_topic = "TestCluster_REPLY_TOPIC"
    lost: list[str] = []
    async with name_server(tmp_path / "names", port) as server:
        routes = server.routes
        real = routes.unregister

        def unregister(cluster: str, name: str, address: str) -> bool:
            was_known = real(cluster, name, address)
            if routes.route(reply_topic) is None:
                lost.append(address)
            return was_known

        monkeypatch.setattr(routes, "unregister", unregister)
        conf = {"namesrvAddr": f"127.0.0.1:{port}"} | ({"brokerMasterIP": master_ip} if master_ip else {})
        async with running_broker(tmp_path / "store", disk=None, clock=None, **conf) as broker:
            await wait_until(lambda: len(broker.registration.registered) == 1)
            broker.register(3)
            await wait_until(lambda: 3 in routes.members("TestCluster", "test-broker").broker_addrs)
            lost.clear()
            routes.register_topic(
                reply_topic, [QueueData(broker_name="test-broker", read_queue_nums=1, write_queue_nums=1, perm=6)]
            )

            broker.register(0)
            await wait_until(lambda: list(routes.members("TestCluster", "test-broker").broker_addrs) == [0])

            assert lost == []
            assert routes.members("TestCluster", "test-broker").broker_addrs == {0: broker.settings.master_address}
            assert routes.route(reply_topic) is not None


async def test_demotion_and_promotion_at_once_end_registered(tmp_path: Path) -> None:
    """Changes of the role in quick succession: the last identity is registered, and only that one."""
    [port] = free_ports(1)
    async with name_server(tmp_path / "names", port) as server:
        making = running_broker(tmp_path / "store", namesrvAddr=f"127.0.0.1:{port}", brokerMasterIP="127.0.0.9")
        async with making as broker:
            registration = broker.registration
            await wait_until(lambda: len(registration.registered) == 1)
            for roles in ((3, 0), (3,), (0, 3, 0), (3, None, 0), (3, 0, 3)):
                for role in roles:
                    broker.register(role)
                await registration.wait_until_published()

                addresses = server.routes.members("TestCluster", "test-broker").broker_addrs
                wanted = broker.settings.address if role else broker.settings.master_address
                assert addresses == {role: wanted}


async def test_every_change_has_a_new_version(tmp_path: Path) -> None:
    """Name servers adopt topics only if the version has increased, so every change increases it."""
    async with (
        run_scripted_name_server(lambda command: command.reply()) as (script, address),
        running_broker(tmp_path, namesrvAddr=address) as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: len(broker.registration.registered) == 1)
        for number in range(3):
            assert (await client.ask(17, CREATE | {"topic": f"Made{number}"})).code == 0

        documents = [loads(command.body)["topicConfigSerializeWrapper"] for command in script.received]
        counters = [document["dataVersion"]["counter"] for document in documents]
        assert len(counters) >= 4
        assert counters == sorted(set(counters))
        assert "Made2" in documents[-1]["topicConfigTable"]


async def test_simultaneous_changes_are_registered_together(tmp_path: Path) -> None:
    """Hundreds of topics created at once cause a few registrations, not hundreds."""
    async with (
        run_scripted_name_server(lambda command: command.reply()) as (script, address),
        running_broker(tmp_path, namesrvAddr=address) as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: len(broker.registration.registered) == 1)
        await asyncio.gather(*(client.send_ok(topic=f"T{number}") for number in range(300)))
        await broker.registration.wait_until_published()

        assert "T299" in loads(script.received[-1].body)["topicConfigSerializeWrapper"]["topicConfigTable"]
        assert script.count(103) < 50


async def test_refused_registration_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name server that refuses gets a request every second, and one log line; acceptance ends it."""
    answers = iter([1, 1, 0])

    def answer(command: Command) -> Command:
        code = next(answers) if command.code == 103 else 0
        return command.reply(code, "register broker failed" if code else None)

    with caplog.at_level(logging.INFO):
        async with (
            run_scripted_name_server(answer) as (script, address),
            running_broker(tmp_path, namesrvAddr=address) as broker,
        ):
            await wait_until(lambda: len(broker.registration.registered) == 1)
            assert script.count(103) == 3

    assert caplog.text.count("name server refused registration") == 1
    assert "register broker failed" in [record.__dict__.get("reason") for record in caplog.records]


async def test_silent_name_server_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a name server that does not answer, topics are created and the broker stops, after a timeout."""
    monkeypatch.setattr("gantry_broker.registration.REQUEST_TIMEOUT_MS", 200)
    async with (
        run_scripted_name_server(lambda command: None) as (script, address),
        running_broker(tmp_path, namesrvAddr=address) as broker,
        dialogue(broker) as client,
    ):
        await wait_until(lambda: script.count(103) > 0)

        assert (await client.ask(17, CREATE)).code == 0
        assert "Made" in broker.core.topics
