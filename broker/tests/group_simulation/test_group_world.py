"""The simulated world itself: threads, disks and the network behave as the real ones that they replace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from group_simulation.simulated_clock import MachineClock, virtual_time
from group_simulation.simulated_machine import STORE, Machine
from group_simulation.simulated_network import SimulatedNetwork
from group_simulation.simulated_threads import SimulatedEvent, SimulatedLock, SimulatedThread
from group_simulation.simulated_world import ProcessEnded, SimulatedProcess, TimeIsOver, World


class Scene:
    """A world with some processes, each on a machine of its own."""

    def __init__(self) -> None:
        self.world = World(1)
        self.network = SimulatedNetwork(self.world)
        self.processes: list[SimulatedProcess] = []

    def process(self, host: str) -> SimulatedProcess:
        process = SimulatedProcess(self.world, host, host, MachineClock(self.world, host))
        process.loop.network = self.network
        self.processes.append(process)
        return process

    def run(self, process: SimulatedProcess, work: Coroutine[Any, Any, Any], limit_s: float = 60.0) -> Any:
        task = process.loop.create_task(work)
        process.wake()
        self.world.run(task.done, limit_s)
        return task.result()

    def run_for(self, seconds: float) -> None:
        end = self.world.now + seconds
        self.world.at(end, lambda: None)
        self.world.run(lambda: self.world.now >= end, seconds)


@pytest.fixture
def scene() -> Iterator[Scene]:
    one = Scene()
    with virtual_time(one.world):
        yield one
        for process in one.processes:
            process.dispose()


class Receiver(asyncio.Protocol):
    """A protocol that keeps what it receives."""

    def __init__(self) -> None:
        self.data = b""
        self.ends: list[Exception | None] = []
        self.pauses = 0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.pauses -= 1


def connect(scene: Scene) -> tuple[SimulatedProcess, SimulatedProcess, Receiver, Receiver]:
    """Return a client and a server process, and the protocols of a connection between them."""
    client, server = scene.process("client"), scene.process("server")
    accepted: list[Receiver] = []

    def accept() -> Receiver:
        accepted.append(Receiver())
        return accepted[-1]

    async def open_connection() -> Receiver:
        _, protocol = await client.loop.create_connection(Receiver, "server", 1)
        return protocol  # type: ignore[no-any-return]

    scene.run(server, server.loop.create_server(accept, "server", 1))
    ours = scene.run(client, open_connection())
    return client, server, ours, accepted[0]


# -- the network -------------------------------------------------------------------------------------------------------


def test_bytes_wait_while_packets_are_dropped(scene: Scene) -> None:
    """They arrive in order after the link has healed, as TCP sends them again."""
    _, _, ours, theirs = connect(scene)
    ours.transport.write(b"one ")
    scene.run_for(1)
    scene.network.cut("client", "server")
    ours.transport.write(b"two ")
    scene.run_for(5)
    assert theirs.data == b"one "

    scene.network.heal("client", "server")
    ours.transport.write(b"three")
    scene.run_for(5)

    assert theirs.data == b"one two three"


def test_end_of_a_process_resets_its_connections(scene: Scene) -> None:
    """The kernel of its machine still runs, so the peer gets a reset."""
    _, server, ours, _ = connect(scene)
    server.end()
    scene.network.process_ended(server, is_silent=False)
    scene.run_for(1)

    assert [type(end) for end in ours.ends] == [ConnectionResetError]


def test_loss_of_power_is_silent_until_the_machine_boots(scene: Scene) -> None:
    """There is no answer; what is sent after the boot gets a reset."""
    _, server, ours, _ = connect(scene)
    server.end()
    scene.network.process_ended(server, is_silent=True)
    scene.network.is_running = lambda host: host != "server"
    ours.transport.write(b"lost")
    scene.run_for(10)
    assert ours.ends == []

    scene.network.is_running = lambda host: True
    scene.run_for(10)

    assert [type(end) for end in ours.ends] == [ConnectionResetError]


def test_suspended_receiver_stops_the_sender(scene: Scene) -> None:
    """The buffers of both kernels fill up, and drain when it continues."""
    _, server, ours, theirs = connect(scene)
    server.pause()
    ours.transport.write(bytes(1 << 20))
    scene.run_for(5)
    assert (ours.pauses, theirs.data) == (1, b"")

    server.resume()
    scene.run_for(5)

    assert (ours.pauses, len(theirs.data)) == (0, 1 << 20)


def test_connection_to_a_cut_place_hangs(scene: Scene) -> None:
    """A closed port refuses at once; without packets there is no answer."""
    client = scene.process("client")

    async def open_connection() -> None:
        await client.loop.create_connection(Receiver, "server", 1)

    with pytest.raises(ConnectionRefusedError):
        scene.run(client, open_connection())
    scene.network.cut("server", "client")
    with pytest.raises(TimeIsOver):
        scene.run(client, open_connection())


# -- threads -----------------------------------------------------------------------------------------------------------


def test_thread_waits_in_virtual_time(scene: Scene) -> None:
    """An event wakes it, or its timeout does."""
    process, event = scene.process("one"), SimulatedEvent(scene.world)
    woken: list[tuple[bool, float]] = []
    begin = scene.world.now

    def work() -> None:
        woken.append((event.wait(5.0), scene.world.now - begin))
        woken.append((event.wait(100.0), scene.world.now - begin))

    with scene.world.running(process):
        SimulatedThread(process, work, "thread").start()
    scene.world.after(20.0, event.set)
    scene.run_for(50)

    assert [was_set for was_set, _ in woken] == [False, True]
    assert [round(when) for _, when in woken] == [5, 20]


def test_lock_excludes_a_second_thread(scene: Scene) -> None:
    """It waits until the first one has released it, although that one sleeps."""
    process, lock = scene.process("one"), SimulatedLock(scene.world)
    steps: list[str] = []

    def worker(name: str) -> Callable[[], None]:
        def work() -> None:
            with lock:
                steps.append(f"{name} begins")
                assert scene.world.thread is not None
                scene.world.thread.sleep(1.0)
                steps.append(f"{name} ends")

        return work

    for name in ("a", "b"):
        SimulatedThread(process, worker(name), name).start()
    scene.run_for(10)

    assert [step.split()[1] for step in steps] == ["begins", "ends", "begins", "ends"]


def test_thread_of_an_ended_process_does_nothing_more(scene: Scene) -> None:
    """Its present wait raises an exception, and its code does not continue."""
    process = scene.process("one")
    steps: list[str] = []

    def work() -> None:
        steps.append("before")
        assert scene.world.thread is not None
        try:
            scene.world.thread.sleep(1.0)
        except ProcessEnded:
            steps.append("ended")
            raise
        steps.append("after")

    thread = SimulatedThread(process, work, "thread")
    thread.start()
    scene.run_for(0.5)
    process.end()
    scene.run_for(5)

    assert (steps, thread.is_ended) == (["before", "ended"], True)


# -- disks and clocks --------------------------------------------------------------------------------------------------


def test_sync_covers_only_what_was_written_before_it(scene: Scene) -> None:
    """Bytes that the loop appends while a sync takes its time are lost in a power cut."""
    machine = Machine(scene.world, scene.network, 1, {})
    process = scene.process(machine.host)
    file = machine.disk.create(f"{STORE}/file", 16, reserve=16)
    machine.disk.sync_directory(STORE)
    file.pwrite(b"old", 0)

    SimulatedThread(process, file.sync, "sync").start()
    scene.world.run(lambda: machine.disk.operations["sync"] > 0, 1.0)
    scene.world.after(1e-6, lambda: file.pwrite(b"new", 8))
    machine.slow_s = 1.0
    scene.run_for(5)
    machine.disk.lose_unsynced()

    assert machine.disk.read_file(f"{STORE}/file") in (b"old" + bytes(13), b"old" + bytes(5) + b"new" + bytes(5))


def test_clocks_of_a_machine_differ_after_faults(scene: Scene) -> None:
    """A suspended machine's monotonic clock stands still, a jump moves only the wall clock, and a boot begins anew."""
    clock = MachineClock(scene.world, "one")
    wall, monotonic, boot, name = clock.wall_ms(), clock.monotonic_ms(), clock.boot_ms(), clock.boot_id()
    scene.run_for(10)
    clock.suspend(4)
    clock.jump_wall(-3_600)

    assert clock.monotonic_ms() - monotonic == pytest.approx(6_000, abs=1)
    assert clock.boot_ms() - boot == pytest.approx(10_000, abs=1)
    assert clock.wall_ms() - wall == pytest.approx(10_000 - 3_600_000, abs=1)
    clock.reboot()
    assert clock.boot_ms() < boot
    assert clock.boot_id() != name
