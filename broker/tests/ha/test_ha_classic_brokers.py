"""RocketMQ's replication stream between two Gantry brokers, each in the part that Java has in the interop tests.

*Classic* is RocketMQ's own replication stream, and a broker that uses it. The last section tests a
slave's requests to the main port of a Java master, whose answers each test defines.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.ha.classic.follower import ClassicFollower
from gantry_broker.ha.classic.master_client import BadReply, ClassicMasterClient
from gantry_broker.ha.classic.table_fetcher import ClassicTableFetcher
from gantry_broker.ha.frames import Table
from gantry_broker.setting_keys import broker_settings
from gantry_remoting import CommandService, Connection, Listener, ListenerSettings
from gantry_remoting.setting_kinds import SettingsError
from gantry_status.orders import HaRole
from gantry_testing.local import GROUP, TOPIC, dialogue, expire, running_broker, wait_until
from gantry_testing.ports import free_ports
from gantry_wire import Command, RequestCode, fastjson

SIZE = {"mappedFileSizeCommitLog": str(1 << 20), "maxMessageSize": str(1 << 16)}


def master_conf(**conf: str) -> dict[str, str]:
    return {**SIZE, "haListenPort": str(free_ports(1)[0]), "haClassicPeers": "true", **conf}


def slave_conf(master: Broker, ha_port: str, **conf: str) -> dict[str, str]:
    """Return settings of a slave whose master is treated as a RocketMQ broker."""
    return {
        **SIZE,
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "haListenPort": "-1",
        "haMasterIsClassic": "true",
        "haMasterAddress": f"127.0.0.1:{ha_port}",
        "haMasterBrokerAddress": f"127.0.0.1:{master.port}",
        **conf,
    }


def broker(path: Path, conf: dict[str, str]) -> AbstractAsyncContextManager[Broker]:
    return running_broker(path, disk=None, clock=None, **conf)


def log_of(one: Broker) -> bytes:
    data = b""
    while more := bytes(one.store.log.view(len(data))):
        data += more
    return data


async def fill(target: Broker, count: int, body: bytes = bytes(10_000)) -> list[int]:
    """Send that many messages, and return their codes."""
    async with dialogue(target) as one:
        return [reply.code for reply in await asyncio.gather(*[one.send(body) for _ in range(count)])]


async def test_slave_copies_log_and_tables_of_classic_master_and_is_promoted(tmp_path: Path) -> None:
    """An empty disk gets four log files; consumers read there; promoted, it accepts messages in an epoch of its own."""
    conf = master_conf()
    async with broker(tmp_path / "master", conf) as master:
        assert set(await fill(master, 320)) == {0}
        async with dialogue(master) as one:
            fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "7"}
            await one.make_group(GROUP)
            await one.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        async with broker(tmp_path / "slave", slave_conf(master, conf["haListenPort"])) as slave:
            await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote > 3 << 20)
            assert set(await fill(master, 20)) == {0}
            await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)
            assert log_of(slave) == log_of(master)
            await wait_until(lambda: slave.core.offsets.find(GROUP, TOPIC, 0) == 7)
            async with dialogue(slave) as one:
                assert len(await one.read(330)) == 10
                assert (await one.send()).code == 14
            assert [(one.broker_id, one.received) for one in master.replication.acks] == [(-2, master.store.log.wrote)]

            async with dialogue(master) as one:
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "8"}
                await one.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            await slave.orders.promote(9, [], False)
            assert slave.core.offsets.find(GROUP, TOPIC, 0) == 8
            assert slave.roles.role is HaRole.MASTER
            assert await fill(slave, 3) == [0, 0, 0]
            assert [epoch.is_ours for epoch in slave.store.identity.epochs] == [False, True]


async def test_empty_queues_continue_at_the_offsets_of_classic_master(tmp_path: Path) -> None:
    """The copied log has none of their messages, so the master is asked."""
    conf = master_conf()
    async with broker(tmp_path / "master", conf) as master:
        async with dialogue(master) as one:
            assert [(await one.send_ok(queueId="1"))["queueOffset"] for _ in range(3)] == ["0", "1", "2"]
        assert set(await fill(master, 320)) == {0}
        await expire(master)
        async with broker(tmp_path / "slave", slave_conf(master, conf["haListenPort"])) as slave:
            await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)
            await slave.orders.promote(9, [], False)
            async with dialogue(slave) as one:
                assert (await one.send_ok(queueId="1"))["queueOffset"] == "3"


async def test_sync_master_waits_for_classic_slave(tmp_path: Path) -> None:
    """Sends are answered 11 before the slave connects, 0 while it follows, and 11 after it has left."""
    conf = master_conf(brokerRole="SYNC_MASTER")
    async with broker(tmp_path / "master", conf) as master:
        assert await fill(master, 1) == [11]
        async with broker(tmp_path / "slave", slave_conf(master, conf["haListenPort"])) as slave:
            await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)
            assert set(await fill(master, 120)) == {0}
            assert slave.store.log.wrote == master.store.log.wrote
        await wait_until(lambda: len(master.replication.acks) == 0)
        assert await fill(master, 1) == [11]


@pytest.mark.parametrize(("degrade", "code"), [("WAIT", 11), ("ASYNC", 0)])
async def test_master_that_wants_flushed_acks_does_not_wait_for_classic_slave(
    tmp_path: Path, degrade: str, code: int
) -> None:
    """The slave reports no flushed position, so sends are answered at once as if it were not connected."""
    conf = master_conf(brokerRole="SYNC_MASTER", haAckLevel="FLUSHED", haDegrade=degrade)
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(broker(tmp_path / "master", conf))
        assert await fill(master, 1) == [code]
        slave = await stack.enter_async_context(broker(tmp_path / "slave", slave_conf(master, conf["haListenPort"])))
        await wait_until(lambda: any(one.received == master.store.log.wrote for one in master.replication.acks))

        assert await fill(master, 1) == [code]
        await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)


async def test_classic_slave_does_not_count_where_the_role_may_move(tmp_path: Path) -> None:
    """A promotion asks the electable slaves for promises; an ack of another slave would prove nothing."""
    conf = master_conf(brokerRole="SYNC_MASTER", haElectable="2")
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(broker(tmp_path / "master", conf))
        slave = await stack.enter_async_context(broker(tmp_path / "slave", slave_conf(master, conf["haListenPort"])))
        assert await fill(master, 1) == [11]
        await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)

        assert await fill(master, 1) == [11]
        assert len(master.replication.acks) == 0


async def test_former_master_is_not_mixed_with_another_log(tmp_path: Path) -> None:
    """Its log and its tables are unchanged, and its status has the reason why it does not follow."""
    conf = master_conf()
    async with broker(tmp_path / "slave", SIZE) as alone:
        await fill(alone, 5, b"mine")
    async with broker(tmp_path / "master", conf) as master:
        await fill(master, 50, b"theirs")
        async with dialogue(master) as one:
            await one.send_ok(topic="only-there")
        async with broker(tmp_path / "slave", slave_conf(master, conf["haListenPort"])) as slave:
            before = log_of(slave)
            await wait_until(lambda: "differs from the master's" in slave.roles.report().problem)

            follower = slave.replication.slave.follower
            assert isinstance(follower, ClassicFollower) and follower.confirmed == -1
            await follower.tables.fetch()
            assert slave.core.topics.find("only-there") is None
            assert log_of(slave) == before
            assert len(before) > 0 and len(master.replication.acks) <= 1


@pytest.mark.parametrize("data", [struct.pack(">q", 1 << 50), struct.pack(">q", -1), b"GET / HTTP/1.1\r\n\r\n"])
async def test_classic_peer_with_invalid_offset_is_disconnected(data: bytes, tmp_path: Path) -> None:
    """Also on a port that RocketMQ's slaves may use: the peer never counts as a slave."""
    conf = master_conf()
    async with broker(tmp_path, conf) as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(conf["haListenPort"]))
        writer.write(data)

        async with asyncio.timeout(60):
            assert await reader.read() == b""

        assert len(master.replication.acks) == 0
        writer.close()


