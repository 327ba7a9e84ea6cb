"""`gantry pipeline restore`: send an archive back to topics. Needs no Spark.

    restore: {topics: {orders: orders-again}}

What goes where has to be said: an archive that is sent back to the topic it came from is there twice.
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
from gantry_client.sync import Producer, PullConsumer
from gantry_pipelines.archive.exits import at_work
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.restore import RestorePlan, restore
from gantry_pipelines.archive.settings import place_settings
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.source_options import read_settings
from gantry_spec.manifest.parts import Part
from gantry_spec.pipelines.kinds import ArchiveSpec
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.worker import prepare_structs

GROUP: Final = "GantryRestore"
PULL: Final = 256


@final
class Restore(Part, frozen=True):
    """What goes where."""

    topics: Annotated[dict[str, str], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=dict)
    """From topics of the archive to those that they are sent to."""

    progress: str = ""
    """A folder that says how far it has come; empty: `_restore` beside the archive's data."""


@final
class RestoreSpec(ArchiveSpec, frozen=True):
    """A `TopicArchive`, and where its topics are to go."""

    restore: Restore = Restore()


@final
@dataclass(frozen=True)
class RestoreParameters:
    """What is sent, and to whom."""

    destination: str
    topics: dict[str, str]
    progress: str
    connection: ReadSettings


@final
class RestoreJob(Job[RestoreSpec, RestoreParameters]):
    """Sends an archive back."""

    name = "restore"
    spec_type = RestoreSpec

    def parse(self, config: PipelineConfig[RestoreSpec]) -> RestoreParameters:
        """What the run needs."""
        place = place_settings(config).destination
        if not config.spec.restore.topics:
            raise ConfigError(["restore.topics: it is missing: say what goes where, like {orders: orders-again}"])
        progress = config.spec.restore.progress
        if not progress and "://" in place:
            raise ConfigError(["restore.progress: it is missing: a folder of this machine, as the archive is in none"])
        return RestoreParameters(
            place,
            dict(config.spec.restore.topics),
            progress or str(Path(place, "_restore")),
            read_settings(config),
        )

    def run(self, settings: RestoreParameters, reporter: Reporter) -> Outcome:
        """All topics, to their ends."""
        prepare_structs()
        sent = _Count(reporter)
        plan = RestorePlan(settings.topics, settings.progress, told=sent.add, is_stopped=lambda: reporter.stop.is_asked)
        try:
            with at_work(settings.destination), BrokerTarget(settings.connection) as target:
                queues = restore(storage_of(settings.destination), plan, target)
        except ClientError as error:
            raise JobError(str(error), reason="NoBroker", exit_code=EXIT_UNKNOWN) from error
        rows, found = sum(one.sent for one in queues), sum(one.found for one in queues)
        is_whole = all(one.is_whole for one in queues)
        text = f"{rows} messages were sent, in {len(queues)} queues"
        text += f"; {found} were there already" if found else ""
        return Outcome(
            0 if is_whole else EXIT_INTERRUPTED,
            "Done" if is_whole else "Interrupted",
            text if is_whole else f"{text}; run it again for the rest",
            rows=rows,
            checkpoint=settings.progress,
        )


@final
class _Count:
    """Told by several threads; a sum that is one behind for a moment does no harm."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter: Final = reporter
        self._rows = 0

    def add(self, count: int) -> None:
        """So many more."""
        self._rows += count
        self._reporter.progress(rows=self._rows)


@final
class BrokerTarget:
    """Brokers, as a producer and a consumer see them."""

    def __init__(self, connection: ReadSettings) -> None:
        settings = connection.client_settings()
        self._producer: Final = Producer(connection.name_servers, GROUP, client_settings=settings)
        self._consumer: Final = PullConsumer(connection.name_servers, GROUP, client_settings=settings)
        self._stack: Final = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._producer)
        self._stack.enter_context(self._consumer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Queues that take messages of a topic."""
        return self._producer.queues(topic)

    def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
        """Send them together."""
        return self._producer.send_batch(messages, queue=queue, message_ids=ids)

    def end(self, queue: MessageQueue) -> int:
        """One past the newest message."""
        return self._consumer.max_offset(queue)

    def ids(self, queue: MessageQueue, begin: int) -> Iterator[str]:
        """Of the messages from there to the end."""
        offset, end = begin, self._consumer.max_offset(queue)
        while offset < end:
            result = self._consumer.fetch(queue, offset, messages_max=PULL)
            yield from (message.message_id for message in result.messages)
            offset = result.next_offset
