"""A range of the log as the body of an ASGI answer: read by threads, piece by piece, within the limits.

The status line leaves when there is a place among the readers and every file of the range is open; after that nothing
that happens to the files' names can change what is read. A file that turns out shorter ends the connection in the
middle, which every client sees by the length that was promised.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

import aiofiles
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gantry_admin.errors import Problem
from gantry_admin.ranges import LogRange
from gantry_admin.store_files import Piece

if TYPE_CHECKING:
    from gantry_admin.sidecar import Sidecar

PIECE_BYTES: Final = 1 << 20


@final
class RangeResponse(Response):
    """Sends ``wanted``, and nothing if the client is gone."""

    def __init__(self, sidecar: Sidecar, wanted: LogRange) -> None:
        super().__init__(status_code=206, headers=wanted.headers())
        self._sidecar = sidecar
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        files, limits, wanted = self._sidecar.files, self._sidecar.limits, self._wanted
        with ExitStack() as stack:
            try:
                stack.enter_context(limits.reader())
                pieces = await asyncio.to_thread(files.open_range, wanted.start, wanted.end, stack)
            except Problem as problem:
                refusal = JSONResponse(problem.document(), problem.status, headers=problem.headers)
                await refusal(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 206, "headers": self.raw_headers})
            if scope["method"] == "GET":
                for piece in pieces:
                    await self._send(piece, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, piece: Piece, send: Send) -> None:
        bucket = self._sidecar.limits.bucket
        async with aiofiles.open(piece.file.fileno(), "rb", buffering=0, closefd=False) as file:
            await file.seek(piece.position)
            left = piece.length
            while left:
                data = await file.read(min(left, PIECE_BYTES))
                if not data:
                    raise ConnectionAbortedError("a file of the log is shorter than it was")
                left -= len(data)
                await asyncio.sleep(bucket.take(len(data)))
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._sidecar.limits.sent(len(data))
