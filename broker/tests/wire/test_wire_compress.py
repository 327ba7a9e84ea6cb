"""Compressed bodies: three codecs as Java's clients write and read them, and damaged or hostile input.

S5 is a row of the fault catalogue (`broker/tests/faults/rows.py`).
"""

import importlib
import tracemalloc
import zlib
from types import ModuleType

import lz4.frame
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.compress import (
    Codec,
    codec_of,
    compress_body,
    deflate,
    inflate,
    inflate_body,
    inflate_prefix,
    is_available,
)
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.message import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD, FLAG_COMPRESSED

CODECS = pytest.mark.parametrize("codec", Codec, ids=[one.value for one in Codec])

BODY = b"a body that clients compress, " * 200
FROM_JAVA = {
    Codec.LZ4: "04224d1860707340000000ff0f6120626f6479207468617420636c69656e747320636f6d70726573732c201e00"
    "ffffffffffffffffffffffffffffffffffffffffffffff51506573732c2000000000",
    Codec.ZSTD: "28b52ffd0058340100f06120626f6479207468617420636c69656e747320636f6d70726573732c2001003e5de89513010000",
    Codec.ZLIB: "785eedc9c10d80201000b0556e00974224c144c5787cdcde151ca0fdb6c43ab637662f33eab1b76b66d471de4fcb5ca25"
    "86badb5d65a6badb5d65a6badb5f6c77edb438749",
}
"""What `CompressorFactory.getCompressor(type).compress(BODY, 5)` of rocketmq-common 5.3.3 returned."""


@CODECS
def test_body_compressed_by_java_is_decompressed(codec: Codec) -> None:
    """A body compressed by RocketMQ 5.3.3 is read whole."""
    assert inflate_body(bytes.fromhex(FROM_JAVA[codec]), codec.flags) == BODY


@CODECS
@given(body=st.binary(max_size=500) | st.integers(0, 300_000).map(bytes))
def test_compression_round_trip(codec: Codec, body: bytes) -> None:
    """Decompression is the inverse of compression, also for a body of exactly the maximum size."""
    assert inflate_body(compress_body(body, codec), codec.flags, len(body)) == body


def test_other_readers_accept_each_codec() -> None:
    """Other programs' readers accept each codec's output; Java's reader of LZ4 requires independent blocks."""
    assert zlib.decompress(compress_body(BODY, Codec.ZLIB)) == zlib.decompress(deflate(BODY)) == BODY
    assert zstd.decompress(compress_body(BODY, Codec.ZSTD)) == BODY
    packed = compress_body(BODY, Codec.LZ4)
    assert lz4.frame.decompress(packed) == BODY
    assert lz4.frame.get_frame_info(packed)["block_linked"] is False


@CODECS
def test_compression_level_applies_to_zlib_and_zstandard(codec: Codec) -> None:
    """zlib and Zstandard use the level; LZ4 has none, as in Java."""
    body = b" ".join(b"%d" % (number * number) for number in range(5000))
    assert (compress_body(body, codec, 1) == compress_body(body, codec, 9)) == (codec is Codec.LZ4)


@pytest.mark.parametrize(
    ("kind", "codec"),
    [(0, Codec.ZLIB), (COMPRESSION_ZLIB, Codec.ZLIB), (COMPRESSION_LZ4, Codec.LZ4), (COMPRESSION_ZSTD, Codec.ZSTD)],
)
def test_flags_select_the_codec(kind: int, codec: Codec) -> None:
    """Type 0 is an old client's zlib; without the flag nothing is decompressed."""
    assert codec_of(FLAG_COMPRESSED | kind) is codec
    assert inflate_body(compress_body(b"x", codec), FLAG_COMPRESSED | kind) == b"x"
    assert inflate_body(b"as is", kind) == b"as is" == inflate_prefix(b"as is", kind, 100)


@pytest.mark.parametrize("kind", [0x400, 0x700])
def test_undefined_compression_type_is_refused(kind: int) -> None:
    """An undefined compression type is an error; the body is never passed on as it is."""
    with pytest.raises(RemoteProtocolError, match=f"0x{kind:x} is not one of zlib, lz4, zstd"):
        inflate_body(b"x", FLAG_COMPRESSED | kind)


