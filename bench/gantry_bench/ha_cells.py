"""Replication under load: which brokers are set up how, and what their runs amount to. Pure.

A *setup* is one of eight: is a send answered before or after the disk has it, before or after a slave has it, and is
there a buffer in front of the log. A slave is attached in every one. A *cell* is a setup, a number of sends under
way, and whose broker it was: ours, or Apache's of the same setup in the same minutes. A run that could not be
measured at all is a cell that says why: a benchmark that stops at somebody else's weakness never shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from gantry_bench.loadgen import Run

System = Literal["Gantry", "Apache"]
When = Literal["async", "sync"]

BUSY_CODE: Final = "2"
"""The answer of a broker that rejects what it has no time for."""
TROUBLE_MAX: Final = 160
WRONG: Final = "wrong"
"""Answers that belonged to no request, counted with the codes."""


class Setup(msgspec.Struct, frozen=True):
    """How a master and its slave are set up."""

    flush: When
    replication: When
    has_buffer: bool

    @property
    def text(self) -> str:
        """In words, for goals and notes."""
        return f"{self.flush} flush, {self.replication} replication, buffer {self.buffer}"

    @property
    def buffer(self) -> str:
        return "on" if self.has_buffer else "off"

    @property
    def short(self) -> str:
        """For names of folders and brokers."""
        return f"{self.flush}-{self.replication}-{self.buffer}"


SETUPS: Final = tuple(
    Setup(flush=flush, replication=replication, has_buffer=has_buffer)
    for flush in ("async", "sync")
    for replication in ("async", "sync")
    for has_buffer in (False, True)
)
PLAIN: Final = Setup(flush="async", replication="async", has_buffer=False)
"""What everything is compared with: a master that waits for nobody."""
SYNC_PLAIN: Final = Setup(flush="async", replication="sync", has_buffer=False)
SYNC_BUFFERED: Final = Setup(flush="async", replication="sync", has_buffer=True)
"""The setup that falls to single-digit messages a second in RocketMQ."""


class HaRun(msgspec.Struct, frozen=True):
    """One run of the load generator, or why there is none."""

    system: System
    setup: Setup
    level: int
    run: Run | None
    trouble: str = ""


class HaCell(msgspec.Struct, frozen=True):
    """Medians of the repetitions; failures are sums."""

    system: System
    setup: Setup
    level: int
    messages_per_second: float
    p50_us: float
    p99_us: float
    p99_9_us: float
    failures: dict[str, int]
    """How many answers by code, 0 apart."""

    messages: int
    other_cores: float
    trouble: str = ""

    @property
    def busy_answers(self) -> int:
        return self.failures.get(BUSY_CODE, 0)

    @property
    def failures_text(self) -> str:
        """For a table: each code and how often, code 2 left out."""
        rest = {code: count for code, count in sorted(self.failures.items()) if code != BUSY_CODE}
        return ", ".join(f"{code}: {count:,}" for code, count in rest.items()) or "0"


def one_line(error: Exception) -> str:
    """The reason of a run that is none, fit for a cell of a table: its first line, not too long, without a bar."""
    return str(error).partition("\n")[0].replace("|", "/")[:TROUBLE_MAX]


def failures_of(run: Run) -> Counter[str]:
    """Answers that were not what was asked for, by code."""
    report = run.report
    failures = Counter(report.refused_by_code)
    if wrong := report.wrong_opaque + report.wrong_reply:
        failures[WRONG] = wrong
    return failures


def summarise_cell(runs: Sequence[HaRun]) -> HaCell:
    """One cell of the repetitions of one load."""
    done = [one.run for one in runs if one.run is not None]
    reports = [run.report for run in done]
    trouble = next((one.trouble for one in runs if one.trouble), "")
    return HaCell(
        system=runs[0].system,
        setup=runs[0].setup,
        level=runs[0].level,
        messages_per_second=median([report.messages_per_second for report in reports] or [0.0]),
        p50_us=median([report.latency_us.p50 for report in reports] or [0.0]),
        p99_us=median([report.latency_us.p99 for report in reports] or [0.0]),
        p99_9_us=median([report.latency_us.p99_9 for report in reports] or [0.0]),
        failures=dict(sum((failures_of(run) for run in done), Counter[str]())),
        messages=sum(report.messages for report in reports),
        other_cores=max([run.other_cores for run in done] or [0.0]),
        trouble=trouble,
    )


def summarise_cells(runs: Sequence[HaRun]) -> list[HaCell]:
    """One cell for each system, setup and level, in the order of running."""
    keys = dict.fromkeys((one.system, one.setup, one.level) for one in runs)
    return [summarise_cell([one for one in runs if (one.system, one.setup, one.level) == key]) for key in keys]


def find(cells: Sequence[HaCell], system: System, setup: Setup, level: int) -> HaCell | None:
    """The cell, if it was run."""
    for cell in cells:
        if (cell.system, cell.setup, cell.level) == (system, setup, level):
            return cell
    return None


def broker_keys(setup: Setup, *, segment_bytes: int, buffers_count: int) -> dict[str, str]:
    """The lines of a master's `broker.conf` that make the setup; RocketMQ and we read the same."""
    keys = {
        "brokerRole": "SYNC_MASTER" if setup.replication == "sync" else "ASYNC_MASTER",
        "inSyncReplicas": "2" if setup.replication == "sync" else "1",
        "flushDiskType": "SYNC_FLUSH" if setup.flush == "sync" else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(segment_bytes),
    }
    if setup.has_buffer:
        keys |= {"transientStorePoolEnable": "true", "transientStorePoolSize": str(buffers_count)}
    return keys


def slave_keys(setup: Setup, *, segment_bytes: int) -> dict[str, str]:
    """The lines of its slave's: it flushes as its master does, and has no buffer, since RocketMQ's never has one."""
    return {
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "flushDiskType": "SYNC_FLUSH" if setup.flush == "sync" else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(segment_bytes),
    }
