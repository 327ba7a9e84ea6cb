"""Injection of failing, lying or slow system calls into a running process, with strace.

    async with injected(pid, "fdatasync", "error=EIO:when=3", trace_file) as injection: ...; injection.hits()

strace attaches to all threads of the process, intercepts the chosen calls, and records which of them it changed, so
that a test can check that its fault happened: a fault that did not happen proves nothing. `when` counts the calls of
one thread, from the moment of attaching. Three kinds are used: `error=EIO` (the call is not made and fails),
`retval=n` (the call is not made and returns success: a lost write) and `delay_enter=5s` (a slow disk).

It works with any process and never ends it. When the process ends, strace ends by itself, or is killed at the end of
the block.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, final

ATTACH_TIMEOUT_S: Final = 120.0
DETACH_TIMEOUT_S: Final = 120.0
_MARKS: Final = ("(INJECTED)", "(DELAYED)")


class StraceFailed(Exception):
    """strace could not attach; the message is its output."""


@final
class Injection:
    """An injected fault, and the calls that it has changed."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __repr__(self) -> str:
        return f"<Injection {self._trace.name} hits={len(self.hits())}>"

    def calls(self) -> list[str]:
        """Return every call that strace has traced, changed or not."""
        return [line for line in self._text().splitlines() if "(" in line]

    def hits(self) -> list[str]:
        """Return the calls that were changed."""
        return [line for line in self.calls() if any(mark in line for mark in _MARKS)]

    def _text(self) -> str:
        return self._trace.read_text(errors="replace") if self._trace.exists() else ""


def strace_command(trace: Path, calls: str, fault: str | None, *others: str) -> list[str]:
    """Return the command line for strace up to the traced process; without a fault it only records calls."""
    inject = ["-e", f"inject={calls}:{fault}"] if fault is not None else []
    return ["strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={calls}", *inject, *others]


@asynccontextmanager
async def injected(
    pid: int, calls: str, fault: str | None, trace: Path, *, file: Path | None = None
) -> AsyncIterator[Injection]:
    """Inject `fault` into `calls` of the process `pid` in this block, optionally of one `file` only."""
    only = [] if file is None else ["-P", str(file)]
    command = strace_command(trace, calls, fault, *only, "-p", str(pid))
    command.remove("-qq")  # Its first line on standard error reports that it has attached.
    tracer = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert tracer.stderr is not None
    try:
        async with asyncio.timeout(ATTACH_TIMEOUT_S):
            line = (await tracer.stderr.readline()).decode()
        if "attached" not in line:
            raise StraceFailed(line.strip() or "strace printed nothing")
        drain = asyncio.ensure_future(tracer.stderr.read())
        try:
            yield Injection(trace)
        finally:
            await _detach(tracer)
            await drain
    finally:
        if tracer.returncode is None:
            tracer.kill()
            await tracer.wait()


async def _detach(tracer: asyncio.subprocess.Process) -> None:
    """Detach strace, which takes a moment per thread."""
    with suppress(ProcessLookupError):
        tracer.terminate()
    try:
        async with asyncio.timeout(DETACH_TIMEOUT_S):
            await tracer.wait()
    except TimeoutError:
        # strace may wait forever for a thread that has ended with its process. A kill detaches it just as well.
        with suppress(ProcessLookupError):
            tracer.kill()
        await tracer.wait()
