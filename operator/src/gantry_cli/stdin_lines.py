"""Lines of standard input without waiting for them on the event loop.

A thread reads whatever has come (a person's line, a pipe's chunk, a file) and hands over whole lines. It reads the
descriptor itself, holding no lock of Python's, and is a daemon: a program that is done need not wait for a person to
press Return. It stays at most a few chunks ahead.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

CHUNK_BYTES: Final = 64 * 1024
CHUNKS_AHEAD_MAX: Final = 4
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


async def standard_input_lines(descriptor: int = 0) -> AsyncIterator[bytes]:
    """Every line, without its end. Raises ValueError for one longer than any message, OSError as reading does."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)

    def read() -> None:
        while True:
            room.acquire()
            try:
                chunk: bytes | OSError = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=read, name="gantry-stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of standard input passes {LINE_BYTES_MAX} bytes")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
