"""Run one task of a write: read its rows, send them as the options require, and report the result to the driver.

`write()` has no argument that names the batch. The task's local properties name it, but Spark does not guarantee them:
a missing one is None in `TaskIdentity`, and the caller decides what to do instead.
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
from pyspark_rocketmq.sink.half_messages import HalfMessageSender
from pyspark_rocketmq.sink.loop import LoopThread
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.packing import Packer
from pyspark_rocketmq.sink.rows import RowReader
from pyspark_rocketmq.worker import prepare_worker

LOOPBACK: Final = ipaddress.ip_address("127.0.0.1").packed
"""The address in message ids: a random salt makes the ids of a task unique."""

QUERY_PROPERTY: Final = "sql.streaming.queryId"
"""The task property with the id of a streaming query."""

BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""The task property with the number of the batch."""

RUN_PROPERTY: Final = "spark.jobGroup.id"
"""The job group of a streaming query is the id of its run, which changes at every start."""


@final
@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The identity of a task, from its local properties."""

    partition: int = 0
    """The number of the partition, from 0."""

    attempt: int = 0
    """How often Spark has tried this task before."""

    query: str | None = None
    """The id of the streaming query; None if Spark names none."""

    batch: int | None = None
    """The number of the batch; None if Spark names none."""

    run: str | None = None
    """The run of the query; None if Spark names none."""


def task_identity() -> TaskIdentity:
    """Return the identity of the task that runs here."""
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
class TaskResult(WriterCommitMessage):
    """The result of a task, as it travels to the driver."""

    query: str
    batch: int
    identity: TaskIdentity
    rows: int
    body_bytes: int
    unsure: int = 0
    """The number of messages that are stored, but were not flushed or replicated as promised."""

    halves: bytes = b""
    """The packed list of half messages; empty if the write is not transactional."""


def run_task(
    rows: Iterator[pa.RecordBatch], options: SinkOptions, columns: Columns, query: str, batch: int, task: TaskIdentity
) -> TaskResult:
    """Send all rows; returns when all of them are acknowledged."""
    prepare_worker()
    reader = RowReader(columns, options.topic, options.reserved)
    packer = Packer(f"{query}:{batch}:{task.partition}")
    settings = producer_settings(options)
    servers, client_settings = options.connection.name_servers, options.connection.client_settings()
    with LoopThread() as loop:
        producer: Producer | TransactionProducer
        sender: BatchSender | HalfMessageSender
        if options.is_transactional:
            producer = TransactionProducer(
                servers, group_of(query), answers_checks=False, settings=settings, client_settings=client_settings
            )
            sender = HalfMessageSender(loop, producer, options, packer)
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
    halves = sender.halves.pack() if isinstance(sender, HalfMessageSender) else b""
    return TaskResult(query, batch, task, sender.rows, sender.body_bytes, unsure, halves)
