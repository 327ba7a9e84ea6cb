"""Random histories of a model world from a seed: any events in any order, and then rounds without faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, final

import msgspec
from spec_world.shapes import Shape
from spec_world.world import World

from gantry_spec.observed import Member, PromotionRequest, Role

RECOVERY_ROUNDS_MAX: Final = 120
"""After so many rounds without faults the shard must be healthy."""

NAMES: Final = ("op0", "op1", "api")
"""The two deciding processes and the API server, as ends of a partition."""


@final
class History:
    """The model world of one seed with its random generator."""

    def __init__(self, shape: Shape, seed: int, world: World | None = None) -> None:
        self.world: Final = World(shape.spec, acks_needed=shape.acks_needed) if world is None else world
        self.random: Final = random.Random(seed)
        self.shape: Final = shape
        self.manual_interventions = 0
        """How often a person accepted a loss, because the shard was still unhealthy after half of the rounds."""

        self._requests = 0
        self._delayed_requests: list[tuple[int, int, int]] = []
        self._delayed_reports: list[tuple[int, Member]] = []
        routine: list[tuple[int, Callable[[], None]]] = [
            (6, self._round),
            (8, self._observe),
            (8, self._decide),
            (14, self._deliver),
            (10, self._copy),
            (10, self._advance_time),
            (3, self._send_question),
            (3, self._receive_answer),
            (2, self._send_report),
            (2, self._receive_report),
            (5, self._renew),
            (2, self._flush),
            (4, self._check_recovery),
            (4, self._execute_recovery_order),
        ]
        """Ordinary events with their weights."""

        faults: list[tuple[int, Callable[[], None]]] = [
            (2, self._crash),
            (4, self._inject_fault_at_master),
            (3, self._restart),
            (1, self._cut_power),
            (1, self._lose_disk),
            (2, self._partition_pair),
            (2, self._isolate),
            (2, self._isolate_api),
            (5, self._heal_partitions),
            (1, self._restart_decider),
            (1, self._disconnect),
            (1, self._edit),
            (1, self._request_promotion),
            (1, self._drop_action),
        ]
        """Faults and edits with their weights."""

        self._routine: Final = [call for weight, call in routine for _ in range(weight)]
        self._faults: Final = [call for weight, call in faults for _ in range(weight)]

    def run(self, steps: int, *, faults_share: float = 0.15) -> None:
        """Run up to eight rounds without faults, then apply random events, of which a share are faults."""
        self.run_until_healthy(rounds_max=8)
        self.apply_random_events(steps, faults_share=faults_share)

    def apply_random_events(self, steps: int, *, faults_share: float = 0.15) -> None:
        """Apply a number of random events."""
        for _ in range(steps):
            kinds = self._faults if self.random.random() < faults_share else self._routine
            self.random.choice(kinds)()

    # -- events --------------------------------------------------------------------------------------------------------

    def _decider(self) -> int:
        """Return the number of a random deciding process."""
        return self.random.randrange(len(self.world.deciders))

    def _number(self) -> int:
        """Return the number of a random member."""
        return self.random.choice(sorted(self.world.brokers) or [1])

    def _observe(self) -> None:
        decider_number = self._decider()
        self.world.read_lease(decider_number)
        for number in sorted(
            {*self.world.brokers, *self.world.spec.members, *self.world.deciders[decider_number].members}
        ):
            if self.random.random() < 0.8:
                self._observe_member(decider_number, number)

    def _observe_member(self, decider_number: int, number: int) -> None:
        member = self.world.observe_member(decider_number, number)
        if member is not None:
            self.world.receive(decider_number, member)

    def _send_question(self) -> None:
        """Send a status request that is answered much later."""
        self._delayed_requests.append((self._decider(), self._number(), self.world.now_ms))

    def _receive_answer(self) -> None:
        if self._delayed_requests:
            decider_number, number, asked_ms = self._delayed_requests.pop(
                self.random.randrange(len(self._delayed_requests))
            )
            member = self.world.observe_member(decider_number, number, asked_ms=asked_ms)
            if member is not None:
                self.world.receive(decider_number, member)

    def _send_report(self) -> None:
        """Take a report that is received much later, perhaps after newer ones."""
        decider_number = self._decider()
        member = self.world.observe_member(decider_number, self._number())
        if member is not None:
            self._delayed_reports.append((decider_number, member))

    def _receive_report(self) -> None:
        if self._delayed_reports:
            decider_number, member = self._delayed_reports.pop(self.random.randrange(len(self._delayed_reports)))
            self.world.receive(decider_number, member)

    def _decide(self) -> None:
        self.world.decide(self._decider())

    def _deliver(self) -> None:
        self.world.execute_pending(self._decider(), self.random.randrange(1 << 16), is_kept=self.random.random() < 0.1)

    def _round(self) -> None:
        """Let a deciding process observe most members, and one, perhaps another, decide and execute some actions."""
        self._observe()
        decider_number = self._decider()
        self.world.decide(decider_number)
        for _ in range(self.random.randrange(1, 8)):
            self.world.execute_pending(decider_number, self.random.randrange(1 << 16))

    def _drop_action(self) -> None:
        pending_actions = self.world.deciders[self._decider()].pending_actions
        if pending_actions:
            pending_actions.pop(self.random.randrange(len(pending_actions)))

    def _copy(self) -> None:
        self.world.replicate(self._number(), self.random.choice((0, 1, 3, 1000)))

    def _advance_time(self) -> None:
        self.world.advance(self.random.choice((20, 200, 500, 1_000, 3_000)), self.random.random())

    def _renew(self) -> None:
        self.world.renew_lease()

    def _flush(self) -> None:
        self.world.flush(self._number())

    def _crash(self) -> None:
        self.world.crash(self._number())

    def _inject_fault_at_master(self) -> None:
        """Apply a fault to the master by the Lease, where a fault has the greatest effect."""
        lease = self.world.lease
        number = lease.newest.master if lease is not None and lease.newest is not None else self._number()
        match self.random.randrange(4):
            case 0:
                self.world.crash(number)
            case 1:
                self.world.cut_power(number)
            case 2:
                self.world.partitions |= {frozenset({number, "op0"}), frozenset({number, "op1"})}
            case _:
                self._isolate(number)

    def _restart(self) -> None:
        self.world.restart(self._number())

    def _cut_power(self) -> None:
        self.world.cut_power(self._number())

    def _lose_disk(self) -> None:
        number = self._number()
        if self.world.lose_disk(number) and self.random.random() < 0.7:
            self.world.replaceable_disks.add(number)

    def _partition_pair(self) -> None:
        ends: list[int | str] = [*sorted(self.world.brokers), *NAMES]
        self.world.partitions.add(frozenset(self.random.sample(ends, 2)))

    def _isolate(self, number: int | None = None) -> None:
        """Isolate a member from all others. Only clients and perhaps the Lease still reach it."""
        number = self._number() if number is None else number
        others: list[int | str] = [one for one in sorted(self.world.brokers) if one != number]
        for other in (*others, "op0", "op1"):
            self.world.partitions.add(frozenset({number, other}))

    def _isolate_api(self) -> None:
        """Make the Lease unreachable for all members and deciding processes."""
        ends: list[int | str] = [*sorted(self.world.brokers), "op0", "op1"]
        for end in ends:
            self.world.partitions.add(frozenset({end, "api"}))

    def _check_recovery(self) -> None:
        self.world.sidecars.check_recovery(self._number())

    def _execute_recovery_order(self) -> None:
        self.world.sidecars.order(self.random.randrange(1 << 16))

    def _heal_partitions(self) -> None:
        if self.random.random() < 0.3:
            self.world.partitions.clear()
            self.world.is_paused = False
        if self.world.partitions:
            self.world.partitions.remove(
                self.random.choice(sorted(self.world.partitions, key=lambda pair: sorted(map(str, pair))))
            )

    def _restart_decider(self) -> None:
        """Restart a deciding process, which loses its observations."""
        decider = self.world.deciders[self._decider()]
        decider.members.clear()
        decider.lease = decider.last_report = None

    def _disconnect(self) -> None:
        self.world.disconnect(self._number())

    def _edit(self) -> None:
        world = self.world
        match self.random.randrange(4):
            case 0:
                slaves = world.spec.slaves + self.random.choice((-1, 1))
                if max(1, self.shape.acks_needed) <= slaves <= 4:
                    world.spec = msgspec.structs.replace(world.spec, slaves=slaves)
            case 1:
                world.template = f"t{self.random.randrange(3)}"
            case 2:
                world.leaving_members ^= {self._number()}
            case _:
                world.is_paused = not world.is_paused and self.random.random() < 0.3

    def _request_promotion(self) -> None:
        self._requests += 1
        to = self.random.choice([0, *self.world.spec.members])
        self.world.promotion_request = PromotionRequest(id=f"w{self._requests}", to=to or None)

    # -- recovery ------------------------------------------------------------------------------------------------------

    def end_faults(self) -> None:
        """End all faults. Lost disks are given up by a person."""
        world = self.world
        world.partitions.clear()
        world.leaving_members.clear()
        world.is_paused = False
        world.replaceable_disks |= world.lost_disks.keys()
        for decider in world.deciders:
            decider.pending_actions.clear()
        for number in list(world.brokers):
            world.restart(number)

    def run_until_healthy(self, rounds_max: int = RECOVERY_ROUNDS_MAX) -> int:
        """Run rounds without faults until the shard is healthy. Return their number; ``rounds_max`` if it is not.

        After half of the rounds a person accepts any loss, since some shards can recover only by that.
        """
        world = self.world
        for count in range(rounds_max):
            if count == rounds_max // 2:
                self.manual_interventions += 1
                world.promotion_request = PromotionRequest(id="person", loss_accepted=None)
            self.run_round()
            if self.is_healthy():
                return count
            self.advance_second()
        return rounds_max

    def run_round(self) -> None:
        """Let every deciding process observe all members, decide, and execute its actions."""
        world = self.world
        for decider_number in range(len(world.deciders)):
            world.read_lease(decider_number)
            for number in sorted({*world.brokers, *world.spec.members, *world.deciders[decider_number].members}):
                self._observe_member(decider_number, number)
            world.decide(decider_number)
            for _ in range(len(world.deciders[decider_number].pending_actions)):
                world.execute_pending(decider_number, 0)

    def advance_second(self) -> None:
        """Let a second pass without faults."""
        world = self.world
        for _ in range(2):
            world.advance(500, 0.5)
            world.renew_lease()
            for number in sorted(world.brokers):
                world.flush(number)
                world.replicate(number, 1_000)

    def is_healthy(self) -> bool:
        """Return whether one master acknowledges, all others are in sync, and no action is pending."""
        world = self.world
        if (
            sorted(world.brokers) != list(world.spec.members)
            or world.promotion_request is not None
            or world.lease is None
        ):
            return False
        term = world.lease.newest
        if term is None or not world.lease.is_settled or term.master not in world.brokers:
            return False
        master = world.brokers[term.master]
        slaves = [one for one in world.brokers.values() if one is not master]
        is_led = master.role is Role.MASTER and master.is_up and not master.is_draining
        is_followed = all(one.is_up and one.role is Role.SLAVE and one.master == master.address for one in slaves)
        is_current = all(one.template == world.template for one in world.brokers.values())
        is_complete = all(len(one.store.log) >= len(master.store.log) - 30 for one in slaves)
        is_quiet = not any(decider.pending_actions for decider in world.deciders)
        is_acknowledging = (
            world.masters() == [master] and set(master.store.log[-30:]) & world.checker.acknowledged != set()
        )
        return is_led and is_followed and is_current and is_complete and is_quiet and bool(is_acknowledging)
