"""One run of the transaction benchmark: a broker, many transactions in flight, and other open transactions.

    no others open -> transactions -> some open -> transactions -> many open -> transactions

Each transaction is a half message, its commit, and both answers. The broker's timeout is so long that it never checks
the other open transactions, so that they only have the cost of being open. The broker's own CPU time is the figure that
counts, because the rate also depends on this program, which is the producer.

The run ends with the check that the queues hold as many messages as were committed; otherwise the run fails.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.delay_load import queue_end
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import Figures
from gantry_bench.machine import Cores, OtherWork, read_process_cpu_seconds
from gantry_bench.measurement import Goal
from gantry_bench.processes import start_broker, start_name_server
from gantry_client import Message, MessageQueue, TransactionProducer
from gantry_remoting import Channel

TOPIC: Final = "BenchTransactions"
QUEUES: Final = 4
BROKER_NAME: Final = "bench"
RATIO_MAX: Final = 1.25
"""Goal: the CPU time of a transaction is at most this multiple of the reference's; this is the noise between cells."""

TRANSACTION_TIMEOUT_MS: Final = 24 * 3_600_000
"""So long that no transaction is checked during the run."""


class TransactionScale(msgspec.Struct, frozen=True):
    """The size of a run."""

    others: tuple[int, ...]
    """The numbers of other open transactions, in rising order; the first is the reference."""

    transactions: int
    in_flight: int
    repetitions: int
    body_bytes: int
    segment_bytes: int


FULL: Final = TransactionScale(
    others=(0, 10_000, 100_000), transactions=4_000, in_flight=100, repetitions=5, body_bytes=128,
    segment_bytes=1 << 30,
)  # fmt: skip
QUICK: Final = TransactionScale(
    others=(0, 100, 500), transactions=200, in_flight=100, repetitions=1, body_bytes=64, segment_bytes=16 << 20
)


class Cell(msgspec.Struct, frozen=True):
    """Medians of the repetitions with this number of other transactions open."""

    others: int
    per_second: float
    cpu_us: float
    """The CPU time of the broker for one transaction."""


class TransactionReport(msgspec.Struct, frozen=True):
    """The results of a run."""

    cells: list[Cell]
    committed: int
    other_cores: float


async def begin_all(producer: TransactionProducer, count: int, scale: TransactionScale, *, commit: bool) -> None:
    """Begin ``count`` transactions with the scale's concurrency; without ``commit`` they stay open."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            queue = MessageQueue(topic=TOPIC, broker_name=BROKER_NAME, queue_id=number % QUEUES)
            half = await producer.begin(Message(TOPIC, bytes(scale.body_bytes)), queue=queue)
            if commit:
                await producer.commit(half)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(scale.in_flight, count)):
            group.create_task(work())


async def measure_cell(producer: TransactionProducer, process: int, scale: TransactionScale, others: int) -> Cell:
    """Run every repetition of one cell."""
    rates: list[float] = []
    costs: list[float] = []
    for _ in range(scale.repetitions):
        began, cpu = time.perf_counter(), read_process_cpu_seconds(process)
        await begin_all(producer, scale.transactions, scale, commit=True)
        rates.append(scale.transactions / (time.perf_counter() - began))
        costs.append((read_process_cpu_seconds(process) - cpu) / scale.transactions * 1e6)
    return Cell(others=others, per_second=statistics.median(rates), cpu_us=statistics.median(costs))


async def count_committed(address: str) -> int:
    """Return the number of messages to consume."""
    channel = await Channel.connect(address)
    ends = [await queue_end(channel, TOPIC, queue_id) for queue_id in range(QUEUES)]
    await channel.close()
    return sum(ends)


def measure(
    scale: TransactionScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]
) -> TransactionReport:
    """Measure one broker, from its start to its stop. Raises BenchmarkFailed."""
    keys = {
        "transactionTimeOut": str(TRANSACTION_TIMEOUT_MS), "mappedFileSizeCommitLog": str(scale.segment_bytes),
        "brokerName": BROKER_NAME, "defaultTopicQueueNums": str(QUEUES),
    }  # fmt: skip
    with (
        start_name_server(folder) as name_server,
        start_broker(folder / "broker", name_server=name_server, core=cores.server, extra=keys) as broker,
    ):
        process = broker.target.process_id

        async def run() -> TransactionReport:
            cells: list[Cell] = []
            async with (
                TransactionProducer(name_server, "bench-others") as other,
                TransactionProducer(name_server, "bench-own") as own,
            ):
                opened = 0
                for others in scale.others:
                    report_progress(f"{others:,} other transactions are open")
                    await begin_all(other, others - opened, scale, commit=False)
                    opened = others
                    cells.append(await measure_cell(own, process, scale, others))
            wanted = len(cells) * scale.repetitions * scale.transactions
            committed = await count_committed(broker.target.address)
            if committed != wanted:
                raise BenchmarkFailed(f"{wanted} transactions were committed, but {committed} messages are stored")
            return TransactionReport(cells=cells, committed=committed, other_cores=0.0)

        with OtherWork(process) as others:
            report = asyncio.run(run())
    return msgspec.structs.replace(report, other_cores=others.cores)


def transaction_goals(report: TransactionReport, scale: TransactionScale) -> list[Goal]:
    """Return the goals: a transaction costs the same with any number of other open ones."""
    first, *rest = report.cells
    return [
        Goal(
            f"CPU per transaction, {scale.in_flight} in flight, {cell.others:,} others open", RATIO_MAX,
            cell.cpu_us / first.cpu_us if first.cpu_us else 0.0, f"x with {first.others:,} others",
        )
        for cell in rest
    ]  # fmt: skip


def transaction_figures(report: TransactionReport, scale: TransactionScale) -> Figures:
    """Return a row for each cell."""
    return Figures(
        name="transactions",
        headings=["others open", "in flight", "transactions/s", "broker CPU us/transaction"],
        rows=[
            [f"{cell.others:,}", f"{scale.in_flight}", f"{cell.per_second:,.0f}", f"{cell.cpu_us:.0f}"]
            for cell in report.cells
        ],
        notes=[
            f"Bodies of {scale.body_bytes} bytes; a transaction is a half message and its commit, both answered; "
            f"medians of {scale.repetitions} runs of {scale.transactions:,}. The producer is Gantry's client in one "
            "process: it, not the broker, bounds the rate.",
            f"Other programs used {report.other_cores:.1f} cores meanwhile; the producer is not counted among them.",
        ],
    )
