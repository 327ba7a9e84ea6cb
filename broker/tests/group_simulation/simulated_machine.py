"""A machine of the group: its disk and clocks, which remain, and the broker's processes on it, which end.

The broker is the real one. It gets the disk and the clock of its machine as ports, and runs on a simulated loop. Each
operation of the disk in a thread takes time; a sync of a *slow* disk takes up to seconds. What a sync covers is fixed
when it is called, so bytes that are written meanwhile are at risk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, final

from group_simulation.simulated_clock import MachineClock
from group_simulation.simulated_network import SimulatedNetwork
from group_simulation.simulated_world import ProcessEnded, SimulatedProcess, World

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError
from gantry_broker.setting_keys import broker_settings
from gantry_testing.faulty_disk import FaultyDisk

STORE: Final = "/store"
PORT: Final = 10911
HA_PORT: Final = 10912
SYNC_MIN_S: Final = 0.0003
SYNC_MAX_S: Final = 0.004
"""The duration of a sync of a disk that is not slow."""
OPERATION_MAX_S: Final = 0.0002
"""The longest duration of any other operation of a disk."""
SYNCS: Final = frozenset({"sync", "sync_directory"})


@final
class Machine:
    """One machine with a broker. Its methods belong to the world."""

    def __init__(self, world: World, network: SimulatedNetwork, number: int, settings: dict[str, str]) -> None:
        self.world: Final = world
        self.number: Final = number
        self.host: Final = f"10.0.0.{number}"
        self.clock: Final = MachineClock(world, f"member-{number}")
        self.disk: Final = FaultyDisk()
        self.process: SimulatedProcess | None = None
        """The process of its broker that runs now."""
        self.broker: Broker | None = None
        """The broker of this process, from when it is built."""
        self.is_serving = False
        """Whether its start is complete, so that it takes orders."""
        self.has_power = True
        self.is_paused = False
        self.slow_s = 0.0
        """The longest additional duration of a sync; 0 unless the disk is slow."""
        self.starts = 0
        self.started_s = self.stopped_s = 0.0
        """When the last process started, and when it was known to have ended."""
        self.exits: Final[list[str]] = []
        """Why processes have ended by themselves."""
        self.errors: Final[list[Exception]] = []
        """Unexpected exceptions that have ended processes."""
        self.ended: Final[list[SimulatedProcess]] = []
        """All processes that have ended. They are kept, so that nothing of them is finalized during the history."""
        self.on_operation: Callable[[str, str], None] = lambda kind, path: None
        """Called before each operation of the disk by the broker, after its delay."""
        self._settings: Final = settings
        self._network: Final = network
        self._latency: Final = world.random(f"disk {number}")
        self.disk.on_operation = self._begin_operation
        self.disk.while_syncing = lambda: self.take_time("sync")
        self.disk.make_directory(STORE)
        self.disk.sync_directory("/")

    def __repr__(self) -> str:
        return f"<Machine {self.number} power={self.has_power} process={self.process!r}>"

    @property
    def address(self) -> str:
        """Where clients find its broker."""
        return f"{self.host}:{PORT}"

    @property
    def ha_address(self) -> str:
        return f"{self.host}:{HA_PORT}"

    @property
    def is_up(self) -> bool:
        """Whether a process of its broker exists."""
        return self.process is not None

    @property
    def boot_id(self) -> str:
        """The name of the present process; empty without one."""
        return f"{self.number}-{self.starts}" if self.process is not None else ""

    # -- the process ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker, unless it runs or the machine has no power."""
        if self.process is not None or not self.has_power:
            return
        self.starts += 1
        self.started_s = self.world.now
        process = self.process = SimulatedProcess(
            self.world, f"broker {self.number}, start {self.starts}", self.host, self.clock
        )
        process.loop.network = self._network
        process.is_paused = self.is_paused
        process.loop.create_task(self._run(process))
        process.wake()

    async def _run(self, process: SimulatedProcess) -> None:
        """Run the broker as `gantry_broker.__main__` does, until it fails."""
        try:
            broker = Broker(broker_settings(self._settings), disk=self.disk, clock=self.clock)
            self.broker = broker
            await broker.start()
            self.is_serving = True
            await broker.wait_until_failed()
        except (OSError, BrokerError) as error:
            self.exits.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - a broker that ends in this way has a bug
            if not process.is_alive:
                raise ProcessEnded from None  # it waited while it was closed, as no real process could
            self.errors.append(error)
        self.end(is_silent=False)
        raise ProcessEnded from None

    def end(self, *, is_silent: bool) -> None:
        """End the process at once; ``is_silent`` if its machine loses its power with it."""
        process, self.process = self.process, None
        self.broker, self.is_serving, self.stopped_s = None, False, self.world.now
        self.disk.kill()
        if process is not None:
            process.end()
            self.ended.append(process)
            self._network.process_ended(process, is_silent=is_silent)

    # -- faults --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process as SIGKILL does: the page cache stays."""
        self.end(is_silent=False)

    def lose_power(self, chance: random.Random) -> None:
        """Cut the power: a random part of what was not synced is lost, in one of three cases all of it."""
        self.has_power = False
        self.end(is_silent=True)
        if chance.random() < 1 / 3:
            self.disk.lose_unsynced()
        else:
            self.disk.tear(chance.getrandbits(32))

    def restore_power(self) -> None:
        """Boot the machine again, without a broker."""
        self.has_power = True
        self.is_paused = False
        self.clock.reboot()

    def pause(self) -> None:
        """Suspend the process of the broker."""
        self.is_paused = True
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Let a suspended process continue."""
        self.is_paused = False
        if self.process is not None:
            self.process.resume()

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _begin_operation(self, kind: str, path: str) -> None:
        process = self.world.process
        if process is None:
            return  # the simulation itself reads the disk
        if not process.is_alive:
            raise ProcessEnded
        self.take_time(kind)
        self.on_operation(kind, path)
        if not process.is_alive:
            raise ProcessEnded

    def take_time(self, kind: str) -> None:
        """Let the thread that runs wait as long as an operation takes. An event loop only uses the page cache."""
        thread = self.world.thread
        if thread is None:
            return
        if kind not in SYNCS:
            thread.sleep(self._latency.uniform(0, OPERATION_MAX_S))
            return
        seconds = self._latency.uniform(SYNC_MIN_S, SYNC_MAX_S) / 2
        if self.slow_s:
            seconds += self._latency.uniform(0, self.slow_s)
        thread.sleep(seconds)
