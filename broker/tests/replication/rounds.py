"""One seeded run from its beginning to the judgement."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gantry_histories.events import Journal, Outcome
from gantry_histories.findings import Finding
from gantry_histories.load import Load
from replication.drama import Drama
from replication.ending import judge
from replication.group import QUEUES, Group
from replication.network import Network
from replication.plans import Plan
from replication.supervisor import Supervisor


@dataclass
class Verdict:
    """What came of it."""

    plan: Plan
    findings: Sequence[Finding] = ()
    answers: Counter[str] = field(default_factory=Counter)
    """How the sends ended."""

    lost: int = 0
    shown: int = 0
    promotions: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.answers.items()))
        return (
            f"{len(self.findings)} findings; {told}; {self.shown} shown, {self.promotions} promotions, "
            f"{self.seconds:.0f} s"
        )


async def run(plan: Plan, directory: Path, *, is_root: bool, without: Sequence[str] = ()) -> Verdict:
    """Live through a plan. The history is in ``directory`` afterwards."""
    began_at = time.monotonic()
    settings = dict(plan.settings)
    with (
        Network(3, is_isolated=is_root) as network,
        (directory / "history.jsonl").open("wb") as file,
    ):
        journal = Journal(file)
        async with Group(directory, network, settings=settings, without=without, has_disks=plan.loses_power) as group:
            await group.start()
            async with Supervisor(
                group, journal, acks_needed=plan.acks_needed, keeps_lease=plan.has_lease
            ) as supervisor:
                await supervisor.begin()
                await group.create_topic(supervisor.master)
                load = Load(group.name_server_address, QUEUES, journal, plan.seed)
                async with load:
                    drama = Drama(group, supervisor, load, random.Random(f"{plan.seed}/drama"))
                    for fault in plan.faults:
                        await drama.play(fault)
                findings = await judge(group, supervisor, load, plan.mode)
    history = journal.history
    answers = Counter(str(answer.outcome) for answer in history.answered.values())
    answers[str(Outcome.UNKNOWN)] += len(history.sent) - len(history.answered)
    return Verdict(
        plan, findings, answers, shown=len(history.shown), promotions=len(history.reigns) - 1,
        seconds=time.monotonic() - began_at,
    )  # fmt: skip
