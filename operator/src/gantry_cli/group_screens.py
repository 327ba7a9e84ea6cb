"""Consumer groups for people: how far they are, who is in them, what these do."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from gantry_cli.consumer_documents import GroupDocument, MembersOfGroupDocument, RunningDocument
from gantry_cli.tables import table
from gantry_cli.text import count_text, rate_text, time_text


def group_screen(document: GroupDocument) -> Iterator[RenderableType]:
    """How far a group is."""
    members = f"{document.members} member{'' if document.members == 1 else 's'}"
    yield f"group {document.group}: {members}, {count_text(document.lag)} messages behind"
    if not document.queues:
        yield "it has consumed nothing yet"
        return
    columns = ("topic", "broker", "queue", "consumed", "in hand", "end", "lag", "last consumed")
    rows = (
        (
            queue.topic,
            queue.broker,
            str(queue.queue_id),
            count_text(queue.consumed_offset),
            count_text(max(0, queue.fetched_offset - queue.consumed_offset)),
            count_text(queue.end_offset),
            count_text(queue.lag),
            time_text(queue.last_consumed_ms) if queue.last_consumed_ms else "never",
        )
        for queue in document.queues
    )
    yield table(None, columns, rows, right=columns[2:7])


def members_screen(document: MembersOfGroupDocument) -> Iterator[RenderableType]:
    """Who is in it."""
    if not document.members:
        yield f"nobody consumes for {document.group} now"
        return
    rows = ((one.client_id, one.address, one.language or "", str(one.version)) for one in document.members)
    yield table(f"Members of {document.group}", ("client", "address", "language", "version"), rows, right=("version",))
    yield table("Subscriptions", ("topic", "wanted"), document.subscriptions.items())


def running_screen(name: str, found: list[RunningDocument]) -> Iterator[RenderableType]:
    """What they do."""
    if not found:
        yield f"nobody consumes for {name} now"
    for one in found:
        if one.failure is not None:
            yield Text(f"{one.client_id} says nothing: {one.failure}")
            continue
        columns = ("topic", "broker", "queue", "committed", "in hand", "last pull", "last consumed")
        rows = (
            (
                queue.topic,
                queue.broker,
                str(queue.queue_id),
                count_text(queue.committed_offset),
                count_text(queue.messages),
                time_text(queue.last_pull_ms),
                time_text(queue.last_consume_ms),
            )
            for queue in one.queues
        )
        yield table(one.client_id, columns, rows, right=columns[2:5])
        columns = ("topic", "fetched/s", "consumed/s", "failed/s", "fetch ms", "consume ms", "failed in the last hour")
        paces = (
            (
                pace.topic,
                rate_text(pace.fetched_per_s),
                rate_text(pace.consumed_per_s),
                rate_text(pace.failed_per_s),
                rate_text(pace.fetch_ms),
                rate_text(pace.consume_ms),
                count_text(pace.failed_in_hour),
            )
            for pace in one.topics
        )
        yield table(None, columns, paces, right=columns[1:])
        if one.stacks is not None:
            yield Text(one.stacks)
