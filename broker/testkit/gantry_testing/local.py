"""A broker in this process on free loopback ports, and a client connection to it.

`running_broker` is a real broker: real sockets, the real store in a directory of the test, small files. What a test
replaces is an argument: the clock, the disk, single settings by their name in `broker.conf`. `Dialogue` sends
requests in the wire format, so that a test observes what a Java client would receive, without `gantry_client` in
between, which could have the same bug.
"""

import asyncio
import inspect
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import pytest
import uvloop

from gantry_broker.app import Broker
from gantry_broker.ports import Clock, Disk, RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.identity import Epoch
from gantry_remoting import Channel, ConnectionClosed
from gantry_testing.ports import free_ports
from gantry_wire import Command, RequestCode, oneway
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantry_wire.fastjson import dumps, loads
from gantry_wire.frame import Frame, FrameReader
from gantry_wire.message import StoredMessage, decode_records
from gantry_wire.properties import format_properties

REPLY_TIMEOUT_MS: Final = 120_000
SMALL_STORE: Final = {
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
"""Files so small that a test can fill several of them."""

PATIENT: Final = {"waitTimeMillsInSendQueue": "60000", "syncFlushTimeout": "60000", "slaveTimeout": "60000"}
"""Long timeouts, so that on a busy machine a test's broker does not answer "busy" or report a late disk or slave."""
ROOMY: Final = {
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
}
"""Disk limits, so that a test's broker does not refuse sends on a machine with a full disk."""

TOPIC: Final = "TopicTest"
GROUP: Final = "GroupTest"
UNIQUE_ID: Final = "7F00000100007A0B4C9D2E1F00000000"


async def wait_until(predicate: Callable[[], bool], deadline_s: float = 120.0) -> None:
    """Wait until another task has made a condition true. Raises TimeoutError at the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while not predicate():
        if loop.time() > end:
            raise TimeoutError("the condition was not met in time")
        await asyncio.sleep(0.002)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on Python's own event loop and on the broker's, because they buffer differently."""

    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(**fixtures))

    signature = inspect.signature(test)
    parameter = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), parameter], return_annotation=None
    )
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    loops = pytest.mark.parametrize(
        "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    decorated: Callable[..., None] = loops(run)
    return decorated


def local_conf(path: Path | str, **conf: str) -> dict[str, str]:
    """Return the settings of a broker for a test: loopback, free ports, small files; `conf` has precedence."""
    main, fast, replication = free_ports(3)
    return {
        "brokerClusterName": "TestCluster",
        "brokerName": "test-broker",
        "bindAddress": "127.0.0.1",
        "listenPort": str(main),
        "fastListenPort": str(fast),
        "haListenPort": str(replication),
        "storePathRootDir": str(path),
        **SMALL_STORE,
        **PATIENT,
        **ROOMY,
        **conf,
    }


@asynccontextmanager
async def running_broker(
    path: Path | str, *, disk: Disk | None = None, clock: Clock | None = None, **conf: str
) -> AsyncIterator[Broker]:
    """Run a broker over the store in `path`; `conf` has keys of `broker.conf`. It is stopped cleanly at the end."""
    settings = broker_settings(local_conf(path, **conf))
    broker = Broker(settings, disk=disk or RealDisk(), clock=clock or SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


async def expire(broker: Broker) -> None:
    """Delete all log files but the last one, as retention does, when recovery no longer needs them."""
    store = broker.store
    await wait_until(lambda: all(file.is_removable for file in store.removal.describe_oldest_files()[:-1]))
    end = store.log.wrote - store.log.wrote % store.settings.mapped_file_size_commit_log
    store.removal.retire(end, store.removal.measure(end))
    store.removal.unlink()


async def truncate_log(broker: Broker, end: int) -> None:
    """Cut the log at ``end``, where another epoch begins, like a member whose new master lacks the rest."""
    store = broker.store
    epochs = [*store.identity.with_truncated_log(end).epochs, Epoch(store.identity.epoch + 1, end)]

    def change() -> None:
        store.truncate(end, epochs)

    await broker.run_exclusively(change)


@asynccontextmanager
async def dialogue(broker: Broker, *, port: int | None = None) -> AsyncIterator["Dialogue"]:
    """Open a connection to a broker's main port, or to `port`."""
    one = await Dialogue.open(f"127.0.0.1:{port or broker.port}")
    try:
        yield one
    finally:
        await one.close()


def properties_text(**pairs: str) -> str:
    """Return properties as producers encode them."""
    return format_properties(pairs)


@final
class Dialogue:
    """One client connection: requests in RocketMQ's wire format, and the requests that the broker pushes."""

    def __init__(self, channel: Channel, pushed: list[Command]) -> None:
        self.channel = channel
        """The connection of `gantry_remoting`, for what this class does not offer."""

        self.pushed = pushed
        """Requests that the broker sent us, in order."""

    @classmethod
    async def open(cls, address: str) -> "Dialogue":
        pushed: list[Command] = []

        def record_pushed(command: Command, channel: Channel) -> None:
            pushed.append(command)

        return cls(await Channel.connect(address, on_request=record_pushed), pushed)

    async def close(self) -> None:
        await self.channel.close()

    async def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, timeout_ms: int = REPLY_TIMEOUT_MS
    ) -> Command:
        """Send any request and return its reply."""
        return await self.channel.request(Command(code=code, ext=ext or {}, body=body), timeout_ms)

    async def ask_json(self, code: int, ext: dict[str, str] | None = None, body: Any = None) -> Any:
        """Send a request that must succeed, with JSON bodies both ways."""
        reply = await self.ask(code, ext, b"" if body is None else dumps(body))
        assert reply.code == 0, f"code {reply.code}: {reply.remark}"
        return loads(reply.body) if reply.body else None

    def send_oneway(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Send a one-way request, which gets no reply."""
        self.channel.send_oneway(oneway(code, ext or {}, body))

    # ------- sending

    async def send(self, body: bytes = b"hello", *, code: int = RequestCode.SEND_MESSAGE_V2, **fields: str) -> Command:
        """Send one message (or a batch); `fields` are header fields by RocketMQ's long names."""
        return await self.ask(code, send_ext(code, **fields), body)

    async def send_ok(self, body: bytes = b"hello", **fields: str) -> dict[str, str]:
        """Send a message that must be stored; return the reply's fields."""
        reply = await self.send(body, code=RequestCode.SEND_MESSAGE_V2, **fields)
        assert reply.code == 0, f"code {reply.code}: {reply.remark}"
        return reply.ext

    # ------- pulling

    async def pull(
        self, offset: int = 0, *, wait_ms: int = 0, code: int = RequestCode.PULL_MESSAGE, **fields: str
    ) -> Command:
        """Pull with the subscription in the request; with `wait_ms` the broker may hold the request."""
        return await self.ask(code, pull_ext(offset, wait_ms=wait_ms, **fields))

    def start_pull(self, offset: int = 0, *, wait_ms: int, **fields: str) -> "asyncio.Task[Command]":
        """Start a pull that may be held."""
        return asyncio.ensure_future(self.pull(offset, wait_ms=wait_ms, code=RequestCode.PULL_MESSAGE, **fields))

    async def read(self, offset: int = 0, **fields: str) -> list[StoredMessage]:
        """Return the messages of a pull; none if it finds none, or if it is refused."""
        reply = await self.pull(offset, wait_ms=0, code=RequestCode.PULL_MESSAGE, **fields)
        return decode_records(reply.body) if reply.code == 0 else []

    # ------- clients

    async def heartbeat(
        self, client_id: str, group: str = GROUP, topic: str = TOPIC, *, expression: str = "*", version: int = 1,
        model: str = "CLUSTERING", expression_type: str = "TAG",
    ) -> Command:  # fmt: skip
        """Register a consumer of `group`, and a producer, by a heartbeat."""
        wanted = {"topic": topic, "subString": expression, "subVersion": version, "expressionType": expression_type}
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [wanted],
        }
        body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "producers"}]}
        return await self.ask(RequestCode.HEART_BEAT, body=dumps(body))

    async def make_group(self, group: str = GROUP) -> None:
        """Create a consumer group at the broker, which a commit alone does not do."""
        await self.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": group})

    def count_pushed(self, code: int) -> int:
        """Count the requests with this code that the broker sent us."""
        return sum(1 for command in self.pushed if command.code == code)


