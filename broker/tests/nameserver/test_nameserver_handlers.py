"""The name server over a real loopback socket, with the commands of brokers, clients and mqadmin."""

import asyncio
import re
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gantry_nameserver.handlers import Handlers
from gantry_nameserver.key_value_store import KeyValueStore
from gantry_nameserver.live_settings import LiveSettings
from gantry_nameserver.routes import RouteTable
from gantry_nameserver.server import DirectoryInUse, NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.client import Channel
from gantry_testing.slowness import patience
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command
from gantry_wire.fastjson import loads

TIMEOUT_MS = 60_000
ALL_CODES = (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327,
             901, 904)  # fmt: skip


class FakeClock:
    """A clock that a test advances, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


class RunningNameServer:
    """A running name server with channels to it."""

    def __init__(self, server: NameServer, clock: FakeClock) -> None:
        self.server = server
        self.clock = clock
        self.channels: list[Channel] = []

    async def channel(self) -> Channel:
        channel = await Channel.connect(f"127.0.0.1:{self.server.port}", timeout_ms=TIMEOUT_MS)
        self.channels.append(channel)
        return channel

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, version: int = 479,
        over: Channel | None = None,
    ) -> Command:  # fmt: skip
        channel = over or (self.channels[0] if self.channels else await self.channel())
        return await channel.request(Command(code=code, ext=ext or {}, body=body, version=version), TIMEOUT_MS)

    async def register(self, over: Channel | None = None, **more: str) -> Command:
        ext = identity() | {"haServerAddr": "10.0.0.1:10912"} | more
        return await self.ask(103, ext, registration_body(), over=over)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[RunningNameServer]:
    clock = FakeClock()
    server = NameServer(settings(), tmp_path / "data", now_ms=clock)
    await server.start()
    rig = RunningNameServer(server, clock)
    yield rig
    for channel in rig.channels:
        await channel.close()
    await server.close()


def settings(**more: bool | int) -> NameServerSettings:
    return NameServerSettings(bind_address="127.0.0.1", listen_port=0, **more)  # type: ignore[arg-type]


def identity(name: str = "a", broker_id: int = 0, address: str = "10.0.0.1:10911") -> dict[str, str]:
    return {"brokerName": name, "brokerAddr": address, "clusterName": "c", "brokerId": str(broker_id)}


def registration_body(*topics: str, counter: int = 1) -> bytes:
    """Return the body of a Java broker, with keys that are unknown here."""
    table = ",".join(
        f'"{name}":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"{name}","topicSysFlag":0,"writeQueueNums":4,"newerKey":[1]}}'
        for name in topics or ("T", "TBW102")
    )
    return (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{{"counter":{counter},"stateVersion":0,'
        f'"timestamp":7}},"mappingDataVersion":{{}},"topicConfigTable":{{{table}}},"topicQueueMappingDetailMap":{{}},'
        f'"topicQueueMappingInfoMap":{{}}}}}}'
    ).encode()


async def wait_until(condition: Callable[[], Awaitable[bool]], seconds: float = 5.0) -> None:
    """Wait until `condition` holds, or fail at the deadline."""
    deadline = time.monotonic() + patience(seconds)
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def test_client_gets_the_route_of_a_registered_broker(rig: RunningNameServer) -> None:
    """A route is standard JSON with quoted ids and Java's key names."""
    reply = await rig.register()
    assert reply.code == 0

    route = await rig.ask(105, {"topic": "T"})

    assert route.code == 0
    assert loads(route.body) == {
        "queueDatas": [{"brokerName": "a", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}],
        "brokerDatas": [
            {"cluster": "c", "brokerName": "a", "brokerAddrs": {"0": "10.0.0.1:10911"}, "enableActingMaster": False}
        ],
        "filterServerTable": {},
    }
    assert b'"0":' in route.body and b"null" not in route.body


