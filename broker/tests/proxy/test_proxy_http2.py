"""HTTP/2 without a socket: requests and replies, windows, limits, and what a client may not send."""

from __future__ import annotations

import random

import pytest
from http2_wire import LIMITS, POST, Frame, Wire, data_bytes

from gantry_proxy.http2 import connection, frames
from gantry_proxy.http2.frames import ErrorCode, Http2Error, Setting, make_frame, make_settings
from gantry_proxy.http2.hpack import encode
from gantry_proxy.http2.streams import IGNORED, Stream

HEADERS, TRAILERS = encode([(b"a", b"1")]), encode([(b"b", b"2")])
RESET_CANCEL = int(ErrorCode.CANCEL).to_bytes(4, "big")


def code_of(wire: Wire, *sent: bytes) -> ErrorCode:
    """Send frames of which one breaks the protocol, and return the code of the error."""
    with pytest.raises(Http2Error) as caught:
        for data in sent:
            wire.server.receive(data)
    return caught.value.code


def begun(settings: dict[Setting, int] | None = None) -> Wire:
    wire = Wire()
    wire.begin(settings)
    return wire


def test_request_and_reply() -> None:
    """Headers, data and end arrive; a reply is headers, data, trailers, and the stream is forgotten."""
    wire = begun()
    call = wire.request(1, b"hello")
    assert call.stream.reply(HEADERS, b"world", TRAILERS)

    assert (call.fields[0], call.data, call.is_complete) == ((":method", "POST"), b"hello", True)
    assert wire.take() == [
        Frame(frames.HEADERS, frames.END_HEADERS, 1, HEADERS),
        Frame(frames.DATA, 0, 1, b"world"),
        Frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, TRAILERS),
    ]
    assert wire.server.streams == {}


def test_server_begins_with_its_settings() -> None:
    """The client learns the limits before its first request."""
    wire = Wire()
    settings, update = wire.take()

    assert dict(frames.read_settings(settings.payload)) == {
        Setting.MAX_CONCURRENT_STREAMS: 4, Setting.INITIAL_WINDOW_SIZE: 70_000, Setting.MAX_HEADER_LIST_SIZE: 1_000,
    }  # fmt: skip
    assert int.from_bytes(update.payload, "big") == LIMITS.connection_window - frames.WINDOW_DEFAULT


def test_bytes_may_arrive_one_by_one() -> None:
    """No frame depends on how the network cuts the stream."""
    wire = Wire()
    wire.take()
    sent = frames.PREFACE + make_settings({Setting.ENABLE_PUSH: 0}) + make_frame(frames.PING, 0, 0, b"12345678")
    sent += make_frame(frames.HEADERS, frames.END_HEADERS, 1, POST) + make_frame(
        frames.DATA, frames.END_STREAM, 1, b"x"
    )
    for byte in sent:
        wire.server.receive(bytes((byte,)))

    assert (wire.received[1].data, wire.received[1].is_complete) == (b"x", True)
    assert wire.take() == [Frame(frames.SETTINGS, 1, 0, b""), Frame(frames.PING, 1, 0, b"12345678")]


def test_headers_may_have_padding_priority_and_parts() -> None:
    """All three are taken away before the block is read."""
    wire = begun()
    padded = b"\x03" + bytes(5) + POST[:4] + bytes(3)
    wire.send(frames.HEADERS, frames.PADDED | frames.HAS_PRIORITY | frames.END_STREAM, 1, padded)
    wire.send(frames.CONTINUATION, 0, 1, POST[4:6])
    wire.send(frames.CONTINUATION, frames.END_HEADERS, 1, POST[6:])
    wire.send(frames.HEADERS, frames.END_HEADERS, 3, POST)
    wire.send(frames.DATA, frames.PADDED | frames.END_STREAM, 3, b"\x02abc\x00\x00")

    assert [wire.received[number].fields[0] for number in (1, 3)] == [(":method", "POST")] * 2
    assert wire.received[1].is_complete
    assert wire.received[3].data == b"abc"


# ------- windows


