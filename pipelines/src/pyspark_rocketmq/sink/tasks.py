"""What one task does: it reads its rows, sends them in the way that was asked for, and reports what it has done.

`write()` has no argument that names the batch it is for. The task's local properties do, but that is no promise of
Spark's: what is missing there is None in `TaskIdentity`, and the caller says what to do instead.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from gantry_client import Producer, TransactionProducer
from gantry_wire.unique_id import UniqueIds
from pyspark_rocketmq.sink.batches import GROUP, BatchSender, producer_settings
from pyspark_rocketmq.sink.columns import Columns
from pyspark_rocketmq.sink.half_messages import HalfSender
from pyspark_rocketmq.sink.loop import LoopThread
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.packing import Packer
from pyspark_rocketmq.sink.rows import RowReader
from pyspark_rocketmq.worker import prepare_worker

LOOPBACK: Final = ipaddress.ip_address("127.0.0.1").packed
QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""The group of a streaming query's jobs is the id of its run: another one after every start."""


@final
@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """What a task knows of itself."""

    partition: int = 0
    attempt: int = 0
    query: str | None = None
    batch: int | None = None
    run: str | None = None


def task_identity() -> TaskIdentity:
    """Of the task that runs here."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskIdentity()
    batch = context.getLocalProperty(BATCH_PROPERTY)
    return TaskIdentity(
        partition=context.partitionId(), attempt=context.attemptNumber(),
        query=context.getLocalProperty(QUERY_PROPERTY), batch=int(batch) if batch and batch.isdigit() else None,
        run=context.getLocalProperty(RUN_PROPERTY),
    )  # fmt: skip


@final
@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """What travels from a task to the driver."""

    query: str
    batch: int
    identity: TaskIdentity
    rows: int
    body_bytes: int
    unsure: int = 0
    halves: bytes = b""
    """Packed; empty where nothing is transactional."""


def run_task(
    rows: Iterator[pa.RecordBatch], options: SinkOptions, columns: Columns, query: str, batch: int, task: TaskIdentity
) -> TaskDone:
    """Send all rows; returns when they are acknowledged."""
    prepare_worker()
    reader = RowReader(columns, options.topic, options.reserved)
    packer = Packer(f"{query}:{batch}:{task.partition}")
    settings = producer_settings(options)
    servers, client_settings = options.connection.name_servers, options.connection.client_settings()
    with LoopThread() as loop:
        producer: Producer | TransactionProducer
        sender: BatchSender | HalfSender
        if options.is_transactional:
            producer = TransactionProducer(
                servers, group_of(query), is_asked=False, settings=settings, client_settings=client_settings
            )
            sender = HalfSender(loop, producer, options, packer)
        else:
            producer = Producer(servers, GROUP, settings=settings, client_settings=client_settings)
            sender = BatchSender(loop, producer, options, packer, UniqueIds(LOOPBACK, salt=secrets.randbits(32)))
        loop.run(producer.start())
        try:
            for rows_of_batch in rows:
                sender.feed(reader.read(rows_of_batch))
            sender.finish()
        finally:
            loop.run(producer.close())
    unsure = sender.unsure if isinstance(sender, BatchSender) else 0
    halves = sender.halves.pack() if isinstance(sender, HalfSender) else b""
    return TaskDone(query, batch, task, sender.rows, sender.body_bytes, unsure, halves)