async def test_unknown_topic_is_17_and_unknown_code_is_3(
    rig: RunningNameServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients distinguish these codes and texts; the log names an unknown code once for each client."""
    missing = await rig.ask(105, {"topic": "nowhere"})
    unknown = await rig.ask(777)
    await rig.ask(777)
    refusals = [record.__dict__ for record in caplog.records if record.getMessage().startswith("refused request code")]
    assert [(line["code"], line["client"]) for line in refusals] == [(777, "127.0.0.1")]

    assert (missing.code, missing.remark) == (17, "No topic route info in name server for the topic: nowhere")
    assert (unknown.code, unknown.remark) == (3, " request type 777 not supported")


@pytest.mark.parametrize("code", ALL_CODES)
async def test_every_code_answers_an_empty_request(rig: RunningNameServer, code: int) -> None:
    """Without fields and body the reply is never 3 and never missing; a required field is named with code 1."""
    reply = await rig.ask(code)

    assert reply.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    if reply.code == ResponseCode.SYSTEM_ERROR:
        assert reply.remark is not None and "missing required field" in reply.remark


async def test_supported_codes_are_those_of_rocketmq(tmp_path: Path) -> None:
    """The supported codes are exactly the list above, which the parametrized test uses."""
    handlers = Handlers(RouteTable(), KeyValueStore(tmp_path / "kv"), LiveSettings(settings()), FakeClock())

    assert tuple(handlers.codes) == ALL_CODES


async def test_lost_connection_unregisters_its_broker_at_once(rig: RunningNameServer) -> None:
    """When the socket of a broker is cut, its route is removed without a timeout."""
    broker = await rig.channel()
    client = await rig.channel()
    await rig.register(over=broker)
    assert (await rig.ask(105, {"topic": "T"}, over=client)).code == 0

    await broker.close()

    async def is_gone() -> bool:
        return (await rig.ask(105, {"topic": "T"}, over=client)).code == ResponseCode.TOPIC_NOT_EXIST

    await wait_until(is_gone)
    assert rig.clock.ms == 0


async def test_silent_broker_expires_and_is_disconnected(rig: RunningNameServer) -> None:
    """Heartbeats and data version queries keep a broker registered; silence beyond its timeout removes it."""
    broker = await rig.channel()
    client = await rig.channel()
    await rig.register(over=broker, heartbeatTimeoutMillis="1000")
    rig.clock.ms = 900
    await rig.ask(904, identity(), over=broker)
    rig.clock.ms = 1800
    await rig.ask(322, identity(), b"{}", over=broker)

    rig.clock.ms = 2800
    assert rig.server.expire() == []
    rig.clock.ms = 2801
    assert [live.name for live in rig.server.expire()] == ["a"]

    assert (await rig.ask(105, {"topic": "T"}, over=client)).code == ResponseCode.TOPIC_NOT_EXIST

    async def is_cut() -> bool:
        return not broker.is_open

    await wait_until(is_cut)


async def test_unregistered_broker_is_removed_at_once(rig: RunningNameServer) -> None:
    """Code 104 takes effect before its reply."""
    await rig.register()

    assert (await rig.ask(104, identity())).code == 0

    assert (await rig.ask(105, {"topic": "T"})).code == 17
    assert loads((await rig.ask(106)).body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


async def test_data_version_query_reports_changes(rig: RunningNameServer) -> None:
    """An unknown or different version gives changed=true; the reply has the known version."""
    unknown = await rig.ask(322, identity(), b'{"counter":1,"stateVersion":0,"timestamp":7}')
    await rig.register()
    same = await rig.ask(322, identity(), b'{"counter":1,"stateVersion":0,"timestamp":7}')
    other = await rig.ask(322, identity(), b'{"counter":2,"stateVersion":0,"timestamp":7}')

    assert [reply.ext["changed"] for reply in (unknown, same, other)] == ["true", "false", "true"]
    assert unknown.body == b"" and loads(other.body) == {"counter": 1, "stateVersion": 0, "timestamp": 7}


@pytest.mark.parametrize(
    ("crc", "code"), [("0", 0), ("right", 0), ("12345", 1), (None, 0)], ids=["unchecked", "right", "wrong", "absent"]
)
async def test_registration_with_wrong_checksum_is_refused(rig: RunningNameServer, crc: str | None, code: int) -> None:
    """Java's CRC has no sign bit; zero and absent checksums are not verified; a wrong one changes nothing."""
    ext = identity() | {"haServerAddr": "h:1"}
    if crc is not None:
        ext["bodyCrc32"] = str(zlib.crc32(registration_body()) & 0x7FFFFFFF) if crc == "right" else crc

    reply = await rig.ask(103, ext, registration_body())

    assert reply.code == code
    assert (reply.remark == "crc32 not match") == (code == 1)
    assert (await rig.ask(105, {"topic": "T"})).code == (17 if code else 0)


def compressed_body(*, with_mappings: bool) -> bytes:
    """Encode a registration by hand from the layout, not with the code under test."""

    def part(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    stream = part(b'{"counter":3,"stateVersion":0,"timestamp":1}') + struct.pack(">i", 2)
    stream += part(b'T 4 6 6 SINGLE_TAG {"a":"b c"}') + part(b"U 1 1 4 SINGLE_TAG") + part(b"[]")
    if with_mappings:
        stream += struct.pack(">i", 1) + part(
            b'{"topic":"T","bname":"a","totalQueues":2,"epoch":1,"dirty":false,"currIdMap":{0:1}}'
        )
    return zlib.compress(stream, 9)


@pytest.mark.parametrize(("version", "with_mappings"), [(479, True), (399, False)], ids=["5.x", "4.9"])
async def test_compressed_registration_is_read(rig: RunningNameServer, version: int, with_mappings: bool) -> None:
    """The compressed form has the same topics, and mappings from 5.0 on."""
    ext = identity() | {"haServerAddr": "h:1", "compressed": "true"}

    reply = await rig.ask(103, ext, compressed_body(with_mappings=with_mappings), version=version)

    assert reply.code == 0
    route = loads((await rig.ask(105, {"topic": "T"})).body)
    assert (route["queueDatas"][0]["readQueueNums"], route["queueDatas"][0]["writeQueueNums"]) == (4, 6)
    assert ("topicQueueMappingByBroker" in route) == with_mappings


@pytest.mark.parametrize(
    "body",
    [
        zlib.compress(struct.pack(">i", 1 << 30)),
        zlib.compress(struct.pack(">i", -1)),
        compressed_body(with_mappings=False),
        zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">i", 1) + struct.pack(">i", 3) + b"T x"),
        compressed_body(with_mappings=True)[:-4],
        b"no zlib",
    ],
    ids=["long", "negative", "no mappings", "bad topic", "cut", "not compressed"],
)
async def test_corrupt_compressed_registration_is_refused(rig: RunningNameServer, body: bytes) -> None:
    """Lengths beyond the end, and bytes that are no zlib stream, give code 1; nothing is registered."""
    reply = await rig.ask(103, identity() | {"haServerAddr": "h:1", "compressed": "true"}, body)

    assert reply.code == 1 and reply.remark
    assert loads((await rig.ask(106)).body)["brokerAddrTable"] == {}


