"""Messages that gRPC itself compresses: the encodings that a client may use, and decompression with a bound.

    [ 1 | length 4 | gzip stream ]      with the header `grpc-encoding: gzip`

The size of the content is known only when it is decompressed. So that is done in slices, which end at the first one
beyond the limit: a small message that would become a huge one costs no more than the largest message. Each slice is
counted in the budget of the port before the next one is made.

The event loop runs between two slices, each of which takes less than half a millisecond (5 MiB of JSON: 55 slices of
0.3 ms at most, 9 ms in all). Beyond its first two slices only one message at a time is decompressed: otherwise each of
many large ones would have its slice in every turn of the loop. Small messages do not wait for that. A thread would free
the loop of this work, but no SDK compresses its requests at this level, so that it is not worth threads and a queue.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import Final, final

from gantry_proxy.rpc.protocol import ACCEPTED_ENCODINGS, GZIP, IDENTITY, CallFailed, StatusCode

SLICE_BYTES: Final = 128 * 1024
"""The largest slice of content."""
INPUT_BYTES: Final = 64 * 1024
"""The largest part of a stream that is examined at once: some streams have much input for little content."""
_GZIP_WINDOW_BITS: Final = 31
"""Asks zlib for a gzip stream with any window."""


def check_flag(flag: int, encoding: str) -> None:
    """Raise CallFailed unless a message with this first byte can be read, in a call with this `grpc-encoding`."""
    if flag == 0 or (flag == 1 and encoding == GZIP):
        return
    if flag == 1 and encoding not in ("", IDENTITY):
        raise CallFailed(
            StatusCode.UNIMPLEMENTED,
            f"the encoding {encoding[:64]!r} is not supported: use one of {ACCEPTED_ENCODINGS}",
        )
    if flag == 1:
        raise CallFailed(StatusCode.INTERNAL, "the message is marked as compressed, but the call names no encoding")
    raise CallFailed(StatusCode.INTERNAL, f"the message begins with {flag}, expected 0 or 1")


@final
class Decompressor:
    """Decompresses the messages of all calls of a port. Owned by the event loop."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` is the largest content of a message."""
        self._bytes_max: Final = bytes_max
        self._turn: Final = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Decompressor bytes_max={self._bytes_max} is_busy={self._turn.locked()}>"

    async def decompress(self, data: bytes, hold: Callable[[int], None]) -> bytes:
        """Return the content of a gzip stream.

        ``hold`` is called with the size of each slice before the next one is made, and may raise CallFailed. So does
        this method for a stream that is damaged, cut short or followed by other bytes, and for too large content.
        """
        slices: list[bytes] = []
        size = 0
        has_turn = False
        try:
            for number, piece in enumerate(_inflate(data)):
                size += len(piece)
                if size > self._bytes_max:
                    raise CallFailed(
                        StatusCode.RESOURCE_EXHAUSTED,
                        f"the decompressed message has more than {self._bytes_max} bytes, the most that are allowed",
                    )
                hold(len(piece))
                slices.append(piece)
                if has_turn:
                    await asyncio.sleep(0)
                elif number:
                    has_turn = await self._turn.acquire()
        finally:
            if has_turn:
                self._turn.release()
        return slices[0] if len(slices) == 1 else b"".join(slices)


def _inflate(data: bytes) -> Iterator[bytes]:
    """Yield the content of a gzip stream in slices, of which some may be empty. Raises CallFailed."""
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    given = 0
    try:
        while given < len(data) and not stream.eof:
            piece = data[given : given + INPUT_BYTES]
            given += len(piece)
            while piece and not stream.eof:
                yield stream.decompress(piece, SLICE_BYTES)
                piece = stream.unconsumed_tail  # what zlib holds beyond the slice comes with the next piece
    except zlib.error as error:
        raise CallFailed(StatusCode.INTERNAL, "the compressed message is damaged") from error
    if not stream.eof:
        raise CallFailed(StatusCode.INTERNAL, "the compressed message is cut short")
    if stream.unused_data or given < len(data):
        raise CallFailed(StatusCode.INTERNAL, "the compressed message is followed by other bytes")
