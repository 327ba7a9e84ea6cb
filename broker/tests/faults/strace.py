"""System calls of a running process that fail, lie or take long, by way of strace.

    async with injected(pid, "fdatasync", "error=EIO:when=3") as injection: ...; injection.hits()

strace attaches to all threads of the process, meets the chosen calls, and writes down which of them it changed, so that
a test can ask whether its fault happened at all: a fault that never came proves nothing. `when` counts the calls of one
thread, from the moment of attaching. Three kinds are used here: `error=EIO` (the call is not made and fails),
`retval=n` (the call is not made and claims success: a lost write) and `delay_enter=us` (a slow disk).

It refuses to know what the process is. The process is never ended by this; when it ends, strace ends by itself.
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
    """strace could not attach; the text is what it said."""


@final
class Injection:
    """A fault that waits for its call, or has met it."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __repr__(self) -> str:
        return f"<Injection {self._trace.name} hits={len(self.hits())}>"

    def calls(self) -> list[str]:
        """Every call that strace has seen, changed or not."""
        return [line for line in self._text().splitlines() if "(" in line]

    def hits(self) -> list[str]:
        """The calls that were changed."""
        return [line for line in self.calls() if any(mark in line for mark in _MARKS)]

    def _text(self) -> str:
        return self._trace.read_text(errors="replace") if self._trace.exists() else ""


def words(trace: Path, calls: str, fault: str | None, *others: str) -> list[str]:
    """The command line up to what strace is to look at; without a fault it only writes down."""
    inject = ["-e", f"inject={calls}:{fault}"] if fault is not None else []
    return ["strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={calls}", *inject, *others]


@asynccontextmanager
async def injected(
    pid: int, calls: str, fault: str | None, trace: Path, *, file: Path | None = None
) -> AsyncIterator[Injection]:
    """Have `fault` happen to `calls` of the process `pid` from here to the end of the block; to those of one `file`."""
    only = [] if file is None else ["-P", str(file)]
    command = words(trace, calls, fault, *only, "-p", str(pid))
    command.remove("-qq")  # its first line, on the standard error, says that it has attached
    tracer = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert tracer.stderr is not None
    try:
        async with asyncio.timeout(ATTACH_TIMEOUT_S):
            line = (await tracer.stderr.readline()).decode()
        if "attached" not in line:
            raise StraceFailed(line.strip() or "strace said nothing")
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
    """Let the process go on without strace, which takes a moment per thread."""
    with suppress(ProcessLookupError):
        tracer.terminate()
    try:
        async with asyncio.timeout(DETACH_TIMEOUT_S):
            await tracer.wait()
    except TimeoutError:
        # It waits for a thread that has ended with its process, for ever. Killed, it lets go just as well.
        with suppress(ProcessLookupError):
            tracer.kill()
        await tracer.wait()
