"""`make bench-acl`: what access control costs a send, beside the same send without it.

Two brokers with empty stores, one with access control, take the same load in turn: requests of code 310, each with a
new unique id, and for the guarded one each signed by the load generator as RocketMQ's clients sign. The figure is the
ratio of CPU per message, medians of the repetitions; the goal is at most 1.5. That access control is really
active is checked first: every message of an unsigned load must be refused, or the figures mean nothing.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Final, get_args

import click
import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import LoadGenerator, Run, Target, Timing, build
from gantry_bench.machine import Cores, Machine, assign_cores, describe_machine
from gantry_bench.measurement import MODES, Goal, Mode, ModeName, Summary, cpu_ratio, summarise
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.processes import ACCESS_KEY, access_control_keys, start_broker, start_name_server
from gantry_bench.table import print_goals
from rich.console import Console
from rich.table import Table
from send import RESULTS, working_folder

RATIO_MAX: Final = 1.5
FREE_BYTES_NEEDED: Final = 6 * 1024**3
PROBE: Final = Timing(warm_up_ms=0, duration_ms=100)


class Pair(msgspec.Struct, frozen=True):
    """The figures of one load on both brokers."""

    mode: Mode
    body_bytes: int
    off: Summary
    on: Summary

    @property
    def goal(self) -> Goal:
        """The goal of the CPU per message with access control, as a multiple of the cost without."""
        text = f"CPU per message with access control, mode {self.mode.name}, body {self.body_bytes} B"
        return Goal(text=text, limit=RATIO_MAX, measured=cpu_ratio(self.on, self.off), unit="x off")


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    cores: Cores
    repetitions: int
    pairs: list[Pair]
    goals: list[Goal]


def expect_refusal(load: LoadGenerator, mode: Mode, target: Target) -> None:
    """Raise BenchmarkFailed if the guarded broker accepts unsigned requests."""
    unsigned = msgspec.structs.replace(target, account=None)
    report = load.run(mode, 128, target=unsigned, timing=PROBE).report
    if report.messages or set(report.refused_by_code) != {"16"}:
        raise BenchmarkFailed(f"unsigned requests were not all refused with 16: {report.refused_by_code}")


def measure(modes: Sequence[Mode], bodies_bytes: Sequence[int], repetitions: int, timing: Timing) -> list[Pair]:
    """Measure both brokers under every load, in turn."""
    cores = assign_cores(os.sched_getaffinity(0))
    load = LoadGenerator(build(), core=cores.load)
    secret = secrets.token_hex(16)
    pairs: list[Pair] = []
    with working_folder(FREE_BYTES_NEEDED) as folder, start_name_server(folder) as name_server:
        guarded = {**access_control_keys(folder, secret), "brokerName": "broker-on"}
        with (
            start_broker(folder / "off", name_server=name_server, core=cores.server) as off,
            start_broker(folder / "on", name_server=name_server, core=cores.server, extra=guarded) as on,
        ):
            signed = msgspec.structs.replace(on.target, account=(ACCESS_KEY, secret))
            expect_refusal(load, modes[0], signed)
            for mode in modes:
                for body_bytes in bodies_bytes:
                    runs: dict[bool, list[Run]] = {False: [], True: []}
                    for _ in range(repetitions):
                        for is_on, target in ((False, off.target), (True, signed)):
                            runs[is_on].append(load.run(mode, body_bytes, target=target, timing=timing))
                    both = (summarise([run.report for run in runs[is_on]]) for is_on in (False, True))
                    pairs.append(Pair(mode, body_bytes, *both))
    return pairs


def print_pairs(console: Console, pairs: Sequence[Pair]) -> None:
    """Print the table of results."""
    table = Table(title="sends without and with access control", title_justify="left")
    for heading in ("mode", "body", "access control", "msgs/s", "p50 us", "p99 us", "CPU us/msg", "x off"):
        table.add_column(heading, justify="right")
    for pair in pairs:
        for name, one in (("off", pair.off), ("on", pair.on)):
            ratio = "" if name == "off" else f"{cpu_ratio(pair.on, pair.off):.2f}"
            figures = (f"{one.messages_per_second:,.0f}", f"{one.p50_us:,.0f}", f"{one.p99_us:,.0f}")
            table.add_row(
                pair.mode.name, f"{pair.body_bytes} B", name, *figures, f"{one.cpu_us_per_message:.2f}", ratio
            )
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--mode", "names", multiple=True, type=click.Choice(get_args(ModeName)), default=get_args(ModeName))
@click.option("--body-bytes", "bodies_bytes", multiple=True, type=click.IntRange(1, 1024 * 1024), default=(128, 1024))
@click.option("--repetitions", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--warm-up-ms", type=click.IntRange(0, 30_000), default=500, show_default=True)
@click.option("--duration-ms", type=click.IntRange(100, 60_000), default=1500, show_default=True)
@ASSERT_GOALS
def main(
    names: Sequence[ModeName],
    bodies_bytes: Sequence[int],
    repetitions: int,
    warm_up_ms: int,
    duration_ms: int,
    assert_goals: bool,
) -> None:
    """Measure what access control costs a send."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    started_at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    timing = Timing(warm_up_ms=warm_up_ms, duration_ms=duration_ms)
    try:
        pairs = measure([MODES[name] for name in dict.fromkeys(names)], bodies_bytes, repetitions, timing)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    goals = [pair.goal for pair in pairs]
    cores = assign_cores(os.sched_getaffinity(0))
    results = Results(started_at, describe_machine(), cores, repetitions, pairs, goals)
    path = RESULTS / f"acl-{started_at}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    print_pairs(console, pairs)
    print_goals(console, goals)
    console.print(f"written to {path}", highlight=False)
    errors = sum(pair.on.errors + pair.off.errors for pair in pairs)
    sys.exit(1 if errors or (assert_goals and not all(goal.is_met for goal in goals)) else 0)


if __name__ == "__main__":
    main()
