"""Bodies as clients compress them, and unpacking that cannot be made to eat the memory.

A message's flags name one of three codecs: zlib streams (the only one before RocketMQ 4.9.4, and what no name means),
LZ4 frames and Zstandard frames. The broker stores bodies as they were sent; whoever unpacks one says how large it may
become. LZ4 blocks are written independent of each other, because Java's reader takes no others.

zlib comes with Python. The two others are packages that a broker has no use for, so they are looked for when a body
needs them, and where they are missing the text says how to get them.
"""

import importlib
import sys
import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol, final

from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.message import COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FLAG_COMPRESSED

LEVEL: Final = 5
"""RocketMQ's default, for zlib and Zstandard; LZ4 has none there."""


@final
class Codec(Enum):
    """How a body is packed; the values are RocketMQ's names in small letters."""

    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def flags(self) -> int:
        """What the flags of a message say that is packed so."""
        return FLAG_COMPRESSED | _KINDS[self]


_KINDS: Final = {Codec.ZLIB: COMPRESSION_ZLIB, Codec.LZ4: COMPRESSION_LZ4, Codec.ZSTD: COMPRESSION_ZSTD}
_CODECS: Final = {0: Codec.ZLIB, **{kind: codec for codec, kind in _KINDS.items()}}
_ZSTD_MODULE: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_REMEDY: Final = "install it with: pip install 'gantry-mq[codecs]'"


class _Frame(Protocol):
    """A decompressor of one LZ4 or Zstandard frame; what did not fit comes with the next call."""

    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...


def deflate(body: bytes, level: int = LEVEL) -> bytes:
    """`body` as a zlib stream; clients mark it with FLAG_COMPRESSED and the zlib type."""
    return zlib.compress(body, level)


def pack(body: bytes, codec: Codec, level: int = LEVEL) -> bytes:
    """`body` as Java's client of that setting would send it. Raises LocalProtocolError where the codec is missing."""
    if codec is Codec.ZLIB:
        return deflate(body, level)
    module = _module(codec)
    if module is None:
        raise LocalProtocolError(missing(codec))
    if codec is Codec.LZ4:
        return bytes(module.compress(body, block_linked=False))
    return bytes(module.compress(body, level))


def inflate(data: bytes, bytes_max: int = BODY_INFLATED_BYTES_MAX) -> bytes:
    """What a zlib stream holds, at most `bytes_max` bytes of it. Raises RemoteProtocolError."""
    return _whole(data, Codec.ZLIB, bytes_max)


def inflate_body(body: bytes, sys_flag: int, bytes_max: int = BODY_INFLATED_BYTES_MAX) -> bytes:
    """The body that a consumer should see, by what the message's flags say of it. Raises RemoteProtocolError."""
    if not sys_flag & FLAG_COMPRESSED:
        return body
    return _whole(body, codec_of(sys_flag), bytes_max)


def beginning(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """At most so many bytes of what a consumer should see, and no more is unpacked. Raises RemoteProtocolError."""
    if not sys_flag & FLAG_COMPRESSED:
        return body[:bytes_max]
    found, _ = _unpack(body, codec_of(sys_flag), bytes_max)
    return found


def codec_of(sys_flag: int) -> Codec:
    """What a compressed message is packed with. Raises RemoteProtocolError for a kind that nobody has defined."""
    codec = _CODECS.get(sys_flag & COMPRESSION_MASK)
    if codec is None:
        known = ", ".join(one.value for one in Codec)
        raise RemoteProtocolError(f"compression type 0x{sys_flag & COMPRESSION_MASK:x} is none of {known}")
    return codec


def is_there(codec: Codec) -> bool:
    """Whether this installation can pack and unpack it."""
    return codec is Codec.ZLIB or _module(codec) is not None


def missing(codec: Codec) -> str:
    """What to say where it is not there."""
    return f"there is no package for {codec.value} here: {_REMEDY}"


def _whole(data: bytes, codec: Codec, bytes_max: int) -> bytes:
    body, is_whole = _unpack(data, codec, bytes_max + 1)
    if len(body) > bytes_max:
        raise RemoteProtocolError(f"a compressed body passes the limit of {bytes_max} bytes")
    if not is_whole:
        raise RemoteProtocolError("a compressed body is cut short")
    return body


def _unpack(data: bytes, codec: Codec, bytes_max: int) -> tuple[bytes, bool]:
    """(at most so many bytes, whether that was all). Raises RemoteProtocolError for what is damaged or unknown."""
    if codec is Codec.ZLIB:
        stream = zlib.decompressobj()
        try:
            return stream.decompress(data, bytes_max), stream.eof
        except zlib.error as error:
            raise RemoteProtocolError(f"a compressed body is damaged: {error}") from error
    module = _module(codec)
    if module is None:
        raise RemoteProtocolError(missing(codec))
    make = module.LZ4FrameDecompressor if codec is Codec.LZ4 else module.ZstdDecompressor
    damage = RuntimeError if codec is Codec.LZ4 else module.ZstdError
    try:
        return _unpack_frames(data, make, bytes_max)
    except (damage, EOFError) as error:
        raise RemoteProtocolError(f"a compressed body is damaged: {error}") from error


def _unpack_frames(data: bytes, make: Callable[[], _Frame], bytes_max: int) -> tuple[bytes, bool]:
    """Frames may follow each other: Java's readers go on."""
    pieces: list[bytes] = []
    room, is_whole = bytes_max, False
    while data and room:
        frame, given = make(), data
        while room and not frame.eof and (given or not frame.needs_input):
            piece = frame.decompress(given, max_length=room)
            pieces.append(piece)
            room, given = room - len(piece), b""
        data, is_whole = (frame.unused_data or b"", True) if frame.eof else (b"", False)
    return b"".join(pieces), is_whole and not data


def _module(codec: Codec) -> Any:
    """The package that knows a codec, or None."""
    try:
        return importlib.import_module("lz4.frame" if codec is Codec.LZ4 else _ZSTD_MODULE)
    except ImportError:
        return None
