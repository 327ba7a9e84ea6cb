"""The tables and the goals of the proxy benchmark; pure.

A goal compares Gantry's stack with Apache's under the same load in the same run: as many messages a second, and no more
CPU time of the proxy for each. Without Apache's proxy there is nothing to compare.
"""

from __future__ import annotations

from typing import Final

from gantry_bench.figures import Figures
from gantry_bench.measurement import Goal
from gantry_bench.proxy_load import Mode
from gantry_bench.proxy_run import ProxyBenchReport, ProxyCell, ProxyScale

OURS: Final = "Gantry"
THEIRS: Final = "Apache"
KIBIBYTE: Final = 1024
_NAMES: Final = {Mode.SEND: "sends", Mode.RECEIVE: "receives with acknowledgements"}


def proxy_goals(report: ProxyBenchReport, scale: ProxyScale) -> list[Goal]:
    """Return the goals; none without Apache's proxy, and none for a load that one of the two did not serve."""
    found: list[Goal] = []
    for mode, name in _NAMES.items():
        for outstanding in scale.outstanding:
            ours = report.cell(OURS, mode.value, outstanding)
            theirs = report.cell(THEIRS, mode.value, outstanding)
            if ours is None or theirs is None or ours.failure or theirs.failure:
                continue
            what = f"{name}, {outstanding} outstanding"
            rate = ours.per_second / theirs.per_second
            cost = ours.proxy_us / theirs.proxy_us if theirs.proxy_us else 0.0
            found.append(Goal(f"{what}: messages a second", 1.0, rate, "x Apache", is_floor=True))
            found.append(Goal(f"{what}: CPU of the proxy", 1.0, cost, "x Apache"))
    return found


def proxy_errors(report: ProxyBenchReport) -> int:
    """Return how many calls of Gantry's proxy were refused or had no reply, and how many loads it did not serve."""
    ours = [cell for cell in report.cells if cell.stack != THEIRS]
    idle = [cell for cell in report.idle if cell.stack != THEIRS]
    return sum(cell.errors + bool(cell.failure) for cell in ours) + sum(cell.errors for cell in idle)


def load_figures(report: ProxyBenchReport, scale: ProxyScale) -> Figures:
    """Return a row for each load and stack."""
    rows = [
        _row(cell)
        for mode in _NAMES
        for outstanding in scale.outstanding
        for cell in report.cells
        if (cell.mode, cell.outstanding) == (mode.value, outstanding)
    ]
    notes = [
        f"Bodies of {scale.body_bytes} bytes over loopback; a client with a connection of its own for each 16 "
        f"outstanding calls; medians of {scale.rounds} runs of {scale.duration_ms / 1000:g} s, the proxies in turn. A "
        "receive returns up to 32 messages, and each is acknowledged by a call of its own; latencies are those of the "
        f"acknowledgements. Gantry's proxies have {scale.processes} processes each. Processes are not pinned to cores.",
        f"Other programs used {report.other_cores:.1f} cores meanwhile.",
    ]
    notes += [
        f"{cell.stack}, {cell.mode} with {cell.outstanding} outstanding: {cell.errors:,} errors; {why}."
        for cell in report.cells
        if (why := cell.failure or next((one.first_refusal for one in cell.reports if one.first_refusal), ""))
    ]
    if report.without_apache:
        notes.append(f"Apache's proxy was not measured: {report.without_apache}.")
    return Figures(
        name="loads",
        headings=[
            "load", "outstanding", "proxy / broker", "messages/s", "p50 us", "p99 us", "proxy CPU us", "broker CPU us",
            "generator CPU us",
        ],
        rows=rows,
        notes=notes,
    )  # fmt: skip


def _row(cell: ProxyCell) -> list[str]:
    name = cell.stack if "/" in cell.stack else f"{cell.stack} / {cell.stack}"
    if cell.failure:
        return [cell.mode, f"{cell.outstanding}", name, "failed", *["-"] * 5]
    return [
        cell.mode, f"{cell.outstanding}", name, f"{cell.per_second:,.0f}", f"{cell.p50_us:,.0f}",
        f"{cell.p99_us:,.0f}", f"{cell.proxy_us:.0f}", f"{cell.broker_us:.0f}", f"{cell.generator_us:.0f}",
    ]  # fmt: skip


def idle_figures(report: ProxyBenchReport, scale: ProxyScale) -> Figures:
    """Return a row for each proxy with idle clients."""
    notes = ["Each client has a connection and an open Telemetry stream with settings, and calls nothing."]
    if report.without_idle:
        notes.append(f"Idle clients were not measured: {report.without_idle}.")
    return Figures(
        name="idle clients",
        headings=["proxy", "clients", "KiB of memory each", "% of a core at rest"],
        rows=[
            [cell.stack, f"{cell.clients:,}", f"{cell.bytes_per_client / KIBIBYTE:.1f}", f"{100 * cell.cpu_share:.1f}"]
            for cell in report.idle
        ],
        notes=notes,
    )
