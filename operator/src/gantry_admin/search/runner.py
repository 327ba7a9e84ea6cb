"""The sidecar's side of searches: at most a few processes at a time, each with its budgets and its hard end.

A process is killed when the client leaves, that is, when the generator of its events is closed. Until then it may read
only what the limit of the log's readers grants, so a search slows down other readers instead of adding to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final, final

import msgspec

from gantry_admin.limits import ConcurrencyLimit, LogLimits
from gantry_admin.search.messages import (
    BUDGET_BYTES,
    FRAME_BYTES_MAX,
    GRANT,
    LENGTH,
    BudgetRequest,
    End,
    FromProcess,
    Hit,
    Progress,
    SearchRequest,
    decode_message,
    encode_request,
    frame,
)

log = logging.getLogger(__name__)

SEARCHES_MAX: Final = 2
"""The most searches at a time: each may use one core, as far as no other process needs it."""

GRACE_S: Final = 10.0
"""How much later than its deadline a process is killed, because a client that reads slowly holds it up."""

MODULE: Final = "gantry_admin.search.scan_process"

SearchEvent = Hit | Progress | End


@final
class Searches:
    """The searches of one sidecar. Owned by the event loop."""

    def __init__(self, limits: LogLimits) -> None:
        self.running: Final = ConcurrencyLimit(SEARCHES_MAX, "searches are running already", retry_after_s=5)
        self._limits: Final = limits

    def __repr__(self) -> str:
        return f"<Searches {self.running!r}>"

    async def run(self, request: SearchRequest) -> AsyncGenerator[SearchEvent, None]:
        """Yield the events of a search; the last one is its ``End``. Call ``running.check`` before.

        Closing the generator kills the process.
        """
        with self.running.hold():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                limit=1 << 16,
            )  # fmt: skip
            try:
                async with contextlib.aclosing(self._events(process, request)) as events:
                    async for event in events:
                        yield event
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())

    async def _events(
        self, process: asyncio.subprocess.Process, request: SearchRequest
    ) -> AsyncGenerator[SearchEvent, None]:
        """Exchange messages with a process until its end, which is made here if the process does not send one."""
        last = Progress(
            total_messages=0, scanned_messages=0, deleted_messages=0, unreadable_messages=0, read_bytes=0, hits=0,
            elapsed_ms=0,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        hard_end = loop.time() + request.deadline_s + GRACE_S
        assert process.stdin is not None and process.stdout is not None, "piped"
        try:
            process.stdin.write(frame(encode_request(request)))
            while True:
                async with asyncio.timeout_at(hard_end):
                    event = await _read_message(process.stdout)
                if isinstance(event, BudgetRequest):
                    await asyncio.sleep(self._limits.bucket.take(BUDGET_BYTES))
                    if process.stdin.is_closing():
                        raise EOFError  # the process has ended meanwhile
                    process.stdin.write(GRANT)
                    continue
                yield event
                if isinstance(event, End):
                    return
                last = event if isinstance(event, Progress) else last
        except TimeoutError:
            yield End(reason="deadline", progress=last)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            code = await process.wait() if isinstance(error, EOFError) else None
            log.warning("search process failed; the search has ended", extra={"exit_code": code, "error": repr(error)})
            yield End(reason="stopped", progress=last, fault="the search process ended unexpectedly")


async def _read_message(stream: asyncio.StreamReader) -> FromProcess:
    """Return the next message of a process. Raises EOFError at the end of its output."""
    try:
        (size,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
        if size > FRAME_BYTES_MAX:
            raise msgspec.DecodeError(f"a frame of {size} bytes")
        message: FromProcess = decode_message(await stream.readexactly(size))
        return message
    except asyncio.IncompleteReadError as error:
        raise EOFError from error