async def test_registration_of_old_broker_is_read(rig: RunningNameServer) -> None:
    """Before 3.0.11 the body is the topic table without a wrapper."""
    body = (
        b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{"T":{"topicName":"T"},"U":{"topicName":"U"}}}'
    )

    assert (await rig.ask(103, identity() | {"haServerAddr": "h:1"}, body, version=30)).code == 0

    assert (await rig.ask(105, {"topic": "U"})).code == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("brokerName", " "), ("clusterName", ""), ("brokerAddr", "nowhere"), ("brokerId", "-1"), ("brokerId", "x")],
)
async def test_registration_with_invalid_identity_is_refused(rig: RunningNameServer, field: str, value: str) -> None:
    """A name, id or address that no client could use gives code 1 with the field name; nothing is registered."""
    reply = await rig.register(None, **{field: value})

    assert reply.code == 1 and reply.remark is not None and field in reply.remark
    assert loads((await rig.ask(106)).body)["brokerAddrTable"] == {}


async def test_first_registration_with_one_topic_is_explained(rig: RunningNameServer) -> None:
    """The reply is RocketMQ's text, followed by the reason."""
    reply = await rig.ask(103, identity() | {"haServerAddr": "h:1"}, registration_body("T"))

    assert reply.code == 1
    assert re.match(r"register broker failed: .*exactly one topic", reply.remark or ""), reply.remark


