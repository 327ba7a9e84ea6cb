"""Groups of three brokers under load, the master's role moving: what clients saw is judged in the end."""

from __future__ import annotations

from pathlib import Path

from replication.network import missing
from replication.plans import Fault, Plan
from replication.rounds import run


async def test_a_killed_master_costs_a_synchronous_group_nothing(tmp_path: Path) -> None:
    """R3, K1: with one ack needed and two slaves, whatever was acknowledged is there after a promotion."""
    plan = Plan(1, True, {"brokerRole": "SYNC_MASTER"}, (Fault.KILL_MASTER,))

    verdict = await run(plan, tmp_path, is_root=missing() is None)

    assert not verdict.findings
    assert verdict.promotions == 1
