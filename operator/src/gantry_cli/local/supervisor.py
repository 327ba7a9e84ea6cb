"""The supervisor of a local group: observe -> decide -> act, and again, about once a second and when something happens.

    processes, control sockets, Lease files, annotations     looked at
    ``gantry_spec.decide``                                   decides, as in a cluster
    orders, Lease files, processes                           done by ``LocalActions``, one decision per shard at a time

It remembers nothing that it could not find again: whoever starts after it has died finds the Lease, the last words of
masters, and the members in STATE. All times are those of the machine's boot-time clock, which brokers use, too.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, final

from gantry_cli.local.acting import LocalActions
from gantry_cli.local.lease import LastWords, LeaseFile, renew
from gantry_cli.local.look import Event
from gantry_cli.local.member import LocalMember, Settings
from gantry_cli.local.state import GroupRecord, GroupState, MemberRecord, StandingOrders, now_ms
from gantry_cli.local.topics import Emptying
from gantry_cli.processes import ServerProcess
from gantry_client.topic_reconciler import MasterTerm
from gantry_remoting.addresses import join_address
from gantry_spec import actions as act
from gantry_spec.decide import Decision, decide
from gantry_spec.ledger import Ledger
from gantry_spec.manifest import Spec
from gantry_spec.manifest.annotations import Wanted
from gantry_spec.manifest.parts import Retain
from gantry_spec.observed import Observed, ObservedShard, PromotionRequest, Role

LOOK_INTERVAL_S: Final = 1.0
BUSY_INTERVAL_S: Final = 0.1
"""While something was just done, or is about to be, or a broker starts."""
LEASE_DURATION_MS: Final = 6_000
EVENTS_MAX: Final = 200
SAME_AGAIN_MS: Final = 5_000
ALONE: Final = PromotionRequest(id="single", loss_accepted=None)
"""The order of `gantry up --single`: its broker is the master with what its store has, since no other has more."""
EVERYBODY: Final = 0
"""No member's number: whoever of a shard answers."""


class AnsweringMaster(NamedTuple):
    """The master of a shard, as it has reported in the last look."""

    term: MasterTerm
    wrote: int
    """Where its log ends."""


