"""One run of the proxy benchmark: every stack under every load in turn, then many idle clients.

    warm up every stack -> rounds: for each load, each stack once -> idle clients of each proxy

A receive needs messages: they are sent through the same proxy before it, and not measured.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench import loadgen
from gantry_bench.machine import Cores, OtherWork
from gantry_bench.proxy_load import Mode, ProxyLoad, ProxyReport, run_load
from gantry_bench.proxy_stacks import ProxyStack, start_stacks
from gantry_bench.usage import raise_file_limit

FILL_OUTSTANDING: Final = 256
FILL_MS_MAX: Final = 60_000
FILL_SPARE: Final = 2
"""How many times the measured messages are sent before a receive: the warm-up takes some."""


class ProxyScale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a run."""

    outstanding: tuple[int, ...]
    rounds: int
    warm_up_ms: int
    """Before each load."""

    duration_ms: int
    received_messages: int
    """The most messages of one measured receive."""

    first_warm_up_ms: int
    """The load of each stack before the first round, for Java's compiler."""

    idle_clients: int
    idle_ms: int
    body_bytes: int = 1024
    with_apache: bool = True
    processes: int = msgspec.field(default_factory=lambda: os.cpu_count() or 1)
    """Of each of Gantry's proxies: one for each core, as Apache's uses all cores."""


FULL: Final = ProxyScale(
    outstanding=(1, 64, 256), rounds=3, warm_up_ms=1_000, duration_ms=4_000, received_messages=40_000,
    first_warm_up_ms=20_000, idle_clients=10_000, idle_ms=10_000,
)  # fmt: skip
QUICK: Final = ProxyScale(
    outstanding=(1, 16), rounds=1, warm_up_ms=500, duration_ms=1_000, received_messages=200,
    first_warm_up_ms=2_000, idle_clients=50, idle_ms=200,
)  # fmt: skip


class ProxyCell(msgspec.Struct, frozen=True, kw_only=True):
    """The medians of one stack under one load."""

    stack: str
    mode: str
    outstanding: int
    per_second: float
    p50_us: float
    p99_us: float
    proxy_us: float
    """CPU time of the proxy for each message."""

    broker_us: float
    generator_us: float
    errors: int
    failure: str
    """Why there are no figures; empty if every repetition had messages."""

    reports: list[ProxyReport]


class IdleCell(msgspec.Struct, frozen=True, kw_only=True):
    """What idle clients cost one proxy."""

    stack: str
    clients: int
    bytes_per_client: float
    cpu_share: float
    """Of one core, at rest."""

    errors: int


class ProxyBenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run."""

    cells: list[ProxyCell]
    idle: list[IdleCell]
    without_apache: str
    """Why Apache's proxy was not measured; empty if it was."""

    without_idle: str
    other_cores: float

    def cell(self, stack: str, mode: str, outstanding: int) -> ProxyCell | None:
        """Return one cell; None if it was not measured."""
        wanted = (stack, mode, outstanding)
        return next((one for one in self.cells if (one.stack, one.mode, one.outstanding) == wanted), None)


def summarize(stack: str, reports: Sequence[ProxyReport]) -> ProxyCell:
    """Return the medians of the repetitions of one load; figures of 0 and the reason if one has no message."""
    first = reports[0]
    failure = ""
    if not all(report.messages for report in reports):
        failure = next((report.first_refusal for report in reports if report.first_refusal), "") or "no message"

    def median(read: Callable[[ProxyReport], float]) -> float:
        return 0.0 if failure else statistics.median(read(report) for report in reports)

    return ProxyCell(
        stack=stack,
        mode=first.mode,
        outstanding=first.outstanding,
        per_second=median(lambda one: one.messages_per_second),
        p50_us=median(lambda one: one.latency_us.p50),
        p99_us=median(lambda one: one.latency_us.p99),
        proxy_us=median(lambda one: one.proxy_cpu_seconds / one.messages * 1e6),
        broker_us=median(lambda one: one.broker_cpu_seconds / one.messages * 1e6),
        generator_us=median(lambda one: one.own_cpu_seconds / one.messages * 1e6),
        errors=sum(report.errors for report in reports),
        failure=failure,
        reports=list(reports),
    )


