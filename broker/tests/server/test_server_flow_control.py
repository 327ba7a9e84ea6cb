"""Flow control: a burst is served, sustained overload is refused as by RocketMQ, except for one-way sends."""

import asyncio
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from gantry_broker.server.core.refusals import Refusal
from gantry_broker.server.send.flow_control import BURST_WAITS, STALL_MS, CoreWait, FlowControl
from gantry_status import RefusalReason
from gantry_testing.local import (
    TOPIC,
    UNIQUE_ID,
    RawPeer,
    dialogue,
    properties_text,
    running_broker,
    send_ext,
    wait_until,
)
from gantry_wire import Command, ResponseCode, decode_command
from gantry_wire.frame import Frame, FrameReader, Serialization

WAIT_S = 0.2
FRAME_BYTES = 1000
READ = (FRAME_BYTES - 4).to_bytes(4, "big") + bytes(FRAME_BYTES * 200 - 4)
"""A read of 200 frames."""

BUSY = Refusal(ResponseCode.SYSTEM_BUSY, "[TIMEOUT_CLEAN_QUEUE]broker busy", RefusalReason.QUEUE_TIMEOUT)


class FakeCoreWait:
    """A core wait that the test sets."""

    def __init__(self) -> None:
        self.waited_s = 7.0

    def seconds(self) -> float:
        return self.waited_s

    def close(self) -> None:
        """Do nothing, since no file is open."""


