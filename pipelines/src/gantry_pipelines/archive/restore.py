"""Sending an archive back: the messages of its queues, in their order, with bodies, keys, tags, properties and ids.

Of each queue one batch is under way at a time, and a small file says how far it has come: `next`, the first message
that is not known to be there, and `tail`, from where on the target's queue may have it. When a run begins, or a send
got no good answer, the tail is read, and what is there by its id is not sent again. A broker may hide for a moment
what it has stored, so an unanswered send is given `SETTLE_S` to come to light. Each message is sent once, whoever
dies, as long as one restore works at a time and no broker hides one for longer.

A queue goes to the queue of the target that has its place among all, by broker and number; where the target has fewer,
several share one. What brokers and retries had written on a message stays behind, as it does when one is sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, final

import pyarrow.parquet as pq

from gantry_client import ClientError, Message, MessageQueue, ReceivedMessage, SendReceipt
from gantry_client.producer import message_again
from gantry_pipelines.archive.errors import RestoreFailed
from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.layout import quoted
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.reading import read_manifest
from gantry_pipelines.archive.storage import Folder, Storage
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.model import QueueId

NEEDED: Final = ("offset", "flag", "properties", "body", "messageId")
BATCH: Final = 200
QUEUES_AT_ONCE: Final = 4
SETTLE_S: Final = 10.0
"""Longer than a broker waits for a disk or a slave before it answers that it did not wait longer."""
PAUSE_S: Final = 0.5


class Target(Protocol):
    """Where messages go, and can be read back. Used by several threads; methods raise ClientError."""

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Queues that take messages of a topic."""

    def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
        """Send them together."""

    def end(self, queue: MessageQueue) -> int:
        """One past the newest message."""

    def ids(self, queue: MessageQueue, begin: int) -> Iterable[str]:
        """Of the messages from there to the end."""


@final
@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What goes where."""

    topics: Mapping[str, str]
    """From topics of the archive to those that they are sent to."""
    progress: str
    """A folder for files that say how far it has come."""
    patience_s: float = 120.0
    """How long brokers may be away, or refuse."""
    told: Callable[[int], None] = lambda _count: None
    """Hears how many messages are there now that were not. From several threads."""
    is_stopped: Callable[[], bool] = lambda: False


class Progress(NamedTuple):
    """How far one queue is."""

    next: int
    tail: int


@final
@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one queue."""

    queue: QueueId
    sent: int
    found: int
    """Messages of the last batch that were there already."""
    is_whole: bool


def restore(storage: Storage, plan: RestorePlan, target: Target, clock: Clock | None = None) -> list[Restored]:
    """Send what is not there yet. Raises RestoreFailed, NoArchive, ManifestBroken, ClientError."""
    missing = [name for name in NEEDED if name not in read_format(storage).columns]
    if missing:
        raise RestoreFailed(f"the archive in {storage} has no column {missing[0]}: its messages cannot be sent again")
    queues: dict[QueueId, list[ArchivedFile]] = {}
    for file in read_manifest(storage).data():
        if file.range.queue.topic in plan.topics:
            queues.setdefault(file.range.queue, []).append(file)
    absent = sorted(set(plan.topics) - {queue.topic for queue in queues})
    if absent:
        raise RestoreFailed(f"the archive in {storage} has nothing of topic {absent[0]}")
    works = [
        _QueueRestore(storage, plan, target, files, queue_for(target, plan, queue, sorted(queues)), clock)
        for queue, files in sorted(queues.items())
    ]
    with ThreadPoolExecutor(QUEUES_AT_ONCE, "archive-restore") as threads:
        return list(threads.map(_QueueRestore.run, works))


def queue_for(target: Target, plan: RestorePlan, queue: QueueId, queues: Sequence[QueueId]) -> MessageQueue:
    """The queue of the target that has the same place as this one has among those of its topic."""
    place = [one for one in queues if one.topic == queue.topic].index(queue)
    topic = plan.topics[queue.topic]
    there = sorted(target.queues(topic), key=lambda one: (one.broker_name, one.queue_id))
    if not there:
        raise RestoreFailed(f"topic {topic} has no queue that takes messages")
    return there[place % len(there)]


