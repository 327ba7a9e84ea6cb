"""The parts of `make bench`: which programs run, with which arguments, for how long, and with how much free disk.

Parts run one after another and remove their files at the end, so a run needs as much disk as its largest part.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench import ha_scale, scale, speedups
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.goal_figures import PartName, part_path
from gantry_bench.processes import ROOT
from gantry_bench.recovery_run import log_bytes_needed
from gantry_bench.speedups import Setting

GIBIBYTE: Final = 1 << 30
SEND_BYTES: Final = 12 * GIBIBYTE
SEND_QUICK_BYTES: Final = 5 * GIBIBYTE
"""What `bench-send` itself requires for loads of these lengths."""
BACKLOG_BYTES: Final = 8 * GIBIBYTE
"""Three brokers store at most 2 GiB each in the time of filling, and reserve a log file of 1 GiB."""
BEFORE_BYTES: Final = 8 * GIBIBYTE
"""Two brokers of the Python path store at most 2 GiB each in a cell, and reserve a log file of 1 GiB."""


class Part(msgspec.Struct, frozen=True):
    """One run of another benchmark."""

    name: PartName
    text: str
    arguments: tuple[str, ...]
    """The program in `bench/` and its arguments."""
    minutes: float
    """The estimated duration."""
    free_bytes_needed: int
    setting: Setting | None = None
    """The code path of its brokers; None for a program that measures both by itself."""


def plan_parts(*, is_quick: bool, has_compiled: bool, before: str | None) -> list[Part]:
    """Return the parts in the order of running. Without a compiled path nothing is run twice."""
    quick = ("--quick",) if is_quick else ()
    loads = ("--repetitions", "1", "--warm-up-ms", "200", "--duration-ms", "500") if is_quick else ()
    size = quick or ("--short",)
    own: Setting = "auto" if has_compiled else "off"
    replicated = (ha_scale.QUICK if is_quick else ha_scale.SHORT).free_bytes_needed
    recovered = log_bytes_needed(scale.QUICK if is_quick else scale.SHORT)
    parts = [
        Part(
            "send", "sends on every server, and of every sender",
            ("send.py", "--apache", "--mode", "a", "--mode", "b", "--body-bytes", "1024", *loads),
            1.5 if is_quick else 6, SEND_QUICK_BYTES if is_quick else SEND_BYTES,
        ),
        Part(
            "ha", "replication beside Apache's, with the load generator and with Apache's producer",
            ("ha.py", "--only", "table", "--only", "producer", *size), 3 if is_quick else 32, replicated, own,
        ),
        Part("backlog", "pulls of a backlog", ("backlog.py", *quick), 1 if is_quick else 2, BACKLOG_BYTES),
        Part(
            "recovery-python", "recovery, Python", ("store.py", "--only", "recovery", *size),
            0.2 if is_quick else 5, recovered, "off",
        ),
    ]  # fmt: skip
    if has_compiled:
        parts += [
            Part(
                "ha-python", "replication, Python", ("ha.py", "--only", "table", "--without-apache", *size),
                1 if is_quick else 5, replicated, "off",
            ),
            Part(
                "recovery-compiled", "recovery, compiled", ("store.py", "--only", "recovery", *size),
                0.2 if is_quick else 3, recovered, "auto",
            ),
        ]  # fmt: skip
    if before is not None:
        rounds = "1" if is_quick else "5"
        parts.append(
            Part(
                "before", f"sends compared with {before}, Python",
                ("compare.py", before, "--only", "send", "--rounds", rounds), 0.7 if is_quick else 2.5, BEFORE_BYTES,
                "off",
            )
        )  # fmt: skip
    return parts


def command_of(part: Part, folder: Path) -> list[str]:
    """Return the command line of a part."""
    program, *arguments = part.arguments
    prefix = () if part.setting is None else speedups.prefix_for(part.setting)
    script = str(ROOT / "bench" / program)
    return [*prefix, sys.executable, script, *arguments, "--json", str(part_path(folder, part.name))]


def check_space(parts: Sequence[Part], folder: Path) -> None:
    """Raise BenchmarkFailed if the largest part does not fit on the disk: it would fail only when its turn comes."""
    largest = max(parts, key=lambda part: part.free_bytes_needed)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < largest.free_bytes_needed:
        raise BenchmarkFailed(
            f"{free_bytes / GIBIBYTE:.1f} GiB are free on the disk of {folder}, and the part {largest.name} needs "
            f"{largest.free_bytes_needed / GIBIBYTE:.1f}"
        )