class FakeLoop:
    """A loop whose wall clock and CPU clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cpu = 5.0
        self.core_wait = FakeCoreWait()
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def cpu_time(self) -> float:
        return self.cpu

    def call_later(self, delay: float, callback: Callable[[], None]) -> "FakeLoop":
        assert delay == STALL_MS / 1000
        self.due.append(callback)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def run_timers(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class FakeSender:
    """A connection with so many bytes in its socket."""

    def __init__(self, queued: int, *, is_backlogged: bool = True) -> None:
        self.queued = queued
        self.is_backlogged = is_backlogged

    def queued_bytes(self) -> int:
        return self.queued


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def flow(loop: FakeLoop) -> FlowControl:
    return FlowControl(
        loop,  # type: ignore[arg-type]
        wait_ms_max=200,
        append_ms_max=1000,
        cpu_time=loop.cpu_time,
        core_wait=loop.core_wait,  # type: ignore[arg-type]
    )


def append(loop: FakeLoop, flow: FlowControl, seconds: float, core_wait_s: float = 0.0) -> None:
    """An append that takes `seconds`, in which the thread waits for a core for a part of them."""
    flow.begin_append(loop.now)
    loop.now += seconds
    loop.core_wait.waited_s += core_wait_s
    flow.end_append(seconds)


def serve(
    loop: FakeLoop, flow: FlowControl, sender: FakeSender, *, us_each: float, reads: int, slowdown: float = 1.0
) -> list[Refusal]:
    """Serve this many reads of 200 sends, with this CPU time for each send; on a starved core more time passes."""
    refusals = []
    for _ in range(reads):
        refusal = flow.refusal(sender, READ)
        if refusal is not None:
            refusals.append(refusal)
        loop.cpu += 200 * us_each / 1e6
        loop.now += 200 * us_each / 1e6 * slowdown
    return refusals


@pytest.mark.parametrize("slowdown", [1, 20], ids=["quiet", "starved"])
def test_burst_is_served_completely(loop: FakeLoop, flow: FlowControl, slowdown: float) -> None:
    """5,000 sends of the slowest kind that come at once are taken, however little of its core the broker gets."""
    sender = FakeSender(0)
    for left in range(25, 0, -1):
        sender.queued = left * len(READ)
        assert serve(loop, flow, sender, us_each=80, reads=1, slowdown=slowdown) == []


def test_paused_broker_does_not_refuse_senders(loop: FakeLoop, flow: FlowControl) -> None:
    """Sends that arrived while the process was stopped, or without a core, are accepted."""
    sender = FakeSender(6_000_000)
    assert serve(loop, flow, sender, us_each=10, reads=3) == []

    loop.now += 60

    assert serve(loop, flow, sender, us_each=10, reads=30) == []


def test_sustained_overload_is_refused_with_rocketmqs_text(loop: FakeLoop, flow: FlowControl) -> None:
    """A backlog that stays, and cannot be served in the waiting time, is code 2 with time and number of what waits."""
    sender = FakeSender(5_000_000)
    served = int(BURST_WAITS * WAIT_S / (200 * 80e-6)) + 1

    assert serve(loop, flow, sender, us_each=80, reads=served) == []
    [refusal] = serve(loop, flow, sender, us_each=80, reads=1)

    assert refusal == (
        ResponseCode.SYSTEM_BUSY,
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 400ms, size of queue: 5000",
        RefusalReason.QUEUE_TIMEOUT,
    )


def test_backlog_served_in_time_is_no_overload(loop: FakeLoop, flow: FlowControl) -> None:
    """A sender that always has more to send than a turn takes is served for ever, while nothing waits too long."""
    sender = FakeSender(5_000_000)

    assert serve(loop, flow, sender, us_each=30, reads=2000) == []


def test_sender_that_waits_for_answers_is_no_overload(loop: FakeLoop, flow: FlowControl) -> None:
    """Turns that end with an empty socket, however full they are, begin no backlog."""
    sender = FakeSender(0)

    assert serve(loop, flow, sender, us_each=80, reads=2000) == []


def test_empty_socket_ends_a_backlog(loop: FakeLoop, flow: FlowControl) -> None:
    """A sender whose socket was empty once has a whole burst again."""
    sender = FakeSender(5_000_000)
    assert serve(loop, flow, sender, us_each=80, reads=100) != []

    sender.is_backlogged = False
    assert serve(loop, flow, sender, us_each=80, reads=1) == []
    sender.is_backlogged = True

    assert serve(loop, flow, sender, us_each=80, reads=50) == []


def test_refused_reads_do_not_change_the_rate(loop: FakeLoop, flow: FlowControl) -> None:
    """A refusal that costs more than a send does not prolong an overload: the queue shrinks, sends are accepted."""
    sender = FakeSender(5_000_000)
    assert serve(loop, flow, sender, us_each=80, reads=100) != []
    assert len(serve(loop, flow, sender, us_each=800, reads=100)) == 100

    sender.queued = 2_400_000  # 192 ms

    assert serve(loop, flow, sender, us_each=80, reads=1) == []


def test_other_clients_are_not_refused_during_an_overload(loop: FakeLoop, flow: FlowControl) -> None:
    """Only the connection that sends too much is refused: others wait for one turn of the loop at most."""
    flooder, honest = FakeSender(5_000_000), FakeSender(0, is_backlogged=False)
    assert serve(loop, flow, flooder, us_each=80, reads=100) != []

    assert flow.refusal(honest, READ[:FRAME_BYTES]) is None
    assert flow.refusal(flooder, READ) is not None


def test_closed_connection_is_removed(loop: FakeLoop, flow: FlowControl) -> None:
    """Nothing is kept for a sender that has gone in the middle of a backlog."""
    sender = FakeSender(5_000_000)
    serve(loop, flow, sender, us_each=80, reads=100)

    flow.forget(sender)

    assert "backlogs=0" in repr(flow)


def test_changed_limit_applies_at_once(loop: FakeLoop, flow: FlowControl) -> None:
    """A longer waiting time takes what the shorter one refused."""
    sender = FakeSender(5_000_000)
    assert serve(loop, flow, sender, us_each=80, reads=100) != []

    flow.set_limits(wait_ms_max=3000, append_ms_max=1000)

    assert serve(loop, flow, sender, us_each=80, reads=100) == []


def test_slow_append_refuses_sends_with_its_time(loop: FakeLoop, flow: FlowControl) -> None:
    """Sends that arrived during a slow append are refused as for a busy page cache, until 10 ms after it."""
    sender = FakeSender(3 * FRAME_BYTES, is_backlogged=False)
    append(loop, flow, 0.9)
    assert flow.refusal(sender, READ) is None

    append(loop, flow, 1.2)

    assert flow.refusal(sender, READ) == (
        ResponseCode.SYSTEM_BUSY,
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 1200ms, size of queue: 3",
        RefusalReason.PAGE_CACHE_BUSY,
    )
    loop.run_timers()
    assert flow.refusal(sender, READ) is None


def test_append_that_waited_for_a_core_is_no_slow_disk(loop: FakeLoop, flow: FlowControl) -> None:
    """The time for which the thread waited for a core is not the disk's: nothing is refused for it."""
    sender = FakeSender(3 * FRAME_BYTES, is_backlogged=False)

    append(loop, flow, 2.9, core_wait_s=2.0)
    assert flow.refusal(sender, READ) is None

    append(loop, flow, 2.9, core_wait_s=1.8)
    assert "period in queue: 1100ms" in str(flow.refusal(sender, READ))


