"""Histories of simulated groups with overlapping faults: none is violated, and without a guard some are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from gantry_histories.findings import Loss
from gantry_histories.judges import find_porcupine
from group_simulation.fault_driver import FaultDriver
from group_simulation.group_guards import without_guard
from group_simulation.group_history import HistoryResult, run_history
from group_simulation.history_tally import ALL_REQUIRED, Tally, read_tallies, write_tally
from group_simulation.mixed_faults import REQUIRED, Fault, Guarantee, Plan, PlannedFault, plan_for
from group_simulation.simulated_machine import STORE

from gantry_broker.server.roles.master_replication import MasterReplication
from gantry_broker.server.roles.replication import Replication
from gantry_broker.store.damage import Damage
from gantry_status.orders import HaRole
from gantry_testing.tree import ROOT

PROGRAM = ROOT / "broker/tests/group_simulation/run_group_histories.py"


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which is a process of its own, as its workers are."""
    environment = os.environ | {"PYTHONPATH": ""}
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.verify(quick=2)
@pytest.mark.parametrize("seed", range(100, 110))
def test_history_keeps_every_promise(seed: int, tmp_path: Path) -> None:
    """Both judges find nothing, the group repairs itself, and its members' logs are equal in the end."""
    result = run_history(plan_for(seed), tmp_path, find_porcupine())

    assert not result.problem, (result.problem, result.notes)
    assert not result.findings, (str(result.plan), [str(finding) for finding in result.findings])
    assert result.answers["ok"] > 20, "the history acknowledges too little to prove anything"


@pytest.mark.verify(quick=2)
@pytest.mark.parametrize("seed", [1842, 2153, 2657, 2987, 3588, 3857, 4209, 4441, 5889])
def test_history_that_has_failed_once_holds(seed: int, tmp_path: Path) -> None:
    """Each found a fault of brokers, operator or judges; a later change may give the seed another history."""
    result = run_history(plan_for(seed), tmp_path, find_porcupine())

    assert result.is_good, (str(result.plan), result.problem, result.findings, result.notes)


@pytest.mark.verify
def test_seed_determines_the_history() -> None:
    """Two processes record the same events, to the nanosecond."""
    digests = []
    for _ in range(2):
        output = run_program("--seed", "104").stdout
        digests += re.findall(r"digest of the events: (\w+)", output)

    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_plans_have_every_fault_and_combination() -> None:
    """Among some hundred plans is each kind of fault, and all required ones at once."""
    plans = [plan_for(seed) for seed in range(300)]

    assert {kind for plan in plans for kind in plan.kinds} == set(Fault)
    assert {plan.guarantee for plan in plans} == set(Guarantee)
    assert sum(plan.kinds.issuperset(REQUIRED) for plan in plans) > 30
    assert plan_for(7) == plan_for(7)


def test_only_durable_groups_have_rotten_logs() -> None:
    """Elsewhere a power cut may take the only other copy of a damaged message, which is no violation."""
    for plan in map(plan_for, range(200)):
        assert plan.is_log_rotting == (plan.guarantee is Guarantee.DURABLE)
        assert (plan.mode.loss is Loss.NOTHING) == (plan.guarantee in (Guarantee.DURABLE, Guarantee.ACKED_ON_DISK))


def rot_before_a_slave_has_it(driver: FaultDriver) -> None:
    """Kill both slaves, and let the first message rot that the master appends until they are back."""
    brokers = {machine: machine.broker for machine in driver._machines}
    [master] = [one for one, broker in brokers.items() if broker is not None and broker.roles.role is HaRole.MASTER]
    assert master.broker is not None
    start, file_bytes = master.broker.store.log.wrote, master.broker.store.log.file_size
    for machine in brokers:
        if machine is not master:
            machine.kill()

    def rot() -> None:
        assert master.broker is not None and master.broker.store.log.wrote > start
        master.disk.flip(f"{STORE}/commitlog/{start - start % file_bytes:020d}", start % file_bytes + 100)

    driver._world.after(0.19, rot)


def history_with_unreplicated_rot(directory: Path) -> HistoryResult:
    """Run a history with one fault: a message rots on the master before any slave has it."""
    faults = (PlannedFault(2.0, Fault.BIT_ROT),)
    plan = Plan(1, Guarantee.DURABLE, has_buffer=False, rotten=1, load_s=4.0, faults=faults)
    with patch.object(FaultDriver, "_rot", rot_before_a_slave_has_it):
        return run_history(plan, directory, find_porcupine())


def test_message_that_rots_before_a_slave_has_it_is_replaced(tmp_path: Path) -> None:
    """The master writes a void record and starts again. Nothing acknowledged is lost, and all logs are equal."""
    result = history_with_unreplicated_rot(tmp_path)

    assert result.is_good, (result.problem, result.findings, result.notes)
    assert any("were replaced by void ones" in note for note in result.notes), result.notes


@pytest.mark.verify
def test_group_does_not_go_on_without_void_records(tmp_path: Path) -> None:
    """The slaves wait at the damage for ever."""

    async def do_nothing(replication: Replication, damage: Damage) -> None:
        """Leave the damage in the log."""

    with patch.object(Replication, "_void", do_nothing):
        result = history_with_unreplicated_rot(tmp_path)

    assert "ends at" in result.problem or "has confirmed" in result.problem, (result.problem, result.notes)


def lose_slaves_after_an_ack(driver: FaultDriver) -> None:
    """Kill both slaves right after the next ack, before the message that it acknowledges is visible."""
    machines = driver._machines
    [master] = [one for one in machines if one.broker is not None and one.broker.roles.role is HaRole.MASTER]
    assert master.broker is not None
    broker, store = master.broker, master.broker.store
    visibility = broker.visibility
    release = visibility.release_answers

    def release_and_lose_slaves() -> None:
        release()
        if master.broker is not broker or store.positions.confirmed <= store.dispatcher.dispatched:
            return
        patcher.stop()
        for machine in machines:
            if machine is not master:
                machine.kill()
        broker.replication.master.server.disconnect("slaves have died")

    patcher = patch.object(visibility, "release_answers", release_and_lose_slaves)
    patcher.start()


