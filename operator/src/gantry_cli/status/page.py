"""The output of `gantry status --page`: the status page of one broker, read without a request to the broker."""

import dataclasses
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final
from uuid import UUID

from rich.console import RenderableType

from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.output import OutputFormat, show, table
from gantry_cli.text import certificate_text, count_text, duration_text, ranges_text, time_text
from gantry_status import (
    HotPath,
    PageNotFound,
    PageReader,
    Phase,
    Reading,
    RefusalReason,
    SlaveStatus,
    Status,
    StatusPageError,
)
from gantry_status.text import bytes_text

EXIT_SERVING: Final = 0
EXIT_UNRESPONSIVE: Final = 4
EXIT_NOT_SERVING: Final = 5
UNKNOWN: Final = "-"

Row = tuple[str, str]


def show_page(path: Path, form: OutputFormat) -> int:
    """Print the page at `path` and return the exit code, which the help of the command explains."""
    try:
        with PageReader(str(path)) as reader:
            reading = reader.read()
    except PageNotFound as error:
        raise NotFoundError(f"{error}", "check that this is the statusPagePath of a broker that was started") from error
    except StatusPageError as error:
        raise CliError(f"{error}") from error
    show(form, page_document(reading), lambda: _screen(reading))
    return exit_code(reading)


def _screen(reading: Reading) -> Iterator[RenderableType]:
    yield headline(reading)
    yield table(None, ("field", "value"), rows(reading))
    if reading.status.slaves:
        published = reading.status.published_boottime_ns
        slaves = (_slave_row(slave, published) for slave in reading.status.slaves)
        yield table("Slaves", ("slave", "received", "flushed", "last seen"), slaves)


def exit_code(reading: Reading) -> int:
    """Return the exit code for the state of the broker."""
    if reading.is_stale():
        return EXIT_UNRESPONSIVE
    return EXIT_SERVING if reading.status.phase is Phase.SERVING else EXIT_NOT_SERVING


def headline(reading: Reading) -> str:
    """Return the state of the broker as one line."""
    origin, status = reading.origin, reading.status
    line = f"{origin.broker_name}: {status.phase.name.lower()}"
    if not reading.is_stale():
        return line
    if reading.is_writer_alive is False:
        return f"{line}, but its process has exited; last update {_age_text(reading)}"
    if reading.age_ms is None:
        return f"{line}, but the page is from before the last reboot"
    return f"{line}, but unresponsive: event loop blocked, last update {_age_text(reading)}"


def rows(reading: Reading) -> Iterator[Row]:
    """Yield the fields of the page and their values."""
    origin, status = reading.origin, reading.status
    yield "published", f"{time_text(status.published_wall_ms)}, {_age_text(reading)}"
    yield "process", f"pid {origin.pid}, version {origin.version}, started {time_text(origin.started_wall_ms)}"
    if origin.hot_path is not HotPath.UNKNOWN:
        reason = f": {origin.hot_path_reason}" if origin.hot_path_reason else ""
        yield "hot path", f"{_enum_text(origin.hot_path)}{reason}"
    yield "boot id", str(origin.boot_id)
    epoch, generation = _optional_count(status.epoch), _optional_count(status.generation)
    yield "role", f"{_enum_text(status.role)}, epoch {epoch}, generation {generation}"
    yield "store", UNKNOWN if status.store_uuid is None else str(status.store_uuid)
    if status.recovery_total_bytes is not None:
        yield "recovery", _share_text(status.recovery_done_bytes, status.recovery_total_bytes)
    yield "wrote", _optional_offset(status.wrote)
    yield "committed", _offset_with_lag(status.committed, status.wrote)
    yield "flushed", _offset_with_lag(status.flushed, status.wrote)
    yield "confirmed", _offset_with_lag(status.confirmed, status.wrote)
    yield "oldest byte", _optional_offset(status.min_physical)
    if status.log_missing_bytes:
        lost = ranges_text(status.log_missing_bytes, status.log_missing_ranges)
        effect = "sends are refused, delayed messages and transactions wait"
        yield "missing", f"{lost} of the log are missing; {effect}; see gantry ha accept-loss"
    if status.log_accepted_loss_bytes:
        yield "accepted loss", f"{bytes_text(status.log_accepted_loss_bytes)} of the log"
    yield "write buffer", _write_buffer_text(reading)
    yield "disk", _share_text(status.disk_used_bytes, status.disk_total_bytes)
    yield "sends", "refused" if status.is_refusing_sends else f"accepted, {_optional_count(status.held_sends)} held"
    if status.refused_requests:
        yield "refused requests", _refusals_text(status.refused_requests)
    yield "connections", _optional_count(status.connections)
    yield "queues", _optional_count(status.queues)
    if status.damaged_records is not None:
        yield "damaged messages", _damage_text(status)
    if status.scrub_position is not None:
        yield "scrubbed", _scrub_text(status)
    if status.certificate_ends_wall_ms is not None:
        yield "certificate", certificate_text(status.certificate_ends_wall_ms, status.published_wall_ms)
    yield "last error", _last_error_text(reading)