def test_large_reply_waits_for_the_windows() -> None:
    """The client gets no more than it allows, in frames of the size that it allows, and then the rest."""
    wire = begun({Setting.INITIAL_WINDOW_SIZE: 100_000})
    call = wire.request(1)
    call.stream.send_headers(HEADERS)
    assert not call.stream.send(bytes(150_000))
    call.stream.end(TRAILERS)
    first = wire.take()
    wire.window(1, 1 << 20)
    wire.window(0, 20_000)
    second = wire.take()
    wire.window(0, 1 << 20)
    third = wire.take()

    sizes = [data_bytes(found, 1) for found in (first, second, third)]
    assert sizes == [frames.WINDOW_DEFAULT, 20_000, 150_000 - frames.WINDOW_DEFAULT - 20_000]
    assert max(len(frame.payload) for frame in first) == frames.FRAME_BYTES_DEFAULT
    assert third[-1].payload == TRAILERS
    assert call.sent == 1
    assert wire.server.streams == {}


def test_window_of_a_stream_may_become_smaller() -> None:
    """A setting that takes back what was allowed makes a window negative; nothing is sent until it is positive."""
    wire = begun({Setting.INITIAL_WINDOW_SIZE: 1_000})
    call = wire.request(1)
    call.stream.send(bytes(1_500))
    wire.server.receive(make_settings({Setting.INITIAL_WINDOW_SIZE: 400}))
    wire.window(1, 600)
    before = data_bytes(wire.take(), 1)
    wire.window(1, 1)

    assert (before, data_bytes(wire.take(), 1)) == (1_000, 1)


