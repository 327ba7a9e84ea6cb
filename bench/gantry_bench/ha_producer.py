"""Apache's own benchmark producer against both brokers: parsing its output, and the summary. Pure.

The producer keeps so many threads sending, one message each at a time, and prints once a second what the last ten
seconds gave: a rate, and the mean time of a send. It has no percentiles and no codes; those come from the load
generator. It counts a send with the answer 10, 11 or 12 (stored, but not durable as configured) as successful, so a
rate here is an upper bound of the acknowledged rate, for either broker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.ha_cells import BUSY_CODE, SYNC_BUFFERED, SYNC_PLAIN, Setup, System
from gantry_bench.ha_table import ratio
from gantry_bench.measurement import Goal

_REPORT: Final = re.compile(
    r"Send TPS: (\d+) \| Max RT\(ms\): (\d+) \| Average RT\(ms\): +([\d.]+|NaN) \| Send Failed: (\d+) \| "
    r"Response Failed: (\d+)"
)
_REFUSAL: Final = re.compile(r"^org\.apache\.rocketmq\.\S+Exception: CODE: (\d+) ", re.MULTILINE)
_REMOTING_EXCEPTION: Final = re.compile(r"^org\.apache\.rocketmq\.remoting\.exception\.(\w+)", re.MULTILINE)
EQUAL_LEVELS: Final = (1, 64, 256)
EQUAL_MIN: Final = 1.0
"""Goal: synchronous replication with the buffer on reaches at least the rate of Apache's with its pool off."""
SINGLE_THREAD_MIN: Final = 10.0
"""Goal: with one thread, the same setup reaches at least this multiple of the rate of Apache's with its pool on."""


class ProducerPlan(msgspec.Struct, frozen=True):
    """The parameters of one run of the producer."""

    threads: int
    body_bytes: int
    reports: int
    """The number of reports to wait for; the first comes after ten seconds, and the last one counts."""


class ProducerRun(msgspec.Struct, frozen=True):
    """The last report of a run. Without any, the rate is 0 and ``problem`` has the reason."""

    system: System
    setup: Setup
    threads: int
    messages_per_second: float
    mean_ms: float
    failed: int
    """Sends that ended in an exception, including those before the last ten seconds."""

    refused: dict[str, int] = {}
    """Refusals by code, and exceptions of the connection by class, from the client's log. Requests that the client sent
    again are included."""

    problem: str = ""


def read_refusals(log_text: str) -> dict[str, int]:
    """Read the refusals from the log of the client, which has each with its stack trace."""
    return dict(Counter([*_REFUSAL.findall(log_text), *_REMOTING_EXCEPTION.findall(log_text)]))


def read_producer(text: str, log_text: str, *, system: System, setup: Setup, threads: int) -> ProducerRun:
    """Parse the output of the producer."""
    reports = _REPORT.findall(text)
    if not reports:
        lines = text.strip().splitlines()
        last_line = lines[-1][:100].replace("|", "/") if lines else "nothing"
        problem = f"the producer reported no rate; its last line: {last_line}"
        return ProducerRun(
            system=system, setup=setup, threads=threads, messages_per_second=0, mean_ms=0, failed=0,
            refused=read_refusals(log_text), problem=problem,
        )  # fmt: skip
    rate, _, mean_ms, send_failed, response_failed = reports[-1]
    return ProducerRun(
        system=system,
        setup=setup,
        threads=threads,
        messages_per_second=float(rate),
        mean_ms=0.0 if mean_ms == "NaN" else float(mean_ms),
        failed=int(send_failed) + int(response_failed),
        refused=read_refusals(log_text),
    )


def rate_of(runs: Sequence[ProducerRun], system: System, setup: Setup, threads: int) -> float | None:
    """Return the median rate of the repetitions; None if there was no run.

    A failed run of Apache's counts as none, because nothing can be compared with it; one of Gantry's has the rate 0.
    """
    rates = [
        run.messages_per_second
        for run in runs
        if (run.system, run.setup, run.threads) == (system, setup, threads) and not (system == "Apache" and run.problem)
    ]
    return median(rates) if rates else None