async def test_classic_slaves_may_follow_only_if_enabled(tmp_path: Path) -> None:
    """The port is closed to them unless a setting opens it."""
    conf = master_conf(haClassicPeers="false")
    async with broker(tmp_path, conf):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(conf["haListenPort"]))
        writer.write(bytes(8))

        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(("conf", "text"), [
    ({"haClassicPeers": "true", "haSecretPath": "/a"}, "haClassicPeers=true and haSecretPath"),
    ({"haClassicPeers": "true", "haTlsCertPath": "/a", "haTlsKeyPath": "/b"}, "haClassicPeers=true and haTlsCertPath"),
    ({"haMasterIsClassic": "true"}, "haMasterIsClassic=true and brokerRole=ASYNC_MASTER"),
    ({"haMasterBrokerAddress": "a:1"}, "only with haMasterIsClassic=true"),
])  # fmt: skip
def test_contradictory_classic_settings_do_not_start(conf: dict[str, str], text: str) -> None:
    """Both keys are named: an optional proof proves nothing, and a master follows no other master."""
    with pytest.raises(SettingsError, match=text):
        broker_settings(conf)


# -- requests to the master's main port --------------------------------------------------------------------------------

Answer = Callable[[Command], Command]


class ScriptedPort:
    """A Java master's main port whose answers the test defines."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[Command] = []
        self._answer = answer
        self._listener = Listener(CommandService(self._take), ListenerSettings(host="127.0.0.1"))

    def _take(self, command: Command, connection: Connection) -> Command:
        self.asked.append(command)
        return self._answer(command)

    async def __aenter__(self) -> ScriptedPort:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.port}"


def page(command: Command, names: list[str], counter: int, total: int | None) -> Command:
    body = {"dataVersion": {"counter": counter}, "topicConfigTable": {name: {"topicName": name} for name in names}}
    ext = {} if total is None else {"totalTopicNum": str(total)}
    return command.reply(ext=ext, body=fastjson.dumps(body))


async def ask_topics(answer: Answer) -> tuple[dict[str, Any], list[Command]]:
    async with ScriptedPort(answer) as master, ClassicMasterClient.open(master.address) as client:
        document = await client.fetch_pages(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topic")
        return document, master.asked


async def test_table_is_fetched_in_pages() -> None:
    """Each page begins where the last one ended, of the same version; a change between two starts over."""
    names = [f"topic{number}" for number in range(7)]
    asked = 0

    def answer(command: Command) -> Command:
        nonlocal asked
        asked += 1
        start, version = int(command.ext["topicSeq"]), 1 if asked <= 2 else 2
        return page(command, names[start : start + 3], version, len(names))

    document, commands = await ask_topics(answer)

    assert list(document["topicConfigTable"]) == names
    assert document["dataVersion"] == {"counter": 2}
    assert [command.ext["topicSeq"] for command in commands] == ["0", "3", "6", "0", "3", "6"]
    assert [command.ext["dataVersion"] for command in commands][:2] == ["", '{"counter":1}']


async def test_older_master_sends_table_in_one_reply() -> None:
    """Older masters have no pages, and do not report how many entries there are."""
    document, commands = await ask_topics(lambda command: page(command, ["a", "b"], 1, None))

    assert list(document["topicConfigTable"]) == ["a", "b"] and len(commands) == 1


@pytest.mark.parametrize("answer", [
    lambda command: command.reply(1, "No topic in this broker"),
    lambda command: command.reply(body=b"{"),
    lambda command: command.reply(body=b"[1]"),
    lambda command: command.reply(body=b'{"topicConfigTable":[]}'),
    lambda command: command.reply(ext={"totalTopicNum": "many"}, body=b'{"topicConfigTable":{}}'),
])  # fmt: skip
async def test_invalid_reply_is_an_error(answer: Answer) -> None:
    """An invalid reply is reported, and never used."""
    with pytest.raises(BadReply, match=r"failed with code|its reply|is invalid"):
        await ask_topics(answer)


async def test_incomplete_table_is_rejected() -> None:
    """Its missing entries would be taken for deleted ones."""
    with pytest.raises(BadReply, match="ends after 1 of 2 entries"):
        await ask_topics(lambda command: page(command, ["a"][int(command.ext["topicSeq"]) :], 1, 2))


@pytest.mark.parametrize(("table", "text"), [
    ({"commitLogMinOffset": "0"}, "no range of its log"),
    ({"commitLogMinOffset": "a", "commitLogMaxOffset": "1"}, "no range of its log"),
    ({"commitLogMinOffset": "9", "commitLogMaxOffset": "1"}, "a log that begins at 9 and ends before, at 1"),
    (None, "no range of its log"),
])  # fmt: skip
async def test_master_without_range_of_its_log_is_rejected(table: dict[str, str] | None, text: str) -> None:
    """Without the range it is unknown whether the slave is behind the master."""
    body = fastjson.dumps({"table": table})
    async with (
        ScriptedPort(lambda command: command.reply(body=body)) as master,
        ClassicMasterClient.open(master.address) as client,
    ):
        with pytest.raises(BadReply, match=text):
            await client.fetch_range()


async def test_failed_table_does_not_block_the_others() -> None:
    """A changed table is passed on once, stamped with the log's end, as JSON without bare keys."""
    delay = b'{"offsetTable":{1:5}}'
    asked: list[str] = []
    stats = {
        "a": b'{"offsetTable":{{"brokerName":"m","queueId":0,"topic":"a"}:{"minOffset":7,"maxOffset":7},'
        b'{"brokerName":"m","queueId":1,"topic":"a"}:{"minOffset":0,"maxOffset":7},'
        b'{"brokerName":"m","queueId":2,"topic":"a"}:{"minOffset":0,"maxOffset":0}}}',
        "b": b'{"offsetTable":{}}',
        "c": b'{"offsetTable":[1]}',
    }

    def answer(command: Command) -> Command:
        match command.code:
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return command.reply(body=b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"77"}}')
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                return page(command, ["a", "b", "c"], 1, None)
            case RequestCode.GET_TOPIC_STATS_INFO:
                asked.append(command.ext["topic"])
                return command.reply(body=stats[command.ext["topic"]])
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return command.reply(body=b'{"offsetTable":{"a@g":{0:3}},"groupTopicMap":{"g":["a"]}}')
            case RequestCode.GET_ALL_DELAY_OFFSET:
                return command.reply(body=delay)
            case RequestCode.GET_TIMER_CHECK_POINT:
                return command.reply(body=struct.pack(">7q", 9_000, 0, 4, 4, 0, 0, 0))
        return command.reply(1, "not now")

    taken: list[Table] = []
    async with ScriptedPort(answer) as master:
        tables = ClassicTableFetcher(master.address, taken.append)
        await tables.fetch()
        await tables.fetch()
        assert asked == ["a", "b", "c"]
        delay = b'{"offsetTable":{1:6}}'
        await tables.fetch()

    assert [(table.name, table.version) for table in taken] == [
        ("topics", 77), ("consumerOffset", 77), ("delayOffset", 77), ("timerProgress", 77), ("queueEnds", 77),
        ("delayOffset", 77),
    ]  # fmt: skip
    assert [table.document for table in taken[1:]] == [
        b'{"offsetTable":{"a@g":{"0":3}}}', b'{"offsetTable":{"1":5}}', b'{"read":4,"marks":[[0,9000,%d]]}' % (1 << 62),
        b'{"endTable":{"a":{"0":7}}}', b'{"offsetTable":{"1":6}}',
    ]  # fmt: skip
    assert tables.problem == "GET_ALL_SUBSCRIPTIONGROUP_CONFIG failed with code 1: not now"