def test_core_waits_before_an_append_do_not_shorten_it(loop: FakeLoop, flow: FlowControl) -> None:
    """Waits for a core before the append do not hide a slow disk."""
    sender = FakeSender(3 * FRAME_BYTES, is_backlogged=False)
    append(loop, flow, 0.01)
    loop.now += 60
    loop.core_wait.waited_s += 50

    append(loop, flow, 1.2)

    assert flow.refusal(sender, READ) is not None


def test_kernels_core_wait_of_a_thread_grows_beside_another() -> None:
    """Two busy threads on one core: the wait that is read is real, and 0 once the file is closed."""
    busy = [sys.executable, "-c", "while True: pass"]
    cores = os.sched_getaffinity(0)
    wait = CoreWait()
    if not wait.seconds() and not os.path.exists("/proc/thread-self/schedstat"):
        pytest.skip("this kernel does not count how long a thread waits for a core")
    rival = subprocess.Popen(busy)
    try:
        core = {min(cores)}
        os.sched_setaffinity(0, core)
        os.sched_setaffinity(rival.pid, core)
        before, deadline = wait.seconds(), time.monotonic() + 60
        while wait.seconds() - before < 0.02:
            assert time.monotonic() < deadline, "the wait for a core does not grow"
    finally:
        os.sched_setaffinity(0, cores)
        rival.kill()
        rival.wait()
    wait.close()
    assert wait.seconds() == 0


def test_stopped_flow_control_leaves_no_timer(loop: FakeLoop, flow: FlowControl) -> None:
    """After the stop no timer is left."""
    append(loop, flow, 1.2)
    flow.stop()

    assert loop.due == []


# ------- in a broker


@pytest.mark.parametrize("serialization", list(Serialization), ids=["usual", "unusual"])
async def test_refused_send_stores_nothing(tmp_path: Path, serialization: Serialization) -> None:
    """While sends are refused none is stored, and each is counted; other requests are served as ever."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        peer = await RawPeer.open(broker.port)
        broker.flow.set_standing_refusal(BUSY)
        for _ in range(3):
            await peer.send(Command(code=310, ext=send_ext(310), body=b"x").encode(serialization))
            reply = decode_command(await peer.frame())
            assert (reply.code, reply.remark) == (2, BUSY.remark)
        assert (await client.ask(30, {"topic": TOPIC, "queueId": "0"})).ext == {"offset": "1"}
        broker.flow.set_standing_refusal(None)

        assert (await client.send()).code == 0
        assert broker.core.store.queues.get_or_create(TOPIC, 0).end == 2
        assert broker.status.snapshot().refused_requests[RefusalReason.QUEUE_TIMEOUT] == 3
        await peer.close()


@pytest.mark.parametrize("code", [10, 310], ids=["v1", "v2"])
@pytest.mark.parametrize(
    "reason", [RefusalReason.QUEUE_TIMEOUT, RefusalReason.PAGE_CACHE_BUSY, RefusalReason.WAITING_FULL]
)
async def test_oneway_send_is_stored_during_an_overload(tmp_path: Path, code: int, reason: RefusalReason) -> None:
    """While sends with answers are refused because of the load, a one-way send is stored."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        broker.flow.set_standing_refusal(BUSY._replace(reason=reason))
        for _ in range(5):
            client.send_oneway(code, send_ext(code), b"one-way")
        assert (await client.send()).code == 2

        assert broker.core.store.queues.get_or_create(TOPIC, 0).end == 6


