"""`gantry pipeline restore`: send an archive to topics. Needs no Spark.

    restore: {topics: {orders: orders-again}}    some topics, into topics that exist
    restore: {intoNewGroup: true}                all topics, into topics of the same names, which are created

There is no default: a topic that is restored into itself would have its messages twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self, final

import msgspec

from gantry_client import ClientError, Message, MessageQueue, SendReceipt
from gantry_client.sync import Admin, Producer, PullConsumer
from gantry_pipelines.archive.job_errors import map_archive_errors
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.restore import RestorePlan, prepare_new_group, restore
from gantry_pipelines.archive.settings import parse_archive_parameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.source_options import read_settings
from gantry_spec.manifest.parts import Part
from gantry_spec.pipelines.kinds import ArchiveSpec
from gantry_wire.structs import make_structs_ready
from pyspark_rocketmq.settings import ReadSettings

GROUP: Final = "GantryRestore"
"""The group of the restore's producer and consumer."""

PULL_MESSAGES_MAX: Final = 256
"""The most messages of one pull from the target."""


@final
class Restore(Part, frozen=True):
    """The target topics of a restore, and its progress folder."""

    topics: Annotated[dict[str, str], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=dict)
    """Target topics by topics of the archive."""

    into_new_group: bool = False
    """Whether all topics of the archive go to topics of the same names, in a group that has none of their messages.
    Missing topics are created with as many queues as in the archive."""

    progress: str = ""
    """Folder of the progress files; empty: `_restore` beside the archive's data."""


@final
class RestoreSpec(ArchiveSpec, frozen=True):
    """The spec of a `TopicArchive`, and the target topics of the restore."""

    restore: Restore = Restore()


@final
@dataclass(frozen=True)
class RestoreParameters:
    """The parameters of a restore run."""

    destination: str
    topics: dict[str, str]
    """The target topics by topics of the archive; empty for all topics, into a new group."""

    progress: str
    """The folder of the progress files."""

    connection: ReadSettings


@final
class RestoreJob(Job[RestoreSpec, RestoreParameters]):
    """The job that sends an archive to topics."""

    name = "restore"
    spec_type = RestoreSpec

    def parse(self, config: PipelineConfig[RestoreSpec]) -> RestoreParameters:
        """Return the run's parameters. Raises ConfigError."""
        destination = parse_archive_parameters(config).destination
        wanted = config.spec.restore
        if not wanted.topics and not wanted.into_new_group:
            raise ConfigError(
                [
                    "restore.topics: missing; map archived topics to target topics, for example {orders: orders-again},"
                    " or set restore.intoNewGroup"
                ]
            )
        if wanted.topics and wanted.into_new_group:
            raise ConfigError(["restore.topics: contradicts restore.intoNewGroup, which restores all topics"])
        progress = config.spec.restore.progress or _default_progress(destination)
        return RestoreParameters(destination, dict(config.spec.restore.topics), progress, read_settings(config))

    def run(self, settings: RestoreParameters, reporter: Reporter) -> Outcome:
        """Restore the mapped topics up to the end of the archive, or until a stop is requested."""
        make_structs_ready()
        sent = _SentCounter(reporter)
        try:
            with map_archive_errors(settings.destination), BrokerTarget(settings.connection) as target:
                storage = storage_of(settings.destination)
                topics = settings.topics or prepare_new_group(storage, target, settings.progress)
                plan = RestorePlan(
                    topics, settings.progress, on_delivered=sent.add, is_stopped=lambda: reporter.stop.is_requested
                )
                queues = restore(storage, plan, target)
        except ClientError as error:
            raise JobError(str(error), reason="NoBroker", exit_code=EXIT_UNKNOWN) from error
        rows, found = sum(one.sent for one in queues), sum(one.found for one in queues)
        is_complete = all(one.is_complete for one in queues)
        text = f"sent {rows} messages, in {len(queues)} queues"
        text += f"; {found} were already stored" if found else ""
        return Outcome(
            0 if is_complete else EXIT_INTERRUPTED,
            "Done" if is_complete else "Interrupted",
            text if is_complete else f"{text}; run the restore again for the rest",
            rows=rows,
            checkpoint=settings.progress,
        )


def _default_progress(destination: str) -> str:
    """Return the folder of the progress files in the archive's folder. Raises ConfigError for an object store."""
    storage = storage_of(destination)
    if not isinstance(storage, Folder):
        raise ConfigError(
            ["restore.progress: missing; an archive in an object store needs a local folder for the progress"]
        )
    return str(Path(storage.root, "_restore"))


@final
class _SentCounter:
    """Counts messages that the target has, from several threads, without a lock.

    Concurrent updates may be lost; the counter is only for progress.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter: Final = reporter
        self._rows = 0

    def add(self, count: int) -> None:
        """Add a number of messages and report the progress."""
        self._rows += count
        self._reporter.report_progress(rows=self._rows)


@final
class BrokerTarget:
    """The brokers as the target of a restore, by a producer and a pull consumer."""

    def __init__(self, connection: ReadSettings) -> None:
        settings = connection.client_settings()
        self._producer: Final = Producer(connection.name_servers, GROUP, client_settings=settings)
        self._consumer: Final = PullConsumer(connection.name_servers, GROUP, client_settings=settings)
        self._admin: Final = Admin(connection.name_servers, client_settings=settings)
        self._stack: Final = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._producer)
        self._stack.enter_context(self._consumer)
        self._stack.enter_context(self._admin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the writable queues of a topic."""
        return self._producer.queues(topic)

    def topics(self) -> Sequence[str]:
        """Return the topics that exist."""
        return self._admin.wait(self._admin.topics.all())

    def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic with a number of queues on every master, and wait until it has a route."""
        self._admin.wait(self._admin.topics.create(topic, queues=queues))

    def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
        """Send a batch of messages to a queue, with these message ids."""
        return self._producer.send_batch(messages, queue=queue, message_ids=ids)

    def end(self, queue: MessageQueue) -> int:
        """Return the offset after the newest message of a queue."""
        return self._consumer.max_offset(queue)

    def ids(self, queue: MessageQueue, begin: int) -> Iterator[str]:
        """Return the ids of the messages from an offset to the end of a queue."""
        offset, end = begin, self._consumer.max_offset(queue)
        while offset < end:
            result = self._consumer.fetch(queue, offset, messages_max=PULL_MESSAGES_MAX)
            yield from (message.message_id for message in result.messages)
            offset = result.next_offset