@CODECS
def test_body_above_the_size_limit_is_refused(codec: Codec) -> None:
    """S5: a body that exceeds the limit is refused; one of exactly that size passes."""
    with pytest.raises(RemoteProtocolError, match="limit of 1000000"):
        inflate_body(compress_body(bytes(50_000_000), codec), codec.flags, 1_000_000)
    assert inflate_body(compress_body(bytes(1000), codec), codec.flags, 1000) == bytes(1000)
    with pytest.raises(RemoteProtocolError, match="limit of 1000"):
        inflate_body(compress_body(bytes(1001), codec), codec.flags, 1000)


@CODECS
def test_decompression_stops_at_the_size_limit(codec: Codec) -> None:
    """S5: decompression stops at the limit and allocates no more memory."""
    bomb = compress_body(bytes(64_000_000), codec)
    inflate_body(compress_body(b"warm", codec), codec.flags)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError):
        inflate_body(bomb, codec.flags, 100_000)
    assert inflate_prefix(bomb, codec.flags, 10) == bytes(10)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 1_000_000


@CODECS
def test_incomplete_body_is_refused(codec: Codec) -> None:
    """S5: a body that is cut anywhere, and a body that the codec did not write, are refused."""
    packed = compress_body(BODY, codec)
    for end in range(len(packed)):
        with pytest.raises(RemoteProtocolError, match=r"cut short|damaged"):
            inflate_body(packed[:end], codec.flags)
    with pytest.raises(RemoteProtocolError, match="damaged"):
        inflate_body(b"\x00garbage", codec.flags)


@CODECS
def test_flipped_bits_raise_only_protocol_errors(codec: Codec) -> None:
    """S5: any bit may be wrong; the only exception is RemoteProtocolError."""
    packed = compress_body(BODY, codec)
    for place in range(len(packed)):
        for bit in (1, 16, 128):
            damaged = bytearray(packed)
            damaged[place] ^= bit
            try:
                inflate_body(bytes(damaged), codec.flags, 1_000_000)
            except RemoteProtocolError:
                continue


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_consecutive_frames_are_one_body(codec: Codec) -> None:
    """Frames that follow each other are decompressed as one body, as Java's readers do."""
    both = compress_body(b"one, ", codec) + compress_body(b"two", codec)
    assert inflate_body(both, codec.flags) == b"one, two"
    assert inflate_body(both, codec.flags, 8) == b"one, two"
    with pytest.raises(RemoteProtocolError, match="limit"):
        inflate_body(both, codec.flags, 7)
    with pytest.raises(RemoteProtocolError):
        inflate_body(both + b"and more", codec.flags)


@CODECS
def test_prefix_of_a_truncated_body_is_decompressed(codec: Codec) -> None:
    """The first bytes can be shown, also of a body whose end is missing."""
    packed = compress_body(bytes(range(256)) * 4000, codec)
    assert inflate_prefix(packed, codec.flags, 300) == bytes(range(256)) + bytes(range(44))
    assert inflate_prefix(compress_body(b"short", codec), codec.flags, 300) == b"short"


def test_error_names_the_missing_codec_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker has neither optional package, and the error names the missing one; zlib is always available."""
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> ModuleType:
        if name.startswith(("lz4", "backports", "compression")):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, package)

    packed = {codec: compress_body(b"x", codec) for codec in Codec}
    monkeypatch.setattr(importlib, "import_module", without)

    assert [is_available(codec) for codec in Codec] == [True, False, False]
    assert inflate_body(packed[Codec.ZLIB], Codec.ZLIB.flags) == b"x"
    for codec in (Codec.LZ4, Codec.ZSTD):
        with pytest.raises(RemoteProtocolError, match=rf"{codec.value} is installed.*gantry-mq\[codecs\]"):
            inflate_body(packed[codec], codec.flags)
        with pytest.raises(LocalProtocolError, match=r"gantry-mq\[codecs\]"):
            compress_body(b"x", codec)


def test_registration_is_a_zlib_stream() -> None:
    """The bodies that name servers decompress have no flags and are zlib streams."""
    assert inflate(deflate(b"topics")) == b"topics"
    for data in (b"", b"\x78", b"garbage", zlib.compress(b"x" * 99)[:-1]):
        with pytest.raises(RemoteProtocolError):
            inflate(data)