async def test_slave_gets_the_address_of_its_master(rig: RunningNameServer) -> None:
    """The header of the reply has the master's address and replication address."""
    await rig.register()

    slave = await rig.register(brokerId="1", brokerAddr="10.0.0.2:10911", haServerAddr="10.0.0.2:10912")

    assert slave.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
    group = loads((await rig.ask(901, {"clusterName": "c", "brokerName": "a"})).body)
    assert group["brokerMemberGroup"]["brokerAddrs"] == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}


async def test_topic_lists_are_complete(rig: RunningNameServer) -> None:
    """The lists are all topics, those of a cluster, and the system topics with the address of one broker."""
    await rig.register()

    everything = loads((await rig.ask(206)).body)
    of_cluster = loads((await rig.ask(224, {"cluster": "c"})).body)
    of_unknown = loads((await rig.ask(224, {"cluster": "unknown"})).body)
    system = loads((await rig.ask(304)).body)

    assert everything == of_cluster == {"topicList": ["T", "TBW102"]}
    assert of_unknown == {"topicList": []}
    assert system == {"topicList": ["c", "a"], "brokerAddr": "10.0.0.1:10911"}


async def test_write_permission_is_wiped_and_added_by_broker(rig: RunningNameServer) -> None:
    """The replies count the topics, and routes show the change."""
    await rig.register()

    wiped = await rig.ask(205, {"brokerName": "a"})
    after_wipe = loads((await rig.ask(105, {"topic": "T"})).body)["queueDatas"][0]["perm"]
    added = await rig.ask(327, {"brokerName": "a"})
    after_add = loads((await rig.ask(105, {"topic": "T"})).body)["queueDatas"][0]["perm"]

    assert wiped.ext == {"wipeTopicCount": "2"} and after_wipe == 4
    assert added.ext == {"addTopicCount": "2"} and after_add == 6


async def test_topic_is_registered_and_deleted_at_the_name_server(rig: RunningNameServer) -> None:
    """Codes 217 and 216 work, also with a body in Java's dialect; an unknown broker is refused by name."""
    await rig.register()
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"x:1"},"brokerName":"a","cluster":"c"}],"filterServerTable":{},' + (
        b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}]}'
    )

    assert (await rig.ask(217, {"topic": "N"}, body)).code == 0
    assert (await rig.ask(105, {"topic": "N"})).code == 0
    refused = await rig.ask(217, {"topic": "M"}, body.replace(b'"brokerName":"a","perm"', b'"brokerName":"z","perm"'))
    assert refused.code == 1 and refused.remark is not None and "z" in refused.remark
    assert (await rig.ask(216, {"topic": "N", "clusterName": "c"})).code == 0
    assert (await rig.ask(105, {"topic": "N"})).code == 17


async def test_key_values_are_set_read_listed_and_deleted(rig: RunningNameServer) -> None:
    """Absent keys and namespaces give 22; an emptied namespace is an empty table, as in RocketMQ."""
    address = {"namespace": "n", "key": "k"}
    assert (await rig.ask(101, address)).code == 22
    assert (await rig.ask(219, {"namespace": "n"})).code == 22

    assert (await rig.ask(100, address | {"value": "wärt"})).code == 0

    assert (await rig.ask(101, address)).ext == {"value": "wärt"}
    assert loads((await rig.ask(219, {"namespace": "n"})).body) == {"table": {"k": "wärt"}}
    assert (await rig.ask(102, address)).code == 0
    assert (await rig.ask(101, address)).code == 22
    assert loads((await rig.ask(219, {"namespace": "n"})).body) == {"table": {}}


