"""Headers: JSON as Java writes it and as fastjson accepts it, and the binary form, in both directions."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.codes import LANGUAGE_CODES, ResponseCode
from gantry_wire.command import Command, decode_command, next_opaque, oneway
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.frame import Frame, FrameReader, Serialization, split_frames
from gantry_wire.header import Header, decode_header, encode_binary_header, encode_json_header
from gantry_wire.limits import WireLimits

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
EXT = st.dictionaries(TEXT, TEXT, max_size=8)
JSON, BINARY = 0, 1


@st.composite
def headers(
    draw: st.DrawFn, *, code: st.SearchStrategy[int] = INT32, ext: st.SearchStrategy[dict[str, str]] = EXT
) -> Header:
    return Header(
        code=draw(code),
        opaque=draw(INT32),
        flag=draw(INT32),
        language=draw(st.sampled_from(sorted(LANGUAGE_CODES))),
        version=draw(st.integers(1, 32767)),
        remark=draw(st.none() | TEXT.filter(bool)),
        ext=draw(ext),
    )


@given(headers())
def test_json_header_round_trip(header: Header) -> None:
    """The JSON form is standard JSON without absent values, and decodes to the same header."""
    data = encode_json_header(header)

    assert decode_header(data, JSON) == header
    document = json.loads(data)
    assert ("remark" in document) == (header.remark is not None)
    assert ("extFields" in document) == bool(header.ext)


@given(headers(code=st.integers(-32768, 32767), ext=st.dictionaries(TEXT, TEXT.filter(bool), max_size=8)))
def test_binary_header_round_trip(header: Header) -> None:
    """The binary form decodes to the same header."""
    assert decode_header(encode_binary_header(header), BINARY) == header


def test_field_without_name_and_value_ends_a_binary_map() -> None:
    """Such a field, of six bytes, vanishes wherever it is; other bytes at the end are refused."""
    field, nothing = b"\0\x01a\0\0\0\x01x", bytes(6)

    for ext in (field + nothing, nothing + field, field + nothing + nothing):
        assert decode_header(binary_header(ext=ext), BINARY).ext == {"a": "x"}
    for ext in (field + nothing[1:], field + b"\0\0\0\0\0\1", field + nothing + b"\0"):
        with pytest.raises(RemoteProtocolError):
            decode_header(binary_header(ext=ext), BINARY)


def test_an_empty_value_does_not_survive_the_binary_form() -> None:
    """A length of 0 means null in the binary form, as in Java; names without a value vanish."""
    data = encode_binary_header(Header(code=1, version=1, ext={"a": "", "b": "x"}))

    assert decode_header(data, BINARY).ext == {"b": "x"}


@pytest.mark.parametrize("code", [32768, 200050, -32769])
def test_code_beyond_a_short_does_not_fit_the_binary_form(code: int) -> None:
    """POP's codes exist in JSON only; encoding one in binary is a local error."""
    with pytest.raises(LocalProtocolError, match=str(code)):
        encode_binary_header(Header(code=code))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"code":10,"extFields":{"a":"1"},"flag":0,"language":"JAVA","opaque":5,"version":399}', {"a": "1"}),
        (
            '{"code":10,"extFields":{"a":1,"b":true,"c":false,"d":null,"e":1.5}}',
            {"a": "1", "b": "true", "c": "false", "e": "1.5"},
        ),
        ('{"code":"10","opaque":"5"}', {}),
        ("{code:10,extFields:{a:1}}", {"a": "1"}),
        ("{'code':10,'extFields':{'a':'it\\'s'}}", {"a": "it's"}),
        ('{"code":10,"language":null,"extFields":null,"remark":null}', {}),
        ('{"code":10,"serializeTypeCurrentRPC":"JSON","unknown":{"deep":[1,2]}}', {}),
        (' \n{ "code" : 10 , "extFields" : { } } ', {}),
        ('{"code":10L,"extFields":{"a":5L}}', {"a": "5"}),
    ],
    ids=[
        "java",
        "unquoted-values",
        "quoted-numbers",
        "bare-keys",
        "single-quotes",
        "nulls",
        "unknown",
        "spaces",
        "suffix",
    ],
)
def test_json_is_accepted_as_by_fastjson(text: str, expected: dict[str, str]) -> None:
    """Numbers and booleans in the map, bare keys, nulls and unknown keys are read, as Java reads them."""
    header = decode_header(text.encode(), JSON)

    assert header.code == 10 and header.ext == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "10", "null", '"text"', '{"code":', '{"code":{}}', '{"code":true}', '{"code":"ten"}',
        '{"code":1e400}', '{"code":99999999999}', '{"code":1,"opaque":-2147483649}', '{"code":1,"extFields":[]}',
        '{"code":1,"extFields":{"a":{}}}', '{"code":1,"extFields":{"a":[1]}}', '{"code":1} trailing', "\xff\xfe",
        '{"code":1,"extFields":' + "[" * 5000, "{" * 5000, '{"a":"unfinished', '{"a":"bad \\q escape"}',
    ],
)  # fmt: skip
def test_invalid_header_is_a_protocol_error(text: str) -> None:
    """Damaged JSON raises RemoteProtocolError, and no other exception."""
    with pytest.raises(RemoteProtocolError):
        decode_header(text.encode("latin-1"), JSON)