@final
class _QueueRestore:
    """One queue on its way. Owned by one thread."""

    def __init__(
        self,
        storage: Storage,
        plan: RestorePlan,
        target: Target,
        files: list[ArchivedFile],
        to: MessageQueue,
        clock: Clock | None,
    ) -> None:
        self._storage: Final = storage
        self._plan: Final = plan
        self._target: Final = target
        self._files: Final = files
        self._to: Final = to
        self._clock: Final = clock or SystemClock()
        self._queue: Final = files[0].range.queue
        self._book: Final = Folder(plan.progress)
        queue = self._queue
        self._page: Final = f"{quoted(queue.topic)}/{quoted(queue.broker)}-{queue.number}.json"
        self._tail = 0
        self._sent = self._found = 0

    def run(self) -> Restored:
        """To the end of the archive."""
        progress = self._read()
        self._tail = progress.tail
        is_certain = False  # of the first batch, a run before may have sent all or some
        for batch in self._batches(progress.next):
            if self._plan.is_stopped():
                return Restored(self._queue, self._sent, self._found, is_whole=False)
            self._deliver(batch, is_certain=is_certain)
            self._write(Progress(batch[-1].queue_offset + 1, self._tail))
            is_certain = True
            self._plan.told(len(batch))
        return Restored(self._queue, self._sent, self._found, is_whole=True)

    def _deliver(self, batch: list[ReceivedMessage], *, is_certain: bool) -> None:
        """Make each of them be there, once."""
        deadline_s = self._clock.now_s() + self._plan.patience_s
        rest = batch if is_certain else self._missing(batch, deadline_s, settle_s=0)
        self._found += len(batch) - len(rest)
        while rest:
            try:
                messages = [message_again(one, self._to.topic) for one in rest]
                receipts = self._target.send(messages, self._to, [one.message_id for one in rest])
                problem = "" if all(one.is_acknowledged for one in receipts) else receipts[0].status.name
            except ClientError as error:
                problem = str(error)
            if not problem:
                self._sent += len(rest)
                self._tail = receipts[-1].queue_offset + 1
                return
            if self._clock.now_s() >= deadline_s:
                raise RestoreFailed(f"{self._queue} was sent up to {rest[0].queue_offset}: {problem}")
            still = self._missing(rest, deadline_s, settle_s=SETTLE_S)
            self._sent += len(rest) - len(still)
            rest = still

    def _missing(self, batch: list[ReceivedMessage], deadline_s: float, settle_s: float) -> list[ReceivedMessage]:
        """Those that the target does not show, after as long as it may hide one."""
        settled_s = self._clock.now_s() + settle_s
        while True:
            try:
                there = set(self._target.ids(self._to, self._tail))
                rest = [one for one in batch if one.message_id not in there]
                if not rest or self._clock.now_s() >= settled_s:
                    return rest
            except ClientError as error:
                if self._clock.now_s() >= deadline_s:
                    raise RestoreFailed(f"{self._to} cannot be read: {error}") from error
                settled_s = self._clock.now_s() + settle_s  # what it hides counts from when it answers again
            self._clock.sleep(PAUSE_S)

    # -- the archive ---------------------------------------------------------------------------------------------------

    def _batches(self, begin: int) -> Iterator[list[ReceivedMessage]]:
        for file in self._files:
            if file.range.end <= begin:
                continue
            with self._storage.open(file.place.path) as opened, pq.ParquetFile(opened) as parquet:
                for rows in parquet.iter_batches(batch_size=BATCH, columns=list(NEEDED)):
                    batch = [message_of(row, self._queue) for row in rows.to_pylist() if row["offset"] >= begin]
                    if batch:
                        yield batch

    # -- progress ------------------------------------------------------------------------------------------------------

    def _read(self) -> Progress:
        try:
            document = json.loads(self._book.read(self._page))
        except FileNotFoundError:
            progress = Progress(self._files[0].range.begin, self._target.end(self._to))
            self._write(progress)
            return progress
        except ValueError as error:
            raise RestoreFailed(f"{self._plan.progress}/{self._page} is damaged: {error}") from error
        if document["to"] != self._said:
            raise RestoreFailed(
                f"{self._plan.progress}/{self._page} is of a restore to {document['to']}, and this one goes to"
                f" {self._said}: use another folder for its progress"
            )
        return Progress(document["next"], document["tail"])

    def _write(self, progress: Progress) -> None:
        self._book.write(self._page, json.dumps({"to": self._said, **progress._asdict()}).encode() + b"\n")

    @property
    def _said(self) -> str:
        return f"{self._to.topic}/{self._to.broker_name}/{self._to.queue_id}"


def message_of(row: Mapping[str, Any], queue: QueueId) -> ReceivedMessage:
    """A row as the message that it was."""
    return ReceivedMessage(
        topic=queue.topic,
        queue=MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.number),
        queue_offset=row["offset"],
        stored_body=row["body"],
        properties=dict(row["properties"] or ()),
        flag=row["flag"] or 0,
        offset_message_id=row["messageId"] or "",
    )
