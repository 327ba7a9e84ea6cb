"""Compression of message bodies as clients do it, and decompression with a bound on the memory that it takes.

A message's flags name one of three codecs: zlib streams (the only codec before RocketMQ 4.9.4, and the one that is
meant when no codec is named), LZ4 frames and Zstandard frames. The broker stores bodies as they were sent; the caller
that decompresses a body gives its maximum size. LZ4 blocks are written independent of each other, because Java's reader
accepts no others.

zlib comes with Python. The other two codecs are packages that a broker does not need, so they are imported when a body
needs them, and where they are missing the error names the command that installs them.
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
"""The compression level: RocketMQ's default for zlib and Zstandard. LZ4 has no level there."""


@final
class Codec(Enum):
    """A compression codec; the values are RocketMQ's names in lower case."""

    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def flags(self) -> int:
        """Return the system flags of a message that is compressed with this codec."""
        return FLAG_COMPRESSED | _KINDS[self]


_KINDS: Final = {Codec.ZLIB: COMPRESSION_ZLIB, Codec.LZ4: COMPRESSION_LZ4, Codec.ZSTD: COMPRESSION_ZSTD}
_CODECS: Final = {0: Codec.ZLIB, **{kind: codec for codec, kind in _KINDS.items()}}
_ZSTD_MODULE: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_REMEDY: Final = "install it with: pip install 'gantry-mq[codecs]'"


class _FrameDecompressor(Protocol):
    """A decompressor of one LZ4 or Zstandard frame. Output beyond `max_length` comes with the next call."""

    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...


def deflate(body: bytes, level: int = LEVEL) -> bytes:
    """Return `body` as a zlib stream; clients mark it with FLAG_COMPRESSED and the zlib type."""
    return zlib.compress(body, level)


def compress_body(body: bytes, codec: Codec, level: int = LEVEL) -> bytes:
    """Return `body` compressed as Java's client does it. Raises LocalProtocolError if the codec is not installed."""
    if codec is Codec.ZLIB:
        return deflate(body, level)
    module = _module(codec)
    if module is None:
        raise LocalProtocolError(missing_codec_text(codec))
    if codec is Codec.LZ4:
        return bytes(module.compress(body, block_linked=False))
    return bytes(module.compress(body, level))


def inflate(data: bytes, bytes_max: int = BODY_INFLATED_BYTES_MAX) -> bytes:
    """Return the content of a zlib stream of at most `bytes_max` bytes. Raises RemoteProtocolError."""
    return _decompress_completely(data, Codec.ZLIB, bytes_max)


def inflate_body(body: bytes, sys_flag: int, bytes_max: int = BODY_INFLATED_BYTES_MAX) -> bytes:
    """Return the body for a consumer, decompressed if the message's flags say so. Raises RemoteProtocolError."""
    if not sys_flag & FLAG_COMPRESSED:
        return body
    return _decompress_completely(body, codec_of(sys_flag), bytes_max)


def inflate_prefix(body: bytes, sys_flag: int, bytes_max: int) -> bytes:
    """Return at most the first `bytes_max` bytes of the body for a consumer; no more is decompressed.

    Raises RemoteProtocolError.
    """
    if not sys_flag & FLAG_COMPRESSED:
        return body[:bytes_max]
    found, _ = _decompress(body, codec_of(sys_flag), bytes_max)
    return found


def codec_of(sys_flag: int) -> Codec:
    """Return the codec of a compressed message. Raises RemoteProtocolError for an undefined compression type."""
    codec = _CODECS.get(sys_flag & COMPRESSION_MASK)
    if codec is None:
        known = ", ".join(one.value for one in Codec)
        raise RemoteProtocolError(f"compression type 0x{sys_flag & COMPRESSION_MASK:x} is not one of {known}")
    return codec


def is_available(codec: Codec) -> bool:
    """Return whether this installation can compress and decompress with `codec`."""
    return codec is Codec.ZLIB or _module(codec) is not None


def missing_codec_text(codec: Codec) -> str:
    """Return the error text for a codec that is not installed, with the command that installs it."""
    return f"no package for {codec.value} is installed: {_REMEDY}"


def _decompress_completely(data: bytes, codec: Codec, bytes_max: int) -> bytes:
    body, is_complete = _decompress(data, codec, bytes_max + 1)
    if len(body) > bytes_max:
        raise RemoteProtocolError(f"a compressed body exceeds the limit of {bytes_max} bytes")
    if not is_complete:
        raise RemoteProtocolError("a compressed body is cut short")
    return body


def _decompress(data: bytes, codec: Codec, bytes_max: int) -> tuple[bytes, bool]:
    """Return (at most `bytes_max` bytes, whether that was all of them).

    Raises RemoteProtocolError for damaged data, or for a codec that is not installed.
    """
    if codec is Codec.ZLIB:
        stream = zlib.decompressobj()
        try:
            return stream.decompress(data, bytes_max), stream.eof
        except zlib.error as error:
            raise RemoteProtocolError(f"a compressed body is damaged: {error}") from error
    module = _module(codec)
    if module is None:
        raise RemoteProtocolError(missing_codec_text(codec))
    make = module.LZ4FrameDecompressor if codec is Codec.LZ4 else module.ZstdDecompressor
    damage = RuntimeError if codec is Codec.LZ4 else module.ZstdError
    try:
        return _decompress_frames(data, make, bytes_max)
    except (damage, EOFError) as error:
        raise RemoteProtocolError(f"a compressed body is damaged: {error}") from error


def _decompress_frames(data: bytes, make: Callable[[], _FrameDecompressor], bytes_max: int) -> tuple[bytes, bool]:
    """Decompress frames that follow each other, as Java's readers do."""
    pieces: list[bytes] = []
    room, is_complete = bytes_max, False
    while data and room:
        frame, given = make(), data
        while room and not frame.eof and (given or not frame.needs_input):
            piece = frame.decompress(given, max_length=room)
            pieces.append(piece)
            room, given = room - len(piece), b""
        data, is_complete = (frame.unused_data or b"", True) if frame.eof else (b"", False)
    return b"".join(pieces), is_complete and not data


def _module(codec: Codec) -> Any:
    """Return the package that implements `codec`, or None if it is not installed."""
    try:
        return importlib.import_module("lz4.frame" if codec is Codec.LZ4 else _ZSTD_MODULE)
    except ImportError:
        return None
