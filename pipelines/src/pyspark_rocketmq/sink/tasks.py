"""What one task does: it reads its rows, sends them in the way that was asked for, and says what it has done."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from gantry_client import Producer, TransactionProducer
from gantry_wire.structs import ready_structs
from gantry_wire.unique_id import UniqueIds
from pyspark_rocketmq.sink.batches import GROUP, BatchSender, producer_settings
from pyspark_rocketmq.sink.columns import Columns
from pyspark_rocketmq.sink.half_messages import HalfSender
from pyspark_rocketmq.sink.identity import TaskIdentity
from pyspark_rocketmq.sink.loop import LoopThread
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.packing import Packer
from pyspark_rocketmq.sink.rows import RowReader
from pyspark_rocketmq.worker import settled

LOOPBACK: Final = ipaddress.ip_address("127.0.0.1").packed


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
    ready_structs()
    settled()
    packer = Packer(f"{query}:{batch}:{task.partition}")
    reader = RowReader(columns, options.topic, options.reserved)
    work = _halves if options.is_transactional else _batches
    return work(rows, options, reader, packer, TaskDone(query, batch, task, 0, 0))


def _batches(
    rows: Iterator[pa.RecordBatch], options: SinkOptions, reader: RowReader, packer: Packer, done: TaskDone
) -> TaskDone:
    settings = options.connection
    with LoopThread() as loop:
        producer = Producer(
            settings.name_servers, GROUP, settings=producer_settings(options),
            client_settings=settings.client_settings(),
        )  # fmt: skip
        loop.run(producer.start())
        try:
            ids = UniqueIds(LOOPBACK, salt=secrets.randbits(32))
            sender = BatchSender(loop, producer, options, packer, ids)
            for batch in rows:
                sender.feed(reader.read(batch))
            sender.finish()
            return TaskDone(done.query, done.batch, done.identity, sender.rows, sender.body_bytes, sender.unsure)
        finally:
            loop.run(producer.close())


def _halves(
    rows: Iterator[pa.RecordBatch], options: SinkOptions, reader: RowReader, packer: Packer, done: TaskDone
) -> TaskDone:
    settings = options.connection
    with LoopThread() as loop:
        producer = TransactionProducer(
            settings.name_servers, group_of(done.query), is_asked=False, settings=producer_settings(options),
            client_settings=settings.client_settings(),
        )  # fmt: skip
        loop.run(producer.start())
        try:
            sender = HalfSender(loop, producer, options, packer)
            for batch in rows:
                sender.feed(reader.read(batch))
            sender.finish()
            packed = sender.halves.pack()
            return TaskDone(done.query, done.batch, done.identity, sender.rows, sender.body_bytes, 0, packed)
        finally:
            loop.run(producer.close())
