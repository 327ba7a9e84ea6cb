"""A store at a glance, for a person: `gantry store inspect`."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from gantry_broker.store.inspect.buffers import BufferDirectory, SeenBuffer
from gantry_broker.store.inspect.summary import LogSummary, StoreSummary
from gantry_cli.tables import table
from gantry_cli.text import bytes_text, count_text, time_text

_WRITERS = {
    "gantry": "Gantry wrote it",
    "rocketmq": "RocketMQ wrote it",
    "both": "RocketMQ and Gantry wrote it",
    "unknown": "nothing says who wrote it",
    "": "no log yet",
}


def summary_text(summary: StoreSummary, *, with_queues: bool) -> Iterator[RenderableType]:
    """The screen, part by part."""
    yield Text(f"{summary.root}: {_WRITERS[summary.writer]}", style="bold")
    yield from _identity_lines(summary)
    yield _state_line(summary)
    if summary.log is not None:
        yield from _log_lines(summary.log)
    yield from _missing_lines(summary)
    yield from _durable_lines(summary)
    if summary.space is not None:
        used = summary.space.used / summary.space.total if summary.space.total else 0.0
        yield f"disk: {bytes_text(summary.space.free)} free of {bytes_text(summary.space.total)}, {used:.0%} used"
    if summary.topics:
        yield _queue_table(summary) if with_queues else _topic_table(summary)
    if summary.index:
        rows = [
            (one.name, count_text(one.entries), str(one.end_physical), one.fault or "good") for one in summary.index
        ]
        yield table(
            "Index", ("file", "entries", "newest message at", "header"), rows, right=("entries", "newest message at")
        )
    if summary.tables:
        yield _config_table(summary)
    if summary.buffers is not None:
        yield from _buffer_parts(summary.buffers)
    for name in summary.set_aside:
        yield f"set aside by an earlier recovery: set-aside/{name}"
    yield Text(summary.next_start, style="bold")


def _identity_lines(summary: StoreSummary) -> Iterator[str]:
    if summary.uuid:
        spans = ", ".join(
            f"{epoch.epoch} from {epoch.start}{'' if epoch.is_ours else ' (not ours)'}" for epoch in summary.epochs[-5:]
        )
        earlier = f"{len(summary.epochs) - 5} earlier ones, " if len(summary.epochs) > 5 else ""
        yield f"store {summary.uuid}, start {summary.generation}, epochs: {earlier}{spans}"
    if summary.identity_fault:
        yield f"store.json: {summary.identity_fault}"


def _state_line(summary: StoreSummary) -> str:
    if summary.holder_pid is not None:
        who = f"process {summary.holder_pid}" if summary.holder_pid else "a process in another container"
        return f"in use: {who} has it open, so what is shown is a moment"
    if not summary.is_store:
        return "there is no store here"
    return "cleanly stopped" if summary.is_clean else "not cleanly stopped: `abort` is there"


def _log_lines(log: LogSummary) -> Iterator[str]:
    end = str(log.end) if log.is_end_known else f"at least {log.end}"
    yield (
        f"log: \\[{log.start}, {end}), {bytes_text(log.end - log.start)} in {log.files} files of "
        f"{bytes_text(log.file_size)}, {bytes_text(log.allocated)} on the disk"
    )
    for fault in log.faults:
        yield f"log: {fault}"


def _missing_lines(summary: StoreSummary) -> Iterator[str]:
    for lost in summary.missing:
        yield f"missing: \\[{lost.start}, {lost.end}), {bytes_text(lost.bytes_count)} ({lost.cause.value})"
    for one in summary.accepted:
        extent = f"\\[{one.start}, {one.end}), {bytes_text(one.end - one.start)} ({one.cause.value})"
        yield f"accepted loss: {extent}, {time_text(one.accepted_ms)}{f' by {one.by}' if one.by else ''}"


def _durable_lines(summary: StoreSummary) -> Iterator[str]:
    if summary.checkpoint_times_ms is not None and any(summary.checkpoint_times_ms):
        sealed = f"flushed up to {summary.flushed}" if summary.flushed is not None else "not sealed by us"
        names = zip(("log", "queues", "index"), summary.checkpoint_times_ms, strict=True)
        times = ", ".join(f"{name} {time_text(time_ms)}" for name, time_ms in names if time_ms)
        yield f"checkpoint: {sealed}; newest message on the disk: {times}"
    if summary.point_through is not None:
        yield f"recovery point: everything before {summary.point_through} is durable in log, queues and index"
    elif summary.point_fault:
        yield f"recovery point: not usable, {summary.point_fault}"
    if summary.failed_flushed is not None:
        yield f"a flush has failed: only what is before {summary.failed_flushed} is known to be on the disk"


def _topic_table(summary: StoreSummary) -> RenderableType:
    rows = [
        (
            topic,
            str(len(queues)),
            count_text(sum(queue.messages for queue in queues)),
            str(min(queue.min_offset for queue in queues)),
            str(max(queue.max_offset for queue in queues)),
        )
        for topic, queues in summary.topics.items()
    ]
    columns = ("topic", "queues", "messages", "min offset", "max offset")
    return table(f"Topics: {count_text(summary.messages)} messages in queues", columns, rows, right=columns[1:])


def _queue_table(summary: StoreSummary) -> RenderableType:
    rows = [
        (topic, str(one.queue_id), count_text(one.messages), str(one.min_offset), str(one.max_offset), str(one.files))
        for topic, queues in summary.topics.items()
        for one in queues
    ]
    columns = ("topic", "queue", "messages", "min offset", "max offset", "files")
    return table(f"Queues: {count_text(summary.messages)} messages", columns, rows, right=columns[1:])


def _config_table(summary: StoreSummary) -> RenderableType:
    rows = [
        (
            one.name,
            count_text(one.entries),
            bytes_text(one.size),
            one.fault or "good",
            (one.backup_fault or "good") if one.has_backup else "none",
        )
        for one in summary.tables
    ]
    return table("Tables", ("table", "entries", "size", "current", "copy"), rows, right=("entries", "size"))


def _buffer_parts(directory: BufferDirectory) -> Iterator[RenderableType]:
    held = f", in use by process {directory.holder.pid}" if directory.holder is not None else ""
    if directory.fault:
        yield f"write buffers: {directory.path}: {directory.fault}"
        return
    if not directory.buffers:
        yield f"write buffers: none in {directory.path} ({directory.medium}){held}"
        return
    columns = ("buffer", "size", "state", "store", "start", "epoch", "file", "from", "committed", "to", "not committed")
    title = f"Write buffers in {directory.path} ({directory.medium}){held}"
    yield table(title, columns, map(_buffer_row, directory.buffers), right=columns[4:])


def _buffer_row(one: SeenBuffer) -> tuple[str, ...]:
    if one.state != "live":
        return (one.name, bytes_text(one.bytes), one.state, *("-",) * 8)
    return (
        one.name,
        bytes_text(one.bytes),
        one.state,
        "this one" if one.is_of_this_store else one.store[:8],
        str(one.generation),
        str(one.epoch),
        str(one.base_offset),
        str(one.start),
        str(one.committed),
        str(one.stop),
        f"{bytes_text(one.bytes_not_committed)}, {count_text(one.records_not_committed)}",
    )