def history_with_lost_slaves(directory: Path) -> HistoryResult:
    """Run a history with one fault: both slaves die a moment after an ack."""
    faults = tuple(PlannedFault(1.0 + number, Fault.KILL) for number in range(3))
    plan = Plan(1, Guarantee.DURABLE, has_buffer=False, rotten=1, load_s=5.0, faults=faults)
    with patch.object(FaultDriver, "_kill", lose_slaves_after_an_ack):
        return run_history(plan, directory, find_porcupine())


def test_acknowledged_message_is_shown_although_its_slaves_are_gone(tmp_path: Path) -> None:
    """Consumers see the message at once, and not only when a slave acknowledges it again."""
    result = history_with_lost_slaves(tmp_path)

    assert result.is_good, (result.problem, result.findings, result.notes)


def test_acknowledged_message_is_hidden_if_nothing_happens_before_acks_fall(tmp_path: Path) -> None:
    """Both judges see that a message was acknowledged and not shown."""
    begin = MasterReplication.__init__

    def initialise(replication: MasterReplication, *arguments: Any, **options: Any) -> None:
        begin(replication, *arguments, **options | {"on_acks_fall": lambda: None})

    with patch.object(MasterReplication, "__init__", initialise):
        result = history_with_lost_slaves(tmp_path)

    assert any("OUTDATED" in str(finding) for finding in result.findings), (result.problem, result.notes)


TWINS = {
    "sync": (Guarantee.DURABLE, [Fault.DOUBLE_POWER_CUT] * 4),
    "checksums": (Guarantee.DURABLE, [Fault.BIT_ROT] * 4),
    "confirmed": (Guarantee.ACKED_ON_DISK, [Fault.PARTITION, Fault.KILL, Fault.PARTITION, Fault.DOUBLE_POWER_CUT]),
}
"""The group and the faults by which a missing guard is found."""


def twin_plan(seed: int, guard: str) -> Plan:
    """Return the plan of a history that may find that a guard is missing: with a fault every other second."""
    guarantee, kinds = TWINS[guard]
    faults = tuple(PlannedFault(2.0 + 2.0 * place, kind) for place, kind in enumerate(kinds))
    return Plan(seed, guarantee, has_buffer=False, rotten=1 + seed % 3, load_s=11.0, faults=faults)


@pytest.mark.verify
@pytest.mark.parametrize("guard", sorted(TWINS))
def test_missing_guard_is_found(guard: str, tmp_path: Path) -> None:
    """Brokers without a guard violate a promise in one of a few histories; the same history is good with it."""
    for seed in range(1, 9):
        plan = twin_plan(seed, guard)
        with without_guard(guard):
            result = run_history(plan, tmp_path, find_porcupine())
        if not result.is_good:
            assert run_history(plan, tmp_path, find_porcupine()).is_good
            return
    pytest.fail(f"no history found that {guard} is missing")


# -- counting ----------------------------------------------------------------------------------------------------------


def full_tally() -> Tally:
    """Return the counts of a run in which everything occurred."""
    everything = dict.fromkeys(map(str, Fault), 1)
    pairs = {f"{one} and {other}": 1 for i, one in enumerate(REQUIRED) for other in REQUIRED[i + 1 :]}
    return Tally(
        seed=1, histories=200, parts=["1/1"], done=200, faults=everything, with_fault=dict(everything),
        with_both=pairs | {ALL_REQUIRED: 1}, guarantees=dict.fromkeys(map(str, Guarantee), 50), promotions=1,
    )  # fmt: skip


def test_run_without_a_fault_proves_too_little() -> None:
    """A kind of fault, a combination or a guarantee that never occurred is reported."""
    assert full_tally().missing() == []
    tally = full_tally()
    del tally.with_fault[Fault.BIT_ROT], tally.with_both[ALL_REQUIRED], tally.guarantees[Guarantee.ASYNC]

    assert tally.missing() == ["bit-rot", ALL_REQUIRED, "a history that is async"]


def test_parts_are_merged(tmp_path: Path) -> None:
    """The sum has the counts of both; a part of another run, or the same one twice, is refused."""
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for number, path in enumerate(paths):
        tally = full_tally()
        tally.parts, tally.done = [f"{number + 1}/2"], 100
        tally.seed = 2 if number == 2 else 1
        write_tally(path, tally)

    merged = read_tallies(paths[:2])

    assert (merged.done, merged.parts, merged.faults[Fault.KILL]) == (200, ["1/2", "2/2"], 2)
    with pytest.raises(ValueError, match="seed 2"):
        read_tallies(paths)
    with pytest.raises(ValueError, match="counted already"):
        read_tallies([paths[0], paths[0]])


@pytest.mark.verify
@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b"])
def test_invalid_part_is_refused(text: str) -> None:
    """The message names the value and the form."""
    result = run_program("--part", text)

    assert result.returncode == 2
    assert f"'{text}' is no part: write K/N" in result.stderr


@pytest.mark.verify
def test_part_runs_its_share(tmp_path: Path) -> None:
    """The second of three parts has every third history, and its counts name the part."""
    path = tmp_path / "part.json"
    result = run_program("--seed", "100", "--histories", "6", "--part", "2/3", "--result", str(path), "--workers", "1")

    tally = msgspec.json.decode(path.read_bytes(), type=Tally)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tally.done, tally.parts, tally.histories) == (2, ["2/3"], 6)
