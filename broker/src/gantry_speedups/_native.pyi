"""The types of the compiled module, with which the sources are checked whether or not it is built."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

SOURCES_HASH: str
"""The hash of the sources from which the module was built; the build appends it to the source."""

def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32 of ``data``, continued from ``value``, like ``zlib.crc32``."""

class Keys:
    """Hashes of keys with the offsets and store times of their messages, in the order of the log."""

    def __len__(self) -> int: ...
    def drop_first(self, count: int) -> None:
        """Remove the first ``count`` keys, or all of them if there are fewer."""

    def place(self, index: int) -> tuple[int, int]:
        """Return where the message of a key begins, and its store time."""

    def put(
        self, view: memoryview, slots: int, first: int, number: int, numbers_end: int, position: int, begin_ms: int
    ) -> tuple[int, int]:
        """Write entries into an index file for the keys from ``first`` on, as many as fit before ``numbers_end``.

        Return how many there are, and how many slots were empty.
        """

class QueueSlot:
    """A queue of a topic, with the template of the reply to a send into it."""

    queue: Any
    reply_template: bytes

    def __init__(self, queue: Any, reply_template: bytes) -> None: ...

class SendBatch:
    """The sends of one turn of the event loop, in their order: see ``gantry_broker.server.send.send_batch``."""

    keys: Keys
    has_impatient: bool

    def __init__(self, draft_type: Callable[..., Any], sealable: Callable[[bytes], tuple[bytes, int]]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def drafts(self) -> Any:
        """The batch itself, for the store."""

    @property
    def impatient(self) -> set[int]:
        """The indexes of sends whose senders do not wait until their messages are durable."""

    @property
    def answers(self) -> list[tuple[bytes, bytes, int]]:
        """(template of the reply, empty for a one-way send; unique id; opaque) of each send."""

    def take(
        self,
        data: bytes,
        position: int,
        host: bytes,
        host_flag: int,
        routes: Any,
        frame_max: int,
        body_max: int,
        permit: Callable[[str, str], Callable[[bytes], bytes] | None] | None,
    ) -> int:
        """Take the plain sends at the start of ``data[position:]``; return the position of the first other frame."""

    def take_entries(
        self,
        data: bytes,
        send: Any,
        slot: QueueSlot,
        host: bytes,
        host_flag: int,
        marks: list[bytes],
        routes: Any,
        count_max: int,
    ) -> bool:
        """Take the messages of a batch's body. False if only the slow path can handle one of them."""

    def add(self, draft: Any, answer: tuple[bytes, bytes, int], is_waiting: bool = True) -> None:
        """Add a draft, with (template of the reply, empty for a one-way send; unique id; opaque)."""

    def pack(
        self, base: int, start: int, file_end: int, store_host: bytes, now_ms: int, held: list[Any] | None
    ) -> bytes | None:
        """Return the records, and write their queue units; None if they do not fit before ``file_end``."""

    def touched(self) -> dict[Any, int]:
        """Return the queues that have become longer, with their previous ends."""

    def tally(self) -> None:
        """Count the messages and bytes of the batch in the tallies of their topics."""

    def offsets(self) -> tuple[array[int], array[int]]:
        """Return where each record begins in the log, and the queue offset of each message, after ``pack``."""

    def set_offsets(self, physical_offsets: Sequence[int], queue_offsets: Sequence[int]) -> None:
        """Take the offsets that the append has returned; the replies contain them."""

    def encode_answers(
        self, runs: list[tuple[Any, int]], with_waiting: bool, with_impatient: bool
    ) -> list[tuple[bytes, int]]:
        """Return for each run, whose second item is its end, the replies, as frames, and their number."""

    def to_drafts(self) -> list[Any]:
        """Return the sends as a list of drafts."""

class LogScan:
    """Checks and dispatches runs of plain records: see ``gantry_broker.store.scan_dispatcher``."""

    keys: Keys
    count: int
    last_physical: int
    newest_ms: int

    def __init__(self, queue_of: Callable[[bytes, int], Any] | None) -> None: ...
    def check(self, view: memoryview, position: int, stop: int, base: int, is_sealed: bool, verify_crc: bool) -> int:
        """Check plain records from ``position`` on that begin before ``stop``; return where the run ends."""

    def dispatch(
        self, view: memoryview, position: int, stop: int, base: int, is_sealed: bool, verify_crc: bool, index_from: int
    ) -> int:
        """Check and dispatch plain records; return where the run ends."""

    def touched(self) -> dict[Any, int]:
        """Return the queues that have become longer, with their previous ends."""

def copy_records(
    units: bytes, view: memoryview, base: int, queue_id: int, offset: int, count_max: int, bytes_max: int
) -> tuple[bytes, int, int]:
    """Return the records of the leading ``units``, their number, and the size of the last record."""

def release_units(units: Any, confirmed: int) -> tuple[dict[Any, int], Exception | None]:
    """Write the leading units whose records end at or before ``confirmed``, and remove them."""

def prepare_huffman(nodes: list[list[int]], ends: frozenset[int]) -> None:
    """Take the tree of the Huffman code, with what follows each node, and the nodes at which a text may end."""

class HeaderTable:
    """The table of HTTP/2's header blocks for one connection: see ``gantry_proxy.http2.hpack``."""

    size: int

    def __init__(self, static: tuple[tuple[str, str], ...], size_max: int) -> None: ...
    def read(self, block: bytes, fields_max: int) -> list[tuple[str, str]]:
        """Return the fields of a block, at most one more than ``fields_max``. Raises ValueError."""