async def test_oneway_send_is_dropped_without_room_on_the_disk(tmp_path: Path) -> None:
    """Without room on the disk a one-way send is not stored, and counted like any other refusal."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        broker.flow.set_standing_refusal(BUSY._replace(reason=RefusalReason.DISK_FULL))
        client.send_oneway(310, send_ext(310), b"one-way")
        await wait_until(lambda: broker.core.stats.refusals.counts[RefusalReason.DISK_FULL] == 1)
        broker.flow.set_standing_refusal(None)

        assert broker.core.store.queues.get_or_create(TOPIC, 0).end == 1


def burst(port: int, sends: bytes, reply_count: int) -> list[int]:
    """Write all sends over one connection; return the codes of the replies."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        writing = threading.Thread(target=client.sendall, args=(sends,))
        writing.start()
        frames: list[Frame] = []
        reader = FrameReader()
        while len(frames) < reply_count:
            frames += reader.feed(client.recv(1 << 20))
        writing.join()
        return [decode_command(frame).code for frame in frames]


@pytest.mark.parametrize("is_oneway", [False, True], ids=["answered", "oneway"])
@pytest.mark.parametrize("unique", [UNIQUE_ID, "0b5b0a3e-7f3a-4a51-9a63-6a1a2b3c4d5e"], ids=["java", "other"])
def test_burst_of_5000_sends_is_stored_completely(tmp_path: Path, is_oneway: bool, unique: str) -> None:
    """5,000 sends of 800 bytes that are written at once over one connection are all accepted, one-way or not."""
    count = 5000
    flag = 2 if is_oneway else 0
    ext = send_ext(310, properties=properties_text(UNIQ_KEY=unique, WAIT="true"))
    sends = [Command(code=310, opaque=n, flag=flag, ext=ext, body=bytes(800)).encode() for n in range(count)]

    async def run() -> None:
        async with (
            running_broker(tmp_path, mappedFileSizeCommitLog=str(64 << 20), waitTimeMillsInSendQueue="200") as broker,
            dialogue(broker) as client,
        ):
            await client.send_ok()
            codes = await asyncio.to_thread(burst, broker.port, b"".join(sends), 0 if is_oneway else count)
            assert set(codes) <= {0}
            await wait_until(lambda: broker.core.store.queues.get_or_create(TOPIC, 0).end == count + 1)
            assert sum(broker.core.stats.refusals.counts.values()) == 0

    uvloop.run(run())


async def test_resumed_process_accepts_sends_that_arrived_meanwhile(tmp_path: Path) -> None:
    """After a pause of the whole process, longer than the waiting time, sends that waited are stored: all of them."""
    async with running_broker(tmp_path, waitTimeMillsInSendQueue="20") as broker, dialogue(broker) as client:
        await client.send_ok()
        peer = await RawPeer.open(broker.port)
        sends = [Command(code=310, opaque=n, ext=send_ext(310), body=b"x").encode() for n in range(100)]
        peer.writer.write(b"".join(sends))

        threading.Event().wait(0.1)  # the loop is blocked, and uses no CPU

        assert {decode_command(await peer.frame()).code for _ in sends} == {0}
        assert broker.core.store.queues.get_or_create(TOPIC, 0).end == 101
        await peer.close()


async def test_real_overload_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that floods a broker for too long is answered code 2, counted, and logged as an episode."""
    caplog.set_level(logging.INFO)
    async with (
        running_broker(tmp_path, mappedFileSizeCommitLog=str(64 << 20), waitTimeMillsInSendQueue="1") as broker,
        dialogue(broker) as client,
    ):
        await client.send_ok()
        peer = await RawPeer.open(broker.port)
        sends = Command(code=310, ext=send_ext(310), body=bytes(800)).encode() * 1000
        refusals = broker.core.stats.refusals

        async def read() -> set[tuple[int, str]]:
            found: set[tuple[int, str]] = set()
            while not found:
                reply = decode_command(await peer.frame())
                if reply.code:
                    found.add((reply.code, reply.remark or ""))
            return found

        async def flood() -> None:
            while not refusals.counts[RefusalReason.QUEUE_TIMEOUT]:
                await peer.send(sends)

        writing = asyncio.ensure_future(flood())
        [(code, remark)] = await read()
        await writing

        assert code == 2
        assert re.fullmatch(
            r"\[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, "
            r"period in queue: [1-9]\d*ms, size of queue: [1-9]\d*", remark
        )  # fmt: skip
        assert (await client.send()).code == 0
        await peer.close()
    lines = [record for record in caplog.records if "refusing requests" in record.getMessage()]
    assert [record.getMessage() for record in lines] == ["started refusing requests", "stopped refusing requests"]
    assert lines[1].__dict__["refused"] == refusals.counts[RefusalReason.QUEUE_TIMEOUT]
