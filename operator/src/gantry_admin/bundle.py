"""The diagnostics bundle: the data needed to analyse a broker remotely, in one tar.gz.

    gantry-bundle/
      page.bin  status.json  group.json      the status page, raw and decoded, and the group
      settings.json  broker-settings.json    the settings of sidecar and broker, without secrets
      tables/*.json                          topics, groups, offsets (also of delay levels), store, recovery point and
                                             role, as they are on disk
      files.json                             names and sizes of the log's and the queues' files
      logs/broker.log  logs/sidecar.log      the last lines of both logs; the broker's only with --broker-log
      left-out.json                          the files that could not be read, and why

The invariant: **a bundle contains no message and no secret.** Log and queue files are listed, never read; only the
tables named here are included; every log line and every setting goes through ``redact``, and a setting whose name
says that it is a secret is included without its value.
"""

from __future__ import annotations

import io
import json
import logging
import tarfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, final

from gantry_access.redaction import REDACTED, add_bundle_entry, is_secret_name, read_redacted_tail, redact
from gantry_store_files import PlainDisk, list_queue_locations, segments_of

TABLES: Final = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "timerProgress")
"""The tables in the store's folder ``config`` that a bundle contains."""

FILE_BYTES_MAX: Final = 8 << 20
"""The largest table that a bundle contains."""

LOG_TAIL_BYTES: Final = 512 << 10
"""How many bytes of the end of the broker's log a bundle contains."""

LISTED_MAX: Final = 20_000
"""How many files of queues a bundle lists."""

LINES_MAX: Final = 1_000
"""How many of the sidecar's last log lines are kept."""

CHARACTERS_MAX: Final = 2_000
"""The length at which a line of the sidecar's own log is cut, in characters."""


def redacted_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the values of secrets removed; a secret is recognised by its name."""
    return {name: REDACTED if value and is_secret_name(name) else redact(value) for name, value in settings.items()}


def make_bundle(root: Path, page: Path, log_file: Path | None, documents: Mapping[str, object], own_log: str) -> bytes:
    """Return the whole archive; blocks. Files that cannot be read are named in ``left-out.json``."""
    left_out: dict[str, str] = {}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, document in documents.items():
            add_bundle_entry(archive, name, json.dumps(document, indent=1, default=str).encode())
        for name, path, bytes_max in _files(root, page):
            data = _read(path, bytes_max, name, left_out)
            if data is not None:
                add_bundle_entry(archive, name, data)
        add_bundle_entry(archive, "files.json", json.dumps(_listing(root), indent=1).encode())
        if log_file is not None:
            add_bundle_entry(archive, "logs/broker.log", _tail(log_file, left_out).encode())
        add_bundle_entry(archive, "logs/sidecar.log", redact(own_log).encode())
        add_bundle_entry(archive, "left-out.json", json.dumps(left_out, indent=1).encode())
    return buffer.getvalue()


def _files(root: Path, page: Path) -> Iterator[tuple[str, Path, int]]:
    yield "page.bin", page, 1 << 20
    for name in TABLES:
        yield f"tables/{name}.json", root / "config" / f"{name}.json", FILE_BYTES_MAX
    for name in ("store.json", "recovery-point.json", "role.json"):
        yield f"tables/{name}", root / name, 1 << 20


def _read(path: Path, bytes_max: int, name: str, left_out: dict[str, str]) -> bytes | None:
    """Return the content of a file; None, with an entry in ``left_out``, if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        left_out[name] = error.strerror or type(error).__name__
        return None
    if len(data) > bytes_max:
        left_out[name] = f"longer than {bytes_max} bytes"
        return None
    return data


def _tail(path: Path, left_out: dict[str, str]) -> str:
    try:
        return read_redacted_tail(path, LOG_TAIL_BYTES)
    except OSError as error:
        left_out["logs/broker.log"] = error.strerror or type(error).__name__
        return ""


def _listing(root: Path) -> dict[str, list[list[int]]]:
    """Return the files of the log, and up to ``LISTED_MAX`` of the queues: directory -> [base offset, size] of each."""
    disk, count = PlainDisk(), 0
    found = {"commitlog": [[one.base_offset, one.size] for one in segments_of(disk, f"{root}/commitlog")]}
    for place in list_queue_locations(disk, str(root)):
        segments = segments_of(disk, place.directory)
        count += len(segments)
        if count > LISTED_MAX:
            break
        found[place.directory.removeprefix(f"{root}/")] = [[one.base_offset, one.size] for one in segments]
    return found


@final
class RecentLines(logging.Handler):
    """A log handler that keeps the sidecar's last log lines for the diagnostics bundle."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines: Final[deque[str]] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record)[:CHARACTERS_MAX])

    @property
    def text(self) -> str:
        """The kept lines as one text, oldest first."""
        return "\n".join(self._lines)
