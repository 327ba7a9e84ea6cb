"""Commands: one request or reply with its header fields and body, independent of its serialization."""

from itertools import count
from typing import Final, final

import msgspec

from gantry_wire.codes import PROTOCOL_VERSION, ResponseCode
from gantry_wire.frame import Frame, Serialization, encode_frame
from gantry_wire.header import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Header,
    decode_header,
    encode_binary_header,
    encode_json_header,
)
from gantry_wire.limits import DEFAULT_LIMITS, WireLimits

_OPAQUES: Final = count(1)


def next_opaque() -> int:
    """Return a request id that this process has not used recently."""
    return next(_OPAQUES) & 0x7FFFFFFF


@final
class Command(msgspec.Struct, kw_only=True, gc=False):
    """A request, or the reply to one. Both have the same `opaque`, the request id."""

    code: int
    """The request code, or in a reply the response code."""

    opaque: int = msgspec.field(default_factory=next_opaque)
    """The request id, by which a connection matches replies to requests."""

    flag: int = 0
    """Bits for a reply and for a one-way request."""

    ext: dict[str, str] = msgspec.field(default_factory=dict)
    """The fields of the header, as texts."""

    body: bytes = b""
    remark: str | None = None
    """A text for people, above all the reason of an error."""

    language: str = "PYTHON"
    version: int = PROTOCOL_VERSION
    """RocketMQ's number of the sender's version."""

    @property
    def is_reply(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        *,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> "Command":
        """Return the reply to this request."""
        return Command(code=int(code), opaque=self.opaque, flag=FLAG_RESPONSE, ext=ext or {}, body=body, remark=remark)

    def encode(self, serialization: Serialization = Serialization.JSON) -> bytes:
        """Return the bytes of the frame that carries this command."""
        header = Header(
            code=self.code,
            opaque=self.opaque,
            flag=self.flag,
            language=self.language,
            version=self.version,
            remark=self.remark,
            ext=self.ext,
        )
        encode = encode_json_header if serialization is Serialization.JSON else encode_binary_header
        return encode_frame(encode(header), self.body, serialization)

    def encode_reply(self, limits: WireLimits) -> bytes:
        """Return the frame of this reply. If it exceeds the limit of a frame, return the frame of an error instead.

        A client of RocketMQ closes its connection at a larger frame, and loses the replies that follow it.
        """
        data = self.encode()
        if len(data) <= limits.frame_bytes_max:
            return data
        remark = f"the reply has {len(data)} bytes, but a frame at most {limits.frame_bytes_max}; request less at once"
        return Command(code=int(ResponseCode.SYSTEM_ERROR), opaque=self.opaque, flag=self.flag, remark=remark).encode()


def oneway(code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """Return a request for which the peer sends no reply."""
    return Command(code=code, ext=ext, body=body, flag=FLAG_ONEWAY)


def decode_command(frame: Frame, limits: WireLimits = DEFAULT_LIMITS) -> Command:
    """Return the command that `frame` carries. Raises RemoteProtocolError for an invalid header."""
    header = decode_header(frame.header, frame.serialization, limits)
    return Command(
        code=header.code,
        opaque=header.opaque,
        flag=header.flag,
        ext=header.ext,
        body=frame.body,
        remark=header.remark,
        language=header.language,
        version=header.version,
    )
