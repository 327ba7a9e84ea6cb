"""The output of `gantry store` for people. The verdict is the first or the last line, so that it is easy to find."""

from collections.abc import Iterator
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from gantry_broker.store.inspect.buffers import BufferDirectory, BufferSummary
from gantry_broker.store.inspect.findings import Finding, Harm
from gantry_broker.store.inspect.repair import RepairPlan
from gantry_broker.store.inspect.summary import LogSummary, StoreSummary
from gantry_broker.store.inspect.verify import VerifyReport
from gantry_broker.store.loss import LossRecord
from gantry_broker.store.message_store import RecoveryReport
from gantry_cli.output import table
from gantry_cli.text import count_text, plural, time_text
from gantry_status.text import bytes_text

HEX_COLUMNS: Final = 16
LOST_SHOWN_MAX: Final = 5
QUEUES_SHOWN_MAX: Final = 20
_REMEDIES: Final = {
    Harm.LOST: "back up the store first; a replica may still have the lost messages",
    Harm.DERIVED: "stop the broker and delete the directory of the queue or index/; the next start rebuilds it",
    Harm.WRONG: "no data is lost; investigate the cause",
    Harm.UNSETTLED: "none; the next start resolves it",
    Harm.ODD: "none",
}
"""What to do about a finding, by its severity."""


# -- verify ------------------------------------------------------------------------------------------------------------


def verify_text(report: VerifyReport, elapsed_s: float) -> Iterator[RenderableType]:
    """Yield the counts, the findings by severity, and the verdict."""
    read = report.end - report.start
    speed = f"{read / 1e9 / elapsed_s:.3f} GB/s" if elapsed_s > 0 else "at once"
    part = "all" if report.is_full_range else "a part"
    yield f"{report.root}: read {part} of the log, [{report.start}, {report.end}), in {elapsed_s:.1f} s, {speed}"
    if report.is_in_use:
        yield "a broker has the store open: its log grows, and data that is still being written is not an error"
    sealed = f", {count_text(report.records_sealed)} with a seal" if report.records_sealed else ""
    yield (
        f"{plural(report.records, 'record')} ({bytes_text(report.records_bytes)}{sealed}), "
        f"{plural(report.units, 'unit')} of {plural(report.queues, 'queue')}, "
        f"{plural(report.index_entries, 'entry')} of {plural(report.index_files, 'index file')}"
    )
    if report.older_records:
        yield f"{plural(report.older_records, 'record')} of deleted topics, which no queue refers to"
    for finding in sorted(report.findings.kept, key=lambda one: list(Harm).index(one.harm)):
        yield from _finding_lines(finding)
    if report.findings.omitted:
        yield f"{plural(report.findings.omitted, 'more finding')} not shown"
    yield Text(_verdict_text(report), style="bold")


def _finding_lines(finding: Finding) -> Iterator[Text]:
    times = f" (and {count_text(finding.count - 1)} more of this kind)" if finding.count > 1 else ""
    yield Text(f"{finding.harm.upper():9} {finding.kind}: {finding.text}{times}")
    if finding.lost_count:
        names = ", ".join(
            f"{one.topic}/{one.queue_id} offset {one.queue_offset}" for one in finding.lost[:LOST_SHOWN_MAX]
        )
        more = finding.lost_count - min(len(finding.lost), LOST_SHOWN_MAX)
        named = f": {names}" + (f" and {count_text(more)} more" if more else "") if names else ""
        yield Text(f"{'':9} lost: {plural(finding.lost_count, 'message')}{named}")
    yield Text(f"{'':9} remedy: {finding.remedy or _REMEDIES[finding.harm]}", style="dim")


def _verdict_text(report: VerifyReport) -> str:
    counts = report.findings.counts
    if report.is_interrupted:
        return f"interrupted at {report.end}: the rest of the store was not verified"
    if report.findings.is_damaged:
        kinds = ", ".join(f"{counts[harm]} {harm}" for harm in Harm if harm.is_damage and counts[harm])
        lost = report.findings.lost_messages
        loss = f"at least {plural(lost, 'message')} lost" if lost else "no message is known to be lost"
        return f"DAMAGED: {loss} (findings: {kinds})"
    rest = f"; the next start resolves {plural(counts[Harm.UNSETTLED], 'finding')}" if counts[Harm.UNSETTLED] else ""
    return f"good{rest}" if report.is_full_range else f"good in the part that was read{rest}"


# -- dump --------------------------------------------------------------------------------------------------------------


