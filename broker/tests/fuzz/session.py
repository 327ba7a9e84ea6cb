"""One connection with mutated frames: written in irregular pieces, answered, and checked.

A session ends with the first frame that breaks the protocol, when a frame with a wrong length has taken in the next
three frames, or after all of its frames. Then all due replies must have arrived, nothing more, and the server must have
closed exactly when it had to.
"""

import asyncio
import random
from collections import Counter
from typing import Final, cast, final

import msgspec
from fuzz.mutate import Mutator
from fuzz.oracle import DueReplies
from fuzz.tally import Tally

from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FrameReader

ANSWER_TIMEOUT_S: Final = 120.0
CLOSE_TIMEOUT_S: Final = 60.0
FRAME_BYTES_SHOWN: Final = 600
ODD_SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 9, 64, 1448, 4096)
"""Sizes of odd pieces: inside the length, inside the header length, at a TCP segment."""


class ReplyHeader(msgspec.Struct, gc=False):
    """The header fields of a reply that are checked."""

    code: int
    opaque: int
    flag: int = 0


_decode_reply: Final = msgspec.json.Decoder(ReplyHeader).decode


@final
class Peer(asyncio.Protocol):
    """The client side of one connection: collects replies until all due ones have arrived or the server closes."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, int]] = []
        """Replies so far: (opaque, reply code)."""
        self.notices = 0
        """Requests of the server to this client."""
        self.fault: str | None = None
        """Why the bytes of the server are no valid reply, if they are not."""
        self.is_closed = False
        self.was_reset = False
        """Whether the server closed the connection while bytes came in, so that unread replies are lost."""
        self._wanted: int | None = None
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def __repr__(self) -> str:
        return f"<Peer replies={len(self.replies)} {'closed' if self.is_closed else 'open'}>"

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "the peer was not made by create_connection"
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                reply = _decode_reply(frame.header)
                if reply.flag & 1:
                    self.replies.append((reply.opaque, reply.code))
                else:
                    self.notices += 1
        except (RemoteProtocolError, msgspec.DecodeError) as error:
            self.fault = f"the server sent an invalid reply: {error}"
            self._changed.set()
        if self._wanted is not None and len(self.replies) >= self._wanted:
            self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.was_reset = exc is not None
        self._writable.set()
        self._changed.set()

    async def wait_writable(self) -> None:
        await self._writable.wait()

    async def wait_replies(self, wanted: int) -> bool:
        """Wait for `wanted` replies, an invalid reply, or the end. Return False after a timeout."""
        self._wanted = wanted
        if len(self.replies) >= wanted or self.is_closed or self.fault is not None:
            return True
        self._changed.clear()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def wait_closed(self) -> bool:
        """Wait until the server has closed. Return False after a timeout."""
        self._wanted = 1 << 60
        self._changed.clear()
        if self.is_closed:
            return True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


@final
class Session:
    """The frames of one connection and their check."""

    def __init__(self, number: int, rng: random.Random, mutator: Mutator, tally: Tally) -> None:
        self.number = number
        self._rng = rng
        self._mutator = mutator
        self._tally = tally
        self._due = DueReplies()
        self._frames: list[bytes] = []

    async def run(self, port: int, codes: list[int], weights: list[float]) -> None:
        """Connect, send, wait and check. Faults go to the tally."""
        data, frames = self._stream(codes, weights)
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(Peer, "127.0.0.1", port)
        try:
            await self._write(peer, data)
            await self._judge(peer)
        finally:
            if self._rng.random() < 0.1:
                peer.transport.abort()
            peer.transport.close()
        self._count(peer, data, frames)

    def _stream(self, codes: list[int], weights: list[float]) -> tuple[bytes, int]:
        """Return the bytes of this session, up to and with the first frame that breaks the protocol."""
        rng = self._rng
        count = rng.choice((1, 10, 100, 400, 400))
        swallowed = 0
        for opaque, code in enumerate(rng.choices(codes, weights, k=count), 1):
            self._frames.append(self._mutator.frame(code, opaque))
            self._due.add(self._frames[-1])
            swallowed = swallowed + 1 if self._due.waits_for_more else 0
            if self._due.must_close or swallowed > 3:
                break
        return b"".join(self._frames), len(self._frames)

    async def _write(self, peer: Peer, data: bytes) -> None:
        """Write small irregular pieces now and then, otherwise many frames at once."""
        rng = self._rng
        position = 0
        while position < len(data) and not peer.is_closed:
            size = rng.choice(ODD_SIZES) if rng.random() < 0.3 else rng.randrange(4096, 131072)
            peer.transport.write(data[position : position + size])
            position += size
            await asyncio.sleep(0)
            await peer.wait_writable()

    async def _judge(self, peer: Peer) -> None:
        """Compare the replies with those that are due; what is wrong becomes a finding."""
        due, tally, number = self._due, self._tally, self.number
        if due.must_close and not due.may_stay_open:
            if not await peer.wait_closed():
                bad = self._frames[-1][:FRAME_BYTES_SHOWN]
                tally.find(number, f"the connection stays open after a frame that breaks the protocol: {bad!r}")
        elif not await self._all_answered(peer):
            tally.find(number, f"answers are missing: {self._shown(self._unanswered(peer) - due.held)}")
        if peer.is_closed and not due.must_close:
            unanswered = self._shown(self._unanswered(peer))
            tally.find(number, f"the server closed a connection that kept the protocol; unanswered: {unanswered}")
        if due.must_close and not peer.was_reset:
            missing = self._unanswered(peer) - due.late
            if missing:
                tally.find(number, f"answers before a bad frame are missing: {self._shown(missing)}")
        if peer.fault is not None:
            tally.find(number, peer.fault)
        surplus = Counter(opaque for opaque, _ in peer.replies) - due.answers - due.optional
        if surplus:
            tally.find(number, f"replies without a request: {self._shown(surplus)}")

    async def _all_answered(self, peer: Peer) -> bool:
        """Wait for every due reply, and return False if one is missing. A held pull may be answered before others."""
        while missing := self._unanswered(peer) - self._due.held:
            if peer.is_closed or peer.fault is not None:
                break
            if not await peer.wait_replies(len(peer.replies) + missing.total()):
                return False
        return True

    def _unanswered(self, peer: Peer) -> Counter[int]:
        """Return the due replies that have not arrived, by opaque."""
        return self._due.answers - Counter(opaque for opaque, _ in peer.replies)

    def _shown(self, opaques: Counter[int]) -> str:
        """Return the frames of the first three request ids, so that a finding is understood without a replay."""
        parts: list[str] = [f"{opaques.total()} of {len(self._frames)}"]
        for opaque in list(opaques)[:3]:
            frame = self._frames[opaque - 1] if 0 < opaque <= len(self._frames) else b""
            parts.append(f"opaque {opaque}: {frame[:FRAME_BYTES_SHOWN]!r}")
        return "\n    ".join(parts)

    def _count(self, peer: Peer, data: bytes, frames: int) -> None:
        due, tally = self._due, self._tally
        tally.sessions += 1
        tally.frames += frames
        tally.bytes_sent += len(data)
        tally.without_reply += due.without_reply
        tally.parsed += due.parsed
        tally.notices += peer.notices
        tally.deleted_topics |= due.deleted_topics
        if due.must_close:
            tally.closed_by_server += 1
        missing = (due.answers - Counter(opaque for opaque, _ in peer.replies)).total()
        if due.must_close:
            tally.lost_at_close += missing
        else:
            tally.held += missing
        for opaque, code in peer.replies:
            tally.answered[due.asked.get(opaque, -1), code] += 1