class _Bench:
    """The generator and the stacks of one run."""

    def __init__(self, scale: ProxyScale, binary: Path, report_progress: Callable[[str], None]) -> None:
        self._scale = scale
        self._binary = binary
        self._report_progress = report_progress

    def warm_up(self, stacks: Sequence[ProxyStack]) -> None:
        """Load every stack before the first measurement. The first receives set where the new group begins."""
        for stack in stacks:
            self._report_progress(f"warming up {stack.name}")
            run_load(self._binary, self._load(Mode.RECEIVE, 1, duration_ms=1_000), stack)
            run_load(self._binary, self._load(Mode.SEND, 64, duration_ms=self._scale.first_warm_up_ms), stack)
            run_load(self._binary, self._load(Mode.RECEIVE, 64, duration_ms=self._scale.first_warm_up_ms // 2), stack)

    def measure_all(self, stacks: Sequence[ProxyStack]) -> list[ProxyCell]:
        """Return a cell for each load and stack; the stacks are loaded in turn."""
        found: dict[tuple[str, Mode, int], list[ProxyReport]] = {}
        for number in range(self._scale.rounds):
            for mode in (Mode.SEND, Mode.RECEIVE):
                for outstanding in self._scale.outstanding:
                    self._report_progress(f"round {number + 1}: {mode.value}, {outstanding} outstanding")
                    for stack in stacks if number % 2 == 0 else list(reversed(stacks)):
                        reports = found.setdefault((stack.name, mode, outstanding), [])
                        reports.append(self._measure(mode, outstanding, stack))
        return [summarize(name, reports) for (name, _, _), reports in found.items()]

    def measure_idle(self, stack: ProxyStack) -> IdleCell:
        """Return what many idle clients cost a proxy."""
        scale = self._scale
        self._report_progress(f"{scale.idle_clients:,} idle clients of {stack.name}")
        load = ProxyLoad(
            mode=Mode.IDLE, outstanding=0, connections=scale.idle_clients, warm_up_ms=scale.idle_ms,
            duration_ms=scale.idle_ms,
        )  # fmt: skip
        report = run_load(self._binary, load, stack)
        return IdleCell(
            stack=stack.name,
            clients=scale.idle_clients,
            bytes_per_client=report.proxy_growth_bytes / scale.idle_clients,
            cpu_share=report.proxy_cpu_seconds / report.seconds,
            errors=report.errors,
        )

    def _measure(self, mode: Mode, outstanding: int, stack: ProxyStack) -> ProxyReport:
        if mode is Mode.SEND:
            return run_load(self._binary, self._load(mode, outstanding), stack)
        count = self._scale.received_messages
        fill = self._load(Mode.SEND, FILL_OUTSTANDING, duration_ms=FILL_MS_MAX, messages=FILL_SPARE * count)
        run_load(self._binary, msgspec.structs.replace(fill, warm_up_ms=0), stack)
        load = self._load(mode, outstanding, messages=count)
        return run_load(self._binary, msgspec.structs.replace(load, warm_up_ms=load.warm_up_ms // 5), stack)

    def _load(self, mode: Mode, outstanding: int, *, duration_ms: int | None = None, messages: int = 0) -> ProxyLoad:
        scale = self._scale
        return ProxyLoad(
            mode=mode, outstanding=outstanding, warm_up_ms=scale.warm_up_ms, body_bytes=scale.body_bytes,
            duration_ms=scale.duration_ms if duration_ms is None else duration_ms, messages=messages,
        )  # fmt: skip


def measure(scale: ProxyScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]) -> ProxyBenchReport:
    """Measure all proxies, from their start to their stop. Raises BenchmarkFailed."""
    bench = _Bench(scale, loadgen.build(), report_progress)
    report_progress("starting proxies and brokers")
    without_idle = raise_file_limit(scale.idle_clients)
    with start_stacks(folder, with_apache=scale.with_apache, processes=scale.processes) as (stacks, without_apache):
        servers = {pid for stack in stacks for pid in (*stack.proxy_ids, stack.broker_id)}
        bench.warm_up(stacks)
        with OtherWork(*servers) as others:
            cells = bench.measure_all(stacks)
        alone = [stack for stack in stacks if "/" not in stack.name]
        idle = [] if without_idle else [bench.measure_idle(stack) for stack in alone]
    return ProxyBenchReport(
        cells=cells, idle=idle, without_apache=without_apache, without_idle=without_idle, other_cores=others.cores
    )
