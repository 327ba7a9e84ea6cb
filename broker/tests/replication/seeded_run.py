"""One seeded run from its start to its verdict."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gantry_histories.events import History, Journal, Outcome
from gantry_histories.findings import Finding, Mode
from gantry_histories.load import Load
from gantry_histories.producer import BODY_BYTES
from replication.fault_injection import FaultInjector
from replication.final_checks import judge
from replication.group import MEMBERS, QUEUES, Group
from replication.network import Network
from replication.plans import Plan
from replication.supervisor import PATIENCE_S, Supervisor


@dataclass
class Verdict:
    """The result of one seeded run."""

    plan: Plan
    findings: Sequence[Finding] = ()
    answers: Counter[str] = field(default_factory=Counter)
    """Number of sends by their outcome."""

    shown: int = 0
    promotions: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.answers.items()))
        return (
            f"{len(self.findings)} findings; {counts}; {self.shown} shown, {self.promotions} promotions, "
            f"{self.seconds:.0f} s"
        )


@dataclass
class Scene:
    """A group that has started, and is under load."""

    group: Group
    supervisor: Supervisor
    load: Load
    faults: FaultInjector
    mode: Mode

    @property
    def history(self) -> History:
        return self.load.journal.history

    async def judge(self, patience_s: float = PATIENCE_S) -> list[Finding]:
        """End the load, stop the group, and return the findings. The scene cannot be used afterwards."""
        await self.load.stop()
        return await judge(self.group, self.supervisor, self.load, self.mode, patience_s)


@asynccontextmanager
async def scene(
    plan: Plan,
    directory: Path,
    *,
    is_root: bool,
    without: Sequence[str] = (),
    members: int = MEMBERS,
    has_disks: bool = False,
    body_bytes: Sequence[int] = BODY_BYTES,
) -> AsyncIterator[Scene]:
    """Start the group of a plan, without a fault yet. The history is in ``directory`` afterwards."""
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(members, is_isolated=is_root))
        journal = Journal(stack.enter_context((directory / "history.jsonl").open("wb")))
        group = await stack.enter_async_context(
            Group(
                directory,
                network,
                members=members,
                settings=plan.settings,
                without=without,
                has_disks=plan.loses_power or has_disks,
                has_buffers=plan.has_buffers,
            )
        )
        await group.start()
        supervisor = await stack.enter_async_context(
            Supervisor(group, journal, acks_needed=plan.acks_needed, keeps_lease=plan.has_lease)
        )
        await supervisor.begin()
        await group.create_topic(supervisor.master)
        load = await stack.enter_async_context(
            Load(group.name_server_address, QUEUES, journal, plan.seed, body_bytes=body_bytes)
        )
        chance = random.Random(f"{plan.seed}/drama")
        yield Scene(group, supervisor, load, FaultInjector(group, supervisor, load, chance), plan.mode)


async def run(
    plan: Plan, directory: Path, *, is_root: bool, without: Sequence[str] = (), members: int = MEMBERS
) -> Verdict:
    """Execute a plan, and return its verdict."""
    began_at = time.monotonic()
    async with scene(plan, directory, is_root=is_root, without=without, members=members) as made:
        for fault in plan.faults:
            await made.faults.inject(fault)
        findings = await made.judge()
        history = made.history
    answers = Counter(str(answer.outcome) for answer in history.answered.values())
    answers[str(Outcome.UNKNOWN)] += len(history.sent) - len(history.answered)
    return Verdict(
        plan, findings, answers, shown=len(history.shown), promotions=len(history.terms) - 1,
        seconds=time.monotonic() - began_at,
    )  # fmt: skip
