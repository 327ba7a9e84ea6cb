"""`gantry bundle`: packs everything needed to diagnose a local group into one file, without a secret.

The bundle has the manifest, the group's records, Leases and last reports, the latest decisions, the settings files of
all processes and the ends of their logs, and each sidecar's own bundle (``/v1/bundle``). It has no tokens, messages or
stores. A sidecar that does not answer is named in ``left-out.txt``.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from gantry_access.redaction import add_bundle_entry, read_redacted_tail
from gantry_cli.errors import CliError, NotFoundError
from gantry_cli.local.access import SidecarNotRunning, ask_sidecar
from gantry_cli.local.records import GroupRecord, MemberRecord
from gantry_cli.local.state import GroupState
from gantry_cli.progress import count_progress
from gantry_cli.stack import StackDirectory
from gantry_status.text import bytes_text

LOG_BYTES_MAX: Final = 1 << 20
"""How many bytes of the end of each log the bundle has."""

SIDECAR_TIMEOUT_S: Final = 15.0
TRIES: Final = 4
"""How often a sidecar that runs but does not answer is asked."""

TRY_AGAIN_S: Final = 1.0
"""The time between two tries, in seconds."""


def write_local_bundle(data: Path, file: Path | None) -> None:
    """Write the bundle of the group in a folder, and print its path. Raises CliError."""
    state = GroupState(data)
    record = state.read_group()
    if record is None:
        raise NotFoundError(f"no group found in {data}", "name its folder with --data")
    write_bundle(file, "gantry-bundle", _contents(state, record))


def write_bundle(file: Path | None, name: str, entries: Iterable[tuple[str, bytes]]) -> None:
    """Write a bundle, by default to NAME-TIME.tar.gz in the current folder, and print its path. Raises CliError."""
    path = file or Path(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    try:
        with tarfile.open(path, "w:gz") as archive, count_progress("packing") as report_progress:
            for number, (entry, content) in enumerate(entries, 1):
                add_bundle_entry(archive, entry, content)
                report_progress(number, None)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", "name another file with --to") from error
    click.echo(f"{path} ({bytes_text(path.stat().st_size)})")


def _contents(state: GroupState, record: GroupRecord) -> Iterator[tuple[str, bytes]]:
    left_out: list[str] = []
    for path in (*state.records(), StackDirectory(state.path).log, *state.confs_and_logs()):
        if path.is_file():
            yield str(path.relative_to(state.path)), read_redacted_tail(path, LOG_BYTES_MAX).encode()
    for member in record.members:
        try:
            yield f"sidecars/{member.name}.tar.gz", _request_bundle(member, state.token())
        except OSError as error:
            left_out.append(f"sidecar of {member.name}: {error}")
    if left_out:
        yield "left-out.txt", "".join(f"{line}\n" for line in left_out).encode()


def _request_bundle(member: MemberRecord, token: str) -> bytes:
    """Request a sidecar's own bundle. Retries while the sidecar runs but does not answer yet. Raises OSError."""
    for rest in reversed(range(TRIES)):
        try:
            return ask_sidecar(member, "/v1/bundle", token, timeout_s=SIDECAR_TIMEOUT_S)
        except SidecarNotRunning:
            raise
        except OSError:
            if not rest:
                raise
        time.sleep(TRY_AGAIN_S)
    raise AssertionError("the last try returns or raises")