def test_too_many_fields_are_refused_in_both_forms() -> None:
    """A map beyond the limit is refused in either form."""
    limits = WireLimits(ext_fields_max=10)
    header = Header(code=1, ext={f"n{number}": "v" for number in range(11)})

    for data, serialization in ((encode_json_header(header), JSON), (encode_binary_header(header), BINARY)):
        with pytest.raises(RemoteProtocolError, match="limit of 10"):
            decode_header(data, serialization, limits)


def binary_header(*, remark_bytes: int = 0, ext: bytes = b"", ext_bytes: int | None = None, language: int = 0) -> bytes:
    fixed = struct.pack(">hBhiii", 10, language, 399, 5, 0, remark_bytes)
    return fixed + struct.pack(">i", len(ext) if ext_bytes is None else ext_bytes) + ext


@pytest.mark.parametrize(
    "data",
    [
        b"",
        binary_header()[:16],
        binary_header()[:20],
        binary_header(remark_bytes=-1),
        binary_header(remark_bytes=1000),
        binary_header(ext_bytes=-1),
        binary_header(ext_bytes=1),
        binary_header(ext=b"\x00"),
        binary_header(ext=b"\x00\x05ab"),
        binary_header(ext=b"\xff\xffab"),
        binary_header(ext=b"\x00\x01a\x7f\xff\xff\xff"),
        binary_header(ext=b"\x00\x01a\xff\xff\xff\xff"),
        binary_header(ext=b"\x00\x01\xff\x00\x00\x00\x01v"),
        binary_header(ext=b"\x00\x01a\x00\x00\x00\x01\xff"),
    ],
    ids=["empty", "cut", "no-map", "remark-negative", "remark-long", "map-negative", "map-long", "name-cut",
         "name-long", "name-huge", "value-long", "value-negative", "name-not-utf8", "value-not-utf8"],
)  # fmt: skip
def test_invalid_lengths_in_a_binary_header_are_refused(data: bytes) -> None:
    """Every length is checked against the remaining bytes."""
    with pytest.raises(RemoteProtocolError):
        decode_header(data, BINARY)


def test_an_unknown_language_is_other() -> None:
    """A language unknown to this version is no error."""
    assert decode_header(binary_header(language=99), BINARY).language == "OTHER"


@given(st.binary(max_size=120), st.sampled_from([JSON, BINARY]))
def test_arbitrary_bytes_raise_only_protocol_errors(data: bytes, serialization: int) -> None:
    """Decoding any bytes gives a header or RemoteProtocolError."""
    try:
        header = decode_header(data, serialization)
    except RemoteProtocolError:
        return
    assert isinstance(header.code, int)


@given(st.text(alphabet="{}[]\":,'\\0123456789.eE+-abntrufls \x00é", max_size=60))
def test_malformed_json_raises_only_protocol_errors(text: str) -> None:
    """Texts similar to JSON give a header or RemoteProtocolError."""
    try:
        decode_header(text.encode(), JSON)
    except RemoteProtocolError:
        return


@given(headers(code=st.integers(-32768, 32767)), st.binary(max_size=50), st.sampled_from(list(Serialization)))
def test_command_round_trips_through_a_stream(header: Header, body: bytes, serialization: Serialization) -> None:
    """A command that is encoded and read from a stream is unchanged, in either serialization."""
    header.ext = {name: value for name, value in header.ext.items() if value}
    command = Command(
        code=header.code,
        opaque=header.opaque,
        flag=header.flag,
        language=header.language,
        version=header.version,
        remark=header.remark,
        ext=header.ext,
        body=body,
    )

    (frame,) = FrameReader().feed(command.encode(serialization))

    assert decode_command(frame) == command


def test_reply_has_the_id_of_its_request() -> None:
    """A reply has its request's id and the reply flag, and is not one-way."""
    request = Command(code=10, ext={"a": "b"})

    reply = request.reply(1, "no")

    assert (reply.opaque, reply.code, reply.remark) == (request.opaque, 1, "no")
    assert reply.is_reply and not reply.is_oneway and not request.is_reply
    assert oneway(15, {}).is_oneway


def test_answer_that_fits_no_frame_becomes_an_error() -> None:
    """A client closes its connection at a larger frame; the limit counts the whole frame, its length field included."""
    reply = Command(code=1, opaque=77).reply(body=b"x" * 1000)
    whole = reply.encode()

    assert reply.encode_reply(WireLimits(frame_bytes_max=len(whole))) == whole
    [(frame, _)] = split_frames(reply.encode_reply(WireLimits(frame_bytes_max=len(whole) - 1)), WireLimits())
    error = decode_command(frame)
    assert (error.code, error.opaque, error.is_reply) == (ResponseCode.SYSTEM_ERROR, 77, True)
    assert error.remark is not None and "request less" in error.remark and error.body == b""


def test_request_ids_differ() -> None:
    """Each request has its own id, a non-negative 32-bit integer."""
    numbers = [next_opaque() for _ in range(1000)]

    assert len(set(numbers)) == 1000 and all(0 <= number <= 0x7FFFFFFF for number in numbers)


def test_a_header_in_a_frame_is_decoded_by_the_frames_type() -> None:
    """JSON bytes in a frame marked as binary are refused, and vice versa."""
    for serialization, data in ((BINARY, b'{"code":10}'), (JSON, binary_header())):
        with pytest.raises(RemoteProtocolError):
            decode_command(Frame(serialization, data, b""))