async def test_order_configuration_is_in_routes_only_when_enabled(rig: RunningNameServer) -> None:
    """Brokers get the table with their registration; clients get the entry of their topic with orderMessageEnable."""
    await rig.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"})

    registered = await rig.register()
    before = loads((await rig.ask(105, {"topic": "T"})).body)
    await rig.ask(318, body=b"orderMessageEnable=true\n")
    after = loads((await rig.ask(105, {"topic": "T"})).body)

    assert loads(registered.body) == {"table": {"T": "a:4"}}
    assert "orderTopicConf" not in before and after["orderTopicConf"] == "a:4"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/etc/passwd", 16),
        (b"listenPort=1", 16),
        (b"orderMessageEnable=true\nrocketmqHome=/", 16),
        (b"noSuchKey=1", 16),
        (b"orderMessageEnable=maybe", 1),
        (b"scanNotActiveBrokerInterval=0", 1),
        (b"no assignment", 1),
        (b"\xff\xfe", 1),
    ],
)
async def test_settings_outside_the_allow_list_are_refused(rig: RunningNameServer, body: bytes, code: int) -> None:
    """One forbidden or invalid key leaves every setting unchanged."""
    before = (await rig.ask(319)).body

    reply = await rig.ask(318, body=body)

    assert reply.code == code and reply.remark
    assert (await rig.ask(319)).body == before


async def test_disabled_lists_are_refused(rig: RunningNameServer) -> None:
    """enableAllTopicList and enableTopicList disable codes 206 and 224 with RocketMQ's text."""
    await rig.ask(318, body=b"enableAllTopicList=false\nenableTopicList=false")

    assert [(r.code, r.remark) for r in (await rig.ask(206), await rig.ask(224, {"cluster": "c"}))] == [
        (1, "disable"),
        (1, "disable"),
    ]


async def test_routes_are_withheld_after_start_when_enabled(tmp_path: Path) -> None:
    """With needWaitForService a started name server answers 1, so that clients keep their routes."""
    clock = FakeClock()
    server = NameServer(settings(need_wait_for_service=True, wait_seconds_for_service=45), tmp_path, now_ms=clock)
    await server.start()
    rig = RunningNameServer(server, clock)

    early = await rig.ask(105, {"topic": "T"})
    clock.ms = 45_000
    late = await rig.ask(105, {"topic": "T"})

    assert (early.code, early.remark, late.code) == (1, "name server not ready", 17)
    await rig.channels[0].close()
    await server.close()


async def test_key_values_and_settings_survive_restart(tmp_path: Path) -> None:
    """An update that was answered with 0 is present after a restart."""
    first = NameServer(settings(), tmp_path)
    await first.start()
    rig = RunningNameServer(first, FakeClock())
    await rig.ask(100, {"namespace": "n", "key": "k", "value": "v"})
    await rig.ask(318, body=b"enableTopicList=false")
    await rig.channels[0].close()
    await first.close()

    second = NameServer(settings(), tmp_path)
    await second.start()
    rig = RunningNameServer(second, FakeClock())

    assert (await rig.ask(101, {"namespace": "n", "key": "k"})).ext == {"value": "v"}
    assert b"enableTopicList=false\n" in (await rig.ask(319)).body
    await rig.channels[0].close()
    await second.close()


async def test_two_name_servers_cannot_share_a_directory(tmp_path: Path) -> None:
    """The second refuses to start until the first has closed."""
    first, second = NameServer(settings(), tmp_path), NameServer(settings(), tmp_path)
    await first.start()

    with pytest.raises(DirectoryInUse):
        await second.start()
    await first.close()
    await second.start()

    await second.close()
