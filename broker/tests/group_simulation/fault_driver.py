"""Injects the planned faults of a history into its machines and their network, and ends each after a while.

Faults overlap: a machine may be cut off, slow and suspended at once. A machine whose broker has ended starts another
one, as a kubelet does; one without power boots again. ``repair`` ends everything that has not ended by itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, final

from group_simulation.mixed_faults import Fault, Plan
from group_simulation.simulated_machine import STORE, Machine
from group_simulation.simulated_network import SimulatedNetwork
from group_simulation.simulated_operator import HOST as OPERATOR_HOST
from group_simulation.simulated_world import World

RESTART_S: Final = 0.2
"""The shortest time from the end of a process to its next start."""
ALL_POWER_SHARE: Final = 0.4
"""The share of double power cuts in which the third machine loses its power, too."""
OPERATIONS_MAX: Final = 120
"""A power cut or kill at an operation comes within this number of operations of a disk."""
HOUR_S: Final = 3_600.0


@final
class FaultDriver:
    """The faults of one history. Belongs to the world."""

    def __init__(
        self, world: World, network: SimulatedNetwork, machines: Sequence[Machine], plan: Plan, clients_host: str,
        restart_operator: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.occurred: Final[Counter[Fault]] = Counter()
        """How often each fault has had an effect."""
        self.notes: Final[list[str]] = []
        self._world: Final = world
        self._network: Final = network
        self._machines: Final = machines
        self._plan: Final = plan
        self._clients_host: Final = clients_host
        self._restart_operator: Final = restart_operator
        self._chance: Final = world.random("faults")
        self._is_over = False
        self._traps: Final[dict[int, tuple[int, Fault]]] = {}
        self._cuts: Final[Counter[tuple[str, str]]] = Counter()
        self._acts: Final[dict[Fault, Callable[[], None]]] = {
            Fault.BIT_ROT: self._rot,
            Fault.DOUBLE_POWER_CUT: self._cut_two_powers,
            Fault.PAUSE: self._pause,
            Fault.CLOCK_JUMP: self._jump_clock,
            Fault.SLOW_DISK: self._slow_disk,
            Fault.PARTITION: self._partition,
            Fault.POWER_CUT_AT_OPERATION: lambda: self._set_trap(Fault.POWER_CUT_AT_OPERATION),
            Fault.KILL_AT_OPERATION: lambda: self._set_trap(Fault.KILL_AT_OPERATION),
            Fault.KILL: self._kill,
            Fault.SUSPEND: self._suspend,
            Fault.LOSS: self._lose_packets,
            Fault.RESET: self._reset,
            Fault.OPERATOR: self._end_operator,
        }
        for machine in machines:
            machine.on_operation = lambda kind, path, machine=machine: self._meet_trap(machine)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<FaultDriver {dict(self.occurred)}>"

    def begin(self) -> None:
        """Schedule all faults, from now on."""
        for fault in self._plan.faults:
            self._world.after(fault.at_s, lambda act=self._acts[fault.kind]: self._act(act))  # type: ignore[misc]

    def repair(self) -> None:
        """End every fault, and boot every machine. No fault begins afterwards."""
        self._is_over = True
        self._traps.clear()
        for source, target in list(self._cuts):
            self._network.heal(source, target)
        self._cuts.clear()
        for machine in self._machines:
            machine.slow_s = 0.0
            for one, other in self._links_of(machine):
                self._network.link(one, other).loss = self._network.link(one, other).extra_delay_s = 0.0
            if not machine.has_power:
                self._boot(machine)
            elif machine.is_paused:
                machine.resume()

    def keep_running(self, machine: Machine) -> None:
        """Start a broker on the machine whenever it has none; called regularly."""
        is_due = self._world.now - machine.stopped_s > RESTART_S
        if machine.process is None and machine.has_power and not machine.is_paused and is_due:
            machine.start()

    def _act(self, act: Callable[[], None]) -> None:
        if not self._is_over:
            act()

    def _note(self, kind: Fault, text: str) -> None:
        self.occurred[kind] += 1
        self.notes.append(f"{self._world.now:.3f} {kind}: {text}")

    def _later(self, low_s: float, high_s: float, action: Callable[[], None]) -> float:
        """End a fault after a while, unless ``repair`` has ended it before. Return the while."""
        delay_s = self._chance.uniform(low_s, high_s)
        self._world.after(delay_s, lambda: self._act(action))
        return delay_s

    def _machine(self) -> Machine:
        return self._chance.choice(self._machines)

    # -- disks and power -----------------------------------------------------------------------------------------------

    def _rot(self) -> None:
        machine = self._machines[self._plan.rotten - 1]
        disk = machine.disk
        kind = "commitlog" if self._plan.is_log_rotting and self._chance.random() < 0.8 else "consumequeue"
        used = {path: len(disk.read_file(path).rstrip(b"\0")) for path in _files_below(machine, f"{STORE}/{kind}")}
        paths = [path for path, size in used.items() if size > 0]
        for _ in range(self._chance.randint(1, 3) if paths else 0):
            path = self._chance.choice(paths)
            offset = self._chance.randrange(used[path])
            disk.flip(path, offset, 1 << self._chance.randrange(8))
            self._note(Fault.BIT_ROT, f"member {machine.number}: {path} at {offset}")

    def _cut_two_powers(self) -> None:
        first, *others = self._chance.sample(list(self._machines), 3 if self._chance.random() < ALL_POWER_SHARE else 2)
        self._cut_power(first)
        numbers = ", ".join(str(machine.number) for machine in (first, *others))
        self._note(Fault.DOUBLE_POWER_CUT, f"members {numbers}")
        for machine in others:
            self._later(0, 0.2, lambda machine=machine: self._cut_power(machine))  # type: ignore[misc]

    def _cut_power(self, machine: Machine) -> None:
        if machine.has_power:
            machine.lose_power(self._chance)
            self._later(0.5, 6.0, lambda: self._boot(machine))

    def _boot(self, machine: Machine) -> None:
        if not machine.has_power:
            machine.restore_power()
            machine.start()

    def _slow_disk(self) -> None:
        machine = self._machine()
        machine.slow_s = self._chance.choice([0.05, 0.3, 1.0, 2.0])
        seconds = self._later(2, 12, lambda: setattr(machine, "slow_s", 0.0))
        self._note(Fault.SLOW_DISK, f"member {machine.number}: {machine.slow_s} s more, for {seconds:.1f} s")

    def _set_trap(self, kind: Fault) -> None:
        machine = self._machine()
        self._traps[machine.number] = self._chance.randint(1, OPERATIONS_MAX), kind

    def _meet_trap(self, machine: Machine) -> None:
        """Count one operation of a disk, and end its process at the one that was chosen."""
        trap = self._traps.get(machine.number)
        if trap is None:
            return
        count, kind = trap
        if count > 1:
            self._traps[machine.number] = count - 1, kind
            return
        del self._traps[machine.number]
        if self._chance.random() < 0.4:
            self._traps[machine.number] = self._chance.randint(1, OPERATIONS_MAX), kind
        where = machine.broker is None or not machine.is_serving
        self._note(kind, f"member {machine.number}{', in its start' if where else ''}")
        if kind is Fault.KILL_AT_OPERATION:
            machine.kill()
        else:
            self._cut_power(machine)

    # -- processes and clocks ------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        machine = self._machine()
        if machine.process is not None:
            machine.kill()
            self._note(Fault.KILL, f"member {machine.number}")

    def _pause(self) -> None:
        machine = self._machine()
        if machine.process is not None and not machine.is_paused:
            machine.pause()
            seconds = self._later(0.3, 10, machine.resume)
            self._note(Fault.PAUSE, f"member {machine.number} for {seconds:.1f} s")

    def _suspend(self) -> None:
        machine = self._machine()
        if machine.process is None or machine.is_paused:
            return
        machine.pause()
        began, boot = self._world.now, machine.clock.boot_id()

        def wake() -> None:
            if machine.is_paused and machine.clock.boot_id() == boot:
                machine.clock.suspend(self._world.now - began)
                machine.resume()

        seconds = self._later(0.3, 10, wake)
        self._note(Fault.SUSPEND, f"member {machine.number} for {seconds:.1f} s")

    def _jump_clock(self) -> None:
        machine = self._machine()
        by_s = self._chance.choice([-1, 1]) * self._chance.choice([0.5, 5.0, 60.0, HOUR_S, 2 * HOUR_S])
        machine.clock.jump_wall(by_s)
        self._note(Fault.CLOCK_JUMP, f"member {machine.number} by {by_s:+} s")

    def _end_operator(self) -> None:
        seconds = self._chance.uniform(0.1, 5)
        self._restart_operator(seconds)
        self._note(Fault.OPERATOR, f"for {seconds:.1f} s")

    # -- the network ---------------------------------------------------------------------------------------------------

    def _links_of(self, machine: Machine) -> list[tuple[str, str]]:
        """Return all links from and to a machine."""
        others = [one.host for one in self._machines if one is not machine] + [self._clients_host, OPERATOR_HOST]
        return [pair for other in others for pair in ((machine.host, other), (other, machine.host))]

    def _partition(self) -> None:
        machine = self._machine()
        others = [one.host for one in self._machines if one is not machine]
        everything = [*others, OPERATOR_HOST, self._clients_host]
        to_others = [(machine.host, host) for host in others]
        from_others = [(host, machine.host) for host in others]
        shape, cuts = self._chance.choice([
            ("from the other members", to_others + from_others),
            ("to the other members", to_others),
            ("what the other members send", from_others),
            ("from everything", [pair for host in everything for pair in ((machine.host, host), (host, machine.host))]),
            ("from one member", [to_others[0], from_others[0]]),
            ("from the operator", [(machine.host, OPERATOR_HOST), (OPERATOR_HOST, machine.host)]),
            ("from the others and the operator", to_others + from_others + [(machine.host, OPERATOR_HOST)]),
        ])  # fmt: skip
        for source, target in cuts:
            self._cuts[source, target] += 1
            self._network.cut(source, target)

        def heal() -> None:
            for pair in cuts:
                self._cuts[pair] -= 1
                if self._cuts[pair] <= 0:
                    del self._cuts[pair]
                    self._network.heal(*pair)

        seconds = self._later(0.5, 12, heal)
        self._note(Fault.PARTITION, f"member {machine.number} {shape}, for {seconds:.1f} s")

    def _lose_packets(self) -> None:
        machine = self._machine()
        links = [self._network.link(*pair) for pair in self._links_of(machine)]
        loss, delay_s = self._chance.choice([0.01, 0.1, 0.3]), self._chance.choice([0.0, 0.01, 0.2])
        for link in links:
            link.loss, link.extra_delay_s = loss, delay_s

        def end() -> None:
            for link in links:
                link.loss = link.extra_delay_s = 0.0

        seconds = self._later(1, 10, end)
        self._note(Fault.LOSS, f"member {machine.number}: {loss:.0%}, {delay_s} s, for {seconds:.1f} s")

    def _reset(self) -> None:
        places = [machine.host for machine in self._machines] + [self._clients_host]
        one, other = self._chance.sample(places, 2)
        count = self._network.reset_connections(one, other)
        if count:
            self._note(Fault.RESET, f"{count} connections from {one} to {other}")


def _files_below(machine: Machine, directory: str) -> list[str]:
    """Return the paths of all files below a directory of a machine's disk."""
    disk = machine.disk
    if not disk.is_directory(directory):
        return []
    paths = [f"{directory}/{name}" for name in disk.list(directory)]
    return list(itertools.chain.from_iterable(
        _files_below(machine, path) if disk.is_directory(path) else [path] for path in paths
    ))  # fmt: skip
