"""Flow control: a send that waited too long is told so, with RocketMQ's code and text, and nothing else is refused."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.server.flow_control import TICK_MS, FlowControl
from gantry_broker.testing.local import TOPIC, RawPeer, dialogue, running_broker, send_ext
from gantry_wire import Command, ResponseCode, decode_command
from gantry_wire.frame import Serialization

WAIT_S = 0.2


class FakeLoop:
    """A loop that is as late as the test wants."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> "FakeLoop":
        self.due.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def tick(self) -> None:
        """Run what is due."""
        due, self.due = [one for one in self.due if one[0] <= self.now], [one for one in self.due if one[0] > self.now]
        for _, callback in due:
            callback()


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def flow(loop: FakeLoop) -> FlowControl:
    control = FlowControl(loop, wait_ms_max=200, append_ms_max=1000)  # type: ignore[arg-type]
    control.start()
    return control


def test_a_loop_in_time_refuses_nothing(loop: FakeLoop, flow: FlowControl) -> None:
    """While ticks come in time, or late by less than the limit, every send is taken."""
    for lateness_s in (0.0, 0.05, WAIT_S - 0.001):
        loop.now += TICK_MS / 1000 + lateness_s
        assert flow.refusal(loop.now, 0) is None
        loop.tick()

    assert flow.refused_count == 0


def test_a_late_loop_refuses_what_waited(loop: FakeLoop, flow: FlowControl) -> None:
    """A send that waited longer than the limit is code 2 with RocketMQ's words, the time and the number waiting."""
    loop.now += 0.3 + TICK_MS / 1000

    refusal = flow.refusal(loop.now, 7)

    assert refusal == (
        ResponseCode.SYSTEM_BUSY,
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 300ms, size of queue: 7",
    )  # fmt: skip
    assert flow.refused_count == 1


def test_the_next_tick_ends_it(loop: FakeLoop, flow: FlowControl) -> None:
    """What comes after the late tick has not waited, and is taken."""
    loop.now += 0.3
    assert flow.refusal(loop.now, 0) is not None

    loop.tick()

    assert flow.refusal(loop.now, 0) is None


def test_a_slow_append_is_named(loop: FakeLoop, flow: FlowControl) -> None:
    """When an append was what took so long the text says so, as for a busy page cache; a quick append is not blamed."""
    loop.now += 1.2
    flow.appended(1.1)
    refusal = flow.refusal(loop.now, 0)
    assert refusal is not None and refusal[1].startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control")

    loop.tick()
    loop.now += 1.2
    flow.appended(0.9)
    refusal = flow.refusal(loop.now, 0)
    assert refusal is not None and refusal[1].startswith("[TIMEOUT_CLEAN_QUEUE]")


def test_a_stopped_control_ticks_no_more(loop: FakeLoop, flow: FlowControl) -> None:
    """After the stop no timer is left."""
    flow.stop()

    assert loop.due == []


@pytest.mark.parametrize("serialization", list(Serialization), ids=["usual", "unusual"])
async def test_a_refused_send_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serialization: Serialization
) -> None:
    """While the broker is late every send is refused and none stored; other requests are served as ever."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        refusal = (ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy")
        peer = await RawPeer.open(broker.port)
        with monkeypatch.context() as patch:
            patch.setattr(FlowControl, "refusal", lambda *arguments: refusal)
            await peer.say(Command(code=310, ext=send_ext(310), body=b"x").encode(serialization))
            reply = decode_command(await peer.frame())
            assert (reply.code, reply.remark) == (2, refusal[1])
            assert (await client.ask(30, {"topic": TOPIC, "queueId": "0"})).ext == {"offset": "1"}

        assert (await client.send()).code == 0
        assert broker.core.store.queue(TOPIC, 0).end == 2
        await peer.close()


async def test_a_blocked_loop_is_noticed(tmp_path: Path) -> None:
    """A loop that really stood still refuses what was waiting meanwhile, and takes the next send."""
    async with running_broker(tmp_path, waitTimeMillsInSendQueue="1") as broker, dialogue(broker) as client:
        flow = broker.flow
        loop = asyncio.get_running_loop()
        answers: list[Any] = []
        began = loop.time()
        while loop.time() - began < 0.05:
            answers.append(flow.refusal(loop.time(), 0))

        refused = [answer[1] for answer in answers if answer is not None]
        assert refused
        assert re.search(r"period in queue: [1-9]\d*ms", refused[-1])
        assert (await client.ask(30, {"topic": TOPIC, "queueId": "0"})).code == 0