def _damage_text(status: Status) -> str:
    counts = (
        f"{_optional_count(status.healed_records)} healed, {_optional_count(status.lost_records)} lost since the start"
    )
    return f"{_optional_count(status.damaged_records)} ({_optional_count(status.damaged_bytes)} bytes), {counts}"


def _scrub_text(status: Status) -> str:
    """Return the progress of the scrubber, which verifies the log while the broker runs."""
    ended_ms = status.scrub_pass_ended_wall_ms
    ended = f"last pass ended {time_text(ended_ms)}" if ended_ms else "no pass ended since the start"
    return f"up to {_optional_offset(status.scrub_position)}, {ended}"


def page_document(reading: Reading) -> dict[str, object]:
    """Return the page as a document: the names of the layout, enums as words, null for unknown values."""
    return {
        **_to_plain(reading.origin),
        **_to_plain(reading.status),
        "refused_requests": dict(_refusals(reading.status.refused_requests)),
        "age_ms": reading.age_ms,
        "is_writer_alive": reading.is_writer_alive,
        "is_stale": reading.is_stale(),
    }


def _to_plain(facts: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(facts) and not isinstance(facts, type), "the page consists of dataclasses"
    return {name: _to_plain_value(value) for name, value in dataclasses.asdict(facts).items()}


def _to_plain_value(value: object) -> object:
    if isinstance(value, IntEnum):
        return _enum_text(value)
    return str(value) if isinstance(value, UUID) else value


def _enum_text(value: IntEnum) -> str:
    return value.name.lower()


def _age_text(reading: Reading) -> str:
    age_ms = reading.age_ms
    if age_ms is None:
        return "before the last reboot"
    return f"{age_ms} ms ago" if age_ms < 10_000 else f"{duration_text(age_ms / 1000)} ago"


def _optional_count(value: int | None) -> str:
    return UNKNOWN if value is None else count_text(value)


def _refusals_text(counts: tuple[int, ...]) -> str:
    """Return the counts of refused requests by reason, without those of zero."""
    return ", ".join(f"{count_text(count)} {label}" for label, count in _refusals(counts))


def _refusals(counts: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Yield each reason for refused requests with its count."""
    return ((RefusalReason(place).label, count) for place, count in enumerate(counts) if count)


def _optional_offset(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _offset_with_lag(value: int | None, wrote: int | None) -> str:
    if value is None or wrote is None or value >= wrote:
        return _optional_offset(value)
    return f"{value}, {bytes_text(wrote - value)} behind"


def _share_text(some: int | None, total: int | None) -> str:
    """Return a part of a whole in percent; a dash if one of them is unknown."""
    if some is None or not total:
        return UNKNOWN
    return f"{bytes_text(some)} of {bytes_text(total)}, {some / total:.0%}"


def _write_buffer_text(reading: Reading) -> str:
    status = reading.status
    if status.pool_buffers_total is None or not status.pool_buffers_total:
        return _enum_text(status.pool_medium)
    safe = "survives a process crash" if status.is_crash_safe else "lost in a process crash"
    free = f"{_optional_count(status.pool_buffers_free)} of {count_text(status.pool_buffers_total)} free"
    return f"{_enum_text(status.pool_medium)}, {free}, {safe}"


def _last_error_text(reading: Reading) -> str:
    status = reading.status
    if not status.last_error:
        return "none"
    when = "" if status.last_error_wall_ms is None else f"{time_text(status.last_error_wall_ms)}: "
    return when + status.last_error


def _slave_row(slave: SlaveStatus, published_boottime_ns: int) -> tuple[str, ...]:
    last_seen_ns = slave.last_seen_boottime_ns
    age = UNKNOWN if last_seen_ns is None else f"{(published_boottime_ns - last_seen_ns) // 1_000_000} ms before"
    return (str(slave.slave_id), _optional_offset(slave.received), _optional_offset(slave.flushed), age)