@final
class Supervisor:
    """Owned by one event loop."""

    def __init__(
        self, state: GroupState, record: GroupRecord, settings: Settings, tell: Callable[[str], None], *,
        has_sidecars: bool, is_single: bool, make_record: Callable[[int, int], MemberRecord],
        on_look: Callable[[], None],
    ) -> None:  # fmt: skip
        """``make_record`` plans a member that an edit adds; ``on_look`` is called after each observation."""
        self.state: Final = state
        self.record: Final = record
        self.settings = settings
        self.members: Final[dict[tuple[int, int], LocalMember]] = {}
        self.observed = Observed()
        self.decision = Decision()
        self.looks = 0
        self.events: Final[deque[Event]] = deque(maxlen=EVENTS_MAX)
        self._has_sidecars: Final = has_sidecars
        self._is_single: Final = is_single
        self._make_record, self._on_look = make_record, on_look
        self._told: Final = tell
        self._words: Final = LastWords(state)
        self.standing_orders: Final = StandingOrders(state, self.tell)
        self.emptying: Final = Emptying(record.name, ";".join(record.addresses), settings.access, self.tell)
        self._leases: Final[dict[int, LeaseFile]] = {}
        self._wake: Final = asyncio.Event()
        self._acting: Final[dict[tuple[int, int], asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._actions: Final = LocalActions(self, self.tell)
        self._ledgers: Mapping[int, Ledger] = {}

    def __repr__(self) -> str:
        return f"<Supervisor {self.record.name} looks={self.looks} members={len(self.members)}>"

    # -- what actions need ---------------------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        return self.settings.spec

    def lease(self, shard: int) -> LeaseFile:
        """Read when it is first asked for. Raises CliError when it is damaged."""
        if shard not in self._leases:
            self._leases[shard] = LeaseFile(self.state.lease(shard), now_ms)
        return self._leases[shard]

    def member(self, shard: int, number: int) -> LocalMember | None:
        return self.members.get((shard, number))

    def start(self, shard: int, number: int) -> None:
        """See to it that a member is there and runs."""
        assert self._group is not None, "run comes first"
        member = self.member(shard, number)
        if member is None:
            record = self.record.member(shard, number)
            if record is None:
                record = self._make_record(shard, number)
                self.record.members.append(record)
            member = LocalMember(
                record, self.state, lambda: self.settings, now_ms, self.tell, self.wake, has_sidecar=self._has_sidecars
            )
            self.members[shard, number] = member
            for child in member.children:
                self.keep(child)
        if not member.is_disk_lost:
            for child in member.children:
                child.start()

    def keep(self, child: ServerProcess) -> None:
        """Run it beside us."""
        assert self._group is not None, "run comes first"
        self._group.create_task(child.run(), name=f"keep {child.name}")

    async def remove(self, member: LocalMember) -> None:
        """Stop it for good; its store stays if the spec says so."""
        await asyncio.gather(*(child.stop() for child in member.children))
        await member.close()
        self.members.pop((member.record.shard, member.record.number), None)
        self.record.members.remove(member.record)
        member.free_buffers()
        if self.spec.storage.retain is Retain.NEVER:
            await asyncio.to_thread(shutil.rmtree, member.record.store, ignore_errors=True)
            shard = member.record.shard
            if not any(one.shard == shard for one in self.record.members):
                self._leases.pop(shard, None)
                self.state.lease(shard).unlink(missing_ok=True)

    def tell(self, text: str) -> None:
        """Something has happened. What is tried again and again is told now and then."""
        now = time.time_ns() // 1_000_000
        if any(one.text == text and now - one.at_ms < SAME_AGAIN_MS for one in self.events):
            return
        self.events.append(Event(now, text))
        self._told(text)

    def replace_settings(self, settings: Settings) -> None:
        """Have members start, and be judged, by other settings from now on."""
        self.settings = settings

    def wake(self) -> None:
        """Look again soon."""
        self._wake.set()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def run(self, name_servers: list[ServerProcess]) -> None:
        """Until cancelled. Raises CliError for a state that cannot be believed."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for child in name_servers:
                self.keep(child)
                child.start()
            for record in list(self.record.members):
                self.start(record.shard, record.number)
            group.create_task(self._look_forever(), name="look and decide")

    async def _look_forever(self) -> None:
        while True:
            self._wake.clear()
            is_busy = await self._once() or any(member.is_starting for member in self.members.values())
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_INTERVAL_S if is_busy else LOOK_INTERVAL_S):
                    await self._wake.wait()
            await asyncio.sleep(BUSY_INTERVAL_S)

    async def _once(self) -> bool:
        """One look; whether something was done."""
        await asyncio.gather(*(member.look() for member in self.members.values()))
        self._words.keep(self.members.values())
        self.observed = self._look()
        moment_ms = now_ms()
        self.decision = decide(self.spec, self.observed, moment_ms, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in self.decision.ledgers}
        is_busy = self._act()
        await renew([(one.number, self.lease(one.number)) for one in self.observed.shards], self.member)
        for member in self.members.values():
            if member.is_sidecar_outdated and member.sidecar is not None:
                assert self._group is not None, "run comes first"
                self._group.create_task(member.sidecar.restart(), name=f"restart {member.sidecar.name}")
        self.looks += 1
        self._on_look()
        return is_busy

    def _act(self) -> bool:
        """Begin to do what was decided; whether anybody who answers is concerned.

        Nothing else is begun about a shard until those who answer have answered. Who stands still is not waited for:
        an order to it is under way by itself, and no other one goes there meanwhile.
        """
        is_busy = False
        for shard in {action.shard for action in self.decision.actions}:
            news = [one for one in self.decision.actions if one.shard == shard and self._is_news(one)]
            swift = [one for one in news if self._answers(one)]
            if swift and (shard, EVERYBODY) not in self._acting:
                is_busy = True
                self._begin((shard, EVERYBODY), swift)
            for one in news:
                if isinstance(one, act.MemberAction) and not self._answers(one):
                    self._begin((shard, one.member), [one])
        return is_busy

    def _begin(self, key: tuple[int, int], actions: Sequence[act.Action]) -> None:
        assert self._group is not None, "run comes first"
        task = self._group.create_task(self._actions.execute(actions), name=f"act on {key}")
        self._acting[key] = task
        task.add_done_callback(partial(self._acted, key))

    def _is_news(self, action: act.Action) -> bool:
        """Whether there is anything to do: not for a start that comes by itself, nor while an order is under way."""
        if isinstance(action, act.Wait):
            return False
        if isinstance(action, act.MemberAction) and (action.shard, action.member) in self._acting:
            return False
        return not (isinstance(action, act.Start) and self.member(action.shard, action.member) is not None)

    def _answers(self, action: act.Action) -> bool:
        """Whether whoever is ordered has answered the last look; what is done here always is."""
        if not isinstance(action, act.OrderAction):
            return True
        member = self.member(action.shard, action.member)
        return member is not None and member.is_answering

    def _acted(self, key: tuple[int, int], _: asyncio.Task[None]) -> None:
        self._acting.pop(key, None)
        self.wake()

    # -- looking -------------------------------------------------------------------------------------------------------

    def shard_now(self, shard: int, asked: Wanted | None = None) -> ObservedShard:
        """One shard as it was seen last."""
        asked_ms = now_ms()
        asked = self.standing_orders.read() if asked is None else asked
        is_idle = all(one.report is None or one.report.role is not Role.MASTER for one in self.members.values())
        alone = ALONE if self._is_single and is_idle else None
        return ObservedShard(
            number=shard,
            lease=self.lease(shard).observed,
            members=tuple(self.members[key].seen(asked_ms) for key in sorted(self.members) if key[0] == shard),
            last_word=self._words.of(shard),
            request=alone or asked.request(shard),
            restore="" if alone is None else alone.id,
            is_fenced=shard in asked.fenced,
            holds_nothing=self.holds_nothing(shard) if shard >= self.spec.shards else None,
            replace_disks=tuple(number for one, number in asked.given_up if one == shard),
        )

    def masters(self) -> dict[int, AnsweringMaster]:
        """Return the masters that answer, by shard. Of two that claim a shard it is the one of the newer term."""
        found: dict[int, AnsweringMaster] = {}
        for (shard, _), member in sorted(self.members.items()):
            report = member.report
            if member.is_answering and report is not None and report.role is Role.MASTER and report.wrote is not None:
                address = join_address(self.record.host, member.record.port)
                master = AnsweringMaster(MasterTerm(address, report.identity, report.epoch), report.wrote)
                if shard not in found or found[shard].term.epoch < report.epoch:
                    found[shard] = master
        return found

    def holds_nothing(self, shard: int) -> bool:
        """Whether nothing was left on a shard, and nothing has come since."""
        master = self.masters().get(shard)
        return self.emptying.is_empty(shard, None if master is None else master.wrote)

    def _look(self) -> Observed:
        asked = self.standing_orders.read()
        numbers = sorted({*range(self.spec.shards), *(shard for shard, _ in self.members)})
        return Observed(
            shards=tuple(self.shard_now(number, asked) for number in numbers),
            template=self.settings.template,
            is_paused=asked.is_paused,
            lease_duration_ms=LEASE_DURATION_MS,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    async def stop(self) -> list[str]:
        """Stop all members, masters first, so that slaves get the rest; the names of those that had to be killed."""
        masters: list[ServerProcess] = []
        others: list[ServerProcess] = []
        sidecars: list[ServerProcess] = []
        for member in self.members.values():
            is_master = member.report is not None and member.report.role is Role.MASTER
            (masters if is_master else others).append(member.broker)
            sidecars += [] if member.sidecar is None else [member.sidecar]
        killed = []
        for children in (sidecars, masters, others):
            results = await asyncio.gather(*(child.stop() for child in children))
            killed += [child.name for child, is_polite in zip(children, results, strict=True) if not is_polite]
        for member in self.members.values():
            await member.close()
            member.free_buffers()
        return killed
