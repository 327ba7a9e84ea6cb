"""Processes of a group whose supervisor was killed: they end with it, and whoever comes next waits for that.

The kernel sends each of them SIGTERM when the supervisor dies, so a broker stops as cleanly as ever. One that stands
still (SIGSTOP) cannot, and is woken up; one that does not end in time is killed, which loses nothing that was promised.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from gantry_cli.local.state import GroupRecord
from gantry_cli.processes import boot_id_of

PATIENCE_S: Final = 70.0
POLL_S: Final = 0.05


def _left(record: GroupRecord) -> Iterator[tuple[str, int]]:
    processes: list[tuple[str, int | None, str]] = [(one.name, one.pid, one.boot_id) for one in record.name_servers]
    for member in record.members:
        processes.append((member.name, member.pid, member.boot_id))
        processes.append((f"sidecar of {member.name}", member.sidecar_pid, member.sidecar_boot_id))
    for name, pid, boot_id in processes:
        if pid is not None and boot_id and boot_id_of(pid) == boot_id:
            yield name, pid


def wait_for_end(record: GroupRecord, tell: Callable[[str], None]) -> None:
    """Until none of them is there."""
    names = [name for name, _ in _left(record)]
    if not names:
        return
    tell(f"the last supervisor was killed; waiting for {', '.join(names)} to stop")
    for number in (signal.SIGTERM, signal.SIGCONT):
        _send(record, number)
    deadline = time.monotonic() + PATIENCE_S
    while any(True for _ in _left(record)):
        if time.monotonic() > deadline:
            _send(record, signal.SIGKILL)
            deadline += PATIENCE_S
        time.sleep(POLL_S)


def _send(record: GroupRecord, number: signal.Signals) -> None:
    for _, pid in _left(record):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
