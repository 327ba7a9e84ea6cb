"""Header blocks of HTTP/2 (RFC 7541): the decoder with its table, and the blocks that a server sends.

    1xxxxxxx  a field of the table          01xxxxxx  a field that is added to the table
    001xxxxx  a new size of the table       000xxxxx  a field that is not added

The first entries of the table are the same for all; the client adds the others. Its own table of replies a server need
not keep: replies have few headers, so they are encoded as texts, once, when the program starts. Memory is bounded by
the size of the table, and by the limit of a block's bytes and fields: fields from the table share their texts.
"""

from typing import Final, final

from gantry_proxy.http2 import huffman
from gantry_proxy.http2.frames import ErrorCode, Http2Error

TABLE_BYTES_MAX: Final = 4_096
"""The size of the table by default; this server does not allow another one."""
FIELD_OVERHEAD: Final = 32
"""How many bytes a field counts in addition to its texts."""
FIELDS_MAX: Final = 256
"""How many fields a block may have; SDKs send about 20."""
_INTEGER_BYTES_MAX: Final = 5

Field = tuple[str, str]
_WITHOUT_VALUE: Final = (
    "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "accept",
    "access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition",
    "content-encoding", "content-language", "content-length", "content-location", "content-range", "content-type",
    "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since",
    "if-none-match", "if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards",
    "proxy-authenticate", "proxy-authorization", "range", "referer", "refresh", "retry-after", "server",
    "set-cookie", "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via",
    "www-authenticate",
)  # fmt: skip
STATIC: Final[tuple[Field, ...]] = (
    ("", ""), (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"),
    *((":status", code) for code in ("200", "204", "206", "304", "400", "404", "500")),
    *((name, "gzip, deflate" if name == "accept-encoding" else "") for name in _WITHOUT_VALUE),
)  # fmt: skip
"""The table before a client adds to it; there is no index 0."""
_STATIC_END: Final = len(STATIC)


@final
class HpackDecoder:
    """The table of one connection. Blocks must be decoded in the order in which they arrive."""

    __slots__ = ("_added", "_size", "_size_max")

    def __init__(self) -> None:
        self._added: list[Field] = []
        """What the client has added, newest last."""
        self._size = 0
        self._size_max = TABLE_BYTES_MAX

    def __repr__(self) -> str:
        return f"<HpackDecoder fields={len(self._added)} bytes={self._size}>"

    @property
    def table_bytes(self) -> int:
        """The size of what the client has added, as HPACK counts it."""
        return self._size

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block. Raises Http2Error; the connection cannot be used after that."""
        try:
            return self._decode(block)
        except (IndexError, huffman.HuffmanError) as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"a header block is malformed: {error}") from error

    def _decode(self, block: bytes) -> list[Field]:
        found: list[Field] = []
        added, position, end, static_end = self._added, 0, len(block), _STATIC_END
        while position < end:
            first = block[position]
            if 0x80 < first < 0xFF:  # an index of one byte, as almost every field of a repeated request
                position += 1
                index = first & 0x7F
                found.append(STATIC[index] if index < static_end else added[static_end - 1 - index])
                continue
            if first >= 0x80:
                index, position = _integer(block, position, 0x7F)
                found.append(added[_from_end(index)])
                continue
            if first >= 0x40:
                field, position = self._literal(block, position, 0x3F)
                self._add(field)
            elif first >= 0x20:
                if found:
                    raise Http2Error(ErrorCode.COMPRESSION_ERROR, "the size of the table changes within a block")
                size, position = _integer(block, position, 0x1F)
                self._set_size(size)
                continue
            else:
                field, position = self._literal(block, position, 0x0F)
            found.append(field)
            if len(found) > FIELDS_MAX:
                break
        if len(found) > FIELDS_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"a header block has more than {FIELDS_MAX} fields")
        return found

    def _literal(self, block: bytes, position: int, mask: int) -> tuple[Field, int]:
        """Return a field whose value is in the block, and its name there or in the table."""
        index = block[position] & mask
        if index < mask:
            position += 1
        else:
            index, position = _integer(block, position, mask)
        if index == 0:
            name, position = _text(block, position)
        elif index < _STATIC_END:
            name = STATIC[index][0]
        else:
            name = self._added[_from_end(index)][0]
        value, position = _text(block, position)
        return (name, value), position

    def _add(self, field: Field) -> None:
        self._added.append(field)
        self._size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        if self._size > self._size_max:
            self._evict()

    def _set_size(self, size: int) -> None:
        if size > TABLE_BYTES_MAX:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"a table of {size} bytes, at most {TABLE_BYTES_MAX}")
        self._size_max = size
        self._evict()

    def _evict(self) -> None:
        """Remove the oldest fields until the rest fits; a field larger than the table empties it."""
        count = 0
        while self._size > self._size_max:
            name, value = self._added[count]
            self._size -= len(name) + len(value) + FIELD_OVERHEAD
            count += 1
        del self._added[:count]


def _from_end(index: int) -> int:
    """Return the place of a field that the client has added. Raises IndexError for an index that no table has."""
    if index < _STATIC_END:
        raise IndexError("index 0")
    return _STATIC_END - 1 - index


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return a number that begins in the low bits of a byte, and the position after it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for count in range(_INTEGER_BYTES_MAX):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position
    raise IndexError("a number is too large")


def _text(block: bytes, position: int) -> tuple[str, int]:
    first = block[position]
    length = first & 0x7F
    if length < 0x7F:
        position += 1
    else:
        length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise IndexError("a text is longer than its block")
    data = block[position:end]
    return huffman.decode(data) if first >= 0x80 else data.decode("latin-1"), end


# ------- blocks that a server sends


def encode(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a block with these fields, none of which changes the table of the receiver."""
    return b"".join(b"\x00" + _counted(name) + _counted(value) for name, value in fields)


def _counted(text: bytes) -> bytes:
    """Return a text with its length before it."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    rest, found = length - 0x7F, bytearray((0x7F,))
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found) + text
