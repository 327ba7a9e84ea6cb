"""Bodies as clients compress them: zlib, and inflation that cannot be made to eat the memory.

The broker stores bodies as they were sent. Whoever unpacks one says how large it may become.
"""

import zlib

from gantry_wire.errors import RemoteProtocolError
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.message import COMPRESSION_MASK, COMPRESSION_ZLIB, FLAG_COMPRESSED


def deflate(body: bytes, level: int = 5) -> bytes:
    """`body` as a zlib stream; clients mark it with FLAG_COMPRESSED and the zlib type."""
    return zlib.compress(body, level)


def inflate(data: bytes, bytes_max: int = BODY_INFLATED_BYTES_MAX) -> bytes:
    """What a zlib stream holds, at most `bytes_max` bytes of it. Raises RemoteProtocolError."""
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a compressed body is damaged: {error}") from error
    if len(body) > bytes_max:
        raise RemoteProtocolError(f"a compressed body passes the limit of {bytes_max} bytes")
    if not stream.eof:
        raise RemoteProtocolError("a compressed body is cut short")
    return body


def inflate_body(body: bytes, sys_flag: int, bytes_max: int = BODY_INFLATED_BYTES_MAX) -> bytes:
    """The body that a consumer should see, by what the message's flags say of it."""
    if not sys_flag & FLAG_COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind not in (0, COMPRESSION_ZLIB):
        raise RemoteProtocolError(f"compression type 0x{kind:x} is not supported here (zlib is)")
    return inflate(body, bytes_max)
