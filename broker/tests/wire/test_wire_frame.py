"""The frame reader: every way of splitting the bytes, and every kind of wrong length."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from gantry_wire.frame import Frame, FrameReader, encode_frame
from gantry_wire.limits import WireLimits

FRAMES = [
    Frame(0, b'{"code":10}', b"body"),
    Frame(1, b"\x00" * 21, b""),
    Frame(0, b"{}", b"\x00\xff" * 5),
    Frame(1, b"", b""),
]
STREAM = b"".join(encode_frame(frame.header, frame.body, frame.serialization) for frame in FRAMES)


def frame_head(total: int, type_and_header: int) -> bytes:
    return struct.pack(">II", total, type_and_header)


@pytest.mark.parametrize("split", range(len(STREAM) + 1))
def test_frames_survive_a_split_at_any_byte(split: int) -> None:
    """Wherever the network splits the stream in two, the same frames come out."""
    reader = FrameReader()

    frames = [*reader.feed(STREAM[:split]), *reader.feed(STREAM[split:])]

    assert frames == FRAMES and reader.buffered_bytes == 0


def test_frames_survive_byte_by_byte_feeding() -> None:
    """The frames of a peer that sends one byte at a time are complete."""
    reader = FrameReader()

    frames = [frame for byte in STREAM for frame in reader.feed(bytes([byte]))]

    assert frames == FRAMES


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_survive_any_splits(cuts: list[int]) -> None:
    """Any number of splits at any position changes nothing."""
    reader = FrameReader()
    edges = [0, *sorted(cuts), len(STREAM)]

    frames = [frame for start, end in pairwise(edges) for frame in reader.feed(STREAM[start:end])]

    assert frames == FRAMES


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.binary(max_size=300), st.binary(max_size=300)), max_size=6))
def test_frame_round_trip(parts: list[tuple[int, bytes, bytes]]) -> None:
    """encode_frame and FrameReader are inverse, for any header and body."""
    stream = b"".join(encode_frame(header, body, serialization) for serialization, header, body in parts)

    assert list(FrameReader().feed(stream)) == [Frame(*part) for part in parts]


def test_a_frame_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    """The limit counts the whole frame with its length field."""
    limits = WireLimits(frame_bytes_max=100)
    body = b"x" * (100 - 8 - 2)

    assert len(list(FrameReader(limits).feed(encode_frame(b"{}", body)))) == 1
    with pytest.raises(RemoteProtocolError, match="101 bytes exceeds the limit of 100"):
        list(FrameReader(limits).feed(encode_frame(b"{}", body + b"x")))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame_head(0xFFFFFFFF, 0)[:4], "exceeds the limit"),
        (frame_head(0, 0)[:4], "cannot hold"),
        (frame_head(3, 0)[:4], "cannot hold"),
        (frame_head(20, 17), "cannot hold a header of 17"),
        (frame_head(4, 1), "cannot hold a header of 1"),
        (frame_head(2 << 20, (1 << 20) + 1), "header of 1048577 bytes exceeds"),
        (frame_head(20, 2 << 24), "unknown header serialization 2"),
        (frame_head(20, 0xFF000000), "unknown header serialization 255"),
        (b"GET / HTTP/1.1\r\n", "exceeds the limit"),
        (b"\x16\x03\x01\x02\x00", "exceeds the limit"),
    ],
    ids=["huge", "zero", "three", "header", "header-of-empty", "header-limit", "type-2", "type-255", "http", "tls"],
)
def test_invalid_length_is_refused_before_its_bytes_are_awaited(data: bytes, reason: str) -> None:
    """The first bytes that show an invalid length end the connection; nothing is buffered for such a frame."""
    with pytest.raises(RemoteProtocolError, match=reason):
        list(FrameReader().feed(data))


def test_good_frames_before_a_bad_one_are_delivered() -> None:
    """Complete frames before the invalid one are still delivered."""
    frames = []

    with pytest.raises(RemoteProtocolError):
        for frame in FrameReader().feed(STREAM + frame_head(0, 0)):
            frames.append(frame)

    assert frames == FRAMES


def test_only_the_incomplete_frame_is_buffered() -> None:
    """After complete frames only the rest stays in memory."""
    reader = FrameReader()

    assert list(reader.feed(STREAM + STREAM[:9])) == FRAMES
    assert reader.buffered_bytes == 9
    assert repr(reader) == "<FrameReader buffered_bytes=9>"


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes) -> None:
    """No input raises anything but RemoteProtocolError, and no more than the limit is buffered."""
    reader = FrameReader(WireLimits(frame_bytes_max=64))
    try:
        for frame in reader.feed(data):
            assert len(frame.header) + len(frame.body) + 8 <= 64
    except RemoteProtocolError:
        return
    assert reader.buffered_bytes < 64


def test_oversized_header_is_a_local_error() -> None:
    """The header's length has 24 bits; a longer header raises LocalProtocolError."""
    with pytest.raises(LocalProtocolError):
        encode_frame(b"x" * (1 << 24))


def test_base_error_cannot_be_raised() -> None:
    """Only the two leaf classes can be raised, so that each error names the side at fault."""
    with pytest.raises(TypeError):
        ProtocolError("who?")
