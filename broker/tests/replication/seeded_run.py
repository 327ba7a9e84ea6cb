"""One seeded run from the start of its group to the checker's result."""

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
from gantry_histories.judges import Judgement
from gantry_histories.load import Load
from gantry_histories.producer import BODY_BYTES
from replication.fault_injection import FaultInjector
from replication.final_checks import stop_and_check
from replication.group import MEMBERS, QUEUES, Group
from replication.network import Network
from replication.plans import Plan
from replication.supervisor import PATIENCE_S, Supervisor


@dataclass
class RunResult:
    """The result of one seeded run."""

    plan: Plan
    judgement: Judgement
    answers: Counter[str] = field(default_factory=Counter)
    """Number of sends by their outcome."""

    shown: int = 0
    """Number of messages that consumers received, each counted as often as it was received."""

    promotions: int = 0
    """Number of promotions after the first one."""

    seconds: float = 0.0

    @property
    def findings(self) -> Sequence[Finding]:
        """Return the violations that the judges found."""
        return self.judgement.findings

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.answers.items()))
        return f"{self.judgement}\n  {counts}; {self.shown} shown, {self.promotions} promotions, {self.seconds:.0f} s"


@dataclass
class Scene:
    """A group that has started and is under load, with all objects that a test of it uses."""

    group: Group
    supervisor: Supervisor
    load: Load
    faults: FaultInjector
    mode: Mode
    """What the judges must accept as lost."""

    judgement: Judgement | None = None
    """The results of both judges, after the end."""

    @property
    def history(self) -> History:
        return self.load.journal.history

    async def stop_and_check(self, patience_s: float = PATIENCE_S) -> list[Finding]:
        """End the load, stop the group, and return the judges' findings. The scene cannot be used afterwards.

        ``patience_s`` limits the time in which all members must catch up with the master.
        """
        await self.load.stop()
        self.judgement = await stop_and_check(self.group, self.supervisor, self.load, self.mode, patience_s)
        return list(self.judgement.findings)


@asynccontextmanager
async def start_scene(
    plan: Plan,
    directory: Path,
    *,
    is_root: bool,
    without: Sequence[str] = (),
    members: int = MEMBERS,
    has_disks: bool = False,
    body_bytes: Sequence[int] = BODY_BYTES,
) -> AsyncIterator[Scene]:
    """Start the group of a plan under load, without a fault yet. The history is in ``directory`` afterwards.

    With ``is_root`` each member has a network namespace. ``without`` names guards that all brokers lack.
    """
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
        await supervisor.promote_first()
        await group.create_topic(supervisor.master)
        load = await stack.enter_async_context(
            Load(group.name_server_address, QUEUES, journal, plan.seed, body_bytes=body_bytes)
        )
        chance = random.Random(f"{plan.seed}/drama")
        yield Scene(group, supervisor, load, FaultInjector(group, supervisor, load, chance), plan.mode)


async def run_plan(
    plan: Plan, directory: Path, *, is_root: bool, without: Sequence[str] = (), members: int = MEMBERS
) -> RunResult:
    """Run a group with the faults of a plan, and return the result."""
    began_at = time.monotonic()
    async with start_scene(plan, directory, is_root=is_root, without=without, members=members) as scene:
        for fault in plan.faults:
            await scene.faults.inject(fault)
        await scene.stop_and_check()
        history = scene.history
        assert scene.judgement is not None
    answers = Counter(str(answer.outcome) for answer in history.answered.values())
    answers[str(Outcome.UNKNOWN)] += len(history.sent) - len(history.answered)
    return RunResult(
        plan, scene.judgement, answers, shown=len(history.shown), promotions=len(history.terms) - 1,
        seconds=time.monotonic() - began_at,
    )  # fmt: skip
