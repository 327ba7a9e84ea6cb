"""Header blocks: what other encoders write is decoded, and malformed blocks end the connection."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from gantry_proxy.http2 import hpack, huffman
from gantry_proxy.http2.frames import ErrorCode, Http2Error
from gantry_proxy.http2.hpack import TABLE_BYTES_MAX, HpackDecoder, encode


@pytest.fixture(autouse=True)
def table(speedups: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs on both paths."""
    monkeypatch.setattr(hpack, "_new_table", hpack.choose_table(speedups))


def huffman_encoded(text: str) -> bytes:
    """Return a text in the code, padded with ones."""
    bits = "".join(
        format(code, f"0{length}b") for code, length in (huffman.CODES[byte] for byte in text.encode("latin-1"))
    )
    bits += "1" * (-len(bits) % 8)
    return bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8))


def decoded(data: bytes) -> str:
    """Return the text of a Huffman code, as the value of a field."""
    length = len(data)
    size = (
        bytes((0x80 | length,))
        if length < 0x7F
        else b"\xff" + bytes(((length - 0x7F) & 0x7F | 0x80, (length - 0x7F) >> 7))
    )
    [(_, value)] = HpackDecoder().decode(b"\x00\x01n" + size + data)
    return value


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
        ("a8eb10649cbf", "no-cache"),
        ("25a849e95ba97d7f", "custom-key"),
        ("25a849e95bb8e8b4bf", "custom-value"),
        ("6402", "302"),
        ("aec3771a4b", "private"),
    ],
)
def test_codes_of_the_standard_are_read(data: str, text: str) -> None:
    """The examples of RFC 7541, appendix C."""
    assert decoded(bytes.fromhex(data)) == text
    assert huffman_encoded(text) == bytes.fromhex(data)


def test_every_text_survives_the_code() -> None:
    """All bytes, in any order, at any place in a byte."""
    choice = random.Random(7)
    for _ in range(300):
        text = "".join(chr(choice.randrange(256)) for _ in range(choice.randrange(0, 200)))
        assert decoded(huffman_encoded(text)) == text


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\x00", b"\xf1\xe3\xff\xff"], ids=["end", "zeros", "long padding"]
)
def test_malformed_code_is_refused(data: bytes) -> None:
    """The end of a text, a padding of zeros, and a padding of a whole byte."""
    with pytest.raises(Http2Error):
        decoded(data)


def test_requests_of_the_standard_are_read() -> None:
    """RFC 7541, C.4: three requests of one connection, each of which uses fields of those before."""
    decoder = HpackDecoder()
    first = decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"))
    second = decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf"))
    third = decoder.decode(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"))

    common = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
    assert first == common
    assert second == [*common, ("cache-control", "no-cache")]
    assert third == [
        (":method", "GET"), (":scheme", "https"), (":path", "/index.html"), (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ]  # fmt: skip


def test_oldest_fields_leave_a_full_table() -> None:
    """RFC 7541, C.5: the table has room for the newest fields only."""
    decoder = HpackDecoder()
    decoder.decode(b"\x3f\xe1\x01")  # 256 bytes
    decoder.decode(
        bytes.fromhex(
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
            "6e1768747470733a2f2f7777772e6578616d706c652e636f6d"
        )
    )
    assert decoder.decode(bytes.fromhex("4803333037c1c0bf")) == [
        (":status", "307"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ]  # fmt: skip
    assert decoder.decode(b"\xbe") == [(":status", "307")], "the oldest field, 302, had to leave"
    with pytest.raises(Http2Error):
        decoder.decode(b"\xc2")


def test_blocks_of_this_server_are_read() -> None:
    """Short and long texts, none of which enters the table."""
    fields = [("grpc-status", "0"), ("grpc-message", "x" * 126), ("a" * 127, "y" * 300), ("empty", "")]
    decoder = HpackDecoder()

    assert decoder.decode(encode([(name.encode(), value.encode()) for name, value in fields])) == fields
    assert decoder.table_bytes == 0


@pytest.mark.parametrize(
    "block",
    [
        b"\x80", b"\xbe", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x40", b"\x40\x05ab", b"\x00\x01a",
        b"\x40\x81\x00\x00", b"\x3f\xe1\xff\x7f", b"\x82\x20", b"\xff",
    ],
    ids=["index 0", "no such field", "huge number", "no name", "short text", "no value", "bad code", "large table",
         "late size", "cut number"],
)  # fmt: skip
def test_malformed_block_ends_the_connection(block: bytes) -> None:
    """The table of the client is unknown after that, so no later block could be read."""
    with pytest.raises(Http2Error) as caught:
        HpackDecoder().decode(block)

    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_block_that_repeats_a_field_is_limited() -> None:
    """A byte for each field must not become a large list."""
    with pytest.raises(Http2Error) as caught:
        HpackDecoder().decode(b"\x82" * 1_000)

    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_random_blocks_are_read_or_refused() -> None:
    """No bytes raise another error, and the table never grows beyond its size."""
    choice = random.Random(11)
    for _ in range(3_000):
        decoder = HpackDecoder()
        try:
            for _ in range(4):
                decoder.decode(choice.randbytes(choice.randrange(1, 60)))
        except Http2Error:
            pass
        assert decoder.table_bytes <= TABLE_BYTES_MAX


def test_static_table_has_the_fields_of_the_standard() -> None:
    """Some indexes of RFC 7541, appendix A."""
    assert len(hpack.STATIC) == 62
    assert [hpack.STATIC[index] for index in (1, 8, 16, 28, 31, 61)] == [
        (":authority", ""), (":status", "200"), ("accept-encoding", "gzip, deflate"), ("content-length", ""),
        ("content-type", ""), ("www-authenticate", ""),
    ]  # fmt: skip


def test_fields_are_found_by_any_index() -> None:
    """An index of several bytes begins at 127; the newest field has index 62."""
    decoder, added = HpackDecoder(), [(f"n{number}", "v") for number in range(90)]
    for name, value in added:
        decoder.decode(b"\x40" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode())

    newest_first = list(reversed(added))
    assert [decoder.decode(bytes((0x80 | 62 + place,))) for place in range(65)] == [[one] for one in newest_first[:65]]
    assert [decoder.decode(bytes((0xFF, place - 65))) for place in range(65, 90)] == [
        [one] for one in newest_first[65:]
    ]
    for beyond in (b"\xff\x19", b"\x80"):
        with pytest.raises(Http2Error):
            decoder.decode(beyond)
