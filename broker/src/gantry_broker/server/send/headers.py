"""The headers of plain sends, each decoded in one step by the fast paths of `send_path` and `signed_sends`.

    code 310, JSON              SendV2Header        Java, C++, Rust, Node
    code 10, JSON               SendV1Header        Go
    codes 10 and 310, binary    BinaryHeader
    code 310, JSON, signed      SignedHeader        with access control on

A header that does not fit its type is no error: the request takes the slow path.
"""

from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from gantry_wire import RequestCode
from gantry_wire.commands.fields import Int32
from gantry_wire.commands.send import SendMessage, SendMessageV2
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.header import decode_binary_parts
from gantry_wire.limits import EXT_FIELDS_MAX, WireLimits
from gantry_wire.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

SEND_V2_PREFIX: Final = b'{"code":%d,' % RequestCode.SEND_MESSAGE_V2
SEND_V1_PREFIX: Final = b'{"code":%d,' % RequestCode.SEND_MESSAGE
PLAIN_HEADER_BYTES_MAX: Final = 6 * EXT_FIELDS_MAX
"""A longer JSON header may exceed the limit of fields, which only the slow path counts: `"":"",` has 6 bytes."""


class SendV2Header(msgspec.Struct, kw_only=True, gc=False):
    """The header of a JSON send, decoded in one step."""

    opaque: Int32
    fields: SendMessageV2 = msgspec.field(name="extFields")
    flag: int = 0


class SendV1Header(msgspec.Struct, kw_only=True, gc=False):
    """The header of a JSON send with long field names, code 10, which Go's client sends."""

    opaque: Int32
    fields: SendMessage = msgspec.field(name="extFields")
    flag: int = 0


class PlainFields(Protocol):
    """The fields of a send that `SendPath.put_send` needs.

    `SendMessage`, `SendMessageV2` and `SignedFields` have them.
    """

    @property
    def queue_id(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def properties(self) -> str | None: ...


class BinaryHeader(NamedTuple):
    """The decoded header of a binary send."""

    opaque: int
    fields: SendMessage | SendMessageV2
    flag: int


class PlainRequest(Protocol):
    """The parts of a decoded header that `SendPath.put_send` needs."""

    @property
    def opaque(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def fields(self) -> PlainFields: ...


Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""A number of 31 bits that is not negative."""
Moment = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A non-negative number that is sent as text in Java's format: the signed content is rebuilt from its value."""


class SignedFields(
    msgspec.Struct,
    kw_only=True,
    gc=False,
    forbid_unknown_fields=True,
    rename={
        "access_key": ACCESS_KEY,
        "signature": SIGNATURE,
        "token": SECURITY_TOKEN,
        **{info.name: info.encode_name for info in msgspec.structs.fields(SendMessageV2)},
    },
):
    """The fields of a signed send as signed texts, with the field names of `SendMessageV2`."""

    access_key: str
    signature: str
    token: str = ""
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: str
    queue_id: Number
    sys_flag: Number
    born_timestamp: Moment
    flag: Number
    properties: str
    reconsume_times: str = ""
    unit_mode: str = ""
    max_reconsume_times: str = ""
    batch: str = ""
    broker_name: str = ""


class SignedHeader(msgspec.Struct, kw_only=True, gc=False):
    """The header of a signed JSON send, decoded in one step. Only ``fields`` are signed."""

    opaque: Int32
    fields: SignedFields = msgspec.field(name="extFields")
    flag: int = 0


decode_send: Final = msgspec.json.Decoder(SendV2Header, strict=False).decode
decode_send_v1: Final = msgspec.json.Decoder(SendV1Header, strict=False).decode
BINARY_SENDS: Final[dict[bytes, type[SendMessage] | type[SendMessageV2]]] = {
    RequestCode.SEND_MESSAGE.to_bytes(2, "big"): SendMessage,
    RequestCode.SEND_MESSAGE_V2.to_bytes(2, "big"): SendMessageV2,
}
"""The type of the fields of a binary send, by the code at the beginning of its header."""
decode_signed: Final = msgspec.json.Decoder(SignedHeader, strict=False).decode


def decode_any_send(
    serialization: int, header: bytes, limits: WireLimits
) -> SendV2Header | SendV1Header | BinaryHeader | None:
    """Return the decoded header of a send of any form; None if it is no send, or does not fit its type."""
    try:
        if serialization:
            kind = BINARY_SENDS.get(header[:2])
            if kind is None:
                return None
            _, _, _, opaque, flag, _, ext = decode_binary_parts(header, limits)
            return BinaryHeader(opaque, msgspec.convert(ext, kind, strict=False), flag)
        if len(header) > PLAIN_HEADER_BYTES_MAX:
            return None
        if header.startswith(SEND_V1_PREFIX):
            return decode_send_v1(header)
        return decode_send(header) if header.startswith(SEND_V2_PREFIX) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RemoteProtocolError):
        return None