def dump_text(document: dict[str, Any]) -> str:
    """Return one record, or the damage in its place, in a few lines."""
    if "around" in document:
        return _hole_text(document)
    name = f"{document['topic']}/{document['queue_id']} offset {document['queue_offset']}"
    if "reason" in document:
        return f"-- {name}: {document['reason']}"
    lines = [f"@ {document['offset']}  {document['size']} bytes  {name}  {time_text(document['store_timestamp_ms'])}"]
    lines += [f"  {key} = {printable(value)}" for key, value in document["properties"].items()]
    for field in ("body", "body_hex", "body_base64", "body_fault"):
        if field in document:
            lines.append(f"  {field}: {printable(document[field])}")
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped, so that they cannot control the terminal."""
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)


def _hole_text(document: dict[str, Any]) -> str:
    """Return the lines about a place in the log without a valid record."""
    offset, length = document["offset"], document["length"]
    extent = f"{length} bytes" if length is not None else "to the end of the log"
    lines = [f"!! {offset}  {extent}  damaged: {document['reason']}"]
    if document["topic"]:
        lines.append(f"   expected {document['topic']}/{document['queue_id']} offset {document['queue_offset']}")
    lines += hex_lines(bytes.fromhex(document["around"]), document["around_start"], offset)
    return "\n".join(lines)


def hex_lines(data: bytes, start: int, mark: int) -> list[str]:
    """Return bytes as rows of hexadecimal digits; the row with the offset ``mark`` has an arrow."""
    lines = []
    for position in range(0, len(data), HEX_COLUMNS):
        row = data[position : position + HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        arrow = ">" if 0 <= mark - (start + position) < HEX_COLUMNS else " "
        lines.append(f"  {arrow}{start + position:020d}  {row.hex(' '):{HEX_COLUMNS * 3 - 1}}  {text}")
    return lines


# -- repair-plan and recover -------------------------------------------------------------------------------------------


def plan_text(plan: RepairPlan) -> Iterator[RenderableType]:
    """Render the steps that a start would take, in their order."""
    yield f"{plan.root}: the last stop was {'clean' if plan.is_clean else 'a crash'}"
    if plan.is_in_use:
        yield "a broker has the store open: this is what a start would do if the broker died now"
    if plan.refusal:
        yield Text(f"A start would fail: {plan.refusal}", style="bold")
        return
    whole = "the whole log" if plan.is_full else f"the log from {plan.read_from} on"
    yield f"read {whole}: {bytes_text(plan.read_bytes)}, {plural(plan.records, 'record')}"
    for lost in plan.missing:
        yield f"missing, sends refused until the loss is accepted: [{lost.start}, {lost.end}) ({lost.cause.value})"
    for begin, end in plan.damaged:
        yield f"skip corrupt range: [{begin}, {end}), {end - begin} bytes"
    if plan.buffers_fault:
        yield f"write buffers in {plan.buffers_path}: {plan.buffers_fault}"
    for one in plan.buffers:
        extent = f"[{one.start}, {one.end})" + (f", {plural(one.records, 'record')}" if one.records else "")
        yield f"write buffer {one.buffer}: {one.action} {extent}" + (f": {one.reason}" if one.reason else "")
    yield f"end the log at {plan.end}"
    if plan.cut_bytes:
        inside = f", {plural(plan.cut_records, 'whole record')} among them" if plan.cut_records else ""
        yield f"truncate {plan.cut_bytes} bytes after the end{inside}"
    if plan.queues_rebuilt:
        shown = ", ".join(f"{topic}/{queue}" for topic, queue in plan.queues_rebuilt[:QUEUES_SHOWN_MAX])
        more = len(plan.queues_rebuilt) - QUEUES_SHOWN_MAX
        yield f"rebuild queues: {shown}" + (f" and {plural(more, 'more queue')}" if more > 0 else "")
    if plan.queues_behind:
        units = sum(count for _, _, count in plan.queues_behind)
        yield f"append {plural(units, 'unit')} to {plural(len(plan.queues_behind), 'queue')}"
    if plan.is_index_rebuilt:
        yield "rebuild the index"
    yield Text(_loss_text(plan), style="bold")


def _loss_text(plan: RepairPlan) -> str:
    if plan.is_lossless:
        return "no acknowledged data is lost"
    flushed = f", {plan.lost_flushed_bytes} of them were flushed" if plan.lost_flushed_bytes else ""
    messages = max(plan.lost_messages, plan.cut_records)  # a whole record in the tail may have a queue unit or none
    return f"lost: {plan.lost_bytes} bytes{flushed}" + (f", at least {plural(messages, 'message')}" if messages else "")


def accepted_text(root: str, record: LossRecord) -> Iterator[RenderableType]:
    """Yield the ranges whose loss was accepted."""
    if not record.missing:
        yield f"{root}: no log data is missing"
    for lost in record.missing:
        yield f"{root}: loss accepted: [{lost.start}, {lost.end}), {bytes_text(lost.bytes_count)}"


def recovery_text(root: str, report: RecoveryReport) -> Iterator[RenderableType]:
    """Yield the results of a recovery."""
    yield f"{root}: read from {report.start} to {report.end}, {plural(report.records, 'record')}"
    if report.replayed_bytes:
        yield (
            f"replayed from write buffers: {bytes_text(report.replayed_bytes)}, "
            f"{plural(report.replayed_records, 'record')}"
        )
    for path in report.set_aside:
        yield f"set aside: {path}, with the reason in a file next to it"
    if report.cut_bytes or report.cut_records:
        inside = f", {plural(report.cut_records, 'whole record')} among them" if report.cut_records else ""
        yield f"truncated: {report.cut_bytes} bytes of a torn tail{inside}"
    for lost in report.missing:
        yield f"missing: [{lost.start}, {lost.end}), {bytes_text(lost.bytes_count)} ({lost.cause.value})"
    for begin, end in report.damaged:
        yield f"corrupt range skipped: [{begin}, {end}), {end - begin} bytes"
    if report.queues_rebuilt:
        yield f"rebuilt: {plural(len(report.queues_rebuilt), 'queue')}"
    if report.is_index_rebuilt:
        yield "rebuilt: the index"
    if report.lost_flushed_bytes:
        yield Text(f"lost: {report.lost_flushed_bytes} bytes that had been flushed", style="bold")
    if report.cut_records:
        text = f"lost: {plural(report.cut_records, 'message')} after the torn record; they may have been acknowledged"
        yield Text(text, style="bold")
    yield Text("the store is cleanly stopped: a broker of Gantry or RocketMQ can open it", style="bold")


# -- inspect -----------------------------------------------------------------------------------------------------------


_WRITERS = {
    "gantry": "written by Gantry",
    "rocketmq": "written by RocketMQ",
    "both": "written by RocketMQ and Gantry",
    "unknown": "writer unknown",
    "": "no log yet",
}


def summary_text(summary: StoreSummary, *, with_queues: bool) -> Iterator[RenderableType]:
    """Render the summary of a store; ``with_queues`` lists each queue instead of the sums of topics."""
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
            f"{epoch.epoch} from {epoch.start}{'' if epoch.is_ours else ' (RocketMQ)'}" for epoch in summary.epochs[-5:]
        )
        earlier = f"{len(summary.epochs) - 5} earlier ones, " if len(summary.epochs) > 5 else ""
        yield f"store {summary.uuid}, start {summary.generation}, epochs: {earlier}{spans}"
    if summary.identity_fault:
        yield f"store.json: {summary.identity_fault}"


def _state_line(summary: StoreSummary) -> str:
    if summary.holder_pid is not None:
        holder = f"process {summary.holder_pid}" if summary.holder_pid else "a process in another container"
        return f"in use: {holder} has the store open, so this is a snapshot"
    if not summary.is_store:
        return "no store found"
    return "cleanly stopped" if summary.is_clean else "not cleanly stopped: the file `abort` exists"


def _log_lines(log: LogSummary) -> Iterator[str]:
    end = str(log.end) if log.is_end_known else f"at least {log.end}"
    yield (
        f"log: [{log.start}, {end}), {bytes_text(log.end - log.start)} in {log.files} files of "
        f"{bytes_text(log.file_size)}, {bytes_text(log.allocated)} on disk"
    )
    for fault in log.faults:
        yield f"log: {fault}"


def _missing_lines(summary: StoreSummary) -> Iterator[str]:
    for lost in summary.missing:
        yield f"missing: [{lost.start}, {lost.end}), {bytes_text(lost.bytes_count)} ({lost.cause.value})"
    for one in summary.accepted:
        extent = f"[{one.start}, {one.end}), {bytes_text(one.end - one.start)} ({one.cause.value})"
        yield f"accepted loss: {extent}, {time_text(one.accepted_ms)}{f' by {one.by}' if one.by else ''}"


def _durable_lines(summary: StoreSummary) -> Iterator[str]:
    if summary.checkpoint_times_ms is not None and any(summary.checkpoint_times_ms):
        sealed = f"flushed up to {summary.flushed}" if summary.flushed is not None else "not sealed by Gantry"
        names = zip(("log", "queues", "index"), summary.checkpoint_times_ms, strict=True)
        times = ", ".join(f"{name} {time_text(time_ms)}" for name, time_ms in names if time_ms)
        yield f"checkpoint: {sealed}; newest message on disk: {times}"
    if summary.point_through is not None:
        yield f"recovery point: everything before {summary.point_through} is durable in log, queues and index"
    elif summary.point_fault:
        yield f"recovery point: not usable, {summary.point_fault}"
    if summary.failed_flushed is not None:
        yield f"a flush has failed: only the log before {summary.failed_flushed} is known to be on disk"


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
    return table("Tables", ("table", "entries", "size", "current", "backup"), rows, right=("entries", "size"))


def _buffer_parts(directory: BufferDirectory) -> Iterator[RenderableType]:
    holder = f", in use by process {directory.holder.pid}" if directory.holder is not None else ""
    if directory.fault:
        yield f"write buffers: {directory.path}: {directory.fault}"
        return
    if not directory.buffers:
        yield f"write buffers: none in {directory.path} ({directory.medium}){holder}"
        return
    columns = ("buffer", "size", "state", "store", "start", "epoch", "file", "from", "committed", "to", "not committed")
    title = f"Write buffers in {directory.path} ({directory.medium}){holder}"
    yield table(title, columns, map(_buffer_row, directory.buffers), right=columns[4:])


def _buffer_row(one: BufferSummary) -> tuple[str, ...]:
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
