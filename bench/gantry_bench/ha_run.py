"""Runs the parts of `make bench-ha`: which pairs run together, and in which order they take the load.

Compared systems run at the same time and take their loads in turn, one load at a time, so that other work of the
machine is spread over all of them. An idle pair only sends heartbeats. A failure of Gantry's pair fails the run; a
failure of Apache's becomes a cell with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Final, final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.ha_apache import run_producer, start_apache_pair
from gantry_bench.ha_cells import SYNC_BUFFERED, HaRun, Setup, System, reason_line
from gantry_bench.ha_groups import MemoryGroup, memory_group
from gantry_bench.ha_memory import OWN_BYTES, GroupName, MemoryRun, limit_bytes
from gantry_bench.ha_pair import (
    BODY_BYTES,
    Pair,
    PairPlan,
    load_of,
    room_needed,
    start_pair,
    wait_until_attached,
    wait_until_caught_up,
)
from gantry_bench.ha_producer import ProducerPlan, ProducerRun
from gantry_bench.ha_pulls import PullLoop
from gantry_bench.ha_scale import HaScale
from gantry_bench.ha_slow import ACK_DELAY_MS, SYNC_DELAY_MS, SlowRun
from gantry_bench.loadgen import LoadGenerator, Run, Target, Timing
from gantry_bench.media import buffer_place
from gantry_bench.parts import ROOM_FOR_HEADERS_BYTES
from gantry_bench.processes import start_relay
from gantry_bench.tail import Medium

SLOW_PROGRAM: Final = ("gantry_testing.slow_broker", "--sync-delay-ms", str(SYNC_DELAY_MS), "--")
FIRST_LEVEL: Final = 64
SLOW_DISK: Final = Setup(flush="sync", replication="sync", has_buffer=False)


@final
class Runner:
    """One benchmark. ``report_progress`` receives a line about the next step."""

    def __init__(
        self,
        scale: HaScale,
        folder: Path,
        load: LoadGenerator,
        *,
        has_apache: bool,
        report_progress: Callable[[str], None],
    ) -> None:
        self._scale = scale
        self._folder = folder
        self._load = load
        self._has_apache = has_apache
        self._report_progress = report_progress
        self.medium: Medium = "tmpfs"
        """The medium of the buffers."""

    # -- the table -----------------------------------------------------------------------------------------------------

    def measure_table(self) -> tuple[list[HaRun], list[HaRun]]:
        """Measure every setup on both systems; the second list has the runs of an echo server behind a relay."""
        runs: list[HaRun] = []
        relayed: list[HaRun] = []
        for number, setup in enumerate(self._scale.setups, 1):
            self._report_progress(f"replication, setup {number} of {len(self._scale.setups)}: {setup.text}; starting")
            with ExitStack() as stack:
                relay = stack.enter_context(start_relay(self._folder, core=None)) if setup == SYNC_BUFFERED else None
                pairs = self._start_pairs(stack, setup, f"table-{setup.short}", problems=runs)
                for level in self._scale.levels:
                    self._report_progress(f"replication, {setup.text}, {level} outstanding")
                    for _ in range(self._scale.repetitions):
                        runs += [self._run(pair, level) for pair in pairs]
                        if relay is not None:
                            run = self._send(relay, level)
                            relayed.append(HaRun(system="Gantry", setup=setup, level=level, run=run))
        return runs, relayed

    def _start_pairs(self, stack: ExitStack, setup: Setup, name: str, problems: list[HaRun]) -> list[Pair]:
        """Start Gantry's pair, and Apache's if possible; if not, ``problems`` gets a cell for each level."""
        plan = self._plan(setup, stack)
        pairs = [stack.enter_context(start_pair(plan, self._folder / name))]
        self._make_ready(pairs[0])
        if self._has_apache:
            try:
                pairs.append(self._start_apache(stack, plan, name))
            except BenchmarkFailed as error:
                problems += [
                    HaRun(system="Apache", setup=setup, level=level, run=None, problem=reason_line(error))
                    for level in self._scale.levels
                ]
        return pairs

    def _start_apache(self, stack: ExitStack, plan: PairPlan, name: str) -> Pair:
        with ExitStack() as own:
            pair = own.enter_context(start_apache_pair(plan, self._folder / f"{name}-apache"))
            self._make_ready(pair)
            stack.enter_context(own.pop_all())
        return pair

    def _make_ready(self, pair: Pair) -> None:
        """Attach the slave, and run a first load to warm up."""
        wait_until_attached(pair, self._load)
        timing = Timing(warm_up_ms=0, duration_ms=self._scale.first_load_ms)
        self._load.run(load_of(FIRST_LEVEL), BODY_BYTES, target=pair.master, timing=timing)

    def _plan(self, setup: Setup, stack: ExitStack) -> PairPlan:
        plan = PairPlan(
            setup=setup,
            segment_bytes=self._scale.segment_bytes,
            buffers_count=self._scale.buffers_count,
            pool_path="",
        )
        return self._with_place([plan], stack)[0]

    def _with_place(self, plans: Sequence[PairPlan], stack: ExitStack) -> list[PairPlan]:
        """Return the same plans with room for their buffers."""
        needed = room_needed(plans, ROOM_FOR_HEADERS_BYTES)
        if not needed:
            return list(plans)
        place = stack.enter_context(buffer_place(needed))
        self.medium = place.medium
        return [msgspec.structs.replace(plan, pool_path=place.path) for plan in plans]

    def _run(self, pair: Pair, level: int) -> HaRun:
        try:
            wait_until_caught_up(pair)
            run = self._send(pair.master, level)
        except BenchmarkFailed as error:
            if pair.system == "Gantry":
                raise
            return HaRun(system=pair.system, setup=pair.setup, level=level, run=None, problem=reason_line(error))
        return HaRun(system=pair.system, setup=pair.setup, level=level, run=run)

    def _send(self, target: Target, level: int) -> Run:
        return self._load.run(load_of(level), BODY_BYTES, target=target, timing=self._scale.timing)

    # -- Apache's producer ---------------------------------------------------------------------------------------------

    def measure_producer(self) -> list[ProducerRun]:
        """Measure Apache's own producer against both systems."""
        runs: list[ProducerRun] = []
        setups = self._scale.producer_setups
        for number, setup in enumerate(setups, 1):
            self._report_progress(f"Apache's producer, setup {number} of {len(setups)}: {setup.text}; starting")
            with ExitStack() as stack:
                problems: list[HaRun] = []
                pairs = self._start_pairs(stack, setup, f"producer-{setup.short}", problems)
                for threads in self._scale.producer_levels:
                    for pair in pairs:
                        self._report_progress(f"Apache's producer, {setup.text}, {threads} threads, {pair.system}")
                        runs.append(self._produce(pair, threads))
                    if problems:
                        runs.append(_no_run("Apache", setup, threads, problems[0].problem))
        return runs

    def _produce(self, pair: Pair, threads: int) -> ProducerRun:
        plan = ProducerPlan(threads=threads, body_bytes=BODY_BYTES, reports=self._scale.producer_reports)
        try:
            wait_until_caught_up(pair)
            return run_producer(pair, plan, self._folder / "producer")
        except BenchmarkFailed as error:
            if pair.system == "Gantry":
                raise
            return _no_run(pair.system, pair.setup, threads, reason_line(error))

    # -- little memory -------------------------------------------------------------------------------------------------

    def measure_memory(self) -> list[MemoryRun]:
        """Measure, for each setup, a pair in each control group (cgroup) of ``OWN_BYTES``, in turn."""
        runs: list[MemoryRun] = []
        for setup in self._scale.memory_setups:
            self._report_progress(f"small memory, {setup.text}; starting")
            with ExitStack() as stack:
                pairs = self._start_grouped_pairs(stack, setup)
                for level in self._scale.memory_levels:
                    self._report_progress(f"small memory, {setup.text}, {level} outstanding")
                    for _ in range(self._scale.memory_repetitions):
                        for group, pair, groups in pairs:
                            run, own = self._run(pair, level), max(one.own_bytes() for one in groups)
                            limit_hits = sum(one.limit_hits() for one in groups)
                            runs.append(MemoryRun(group=group, run=run, own_bytes=own, limit_hits=limit_hits))
        return runs

    def _start_grouped_pairs(self, stack: ExitStack, setup: Setup) -> list[tuple[GroupName, Pair, list[MemoryGroup]]]:
        scale, found = self._scale, []
        plans = self._with_place(
            [
                PairPlan(
                    setup=setup, segment_bytes=scale.segment_bytes, buffers_count=scale.buffers_count, pool_path=""
                )
                for _ in OWN_BYTES
            ],
            stack,
        )
        buffers = scale.buffers_count * scale.segment_bytes if setup.has_buffer and self.medium == "tmpfs" else 0
        for number, (group, plan) in enumerate(zip(OWN_BYTES, plans, strict=True)):
            limit = limit_bytes(group, segment_bytes=scale.segment_bytes, tmpfs_bytes=buffers)
            groups = [stack.enter_context(memory_group(f"{role}-{number}", limit)) for role in ("master", "slave")]
            plan = msgspec.structs.replace(plan, master_prefix=groups[0].prefix, slave_prefix=groups[1].prefix)
            pair = stack.enter_context(start_pair(plan, self._folder / f"memory-{setup.short}-{number}"))
            wait_until_attached(pair, self._load)
            found.append((group, pair, groups))
        return found

    # -- the slow slave ------------------------------------------------------------------------------------------------

    def measure_slow(self) -> list[SlowRun]:
        """Measure one pair with timely and late acks, in turn; then one whose disk is slow too."""
        runs: list[SlowRun] = []
        scale = self._scale
        with ExitStack() as stack:
            self._report_progress("slow slave; starting")
            plan = msgspec.structs.replace(self._plan(SYNC_BUFFERED, stack), has_ack_proxy=True)
            pair = stack.enter_context(start_pair(plan, self._folder / "slow"))
            wait_until_attached(pair, self._load)
            self._send(pair.master, scale.slow_levels[0])  # stores messages to pull
            for level in scale.slow_levels:
                self._report_progress(f"slow slave, {level} outstanding")
                for _ in range(scale.slow_repetitions):
                    runs += [self._run_slow(pair, level, delay) for delay in (0.0, float(ACK_DELAY_MS))]
        with ExitStack() as stack:
            plan = msgspec.structs.replace(
                self._plan(SLOW_DISK, stack), has_ack_proxy=True, master_program=SLOW_PROGRAM
            )
            pair = stack.enter_context(start_pair(plan, self._folder / "slow-disk"))
            wait_until_attached(pair, self._load)
            assert pair.acks is not None
            pair.acks.set_delay(ACK_DELAY_MS)
            for level in scale.both_levels:
                self._report_progress(f"slow slave and slow disk, {level} outstanding")
                for _ in range(scale.slow_repetitions):
                    run = self._send(pair.master, level)
                    runs.append(SlowRun(kind="both", level=level, delay_ms=ACK_DELAY_MS, run=run))
        return runs

    def _run_slow(self, pair: Pair, level: int, delay_ms: float) -> SlowRun:
        assert pair.acks is not None
        pair.acks.set_delay(delay_ms)
        wait_until_caught_up(pair)
        pulls = PullLoop(pair.master.address)
        with pulls.run_meanwhile():
            run = self._send(pair.master, level)
            end = monotonic()
        # The load generator ends right after its measurement, so its start can be calculated.
        measured = pulls.report(end - run.report.seconds, end)
        return SlowRun(kind="ack", level=level, delay_ms=delay_ms, run=run, pulls=measured)


def _no_run(system: System, setup: Setup, threads: int, problem: str) -> ProducerRun:
    return ProducerRun(
        system=system, setup=setup, threads=threads, messages_per_second=0, mean_ms=0, failed=0, problem=problem
    )
