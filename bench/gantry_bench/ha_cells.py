"""Replication under load: the setups of the brokers, and the summary of their runs. Pure.

A *setup* is one of eight: whether a send is answered before or after the flush, before or after replication, and with
or without a write buffer. A slave is attached in all of them. A *cell* is a setup, a number of sends in
flight, and the system: Gantry, or Apache RocketMQ, which runs at the same time in the same setup. A run that could not
be measured is a cell with the reason, so that a failure of Apache's system is shown and does not stop the benchmark.
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
"""The answer code of a broker that rejects requests because it is busy."""
PROBLEM_MAX: Final = 160
WRONG: Final = "wrong"
"""Answers that matched no request or were not understood, counted with the codes."""


class Setup(msgspec.Struct, frozen=True):
    """The settings of a master and its slave."""

    flush: When
    """`sync`: a send is answered after the flush."""
    replication: When
    """`sync`: a send is answered after the slave has it."""
    has_buffer: bool
    is_slave_flushed: bool = False
    """Whether a slave acknowledges only what is on its disk, which Apache's brokers cannot do."""

    @property
    def text(self) -> str:
        """Describe the setup for goals and notes."""
        return f"{self.flush} flush, {self.replication} replication, buffer {self.buffer}"

    @property
    def buffer(self) -> str:
        return "on" if self.has_buffer else "off"

    @property
    def short(self) -> str:
        """Return a short name for folders and brokers."""
        return f"{self.flush}-{self.replication}-{self.buffer}"


SETUPS: Final = tuple(
    Setup(flush=flush, replication=replication, has_buffer=has_buffer)
    for flush in ("async", "sync")
    for replication in ("async", "sync")
    for has_buffer in (False, True)
)
PLAIN: Final = Setup(flush="async", replication="async", has_buffer=False)
"""The reference of the rate goals: a master that waits for neither disk nor slave."""
SYNC_PLAIN: Final = Setup(flush="async", replication="sync", has_buffer=False)
SYNC_BUFFERED: Final = Setup(flush="async", replication="sync", has_buffer=True)
"""The setup in which RocketMQ accepts fewer than ten messages per second if one send is in flight."""


class HaRun(msgspec.Struct, frozen=True):
    """One run of the load generator, or the reason why there is none."""

    system: System
    setup: Setup
    level: int
    """The number of sends in flight."""
    run: Run | None
    problem: str = ""


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
    """The number of error answers by code, and of wrong answers (`WRONG`)."""

    messages: int
    other_cores: float
    problem: str = ""

    @property
    def busy_answers(self) -> int:
        return self.failures.get(BUSY_CODE, 0)

    @property
    def failures_text(self) -> str:
        """Return the failures for a table: each code and its number, without code 2."""
        rest = {code: count for code, count in sorted(self.failures.items()) if code != BUSY_CODE}
        return ", ".join(f"{code}: {count:,}" for code, count in rest.items()) or "0"


def reason_line(error: Exception) -> str:
    """Return the reason of a failed run for a table cell: its first line, shortened, without a vertical bar."""
    return str(error).partition("\n")[0].replace("|", "/")[:PROBLEM_MAX]


def failures_of(run: Run) -> Counter[str]:
    """Count the error answers and wrong answers of a run by code."""
    report = run.report
    failures = Counter(report.refused_by_code)
    if wrong := report.wrong_opaque + report.wrong_reply:
        failures[WRONG] = wrong
    return failures


def summarise_cell(runs: Sequence[HaRun]) -> HaCell:
    """Summarise the repetitions of one load in one cell."""
    done = [one.run for one in runs if one.run is not None]
    reports = [run.report for run in done]
    problem = next((one.problem for one in runs if one.problem), "")
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
        problem=problem,
    )


def summarise_cells(runs: Sequence[HaRun]) -> list[HaCell]:
    """Return one cell for each system, setup and level, in the order of running."""
    keys = dict.fromkeys((one.system, one.setup, one.level) for one in runs)
    return [summarise_cell([one for one in runs if (one.system, one.setup, one.level) == key]) for key in keys]


def find_cell(cells: Sequence[HaCell], system: System, setup: Setup, level: int) -> HaCell | None:
    """Return the cell, or None if it was not run."""
    for cell in cells:
        if (cell.system, cell.setup, cell.level) == (system, setup, level):
            return cell
    return None


def broker_keys(setup: Setup, *, segment_bytes: int, buffers_count: int) -> dict[str, str]:
    """Return the `broker.conf` lines of a master for the setup.

    They are the same for RocketMQ and for Gantry, but only Gantry's master can wait for the disk of a slave.
    """
    keys = {
        "brokerRole": "SYNC_MASTER" if setup.replication == "sync" else "ASYNC_MASTER",
        "inSyncReplicas": "2" if setup.replication == "sync" else "1",
        "flushDiskType": "SYNC_FLUSH" if setup.flush == "sync" else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(segment_bytes),
    }
    if setup.has_buffer:
        keys |= {"transientStorePoolEnable": "true", "transientStorePoolSize": str(buffers_count)}
    return keys | _ack_keys(setup)


def _ack_keys(setup: Setup) -> dict[str, str]:
    return {"haAckLevel": "FLUSHED"} if setup.is_slave_flushed else {}


def slave_keys(setup: Setup, *, segment_bytes: int) -> dict[str, str]:
    """Return the `broker.conf` lines of the slave: its master's flush mode, and no buffer, because RocketMQ's slave
    never has one.
    """
    keys = {
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "flushDiskType": "SYNC_FLUSH" if setup.flush == "sync" else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(segment_bytes),
    }
    return keys | _ack_keys(setup)
