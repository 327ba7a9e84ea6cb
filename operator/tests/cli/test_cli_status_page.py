"""`gantry status --page`: its table, its document and its exit code."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from gantry_cli.main import cli
from gantry_status import LogRange, Medium, Origin, PageWriter, Phase, Role, SlaveStatus, Status, new_origin, now

MIB: Final = 1024 * 1024
SERVING: Final = Status(
    published_boottime_ns=0, published_wall_ms=0, phase=Phase.SERVING, role=Role.MASTER,
    wrote=10 * MIB, committed=9 * MIB, flushed=4 * MIB, confirmed=10 * MIB, min_physical=0, epoch=2, generation=7,
    store_uuid=uuid.UUID(int=5), pool_medium=Medium.HUGETLBFS, pool_buffers_total=3, pool_buffers_free=2,
    is_crash_safe=True, disk_total_bytes=100 * MIB, disk_used_bytes=25 * MIB, connections=1234, queues=16,
    held_sends=5,
)  # fmt: skip


@contextmanager
def published(path: Path, status: Status, *, age_ms: int = 0, is_alive: bool = True, **origin: Any) -> Iterator[str]:
    """Write a page to `path` that was published `age_ms` ago."""
    moment = now()
    stamped = replace(
        status,
        published_boottime_ns=moment.boottime_ns - age_ms * 1_000_000,
        published_wall_ms=moment.wall_ms - age_ms,
    )
    page = PageWriter(str(path), replace(new_origin("broker-a", "0.1.0"), **origin), stamped)
    if not is_alive:
        page.close()
    yield str(path)
    page.close()


def status(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["status", *arguments])


@pytest.mark.parametrize(
    ("phase", "age_ms", "is_alive", "code", "headline"),
    [
        (Phase.SERVING, 0, True, 0, "broker-a: serving"),
        (Phase.SERVING, 60_000, True, 4, "broker-a: serving, but unresponsive: event loop blocked, last update 1m"),
        (Phase.SERVING, 0, False, 4, "broker-a: serving, but its process has exited; last update"),
        (Phase.RECOVERING, 60_000, True, 4, "broker-a: recovering, but unresponsive"),
        (Phase.STARTING, 0, True, 5, "broker-a: starting"),
        (Phase.RECOVERING, 0, True, 5, "broker-a: recovering"),
        (Phase.STOPPING, 0, True, 5, "broker-a: stopping"),
        (Phase.STOPPED, 60_000, False, 5, "broker-a: stopped"),
        (Phase.FAILED, 60_000, False, 5, "broker-a: failed"),
    ],
)
def test_exit_code_reflects_broker_state(
    tmp_path: Path, phase: Phase, age_ms: int, is_alive: bool, code: int, headline: str
) -> None:
    """0 serving, 4 unresponsive or crashed, 5 not serving or stopped; the first line describes the same state."""
    with published(tmp_path / "status", replace(SERVING, phase=phase), age_ms=age_ms, is_alive=is_alive) as path:
        shown = status("--page", path)
        as_json = status("--page", path, "--json")

    assert (shown.exit_code, as_json.exit_code) == (code, code)
    assert shown.output.splitlines()[0].startswith(headline)
    assert json.loads(as_json.output)["phase"] == phase.name.lower()


def test_page_from_before_reboot_is_stale(tmp_path: Path) -> None:
    """A page that was published before the last reboot is stale."""
    with published(tmp_path / "status", SERVING, machine_boot_id=uuid.uuid4()) as path:
        shown = status("--page", path)

    assert shown.exit_code == 4
    assert shown.output.startswith("broker-a: serving, but the page is from before the last reboot")


def test_page_shows_positions_buffer_and_last_error(tmp_path: Path) -> None:
    """The table has positions with their lag, the write buffer, the disk, and the last error with its time."""
    full = replace(
        SERVING,
        last_error="a flush failed",
        last_error_wall_ms=int(time.time() * 1000),
        recovery_done_bytes=MIB,
        recovery_total_bytes=4 * MIB,
        slaves=(SlaveStatus(slave_id=3, received=9 * MIB, flushed=8 * MIB, last_seen_boottime_ns=None),),
    )
    with published(tmp_path / "status", full) as path:
        lines = {
            line.split("  ")[0].strip(): line.partition("  ")[2].strip()
            for line in status("--page", path).output.splitlines()
        }

    assert lines["wrote"] == "10485760"
    assert lines["committed"] == "9437184, 1.0 MiB behind"
    assert lines["flushed"] == "4194304, 6.0 MiB behind"
    assert lines["confirmed"] == "10485760"
    assert lines["role"] == "master, epoch 2, generation 7"
    assert lines["write buffer"] == "hugetlbfs, 2 of 3 free, survives a process crash"
    assert lines["disk"] == "25.0 MiB of 100.0 MiB, 25%"
    assert lines["recovery"] == "1.0 MiB of 4.0 MiB, 25%"
    assert lines["sends"] == "accepted, 5 held"
    assert lines["connections"] == "1,234"
    assert lines["last error"].endswith(": a flush failed")
    assert "9437184" in lines["3"] and "8388608" in lines["3"]


@pytest.mark.parametrize(
    ("left_ms", "beginning", "end"),
    [(13 * 86_400_000, "expires ", ", in 13d 0h"), (-3_600_000, "expired ", ", 1h 0m ago")],
    ids=["ahead", "over"],
)
def test_page_shows_certificate_expiry(tmp_path: Path, left_ms: int, beginning: str, end: str) -> None:
    """A broker with TLS shows when the first of its certificates expires; one without TLS has no such line."""
    ends_ms = now().wall_ms + left_ms + 1000 * (left_ms > 0)
    with published(tmp_path / "status", replace(SERVING, certificate_ends_wall_ms=ends_ms)) as path:
        [line] = [line for line in status("--page", path).output.splitlines() if "certificate" in line]
        document = json.loads(status("--page", path, "--json").output)
    with published(tmp_path / "plain", SERVING) as path:
        plain = status("--page", path).output

    shown = line.strip().removeprefix("certificate").strip()
    assert shown.startswith(beginning) and shown.endswith(end)
    assert document["certificate_ends_wall_ms"] == ends_ms
    assert "certificate" not in plain


def test_refused_requests_are_shown_by_reason(tmp_path: Path) -> None:
    """The page counts refused requests by reason."""
    with published(tmp_path / "status", replace(SERVING, refused_requests=(3, 0, *[0] * 12, 2))) as path:
        [line] = [line for line in status("--page", path).output.splitlines() if "refused requests" in line]
        document = json.loads(status("--page", path, "--json").output)
    with published(tmp_path / "plain", SERVING) as path:
        plain = status("--page", path).output

    assert line.strip().removeprefix("refused requests").strip() == "3 queue_timeout, 2 unknown_request"
    assert document["refused_requests"] == {"queue_timeout": 3, "unknown_request": 2}
    assert "refused requests" not in plain


def test_missing_ranges_of_the_log_are_shown(tmp_path: Path) -> None:
    """The first missing ranges are listed in both formats, and the rest is counted."""
    ranges = (LogRange(0, 4096), LogRange(8192, 9216))
    facts = replace(SERVING, log_missing_bytes=6144, log_missing_ranges=ranges)
    with published(tmp_path / "status", facts) as path:
        output = status("--page", path).output
        document = json.loads(status("--page", path, "--json").output)

    assert "6.0 KiB: [0, 4096), [8192, 9216) and 1.0 KiB more of the log are missing" in " ".join(output.split())
    assert document["log_missing_ranges"] == [{"start": 0, "end": 4096}, {"start": 8192, "end": 9216}]


def test_unknown_values_are_shown_as_dash(tmp_path: Path) -> None:
    """Before the log is read, positions are unknown."""
    early = Status(published_boottime_ns=0, published_wall_ms=0, phase=Phase.STARTING)
    with published(tmp_path / "status", early) as path:
        output = status("--page", path).output
        document = json.loads(status("--page", path, "--json").output)

    rows = [line.split() for line in output.splitlines()]
    assert ["wrote", "-"] in rows and ["disk", "-"] in rows and ["write", "buffer", "unknown"] in rows
    assert document["wrote"] is None and document["store_uuid"] is None


def test_page_document_has_every_field(tmp_path: Path) -> None:
    """The document has every field of the page, and the fields of the reader."""
    with published(tmp_path / "status", SERVING) as path:
        document = json.loads(status("--page", path, "--json").output)

    names = {field.name for kind in (Origin, Status) for field in fields(kind)}
    assert document.keys() == names | {"age_ms", "is_writer_alive", "is_stale"}
    assert document["wrote"] == 10 * MIB
    assert (document["role"], document["pool_medium"]) == ("master", "hugetlbfs")
    assert document["store_uuid"] == str(uuid.UUID(int=5))
    assert document["is_writer_alive"] is True and document["age_ms"] < 60_000


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (None, 3, "there is no status page"),
        (b"checkpoint", 1, "does not begin with GANTRYST"),
        (b"", 1, "0 bytes"),
        (b"GANTRYST\x00\x09\x00\x00" + bytes(4084), 1, "layout 9.0"),
    ],
    ids=["absent", "foreign", "empty", "version"],
)
def test_invalid_page_is_reported_in_one_line(tmp_path: Path, content: bytes | None, code: int, text: str) -> None:
    """A missing and an invalid page have different exit codes, and each error names the file."""
    path = tmp_path / "status"
    if content is not None:
        path.write_bytes(content)

    shown = status("--page", str(path))

    assert shown.exit_code == code
    [line] = shown.output.splitlines()
    assert line.startswith("gantry: ") and str(path) in line and text in line


def test_moments_of_one_machine_are_comparable() -> None:
    """Moments of one machine use the same clock."""
    first, second = now(), now()

    assert second.boottime_ns >= first.boottime_ns > 0
