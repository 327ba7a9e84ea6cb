"""Send the messages of an archive to topics, in order, with bodies, keys, tags, properties and message ids.

For each queue one batch is in flight at a time, and a small file has its progress: `next`, the first message that is
not known to be stored, and `tail`, the offset from which the target queue may have it. When a run continues an earlier
one, and after a send without SEND_OK, the tail is read, and messages whose ids are found are not sent again. A broker
may not yet show a message that it has stored, so the tail is read for `SETTLE_S`: a killed run may have had a send in
flight. Each message is stored once, also after crashes, if only one restore runs at a time and no broker hides a stored
message for longer.

A queue is sent to the target queue with the same index, by broker and number; if the target has fewer queues, several
share one. Properties that brokers and retries added are removed, as when a message is resent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, final

import pyarrow.parquet as pq

from gantry_client import ClientError, Message, MessageQueue, ReceivedMessage, SendReceipt
from gantry_client.producer import rebuild_message
from gantry_pipelines.archive.errors import RestoreFailed
from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.layout import quote_name
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.storage import Folder, Storage
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.model import QueueId

REQUIRED_COLUMNS: Final = ("offset", "flag", "properties", "body", "messageId")
"""The columns that an archive must have to be restored."""
BATCH_MESSAGES: Final = 200
"""The most messages of one send."""
QUEUES_AT_ONCE: Final = 4
"""The most queues that are restored at a time."""
SETTLE_S: Final = 10.0
"""The time for which the target is read after a send whose answer is unknown. It is longer than a broker's timeouts for
flushes and for slaves, after which the broker answers without SEND_OK."""
PAUSE_S: Final = 0.5
"""The time between two reads of the target, in seconds."""


class Target(Protocol):
    """The destination of a restore, which can also be read. Used by several threads; methods raise ClientError."""

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the writable queues of a topic."""

    def topics(self) -> Iterable[str]:
        """Return the topics that exist."""

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic with a number of queues on every master, and wait until it has a route."""

    def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
        """Send a batch of messages to a queue, with these message ids."""

    def end(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message of a queue."""

    def ids(self, queue: MessageQueue, begin: int) -> Iterable[str]:
        """Return the ids of the messages from an offset to the end of a queue."""


