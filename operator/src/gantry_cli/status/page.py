"""`gantry status --page`: what one broker says about itself, read from its page without asking it."""

import dataclasses
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final
from uuid import UUID

from rich.console import RenderableType

from gantry_cli.errors import Absent, CliError
from gantry_cli.output import Form, show, table
from gantry_cli.text import bytes_text, certificate_text, count_text, duration_text, missing_text, time_text
from gantry_status import PageAbsent, PageReader, Phase, Reading, RefusalReason, SlaveStatus, Status, StatusPageError

EXIT_SERVING: Final = 0
EXIT_SILENT: Final = 4
EXIT_NOT_SERVING: Final = 5
UNKNOWN: Final = "-"

Row = tuple[str, str]


def show_page(path: Path, form: Form) -> int:
    """Print the page at `path`. The exit code; see the command's help."""
    try:
        with PageReader(str(path)) as reader:
            reading = reader.read()
    except PageAbsent as error:
        raise Absent(f"{error}", "is this the statusPagePath of a broker that was started?") from error
    except StatusPageError as error:
        raise CliError(f"{error}") from error
    show(form, page_document(reading), lambda: _screen(reading))
    return exit_code(reading)


def _screen(reading: Reading) -> Iterator[RenderableType]:
    yield headline(reading)
    yield table(None, ("what", "value"), rows(reading))
    if reading.status.slaves:
        published = reading.status.published_boottime_ns
        slaves = (_slave_row(slave, published) for slave in reading.status.slaves)
        yield table("Slaves", ("slave", "received", "flushed", "last seen"), slaves)


def exit_code(reading: Reading) -> int:
    """How the broker is, as a number."""
    if reading.is_stale():
        return EXIT_SILENT
    return EXIT_SERVING if reading.status.phase is Phase.SERVING else EXIT_NOT_SERVING


def headline(reading: Reading) -> str:
    """The broker in one line."""
    origin, status = reading.origin, reading.status
    line = f"{origin.broker_name}: {status.phase.name.lower()}"
    if not reading.is_stale():
        return line
    if reading.is_writer_alive is False:
        return f"{line}, but its process is gone; last seen {_age(reading)}"
    if reading.age_ms is None:
        return f"{line}, but that was before the machine was started last"
    return f"{line}, but silent: its event loop has stood still since {_age(reading)}"


def rows(reading: Reading) -> Iterator[Row]:
    """The page, line by line."""
    origin, status = reading.origin, reading.status
    yield "published", f"{time_text(status.published_wall_ms)}, {_age(reading)}"
    yield "process", f"pid {origin.pid}, version {origin.version}, started {time_text(origin.started_wall_ms)}"
    yield "boot id", str(origin.boot_id)
    yield "role", f"{_word(status.role)}, epoch {_count(status.epoch)}, generation {_count(status.generation)}"
    yield "store", UNKNOWN if status.store_uuid is None else str(status.store_uuid)
    if status.recovery_total_bytes is not None:
        yield "recovery", _part(status.recovery_done_bytes, status.recovery_total_bytes)
    yield "wrote", _offset(status.wrote)
    yield "committed", _behind(status.committed, status.wrote)
    yield "flushed", _behind(status.flushed, status.wrote)
    yield "confirmed", _behind(status.confirmed, status.wrote)
    yield "oldest byte", _offset(status.min_physical)
    if status.log_missing_bytes:
        lost = missing_text(status.log_missing_bytes, status.log_missing_ranges)
        yield "missing", f"{lost} of the log are gone; nothing is appended or delivered; see gantry ha accept-loss"
    if status.log_accepted_loss_bytes:
        yield "accepted loss", f"{bytes_text(status.log_accepted_loss_bytes)} of the log"
    yield "write buffer", _pool(reading)
    yield "disk", _part(status.disk_used_bytes, status.disk_total_bytes)
    yield "sends", "refused" if status.is_refusing_sends else f"taken, {_count(status.parked_sends)} parked"
    if status.refused_requests:
        yield "refused requests", _refused(status.refused_requests)
    yield "connections", _count(status.connections)
    yield "queues", _count(status.queues)
    if status.damaged_records is not None:
        yield "damaged messages", _damage(status)
    if status.scrub_position is not None:
        yield "scrubbed", _scrubbed(status)
    if status.certificate_ends_wall_ms is not None:
        yield "certificate", certificate_text(status.certificate_ends_wall_ms, status.published_wall_ms)
    yield "last error", _last_error(reading)