def producer_goals(runs: Sequence[ProducerRun]) -> list[Goal]:
    """Return the goals that the runs allow to check."""
    goals = []
    for threads in EQUAL_LEVELS:
        share = _share(runs, SYNC_PLAIN, threads)
        if share is not None:
            text = f"Apache's producer, {threads} threads, sync replication, buffer on"
            unit = "x Apache's with its pool off"
            goals.append(Goal(text=text, limit=EQUAL_MIN, measured=share, unit=unit, is_floor=True))
    share = _share(runs, SYNC_BUFFERED, 1)
    if share is not None:
        text = "Apache's producer, 1 thread, sync replication, buffer on"
        goals.append(
            Goal(text=text, limit=SINGLE_THREAD_MIN, measured=share, unit="x Apache's with its pool on", is_floor=True)
        )
    ours = [run for run in runs if run.system == "Gantry"]
    if ours:
        busy = sum(run.refused.get(BUSY_CODE, 0) for run in ours)
        text = "Apache's producer, answers with code 2, all cells"
        goals.append(Goal(text=text, limit=0, measured=busy, unit="answers"))
    return goals


def _share(runs: Sequence[ProducerRun], beside: Setup, threads: int) -> float | None:
    """Return Gantry's rate with a buffer and synchronous replication as a multiple of Apache's in another setup."""
    ours, theirs = rate_of(runs, "Gantry", SYNC_BUFFERED, threads), rate_of(runs, "Apache", beside, threads)
    if ours is None or theirs is None:
        return None
    return ours / theirs if theirs else float("inf")


def producer_figures(runs: Sequence[ProducerRun], conditions: list[str]) -> Figures:
    """Return a row for each setup and number of threads."""
    rows, slower, compared = [], [], 0
    for setup, threads in dict.fromkeys((run.setup, run.threads) for run in runs):
        row = [setup.flush, setup.replication, setup.buffer, str(threads)]
        for system in ("Gantry", "Apache"):
            row += _columns([run for run in runs if (run.system, run.setup, run.threads) == (system, setup, threads)])
        ours, theirs = rate_of(runs, "Gantry", setup, threads), rate_of(runs, "Apache", setup, threads)
        if ours is None or theirs is None:
            rows.append([*row, ""])
            continue
        compared += 1
        rows.append([*row, f"{ratio(ours, theirs):.2f}" if theirs else ""])
        if ours < theirs:
            slower.append(f"{setup.text}, {threads} threads ({ratio(ours, theirs):.2f}x)")
    listed = f": {'; '.join(slower)}." if slower else "."
    slower_note = f"Fewer messages a second than Apache RocketMQ in {len(slower)} of {compared} cells{listed}"
    return Figures(
        name="replication, Apache's producer",
        headings=[
            "flush", "replication", "buffer", "threads", "Gantry msgs/s", "mean ms", "failed", "refused by code",
            "Apache msgs/s", "mean ms", "failed", "refused by code", "Gantry, x Apache",
        ],
        rows=rows,
        notes=[*conditions, slower_note],
    )  # fmt: skip


def _columns(runs: Sequence[ProducerRun]) -> list[str]:
    if not runs:
        return ["", "", "", ""]
    problem = next((run.problem for run in runs if run.problem), "")
    failed = f"{sum(run.failed for run in runs):,}" + (f" ({problem})" if problem else "")
    rate = median(run.messages_per_second for run in runs)
    refused = sum((Counter(run.refused) for run in runs), Counter[str]())
    codes = ", ".join(f"{code}: {count:,}" for code, count in sorted(refused.items())) or "0"
    return [f"{rate:,.0f}", f"{median(run.mean_ms for run in runs):.2f}", failed, codes]