@final
@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The settings of a restore."""

    topics: Mapping[str, str]
    """Target topics by topics of the archive."""
    progress: str
    """Folder of the progress files."""
    patience_s: float = 120.0
    """How long brokers may be unavailable or refuse a batch before the restore fails."""
    on_delivered: Callable[[int], None] = lambda _count: None
    """Called with the number of messages of each batch that is stored, from several threads."""
    is_stopped: Callable[[], bool] = lambda: False
    """Whether a stop was requested; called before each batch."""


class Progress(NamedTuple):
    """The progress of one queue: the next offset to send, and the target offset from which to check for it."""

    next: int
    """The first message of the archive that is not known to be stored."""

    tail: int
    """The offset in the target queue from which that message may be stored."""


@final
@dataclass(frozen=True, slots=True)
class QueueRestoreResult:
    """The result of restoring one queue."""

    queue: QueueId
    sent: int
    """The number of messages that were sent and acknowledged."""
    found: int
    """Messages that the target already had from an earlier run."""
    is_complete: bool
    """Whether all messages of the queue are in the target; false after a stop request."""


def restore(
    storage: Storage, plan: RestorePlan, target: Target, clock: Clock | None = None
) -> list[QueueRestoreResult]:
    """Send the messages that are not restored yet.

    Raises RestoreFailed, NoArchive, OtherArchive, ManifestBroken, ClientError.
    """
    missing = [name for name in REQUIRED_COLUMNS if name not in read_format(storage).columns]
    if missing:
        raise RestoreFailed(f"the archive in {storage} has no column {missing[0]}, which a restore needs")
    queues: dict[QueueId, list[ArchivedFile]] = {}
    for file in read_manifest(storage).data():
        if file.range.queue.topic in plan.topics:
            queues.setdefault(file.range.queue, []).append(file)
    missing_topics = sorted(set(plan.topics) - {queue.topic for queue in queues})
    if missing_topics:
        raise RestoreFailed(f"the archive in {storage} has no messages of topic {missing_topics[0]}")
    restores = [
        _QueueRestore(storage, plan, target, files, queue_for(target, plan, queue, sorted(queues)), clock)
        for queue, files in sorted(queues.items())
    ]
    with ThreadPoolExecutor(QUEUES_AT_ONCE, "archive-restore") as threads:
        return list(threads.map(_QueueRestore.run, restores))


def prepare_new_group(storage: Storage, target: Target, progress: str) -> dict[str, str]:
    """Create the topics of an archive that the target lacks. Return all topics of the archive, by themselves.

    Raises RestoreFailed if a topic has messages that no earlier run of this restore has sent, since they would be there
    twice, and NoArchive, ManifestBroken, ClientError.
    """
    earlier, existing = Folder(progress), set(target.topics())
    numbers: dict[str, int] = {}
    for file in read_manifest(storage).data():
        queue = file.range.queue
        numbers[queue.topic] = max(numbers.get(queue.topic, 0), queue.number + 1)
    for topic in sorted(existing & numbers.keys()):
        if any(target.end(queue) for queue in target.queues(topic)) and not earlier.paths(quote_name(topic)):
            raise RestoreFailed(
                f"topic {topic} has messages already, which are not of this restore; map the topics that you want in"
                " restore.topics instead"
            )
    for topic in sorted(numbers.keys() - existing):
        target.create_topic(topic, numbers[topic])
    return {topic: topic for topic in numbers}


def queue_for(target: Target, plan: RestorePlan, queue: QueueId, queues: Sequence[QueueId]) -> MessageQueue:
    """Return the target queue with the index that this queue has among the queues of its topic."""
    index = [one for one in queues if one.topic == queue.topic].index(queue)
    topic = plan.topics[queue.topic]
    target_queues = sorted(target.queues(topic), key=lambda one: (one.broker_name, one.queue_id))
    if not target_queues:
        raise RestoreFailed(f"topic {topic} has no writable queue")
    return target_queues[index % len(target_queues)]


@final
class _QueueRestore:
    """Restores one queue. Used by one thread."""

    def __init__(
        self,
        storage: Storage,
        plan: RestorePlan,
        target: Target,
        files: list[ArchivedFile],
        target_queue: MessageQueue,
        clock: Clock | None,
    ) -> None:
        self._storage: Final = storage
        self._plan: Final = plan
        self._target: Final = target
        self._files: Final = files
        self._target_queue: Final = target_queue
        self._clock: Final = clock or SystemClock()
        self._queue: Final = files[0].range.queue
        self._progress_folder: Final = Folder(plan.progress)
        queue = self._queue
        self._progress_path: Final = f"{quote_name(queue.topic)}/{quote_name(queue.broker)}-{queue.number}.json"
        self._tail = 0
        self._sent = self._found = 0

    def run(self) -> QueueRestoreResult:
        """Send the queue's messages up to the end of the archive, or until a stop is requested."""
        progress = self._read_progress()
        is_unsent = progress is None  # an earlier run may have sent some or all of the first batch
        if progress is None:
            progress = Progress(self._files[0].range.begin, self._target.end(self._target_queue))
            self._write_progress(progress)
        self._tail = progress.tail
        for batch in self._batches(progress.next):
            if self._plan.is_stopped():
                return QueueRestoreResult(self._queue, self._sent, self._found, is_complete=False)
            self._send_batch(batch, is_unsent=is_unsent)
            self._write_progress(Progress(batch[-1].queue_offset + 1, self._tail))
            is_unsent = True
            self._plan.on_delivered(len(batch))
        return QueueRestoreResult(self._queue, self._sent, self._found, is_complete=True)

    def _send_batch(self, batch: list[ReceivedMessage], *, is_unsent: bool) -> None:
        """Send a batch until the target has each of its messages once. Raises RestoreFailed."""
        deadline_s = self._clock.now_s() + self._plan.patience_s
        rest = batch if is_unsent else self._find_not_stored(batch, deadline_s)
        self._found += len(batch) - len(rest)
        while rest:
            try:
                messages = [rebuild_message(one, self._target_queue.topic) for one in rest]
                receipts = self._target.send(messages, self._target_queue, [one.message_id for one in rest])
                problem = "" if all(one.is_acknowledged for one in receipts) else receipts[0].status.name
            except ClientError as error:
                problem = str(error)
            if not problem:
                self._sent += len(rest)
                self._tail = receipts[-1].queue_offset + 1
                return
            if self._clock.now_s() >= deadline_s:
                raise RestoreFailed(
                    f"{self._queue} was restored up to {rest[0].queue_offset}; run the restore again: {problem}"
                )
            not_stored = self._find_not_stored(rest, deadline_s)
            self._sent += len(rest) - len(not_stored)
            rest = not_stored

    def _find_not_stored(self, batch: list[ReceivedMessage], deadline_s: float) -> list[ReceivedMessage]:
        """Return the messages that the target does not have after `SETTLE_S`. Raises RestoreFailed."""
        settled_s = self._clock.now_s() + SETTLE_S
        while True:
            try:
                stored_ids = set(self._target.ids(self._target_queue, self._tail))
                rest = [one for one in batch if one.message_id not in stored_ids]
                if not rest or self._clock.now_s() >= settled_s:
                    return rest
            except ClientError as error:
                if self._clock.now_s() >= deadline_s:
                    raise RestoreFailed(f"cannot read {self._target_queue}: {error}") from error
                settled_s = self._clock.now_s() + SETTLE_S  # the wait starts again when the broker answers again
            self._clock.sleep(PAUSE_S)

    # -- the archive ---------------------------------------------------------------------------------------------------

    def _batches(self, begin: int) -> Iterator[list[ReceivedMessage]]:
        for file in self._files:
            if file.range.end <= begin:
                continue
            with self._storage.open(file.place.path) as opened, pq.ParquetFile(opened) as parquet:
                for rows in parquet.iter_batches(batch_size=BATCH_MESSAGES, columns=list(REQUIRED_COLUMNS)):
                    batch = [message_of(row, self._queue) for row in rows.to_pylist() if row["offset"] >= begin]
                    if batch:
                        yield batch

    # -- progress ------------------------------------------------------------------------------------------------------

    def _read_progress(self) -> Progress | None:
        """Return the progress of an earlier run; None if there was none: it is written before the first send."""
        try:
            document = json.loads(self._progress_folder.read(self._progress_path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RestoreFailed(f"{self._plan.progress}/{self._progress_path} is damaged: {error}") from error
        if document["to"] != self._target_name:
            raise RestoreFailed(
                f"{self._plan.progress}/{self._progress_path} belongs to a restore to {document['to']}, but this one"
                f" goes to {self._target_name}: use another folder for the progress"
            )
        end = self._target.end(self._target_queue)
        if end < document["tail"]:
            raise RestoreFailed(
                f"{self._plan.progress}/{self._progress_path} belongs to a restore to another group: it had stored"
                f" {document['tail']} messages in {self._target_name}, which has {end}; use another folder for the"
                " progress"
            )
        return Progress(document["next"], document["tail"])

    def _write_progress(self, progress: Progress) -> None:
        self._progress_folder.write(
            self._progress_path, json.dumps({"to": self._target_name, **progress._asdict()}).encode() + b"\n"
        )

    @property
    def _target_name(self) -> str:
        return f"{self._target_queue.topic}/{self._target_queue.broker_name}/{self._target_queue.queue_id}"


def message_of(row: Mapping[str, Any], queue: QueueId) -> ReceivedMessage:
    """Convert a row of the archive back to the message."""
    return ReceivedMessage(
        topic=queue.topic,
        queue=MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.number),
        queue_offset=row["offset"],
        stored_body=row["body"],
        properties=dict(row["properties"] or ()),
        flag=row["flag"] or 0,
        offset_message_id=row["messageId"] or "",
    )
