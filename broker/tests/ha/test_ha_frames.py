"""The frames of the replication stream: messages survive any fragmentation, and anything else is rejected."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ha.frames import (
    HEAD,
    PREAMBLE,
    Ack,
    Challenge,
    Data,
    FrameKind,
    FrameReader,
    Heartbeat,
    Hello,
    Message,
    Ready,
    Refusal,
    StreamBroken,
    Sums,
    SumsRequest,
    Table,
    Welcome,
    encode,
)
from gantry_broker.store.identity import Epoch

longs = st.integers(-(1 << 63), (1 << 63) - 1)
offsets = st.integers(0, (1 << 63) - 1)
names = st.text(max_size=20)
epochs = st.lists(st.builds(Epoch, offsets, offsets, st.booleans()), max_size=4)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Challenge, nonce=names),
    st.builds(
        Hello, cluster=names, broker_name=names, broker_id=offsets, store_uuid=names, epochs=epochs, begin=offsets,
        end=offsets, file_bytes=offsets, promised_epoch=offsets,
    ),
    st.builds(
        Welcome, epoch=offsets, epochs=epochs, begin=offsets, start=offsets, cut_to=st.none() | offsets, proof=names
    ),
    st.builds(Refusal, reason=names, text=names, is_final=st.booleans()),
    st.builds(Ready, start=offsets),
    st.builds(SumsRequest, start=offsets, end=offsets, piece_bytes=offsets),
    st.builds(Sums, sums=st.lists(offsets, max_size=5)),
    st.builds(Data, longs, longs, longs, st.binary(min_size=1, max_size=100)),
    st.builds(Heartbeat, longs, longs, longs, longs, longs),
    st.builds(Ack, longs, longs, longs, longs, st.integers(0, 1 << 30)),
    st.builds(Table, longs, names.filter(lambda name: len(name.encode()) <= 64), st.binary(max_size=50)),
)  # fmt: skip


@given(st.lists(messages, max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_messages_survive_any_fragmentation(sent: list[Message], cuts: list[int]) -> None:
    """Frames may arrive in any pieces, many at a time or byte by byte."""
    data = b"".join(encode(message) for message in sent)
    reader, received, position = FrameReader(), [], 0
    while position < len(data):
        for cut in cuts:
            received += list(reader.feed(data[position : position + cut]))
            position += cut

    assert received == sent
    assert reader.buffered == 0


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_stream_broken(data: bytes) -> None:
    """Input of a port scanner or a Java slave raises only this exception, and memory is limited."""
    reader = FrameReader()
    try:
        for _ in reader.feed(data):
            pass
    except StreamBroken:
        pass
    assert reader.buffered <= len(data)


@settings(max_examples=300)
@given(messages, st.data())
def test_frame_with_changed_byte_is_rejected(message: Message, data: st.DataObject) -> None:
    """One byte of a frame is replaced: the frame is never decoded, since its checksum covers all of it."""
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(StreamBroken):
        assert list(FrameReader().feed(bytes(frame))) == [], "expected at most a wait for the rest of a longer frame"


@pytest.mark.parametrize("kind", list(FrameKind))
def test_too_large_frame_is_rejected_before_buffering(kind: FrameKind) -> None:
    """The size is checked before a byte of it is kept."""
    with pytest.raises(StreamBroken, match="bytes"):
        list(FrameReader().feed(HEAD.pack(0xFFFFFFFF, kind, 0)))


def test_preamble_is_never_an_offset_of_rocketmqs_slave() -> None:
    """A Java slave's first message is an offset of eight bytes, zero or more."""
    assert int.from_bytes(PREAMBLE, "big", signed=True) < 0


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(1, 2, 3, 4, 5),
        Ack(1, 2, 3, 4, 5),
        Data(0, 1, 2, b"records"),
        Table(7, "topics", b"{}"),
        Ready(start=9),
    ],
    ids=lambda message: type(message).__name__,
)
def test_frame_with_changed_bit_is_rejected(message: Message) -> None:
    """Epochs, positions and documents have no checksum of their own: the frame's checksum covers them."""
    frame = encode(message)
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with suppress(StreamBroken):
            assert list(FrameReader().feed(bytes(changed))) == [], (
                "expected at most a wait for the rest of a longer frame"
            )