def test_replies_share_the_window_of_the_connection() -> None:
    """A reply that waits for the connection continues after others; none is forgotten."""
    wire = begun({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
    calls = [wire.request(number) for number in (1, 3, 5)]
    for call in calls:
        call.stream.send(bytes(50_000))
        call.stream.end(TRAILERS)
    for _ in range(20):
        wire.window(0, 5_000)
    found = wire.take()

    assert [data_bytes(found, number) for number in (1, 3, 5)] == [50_000] * 3
    assert wire.server.streams == {}


def test_full_transport_holds_data_back() -> None:
    """While the transport is full only the frames of the protocol itself are sent."""
    wire = begun()
    call = wire.request(1)
    wire.server.pause()
    assert not call.stream.reply(HEADERS, b"reply", TRAILERS)
    held = wire.take()
    wire.server.resume()

    assert data_bytes(held, 1) == 0
    assert data_bytes(wire.take(), 1) == 5


def test_client_gets_its_windows_back() -> None:
    """What was processed may be sent again, on the stream and on the connection."""
    wire = begun()
    call = wire.request(1, bytes(16_000), is_last=False)
    for _ in range(3):
        wire.data(1, bytes(16_000))
    for _ in range(4):
        call.stream.consume(16_000, LIMITS.stream_window)
    updates = [(frame.stream_id, int.from_bytes(frame.payload, "big")) for frame in wire.take()]

    assert updates == [(0, 64_000), (1, 48_000)]


@pytest.mark.parametrize(("count", "is_consumed"), [(5, False), (13, True)], ids=["stream", "connection"])
def test_client_beyond_a_window_is_disconnected(count: int, is_consumed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its bytes would be held without a limit."""
    wire = begun()
    call = wire.request(1, is_last=False)
    if is_consumed:
        call.stream.receive_window = 1 << 30
        wire.server._unreturned = -(1 << 30)  # the connection's window is never returned
    data = make_frame(frames.DATA, 0, 1, bytes(16_000))

    assert code_of(wire, *[data] * count) is ErrorCode.FLOW_CONTROL_ERROR


# ------- the end of streams and connections


def test_reset_ends_a_stream() -> None:
    """The receiver is notified, and a late reply is dropped."""
    wire = begun()
    call = wire.request(1, is_last=False)
    wire.send(frames.RST_STREAM, 0, 1, RESET_CANCEL)
    call.stream.send(b"late")
    call.stream.end(TRAILERS)

    assert (call.resets, wire.take(), wire.server.streams) == (1, [], {})


def test_refused_upload_is_stopped() -> None:
    """A reply before the end of the request is followed by a reset, and what still arrives is ignored."""
    wire = begun()
    call = wire.request(1, is_last=False)
    call.stream.end(TRAILERS)
    found = wire.take()
    wire.data(1, b"more", is_last=True)

    assert [frame.kind for frame in found] == [frames.HEADERS, frames.RST_STREAM]
    assert found[1].payload == bytes(4), "the reset is no error"
    assert call.data == b"body"


def test_streams_beyond_the_limit_are_refused() -> None:
    """The client may repeat a refused call; a stream that ends makes room."""
    wire = begun()
    for number in (1, 3, 5, 7, 9):
        wire.headers(number)
    refused = wire.take()
    wire.received[1].stream.end(TRAILERS)
    wire.headers(11)

    assert [(frame.stream_id, frame.payload[3]) for frame in refused] == [(9, ErrorCode.REFUSED_STREAM)]
    assert sorted(wire.received) == [1, 3, 5, 7, 11]


def test_draining_serves_what_has_begun_and_refuses_the_rest() -> None:
    """Calls that cross the notice are served; those after its end are refused, so that clients repeat them."""
    wire = begun()
    first = wire.request(1)
    wire.server.begin_drain()
    second = wire.request(3)
    wire.server.finish_drain()
    wire.headers(5)
    for call in (first, second):
        call.stream.reply(HEADERS, b"x", TRAILERS)
    found = wire.take()

    goaways = [int.from_bytes(frame.payload[:4], "big") for frame in found if frame.kind == frames.GOAWAY]
    assert goaways == [frames.STREAM_ID_MAX, 3]
    assert [frame.stream_id for frame in found if frame.kind == frames.RST_STREAM] == [5]
    assert [data_bytes(found, number) for number in (1, 3)] == [1, 1]


def test_lost_connection_ends_every_stream() -> None:
    """No handler waits for a client that is gone."""
    wire = begun()
    calls = [wire.request(number, is_last=False) for number in (1, 3)]
    wire.server.lose()

    assert ([call.resets for call in calls], wire.server.streams) == ([1, 1], {})


# ------- limits of what a client may cause


def test_large_headers_refuse_the_call_and_huge_ones_the_client() -> None:
    """The table is kept for the first, so that later calls can be read."""
    wire = begun()
    wire.headers(1, POST + encode([(b"x", b"y" * 1_000)]))
    refused = wire.take()
    wire.headers(3)
    assert (refused[0].kind, sorted(wire.received)) == (frames.RST_STREAM, [3])

    part = make_frame(frames.CONTINUATION, 0, 5, bytes(900))
    assert code_of(wire, make_frame(frames.HEADERS, 0, 5, bytes(900)), *[part] * 5) is ErrorCode.ENHANCE_YOUR_CALM


FLOODS = {
    "pings": make_frame(frames.PING, 0, 0, bytes(8)),
    "settings": make_settings({}),
    "empty data": make_frame(frames.DATA, 0, 1),
    "priorities": make_frame(frames.PRIORITY, 0, 1, bytes(5)),
    "unknown frames": make_frame(99, 0, 0),
}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS)
def test_frames_without_a_request_are_limited(frame: bytes) -> None:
    """A client that sends only what costs it nothing is disconnected."""
    wire = begun()
    wire.headers(1)

    assert code_of(wire, *[frame] * (connection.CREDITS_MAX + 1)) is ErrorCode.ENHANCE_YOUR_CALM


def test_streams_that_are_reset_at_once_are_limited() -> None:
    """The start of a call costs more than the two frames that cause it."""
    wire = begun()
    pairs = [
        make_frame(frames.HEADERS, frames.END_HEADERS, number, POST)
        + make_frame(frames.RST_STREAM, 0, number, RESET_CANCEL)
        for number in range(1, 2 * connection.CREDITS_MAX, 2)
    ]

    assert code_of(wire, *pairs) is ErrorCode.ENHANCE_YOUR_CALM
    assert len(wire.received) <= connection.CREDITS_MAX


def test_ordinary_client_is_never_limited() -> None:
    """The twin of the tests above: a ping for each reply, as some clients send them, for ever."""
    wire = begun()
    for number in range(1, 4 * connection.CREDITS_MAX, 2):
        wire.request(number).stream.reply(HEADERS, b"x", TRAILERS)
        wire.send(frames.PING, 0, 0, bytes(8))
        wire.take()


def test_time_earns_credits() -> None:
    """A client that pings now and then stays connected."""
    wire = begun()
    for _ in range(3):
        for _ in range(connection.CREDITS_MAX - 100):
            wire.send(frames.PING, 0, 0, bytes(8))
        wire.take()
        wire.server.add_credits(1_000)


# ------- what breaks the protocol

PROTOCOL, SIZE, FLOW = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.FLOW_CONTROL_ERROR
OPEN = make_frame(frames.HEADERS, frames.END_HEADERS, 1, POST)
BROKEN = {
    "frame too long": (frames.HEADER.pack(16_385 << 8, 0, 1), SIZE),
    "push": (make_frame(frames.PUSH_PROMISE, 0, 1), PROTOCOL),
    "even stream": (make_frame(frames.HEADERS, frames.END_HEADERS, 2, POST), PROTOCOL),
    "stream 0": (make_frame(frames.HEADERS, frames.END_HEADERS, 0, POST), PROTOCOL),
    "data of no stream": (make_frame(frames.DATA, 0, 5, b"x"), PROTOCOL),
    "reset of no stream": (make_frame(frames.RST_STREAM, 0, 5, bytes(4)), PROTOCOL),
    "window of no stream": (make_frame(frames.WINDOW_UPDATE, 0, 5, b"\0\0\0\1"), PROTOCOL),
    "short reset": (OPEN + make_frame(frames.RST_STREAM, 0, 1, b"x"), SIZE),
    "short ping": (make_frame(frames.PING, 0, 0, b"x"), SIZE),
    "short window": (make_frame(frames.WINDOW_UPDATE, 0, 0, b"x"), SIZE),
    "window of 0": (make_frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL),
    "large window": (make_frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), FLOW),
    "large window of a stream": (OPEN + make_frame(frames.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"), FLOW),
    "large setting of a window": (make_settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), FLOW),
    "small frames": (make_settings({Setting.MAX_FRAME_SIZE: 100}), PROTOCOL),
    "push of 2": (make_settings({Setting.ENABLE_PUSH: 2}), PROTOCOL),
    "settings of a stream": (make_frame(frames.SETTINGS, 0, 1), PROTOCOL),
    "settings cut": (make_frame(frames.SETTINGS, 0, 0, bytes(5)), SIZE),
    "acknowledged settings": (make_frame(frames.SETTINGS, 1, 0, bytes(6)), PROTOCOL),
    "padding": (OPEN + make_frame(frames.DATA, frames.PADDED, 1, b"\x05abc"), PROTOCOL),
    "no padding": (OPEN + make_frame(frames.DATA, frames.PADDED, 1), PROTOCOL),
    "priority cut": (make_frame(frames.HEADERS, frames.HAS_PRIORITY | frames.END_HEADERS, 1, b"xx"), SIZE),
    "continuation": (make_frame(frames.CONTINUATION, 0, 1), PROTOCOL),
    "frame within headers": (
        make_frame(frames.HEADERS, 0, 1, POST) + make_frame(frames.PING, 0, 0, bytes(8)),
        PROTOCOL,
    ),
    "trailers without end": (OPEN + OPEN, PROTOCOL),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
def test_broken_frame_ends_the_connection(sent: bytes, code: ErrorCode) -> None:
    """Each has the code of RFC 9113."""
    assert code_of(begun(), sent) is code


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"\x16\x03\x01"])
def test_other_protocol_is_refused_at_its_first_bytes(sent: bytes) -> None:
    """A browser, or a client of TLS, gets an end at once."""
    assert code_of(Wire(), sent) is PROTOCOL


def act_on(stream: Stream, number: int) -> None:
    """Do one of the things that a call does with its stream."""
    if number == 0:
        stream.pump()
    elif number == 1:
        stream.send(b"x")
    else:
        stream.end(b"")


def test_random_frames_are_handled_or_refused() -> None:
    """No frames of a client raise another error."""
    choice = random.Random(5)
    for _ in range(2_000):
        wire = begun()
        try:
            for _ in range(30):
                payload = choice.choice([POST, b"", bytes(4), bytes(8), b"\0\0\1\0", choice.randbytes(12)])
                wire.send(choice.randrange(11), choice.choice([0, 1, 4, 5, 8, 0x25]), choice.randrange(6), payload)
                for call in wire.received.values():
                    act_on(call.stream, choice.randrange(3))
        except Http2Error:
            pass


def test_stream_that_is_over_drops_its_receiver() -> None:
    """A receiver refers to its stream, so both would wait for the garbage collector."""
    wire = begun()
    open_call, call, reset = (wire.request(stream_id) for stream_id in (1, 3, 5))
    call.stream.reply(HEADERS, b"world", TRAILERS)
    wire.send(frames.RST_STREAM, 0, 5, RESET_CANCEL)

    assert reset.resets == 1
    assert [one.stream.receiver for one in (call, reset)] == [IGNORED, IGNORED]
    assert open_call.stream.receiver is open_call
