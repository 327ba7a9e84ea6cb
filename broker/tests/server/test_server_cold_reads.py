"""Groups that read old messages are limited by their threshold in five seconds; all other reads are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.pull import cold_reads, handlers
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, Dialogue, dialogue, running_broker
from gantry_wire import ResponseCode
from gantry_wire.message import decode_records

BODY = b"x" * 1000
LIMITED = {"coldDataFlowControlEnable": "true", "cgColdReadThreshold": "3000", "globalColdReadThreshold": "100000"}


@pytest.fixture
def conf() -> dict[str, str]:
    return LIMITED


@pytest.fixture
async def broker(tmp_path: Path, clock: FakeClock, conf: dict[str, str]) -> AsyncIterator[Broker]:
    """A broker that has little memory, so that most messages are cold."""
    async with running_broker(tmp_path, disk=None, clock=clock, **conf) as one:
        one.pulls.cold._memory_bytes = 10_000  # type: ignore[misc]
        yield one


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Dialogue]:
    """A client that has sent twelve messages, of which most are cold."""
    async with dialogue(broker) as one:
        for _ in range(12):
            await one.send_ok(BODY)
        yield one


async def read(client: Dialogue, offset: int = 0, group: str = GROUP, count: int = 4) -> tuple[int, int]:
    """Pull, and return the code and the number of messages."""
    reply = await client.pull(offset, consumerGroup=group, maxMsgNums=str(count))
    return reply.code, len(decode_records(reply.body)) if reply.code == 0 else 0


async def test_push_group_that_reads_too_much_cold_data_gets_busy(client: Dialogue, clock: FakeClock) -> None:
    """Code 2, after which clients pause; warm messages and other groups are served, and the next window begins anew."""
    await client.heartbeat("c", GROUP)
    await client.heartbeat("c2", "Others")
    assert await read(client) == (0, 4)
    limited = await client.pull(4)
    assert (limited.code, limited.remark) == (ResponseCode.SYSTEM_BUSY, handlers.READS_COLD_DATA)
    assert await read(client, 10) == (0, 2), "the newest messages are warm"
    assert await read(client, 0, "Others") == (0, 4)
    clock.advance(cold_reads.WINDOW_MS)
    assert await read(client, 4) == (0, 4)


@pytest.mark.parametrize("conf", [{}], ids=["off"])
async def test_reads_are_not_limited_by_default(client: Dialogue) -> None:
    """The twin: without coldDataFlowControlEnable nothing is limited or counted."""
    await client.heartbeat("c", GROUP)
    for _ in range(5):
        assert await read(client) == (0, 4)
    assert (await client.ask_json(2003))["runtimeTable"] == {}


@pytest.mark.parametrize("conf", [{**LIMITED, "accessMessageInMemoryMaxRatio": "95"}], ids=["a larger share"])
async def test_share_of_memory_decides_what_is_cold(broker: Broker, client: Dialogue) -> None:
    """The same messages are warm if the memory is larger."""
    broker.pulls.cold._memory_bytes = 1 << 30  # type: ignore[misc]
    await client.heartbeat("c", GROUP)
    for _ in range(5):
        assert await read(client) == (0, 4)


async def test_pull_consumer_waits_and_gets_one_message(client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new message does not end the wait."""
    monkeypatch.setattr(handlers, "HOLD_S", 0.3)
    await client.make_group()
    assert await read(client) == (0, 4)
    waiting = client.start_pull(4, wait_ms=0, maxMsgNums="4")
    await client.send_ok(BODY)
    reply = await waiting
    assert (reply.code, len(decode_records(reply.body))) == (0, 1)


async def test_all_groups_share_the_global_threshold(broker: Broker, client: Dialogue) -> None:
    """A group below its own threshold is limited, too, if it reads cold data at all."""
    await client.heartbeat("c", GROUP)
    await client.heartbeat("c2", "Others")
    assert await read(client, count=1) == (0, 1)
    assert await read(client, 1, count=1) == (0, 1)
    broker.pulls.cold._total = 100_000
    assert (await client.pull(2)).code == ResponseCode.SYSTEM_BUSY
    assert await read(client, 0, "Others") == (0, 4), "a group without cold reads so far"


async def test_threshold_of_a_group_replaces_that_of_the_settings(client: Dialogue) -> None:
    """It is listed, applies at once, and can be removed; the tables have the names of RocketMQ's tool."""
    await client.heartbeat("c", GROUP)
    assert (await client.ask(2001, body=f"{GROUP}=1000000\n".encode())).code == 0
    for offset in (0, 4, 0, 4):
        assert await read(client, offset) == (0, 4)
    found = await client.ask_json(2003)
    assert (found["configTable"], found["cgColdReadThreshold"]) == ({GROUP: 1_000_000}, 3_000)
    assert found["globalColdReadThreshold"] == 100_000
    reads = found["runtimeTable"][GROUP]
    assert reads["coldAcc"] == found["globalAcc"] > 12_000
    assert set(reads) == {"coldAcc", "createTimeMills", "lastColdReadTimeMills"}
    assert (await client.ask(2002, body=GROUP.encode())).code == 0
    assert (await client.ask_json(2003))["configTable"] == {}
    assert (await client.pull(4)).code == ResponseCode.SYSTEM_BUSY


async def test_group_without_cold_reads_is_forgotten(client: Dialogue, clock: FakeClock) -> None:
    """After a minute it is not listed any more."""
    await client.heartbeat("c", GROUP)
    await read(client)
    clock.advance(cold_reads.FORGET_MS + cold_reads.WINDOW_MS)
    assert (await client.ask_json(2003))["runtimeTable"] == {}


@pytest.mark.parametrize(
    "body", [b"Group=many\n", b"in valid=1\n", b"\xff=1\n"], ids=["no number", "no name", "no text"]
)
async def test_invalid_threshold_is_refused(client: Dialogue, body: bytes) -> None:
    """Nothing of the request is applied."""
    assert (await client.ask(2001, body=b"Good=1\n" + body)).code != 0
    assert (await client.ask_json(2003))["configTable"] == {}


async def test_thresholds_have_a_limit(client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has one already can be changed."""
    monkeypatch.setattr(cold_reads, "GROUPS_MAX", 2)
    assert (await client.ask(2001, body=b"A=1\nB=2\n")).code == 0
    assert (await client.ask(2001, body=b"C=3\n")).code == 1
    assert (await client.ask(2001, body=b"A=4\n")).code == 0
