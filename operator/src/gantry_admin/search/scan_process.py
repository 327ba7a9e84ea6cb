"""`python -m gantry_admin.search.scan_process`: one search, in a process of its own with low priority.

It is a process and not a thread, because a scan in Python keeps the interpreter's lock: the sidecar's probes would wait
for it. After its start it has the niceness of log readers, by default the lowest priority, so any thread of the broker
takes the core from it, and its disk reads have the idle class.

The process reads the log only as far as the sidecar grants it budgets, which come from the limit of bytes per second of
all readers of the log. It ends with its request: when the search is over, at the deadline, or when the pipe to the
sidecar breaks, which it notices at the next progress, a quarter of a second later at most.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, final

from gantry_admin.ranges import Span
from gantry_admin.search.messages import (
    BUDGET_BYTES,
    GRANT,
    LENGTH,
    BudgetRequest,
    End,
    EndReason,
    FromProcess,
    Hit,
    Progress,
    SearchRequest,
    decode_request,
    encode_message,
    frame,
)
from gantry_admin.search.topic_scan import TopicScan
from gantry_admin.store_files import StoreFiles
from gantry_wire.search import MessageMatcher

PROGRESS_INTERVAL_S: Final = 0.25
"""The time between two reports of the progress."""

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""The number of the system call `ioprio_set`, which Python does not offer, by machine."""

_IOPRIO_WHO_PROCESS: Final = 1
_IOPRIO_IDLE: Final = 3 << 13
"""The idle class: disk time that no other process wants."""


@final
class _SidecarGone(Exception):
    """The sidecar has closed its end of a pipe: the search is not wanted any more."""


@final
class SearchProcess:
    """One search, from its request to its end. Owned by the only thread of the process."""

    def __init__(self, request: SearchRequest, source: BinaryIO, target: BinaryIO) -> None:
        self._request: Final = request
        self._source: Final = source
        self._target: Final = target
        self._began_s: Final = time.monotonic()
        self._reported_s = self._began_s
        self._budget = 0
        self._hits = 0
        self._matcher: Final = MessageMatcher(request.criteria)
        self._scan: Final = TopicScan(
            StoreFiles(Path(request.store)), request.topic, Span(request.begin, request.end), self._matcher,
            spend=self._spend,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<SearchProcess {self._request.topic} {self._scan!r}>"

    def run(self) -> None:
        """Scan until the search is over, and send its end."""
        self._send(self.progress())
        reason = self._scan_all()
        self._scan.close()
        self._send(End(reason=reason, progress=self.progress()))

    def _scan_all(self) -> EndReason:
        while not self._scan.is_complete:
            if time.monotonic() - self._began_s >= self._request.deadline_s:
                return "deadline"
            step = self._scan.step(self._request.hits_max - self._hits)
            self._hits += len(step.records)
            for record in step.records:
                self._send(Hit(record))
            if step.is_limited:
                return "limit"
            self._report_if_due()
        return "complete"

    def progress(self) -> Progress:
        """Return how far the scan has come."""
        scan = self._scan
        return Progress(
            total_messages=scan.total, scanned_messages=scan.scanned, deleted_messages=scan.deleted,
            unreadable_messages=scan.unreadable + self._matcher.unreadable, read_bytes=scan.read_bytes,
            hits=self._hits, elapsed_ms=int((time.monotonic() - self._began_s) * 1000),
        )  # fmt: skip

    def _report_if_due(self) -> None:
        if time.monotonic() - self._reported_s >= PROGRESS_INTERVAL_S:
            self._send(self.progress())
            self._reported_s = time.monotonic()

    def _spend(self, count: int) -> None:
        """Take bytes from the budget; without enough of it, wait for further grants."""
        self._budget -= count
        while self._budget < 0:
            self._report_if_due()
            self._send(BudgetRequest())
            if self._source.read(1) != GRANT:
                raise _SidecarGone
            self._budget += BUDGET_BYTES

    def _send(self, message: FromProcess) -> None:
        try:
            self._target.write(frame(encode_message(message)))
            self._target.flush()
        except BrokenPipeError as error:
            raise _SidecarGone from error


def lower_priority(niceness: int) -> None:
    """Give this process a low priority for the CPU, and the idle class for the disk.

    The policy SCHED_IDLE would be stricter, but on a busy machine a search would not even end when it is killed.
    """
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        # Without an effect where the kernel or its I/O scheduler has no priorities, or a container forbids the call.
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def read_request(source: BinaryIO) -> SearchRequest:
    """Return the request at the beginning of the input."""
    (size,) = LENGTH.unpack(source.read(LENGTH.size))
    return decode_request(source.read(size))


def main() -> int:
    """Run the search of the request on standard input."""
    source, target = sys.stdin.buffer, os.fdopen(sys.stdout.fileno(), "wb", closefd=False)
    request = read_request(source)
    lower_priority(request.niceness)  # only now: imports would take long on a busy machine
    with suppress(_SidecarGone):
        SearchProcess(request, source, target).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
