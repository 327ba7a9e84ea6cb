"""Frame headers: the JSON form that Java writes by default, and the compact ROCKETMQ form.

Both decode to the same `Header`. Values of the map are strings on the wire. Some clients send numbers or booleans,
which Java accepts, so Gantry does too. Replies are always JSON, as a Java server's are by default.
"""

import struct
from typing import Any, Final

import msgspec

from gantry_wire.codes import LANGUAGE_CODES, LANGUAGE_NAMES, PROTOCOL_VERSION
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.fastjson import loads as tolerant_loads
from gantry_wire.limits import DEFAULT_LIMITS, WireLimits

FLAG_RESPONSE: Final = 1
"""The bit of a reply."""
FLAG_ONEWAY: Final = 2
"""The bit of a request for which the peer sends no reply."""

_BINARY_FIXED: Final = struct.Struct(">hBhiii")
"""The fixed fields: code, language, version, opaque, flag, remark length."""
assert _BINARY_FIXED.size == 17
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">I")
"""The length of a value, read as unsigned: a negative length then exceeds every end."""

_LETTER_FIELD: Final = struct.Struct(">HBI")
"""A field with a name of one letter: the length of the name, the letter, the length of the value."""

_LETTERS: Final = tuple(map(chr, range(128)))
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


class Header(msgspec.Struct, kw_only=True, gc=False):
    """The content of a frame's header."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = "JAVA"
    version: int = 0
    remark: str | None = None
    ext: dict[str, str] = msgspec.field(default_factory=dict, name="extFields")
    """The fields of the request or reply, as texts."""


_STRICT: Final = msgspec.json.Decoder(Header)


def decode_header(data: bytes, serialization: int, limits: WireLimits = DEFAULT_LIMITS) -> Header:
    """Return the header that `data` holds. Raises RemoteProtocolError for an invalid header."""
    header = _decode_json(data) if serialization == 0 else _decode_binary(data, limits)
    if len(header.ext) > limits.ext_fields_max:
        raise RemoteProtocolError(
            f"a header with {len(header.ext)} fields exceeds the limit of {limits.ext_fields_max}"
        )
    return header


def _decode_json(data: bytes) -> Header:
    try:
        header = _STRICT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        header = _decode_loose_json(data)
    if not _INT_MIN <= header.code <= _INT_MAX or not _INT_MIN <= header.opaque <= _INT_MAX:
        raise RemoteProtocolError(
            f"a header's code {header.code} or opaque {header.opaque} does not fit a 32-bit integer"
        )
    return header


def _decode_loose_json(data: bytes) -> Header:
    """Decode JSON as fastjson accepts it: numbers, booleans and nulls as values, a null language, unquoted keys."""
    try:
        raw = tolerant_loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a header is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise RemoteProtocolError("a JSON header must be an object")
    ext = raw.get("extFields")
    if ext is None:
        ext = {}
    if not isinstance(ext, dict):
        raise RemoteProtocolError("extFields must be an object")
    try:
        return Header(
            code=_json_int(raw.get("code", 0)),
            opaque=_json_int(raw.get("opaque", 0)),
            flag=_json_int(raw.get("flag", 0)),
            version=_json_int(raw.get("version", 0)),
            language=str(raw.get("language") or "OTHER"),
            remark=None if raw.get("remark") is None else str(raw["remark"]),
            ext={str(name): _json_text(value) for name, value in ext.items() if value is not None},
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"a header field has the wrong type: {error}") from error


def _json_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not an integer")
    return int(value)


def _json_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise TypeError("a field is neither a text nor a number")


def _decode_binary(data: bytes, limits: WireLimits) -> Header:
    code, language, version, opaque, flag, remark, ext = decode_binary_parts(data, limits)
    return Header(
        code=code,
        opaque=opaque,
        flag=flag,
        language=LANGUAGE_NAMES.get(language, "OTHER"),
        version=version,
        remark=remark,
        ext=ext,
    )


def decode_binary_parts(data: bytes, limits: WireLimits) -> tuple[int, int, int, int, int, str | None, dict[str, str]]:
    """Return (code, language, version, opaque, flag, remark, map) of a binary header. Raises RemoteProtocolError."""
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_FIXED.unpack_from(data, 0)
        position = _BINARY_FIXED.size
        if not 0 <= remark_bytes <= len(data) - position - 4:
            raise RemoteProtocolError(f"a remark of {remark_bytes} bytes exceeds the end of its header")
        remark = data[position : position + remark_bytes].decode() if remark_bytes else None
        position += remark_bytes
        (ext_bytes,) = _INT.unpack_from(data, position)
        position += 4
        if not 0 <= ext_bytes <= len(data) - position:
            raise RemoteProtocolError(f"a map of {ext_bytes} bytes exceeds the end of its header")
        ext = _decode_binary_map(data, position, position + ext_bytes, limits)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a binary header is cut short or not UTF-8: {error}") from error
    return code, language, version, opaque, flag, remark, ext


def _decode_binary_map(data: bytes, position: int, end: int, limits: WireLimits) -> dict[str, str]:
    """Return the pairs of `data` in [position, end). Names of one letter, as in sends, are read in one step."""
    ext: dict[str, str] = {}
    unpack, unpack_length, letters, last = _LETTER_FIELD.unpack_from, _LENGTH.unpack_from, _LETTERS, end - 7
    fields_max = limits.ext_fields_max
    text = data.decode("latin-1")  # one character for each byte: ASCII text needs no further decoding
    while position <= last:
        name_bytes, letter, value_bytes = unpack(data, position)
        if name_bytes == 1 and letter < 128:
            name, start = letters[letter], position + 7
        else:
            name_end = position + 2 + name_bytes
            if name_end + 4 > end:
                raise RemoteProtocolError("a field's name exceeds the end of its map")
            name, start = text[position + 2 : name_end], name_end + 4
            if not name.isascii():
                name = data[position + 2 : name_end].decode()
            (value_bytes,) = unpack_length(data, name_end)
            if len(ext) > fields_max:  # names of one letter are few
                break
        position = start + value_bytes
        if value_bytes:
            value = text[start:position]
            ext[name] = value if value.isascii() else data[start:position].decode()
    # Up to 6 bytes are left, which may be a field without name and value.
    if len(ext) > fields_max:
        raise RemoteProtocolError(f"a header exceeds the limit of {fields_max} fields")
    if position > end:
        raise RemoteProtocolError("a field's value exceeds the end of its map")
    if position < end and data[position:end] != bytes(6):
        raise RemoteProtocolError("a field exceeds the end of its map")
    return ext


_ENCODER: Final = msgspec.json.Encoder()


def encode_json_header(header: Header) -> bytes:
    """Return a header as JSON, with keys in Java's order and without absent values."""
    document: dict[str, Any] = {"code": header.code}
    if header.ext:
        document["extFields"] = header.ext
    document["flag"] = header.flag
    document["language"] = header.language
    document["opaque"] = header.opaque
    if header.remark is not None:
        document["remark"] = header.remark
    document["serializeTypeCurrentRPC"] = "JSON"
    document["version"] = header.version or PROTOCOL_VERSION
    return _ENCODER.encode(document)


def encode_binary_header(header: Header) -> bytes:
    """Return a header in the ROCKETMQ form. Raises LocalProtocolError for a code or a name that does not fit it."""
    if not -32768 <= header.code <= 32767:
        raise LocalProtocolError(f"code {header.code} does not fit a binary header")
    parts: list[bytes] = []
    for name, value in header.ext.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        if len(name_bytes) > 32767:
            raise LocalProtocolError(
                f"a field's name of {len(name_bytes)} bytes does not fit a binary header: at most 32767 are allowed"
            )
        parts += (_SHORT.pack(len(name_bytes)), name_bytes, _INT.pack(len(value_bytes)), value_bytes)
    ext = b"".join(parts)
    remark = (header.remark or "").encode()
    language = LANGUAGE_CODES.get(header.language, LANGUAGE_CODES["OTHER"])
    fixed = _BINARY_FIXED.pack(
        header.code, language, header.version or PROTOCOL_VERSION, header.opaque, header.flag, len(remark)
    )
    return b"".join((fixed, remark, _INT.pack(len(ext)), ext))
