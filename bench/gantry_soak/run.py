"""One soak: a group, the load on it, samples at an interval, faults by a plan, and the judgement at the end."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_bench.machine import describe_machine

from gantry_soak import features_control, features_read, features_send
from gantry_soak.faults import PERIOD_S, FaultInjector, PlannedFault, plan_faults
from gantry_soak.group import SoakGroup
from gantry_soak.ledger import Ledger
from gantry_soak.load import FEATURES, World, run_features
from gantry_soak.records import End, RecordFile, Sample, Start
from gantry_soak.sampling import Sampler

MODULES: Final = (features_send, features_read, features_control)
"""Their import registers the features."""

DRAIN_TIMEOUT_S: Final = 150.0
"""How long acknowledged messages may take to arrive at the end: timers of a minute, and retries."""

DRAIN_REPORT_S: Final = 20.0
PROGRESS_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A soak before its start: how long it runs, and which features and faults it has."""

    seed: int
    duration_s: float
    interval_s: float
    features: Sequence[str]
    faults: Sequence[PlannedFault]
    leak: str = ""


def make_plan(
    seed: int,
    duration_s: float,
    *,
    features: Sequence[str] = (),
    faults: Sequence[str] | None = None,
    leak: str = "",
    interval_s: float | None = None,
    fault_every_s: float = PERIOD_S,
) -> Plan:
    """Return a plan; without ``features`` all run, and ``faults`` replaces the names of the planned ones in turn."""
    planned = plan_faults(seed, duration_s, fault_every_s)
    if faults is not None:
        planned = [PlannedFault(one.at_s, faults[number % len(faults)]) for number, one in enumerate(planned) if faults]
    interval_s = interval_s or (2.0 if duration_s < 900 else 10.0)
    return Plan(
        seed=seed, duration_s=duration_s, interval_s=interval_s, features=list(features) or list(FEATURES),
        faults=planned, leak=leak,
    )  # fmt: skip


async def run_soak(
    plan: Plan, folder: Path, records: RecordFile, report: Callable[[str], None], environment: Mapping[str, str]
) -> End:
    """Run a soak in an empty folder; every record is in the file when it is made.

    An interrupt stops the group, and leaves a file without an end.
    """
    group = SoakGroup(folder, environment)
    await group.start()
    try:
        return await _run_load(plan, group, records, report)
    finally:
        await group.stop()


async def _run_load(plan: Plan, group: SoakGroup, records: RecordFile, report: Callable[[str], None]) -> End:
    ledger = Ledger()
    world = World(group=group, ledger=ledger, chance=random.Random(plan.seed))
    async with world.admin() as admin:
        sampler = Sampler(group, ledger, admin, os.getpid())
        injector = FaultInjector(group, random.Random(plan.seed + 1), lambda: sampler.elapsed_s)
        await injector.wait_until_whole("at the start")
        sampler = Sampler(group, ledger, admin, os.getpid())
        records.append(
            Start(
                started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), machine=describe_machine(),
                seed=plan.seed, planned_s=plan.duration_s, interval_s=plan.interval_s, features=list(plan.features),
                leak=plan.leak,
            )
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(run_features(world, list(plan.features)), name="features")
            sampling = tasks.create_task(_sample_forever(plan, sampler, records, report), name="samples")
            faults = tasks.create_task(_inject_faults(plan, sampler, injector, records, report), name="faults")
            await asyncio.sleep(plan.duration_s)
            await faults
            sampling.cancel()
            report("sends end; waiting until every acknowledged message has arrived")
            world.stop.set()
            await _wait_drained(world, sampler, report)
            world.drained.set()
            await load
    sent, acknowledged, received = ledger.totals()
    end = End(
        at_s=round(sampler.elapsed_s, 1), findings=[*injector.findings, *ledger.findings()], sent=sent,
        acknowledged=acknowledged, received=received, failures=dict(sorted(ledger.failures.items())),
    )  # fmt: skip
    records.append(end)
    return end


async def _wait_drained(world: World, sampler: Sampler, report: Callable[[str], None]) -> None:
    began_s = reported_s = sampler.elapsed_s
    while (names := world.ledger.incomplete) and sampler.elapsed_s - began_s < DRAIN_TIMEOUT_S:
        if sampler.elapsed_s - reported_s >= DRAIN_REPORT_S:
            reported_s = sampler.elapsed_s
            report(f"waiting for messages of {', '.join(names)}")
        await asyncio.sleep(1)


async def _sample_forever(plan: Plan, sampler: Sampler, records: RecordFile, report: Callable[[str], None]) -> None:
    due_s = reported_s = 0.0
    while True:
        sample = await sampler.take()
        records.append(sample)
        if sample.at_s - reported_s >= PROGRESS_S or not reported_s:
            reported_s = max(sample.at_s, 0.1)
            report(progress_text(plan, sample))
        due_s = max(due_s + plan.interval_s, sampler.elapsed_s)
        await asyncio.sleep(due_s - sampler.elapsed_s)


def progress_text(plan: Plan, sample: Sample) -> str:
    """Return a line about a sample, for a person who waits."""
    memory = " ".join(
        f"{one.name} {one.anonymous >> 20}" for one in sample.processes if not one.name.startswith("sidecar")
    )  # fmt: skip
    sends = next((one for one in sample.latencies if one.name == "send"), None)
    latency = f"; sends p50 {sends.p50_ms:.1f} ms, p99 {sends.p99_ms:.1f} ms" if sends else "; no send"
    return (
        f"{sample.at_s / 60:5.1f} of {plan.duration_s / 60:.0f} min; {sum(sample.done.values())} done{latency}; "
        f"MiB: {memory}; disk {sum(sample.disk.values()) >> 20}"
    )


async def _inject_faults(
    plan: Plan, sampler: Sampler, injector: FaultInjector, records: RecordFile, report: Callable[[str], None]
) -> None:
    for planned in plan.faults:
        await asyncio.sleep(max(0.0, planned.at_s - sampler.elapsed_s))
        fault = await injector.inject(planned.name)
        records.append(fault)
        note = f" ({fault.note})" if fault.note else ""
        report(f"{fault.start_s / 60:5.1f} min: {fault.name} {fault.target}, whole after "
               f"{fault.end_s - fault.start_s:.1f} s{note}")  # fmt: skip