_V2_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


def send_ext(code: int, **fields: str) -> dict[str, str]:
    """Return the header fields of a send with this code; the arguments have RocketMQ's long names."""
    ext = {
        "producerGroup": "producers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": properties_text(UNIQ_KEY=UNIQUE_ID, WAIT="true"),
        **fields,
    }
    return ext if code == RequestCode.SEND_MESSAGE else {_V2_NAMES[name]: value for name, value in ext.items()}


def pull_ext(offset: int, *, wait_ms: int = 0, **fields: str) -> dict[str, str]:
    """Return the header fields of a pull."""
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
        **fields,
    }


@final
class RawPeer:
    """A socket that sends exactly the given bytes, and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._received: list[Frame] = []

    @classmethod
    async def open(cls, port: int, *, source: str | None = None) -> "RawPeer":
        local = None if source is None else (source, 0)
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=local))

    async def send(self, data: bytes) -> None:
        """Send exactly these bytes, and nothing else."""
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> Frame:
        """Return the next frame from the other side. Raises ConnectionClosed if there is none."""
        while not self._received:
            async with asyncio.timeout(REPLY_TIMEOUT_MS / 1000):
                data = await self.reader.read(65536)
            if not data:
                raise ConnectionClosed("the other side closed")
            self._received.extend(self._frames.feed(data))
        return self._received.pop(0)

    async def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; remaining data is discarded."""
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_MS / 1000):
                while await self.reader.read(65536):
                    pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionResetError, BrokenPipeError):
            return


def frame_head(total: int, header_bytes: int, serialization: int = 0) -> bytes:
    """Return the first eight bytes of a frame with these lengths, correct or not."""
    return struct.pack(">II", total, serialization << 24 | header_bytes)


def names_below(path: Path | str) -> list[str]:
    """Return the paths of all files and directories below a directory, relative to it."""
    return sorted(str(one.relative_to(path)) for one in Path(path).rglob("*"))


def make_predictable(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the random choices of sends by constant ones, so that two runs store and answer the same."""
    now_ms = broker.core.clock.wall_ms()
    monkeypatch.setattr(broker.core.clock, "wall_ms", lambda: now_ms)  # the times of timer messages
    monkeypatch.setattr(broker.core.send_routes, "next_unique_id", lambda: "0" * 31 + "1")
    monkeypatch.setattr(broker.sends.random, "randrange", lambda _: 0)
