"""The pass: the sends of one turn of the event loop, which are appended together and answered per connection.

Two classes have the same interface, `Batch`. ``SendBatch`` keeps drafts and answers in lists, which the loop in
`send_path` fills. The compiled one (``gantry_speedups``) also takes plain sends from the bytes of a read by itself.
``new_batch`` makes one of the kind that runs.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, final

from gantry_broker.server.core.send_routes import SendRoutes
from gantry_broker.store.draft import Draft
from gantry_remoting import Connection
from gantry_speedups import native
from gantry_wire.batch import decode_batch
from gantry_wire.commands.send import SendMessageV2
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD
from gantry_wire.message import CLEARED_FLAGS
from gantry_wire.properties import VALUE_END
from gantry_wire.seal import sealable_properties

NO_ANSWER: Final = b""
HEADS_COUNT: Final = 2048
_HEADS: Final = [FRAME_HEAD.pack(4 + length, length) for length in range(HEADS_COUNT)]
"""Frame heads of short JSON replies without a body, by header length."""

Answer = tuple[bytes, bytes, int]
"""(reply template, unique id, opaque); the template is NO_ANSWER for a one-way send."""


class Batch(Protocol):
    """The sends of one turn, in their order. Owned by the event loop."""

    @property
    def drafts(self) -> Any:
        """What the store appends: a list of drafts, or the compiled batch."""

    @property
    def answers(self) -> list[Answer]:
        """What the reply to each send consists of."""

    @property
    def impatient(self) -> set[int]:
        """The indexes of sends whose senders do not wait until their messages are durable (`WAIT=false`)."""

    @property
    def has_impatient(self) -> bool:
        """Whether there are such sends."""

    def __len__(self) -> int: ...

    def to_drafts(self) -> list[Draft]:
        """Return the sends as a list of drafts."""

    def add(self, draft: Draft, answer: Answer, is_waiting: bool = True) -> None:
        """Add a send. ``is_waiting`` is False if its sender does not wait until it is durable."""

    def take_entries(
        self,
        data: bytes,
        send: SendMessageV2,
        slot: Any,
        host: bytes,
        host_flag: int,
        marks: list[bytes],
        routes: SendRoutes,
        count_max: int,
    ) -> bool:
        """Take the messages of ``data``, the body of a batch. False if only the slow path can handle one of them.

        ``send`` has the fields of the request. ``marks`` are the names of its properties, each with its 0x01: a message
        that lacks one is left to the slow path. After False, the caller drops this object.
        """

    def set_offsets(self, physical_offsets: Sequence[int], queue_offsets: Sequence[int]) -> None:
        """Take the offsets that the append has returned; the replies contain them."""

    def encode_answers(
        self, runs: list[tuple[Connection, int]], with_waiting: bool, with_impatient: bool
    ) -> list[tuple[bytes, int]]:
        """Return for each run, given with its end, the replies to the two kinds of senders, and their number."""


@final
class SendBatch:
    """The batch of the Python path; see `Batch`."""

    __slots__ = ("_placed", "answers", "drafts", "impatient")

    def __init__(self) -> None:
        self.drafts: Final[list[Draft]] = []
        self.answers: Final[list[Answer]] = []
        self.impatient: Final[set[int]] = set()
        self._placed: tuple[Sequence[int], Sequence[int]] = ((), ())

    def __len__(self) -> int:
        return len(self.drafts)

    def __repr__(self) -> str:
        return f"<SendBatch sends={len(self)}>"

    def to_drafts(self) -> list[Draft]:
        return self.drafts[:]

    def add(self, draft: Draft, answer: Answer, is_waiting: bool = True) -> None:
        if not is_waiting:
            self.impatient.add(len(self.drafts))
        self.drafts.append(draft)
        self.answers.append(answer)

    def take_entries(
        self,
        data: bytes,
        send: SendMessageV2,
        slot: Any,
        host: bytes,
        host_flag: int,
        marks: list[bytes],
        routes: SendRoutes,
        count_max: int,
    ) -> bool:
        try:
            entries = decode_batch(data)
        except RemoteProtocolError:
            return False
        if len(entries) > count_max:
            return False
        queue, route = slot.queue, routes.by_topic[send.topic]
        sys_flag, born_ms = send.sys_flag & ~CLEARED_FLAGS | host_flag, send.born_timestamp
        required = [VALUE_END + mark.decode() for mark in marks]
        for flag, body, text_bytes in entries:
            try:
                text = text_bytes.decode()
            except UnicodeDecodeError:
                return False
            properties = routes.encode_properties(route, text)
            if not body or properties is None:
                return False
            for mark in required:
                if mark not in text and not text.startswith(mark[1:]):
                    return False
            stored, unique, tags_code, keys, is_waiting = properties
            draft = Draft(queue, body, stored, sys_flag, flag, born_ms, host, 0, 0, tags_code, 0, keys)
            self.add(draft, (NO_ANSWER, unique, 0), is_waiting)
        return True

    @property
    def has_impatient(self) -> bool:
        return bool(self.impatient)

    def set_offsets(self, physical_offsets: Sequence[int], queue_offsets: Sequence[int]) -> None:
        self._placed = physical_offsets, queue_offsets

    def encode_answers(
        self, runs: list[tuple[Connection, int]], with_waiting: bool, with_impatient: bool
    ) -> list[tuple[bytes, int]]:
        encoded: list[tuple[bytes, int]] = []
        first = 0
        for _, end in runs:
            encoded.append(self._encode_run(first, end, with_waiting, with_impatient))
            first = end
        return encoded

    def _encode_run(self, first: int, end: int, with_waiting: bool, with_impatient: bool) -> tuple[bytes, int]:
        physical_offsets, queue_offsets = self._placed
        heads, impatient = _HEADS, self.impatient
        is_whole = with_waiting and with_impatient
        parts: list[bytes] = []
        sends = zip(self.answers[first:end], physical_offsets[first:end], queue_offsets[first:end], strict=True)
        for number, ((template, unique, opaque), physical, queue_offset) in enumerate(sends, first):
            if not (template and (is_whole or (with_impatient if number in impatient else with_waiting))):
                continue
            reply = template % (physical, queue_offset, unique, opaque)
            size = len(reply)
            parts += (heads[size] if size < HEADS_COUNT else FRAME_HEAD.pack(4 + size, size), reply)
        return b"".join(parts), len(parts) // 2


CompiledSendBatch: Final[Any] = None if native is None else native.SendBatch
"""The class of the compiled path; None if that is not loaded."""


def new_batch() -> Batch:
    """Return an empty batch, of the compiled kind if that is loaded."""
    if CompiledSendBatch is None:
        return SendBatch()
    batch: Batch = CompiledSendBatch(Draft, sealable_properties)
    return batch