def _damage(status: Status) -> str:
    counts = f"{_count(status.healed_records)} healed, {_count(status.lost_records)} lost since the start"
    return f"{_count(status.damaged_records)} ({_count(status.damaged_bytes)} bytes), {counts}"


def _scrubbed(status: Status) -> str:
    ended_ms = status.scrub_pass_ended_wall_ms
    ended = f"last pass ended {time_text(ended_ms)}" if ended_ms else "no pass ended since the start"
    return f"up to {_offset(status.scrub_position)}, {ended}"


def page_document(reading: Reading) -> dict[str, object]:
    """The page for programs: the names of the layout, words for phases, null for what is not known."""
    return {
        **_plain(reading.origin),
        **_plain(reading.status),
        "refused_requests": dict(_refusals(reading.status.refused_requests)),
        "age_ms": reading.age_ms,
        "is_writer_alive": reading.is_writer_alive,
        "is_stale": reading.is_stale(),
    }


def _plain(facts: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(facts) and not isinstance(facts, type), "the page is made of dataclasses"
    return {name: _plain_value(value) for name, value in dataclasses.asdict(facts).items()}


def _plain_value(value: object) -> object:
    if isinstance(value, IntEnum):
        return _word(value)
    return str(value) if isinstance(value, UUID) else value


def _word(value: IntEnum) -> str:
    return value.name.lower()


def _age(reading: Reading) -> str:
    age_ms = reading.age_ms
    if age_ms is None:
        return "before the machine was started last"
    return f"{age_ms} ms ago" if age_ms < 10_000 else f"{duration_text(age_ms / 1000)} ago"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else count_text(value)


def _refused(counts: tuple[int, ...]) -> str:
    return ", ".join(f"{count_text(count)} {label}" for label, count in _refusals(counts))


def _refusals(counts: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """What was refused, and how often."""
    return ((RefusalReason(place).label, count) for place, count in enumerate(counts) if count)


def _offset(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _behind(value: int | None, wrote: int | None) -> str:
    if value is None or wrote is None or value >= wrote:
        return _offset(value)
    return f"{value}, {bytes_text(wrote - value)} behind"


def _part(some: int | None, total: int | None) -> str:
    if some is None or not total:
        return UNKNOWN
    return f"{bytes_text(some)} of {bytes_text(total)}, {some / total:.0%}"


def _pool(reading: Reading) -> str:
    status = reading.status
    if status.pool_buffers_total is None or not status.pool_buffers_total:
        return _word(status.pool_medium)
    safe = "survives a crash of the process" if status.is_crash_safe else "lost in a crash of the process"
    free = f"{_count(status.pool_buffers_free)} of {count_text(status.pool_buffers_total)} free"
    return f"{_word(status.pool_medium)}, {free}, {safe}"


def _last_error(reading: Reading) -> str:
    status = reading.status
    if not status.last_error:
        return "none"
    when = "" if status.last_error_wall_ms is None else f"{time_text(status.last_error_wall_ms)}: "
    return when + status.last_error


def _slave_row(slave: SlaveStatus, published_boottime_ns: int) -> tuple[str, ...]:
    seen = slave.last_seen_boottime_ns
    ago = UNKNOWN if seen is None else f"{(published_boottime_ns - seen) // 1_000_000} ms before"
    return (str(slave.slave_id), _offset(slave.received), _offset(slave.flushed), ago)