async def test_table_fetch_from_unreachable_master_is_reported() -> None:
    """It raises nothing: the reason is kept for the status."""
    tables = ClassicTableFetcher(f"127.0.0.1:{free_ports(1)[0]}", lambda table: None)

    await tables.fetch()

    assert tables.problem is not None and "cannot connect" in tables.problem


async def test_renewed_credentials_reach_the_master(tmp_path: Path) -> None:
    """A slave signs its requests to a RocketMQ master with the credentials that its file has now."""

    def renew(key: str) -> None:
        credentials.with_suffix(".new").write_text(f"accessKey: {key}\nsecretKey: a-secret-key\n")
        credentials.with_suffix(".new").replace(credentials)

    credentials = tmp_path / "own.yml"
    renew("first-key")
    port = free_ports(1)[0]
    async with ScriptedPort(lambda command: command.reply(1, "not in this test")) as master:
        conf = {
            "brokerRole": "SLAVE", "brokerId": "1", "haMasterIsClassic": "true", "haMasterAddress": f"127.0.0.1:{port}",
            "haMasterBrokerAddress": master.address, "aclCredentialsPath": str(credentials),
        }  # fmt: skip
        async with broker(tmp_path / "slave", {**SIZE, **conf}):
            await wait_until(lambda: bool(master.asked))
            renew("second-key")
            await wait_until(lambda: master.asked[-1].ext["AccessKey"] == "second-key")

    assert master.asked[0].ext["AccessKey"] == "first-key"
