"""Compressed bodies: three codecs as Java's clients write and read them, and what damaged or hostile ones may do."""

import importlib
import tracemalloc
import zlib
from types import ModuleType

import lz4.frame
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.compress import Codec, beginning, codec_of, deflate, inflate, inflate_body, is_there, pack
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
def test_what_java_packed_is_unpacked(codec: Codec) -> None:
    """A body packed by RocketMQ 5.3.3 is read whole."""
    assert inflate_body(bytes.fromhex(FROM_JAVA[codec]), codec.flags) == BODY


@CODECS
@given(body=st.binary(max_size=500) | st.integers(0, 300_000).map(bytes))
def test_what_is_packed_is_unpacked(codec: Codec, body: bytes) -> None:
    """Both ways are inverse, also where the result is exactly as large as is allowed."""
    assert inflate_body(pack(body, codec), codec.flags, len(body)) == body


def test_each_codec_is_what_its_name_says() -> None:
    """Other programs' readers take what we pack, and Java's reader of LZ4 only takes blocks that stand alone."""
    assert zlib.decompress(pack(BODY, Codec.ZLIB)) == zlib.decompress(deflate(BODY)) == BODY
    assert zstd.decompress(pack(BODY, Codec.ZSTD)) == BODY
    packed = pack(BODY, Codec.LZ4)
    assert lz4.frame.decompress(packed) == BODY
    assert lz4.frame.get_frame_info(packed)["block_linked"] is False


@CODECS
def test_levels_reach_the_codec_that_has_them(codec: Codec) -> None:
    """zlib and Zstandard take a level; LZ4 has none, as in Java."""
    body = b" ".join(b"%d" % (number * number) for number in range(5000))
    assert (pack(body, codec, 1) == pack(body, codec, 9)) == (codec is Codec.LZ4)


@pytest.mark.parametrize(
    ("kind", "codec"),
    [(0, Codec.ZLIB), (COMPRESSION_ZLIB, Codec.ZLIB), (COMPRESSION_LZ4, Codec.LZ4), (COMPRESSION_ZSTD, Codec.ZSTD)],
)
def test_flags_name_the_codec(kind: int, codec: Codec) -> None:
    """Type 0 is an old client's zlib; without the flag nothing is unpacked."""
    assert codec_of(FLAG_COMPRESSED | kind) is codec
    assert inflate_body(pack(b"x", codec), FLAG_COMPRESSED | kind) == b"x"
    assert inflate_body(b"as is", kind) == b"as is" == beginning(b"as is", kind, 100)


@pytest.mark.parametrize("kind", [0x400, 0x700])
def test_other_compressions_are_refused_by_number(kind: int) -> None:
    """What nobody has defined is an error, never raw bytes passed for a body."""
    with pytest.raises(RemoteProtocolError, match=f"0x{kind:x} is none of zlib, lz4, zstd"):
        inflate_body(b"x", FLAG_COMPRESSED | kind)


@CODECS
def test_a_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    """S5: a body that grows past the limit is refused; one exactly at it passes."""
    with pytest.raises(RemoteProtocolError, match="limit of 1000000"):
        inflate_body(pack(bytes(50_000_000), codec), codec.flags, 1_000_000)
    assert inflate_body(pack(bytes(1000), codec), codec.flags, 1000) == bytes(1000)
    with pytest.raises(RemoteProtocolError, match="limit of 1000"):
        inflate_body(pack(bytes(1001), codec), codec.flags, 1000)


@CODECS
def test_a_bomb_costs_no_more_memory_than_the_limit(codec: Codec) -> None:
    """S5: unpacking stops at the limit instead of after it."""
    bomb = pack(bytes(64_000_000), codec)
    inflate_body(pack(b"warm", codec), codec.flags)
    tracemalloc.start()
    with pytest.raises(RemoteProtocolError):
        inflate_body(bomb, codec.flags, 100_000)
    assert beginning(bomb, codec.flags, 10) == bytes(10)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 1_000_000


@CODECS
def test_half_a_body_is_none(codec: Codec) -> None:
    """S5: cut at any place, or followed by what is no frame, it is refused."""
    packed = pack(BODY, codec)
    for end in range(len(packed)):
        with pytest.raises(RemoteProtocolError, match=r"cut short|damaged"):
            inflate_body(packed[:end], codec.flags)
    with pytest.raises(RemoteProtocolError, match="damaged"):
        inflate_body(b"\x00garbage", codec.flags)


@CODECS
def test_a_damaged_body_is_refused_or_read_but_never_crashes(codec: Codec) -> None:
    """S5: any bit may be wrong; the error is ours."""
    packed = pack(BODY, codec)
    for place in range(len(packed)):
        for bit in (1, 16, 128):
            spoilt = bytearray(packed)
            spoilt[place] ^= bit
            try:
                inflate_body(bytes(spoilt), codec.flags, 1_000_000)
            except RemoteProtocolError:
                continue


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_frames_that_follow_each_other_are_one_body(codec: Codec) -> None:
    """Java's readers go on behind a frame's end, and so do we."""
    both = pack(b"one, ", codec) + pack(b"two", codec)
    assert inflate_body(both, codec.flags) == b"one, two"
    assert inflate_body(both, codec.flags, 8) == b"one, two"
    with pytest.raises(RemoteProtocolError, match="limit"):
        inflate_body(both, codec.flags, 7)
    with pytest.raises(RemoteProtocolError):
        inflate_body(both + b"and more", codec.flags)


@CODECS
def test_a_beginning_is_shown_without_the_rest(codec: Codec) -> None:
    """People are shown the first bytes, also of a body whose end is missing."""
    packed = pack(bytes(range(256)) * 4000, codec)
    assert beginning(packed, codec.flags, 300) == bytes(range(256)) + bytes(range(44))
    assert beginning(pack(b"short", codec), codec.flags, 300) == b"short"


def test_where_a_package_is_missing_the_text_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker has neither; zlib is always there."""
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> ModuleType:
        if name.startswith(("lz4", "backports", "compression")):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, package)

    packed = {codec: pack(b"x", codec) for codec in Codec}
    monkeypatch.setattr(importlib, "import_module", without)

    assert [is_there(codec) for codec in Codec] == [True, False, False]
    assert inflate_body(packed[Codec.ZLIB], Codec.ZLIB.flags) == b"x"
    for codec in (Codec.LZ4, Codec.ZSTD):
        with pytest.raises(RemoteProtocolError, match=rf"{codec.value} here.*gantry-mq\[codecs\]"):
            inflate_body(packed[codec], codec.flags)
        with pytest.raises(LocalProtocolError, match=r"gantry-mq\[codecs\]"):
            pack(b"x", codec)


def test_a_registration_is_a_zlib_stream() -> None:
    """What name servers unpack has no flags."""
    assert inflate(deflate(b"topics")) == b"topics"
    for data in (b"", b"\x78", b"garbage", zlib.compress(b"x" * 99)[:-1]):
        with pytest.raises(RemoteProtocolError):
            inflate(data)
