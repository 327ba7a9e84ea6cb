"""The frames of usual pulls: the request decoded in one step, and the reply with messages made from a template.

    | total | type, header length | {"code":11,"extFields":{...}, ... |              ---> PullRequest
    | total | type, header length | {"code":0,"extFields":{...}, ...  | records |    <--- encode_found, records

The results are those of the general path (`gantry_wire.command`), byte for byte. Only a header in the usual form is
decoded here: JSON, code 11 first, fields of the right types. Any other takes the general path, which decides about it.
The records follow the header as a part of their own, so that they are not copied into a frame.
"""

from typing import Annotated, Final

import msgspec

from gantry_wire import Command, RequestCode
from gantry_wire.codes import PROTOCOL_VERSION
from gantry_wire.commands.fields import Int32
from gantry_wire.commands.pull import PULL_PREFIX, PullMessage
from gantry_wire.frame import FRAME_HEAD, Frame
from gantry_wire.header import FLAG_ONEWAY, FLAG_RESPONSE
from gantry_wire.limits import EXT_FIELDS_MAX

PULL_HEADER_BYTES_MAX: Final = 6 * EXT_FIELDS_MAX
"""A longer JSON header may exceed the limit of fields, which only the general path counts: `"":"",` has 6 bytes."""

_PULL: Final = int(RequestCode.PULL_MESSAGE)


class PullRequest(msgspec.Struct, kw_only=True, gc=False):
    """The header of a JSON pull, decoded in one step."""

    code: Annotated[int, msgspec.Meta(ge=_PULL, le=_PULL)]
    opaque: Int32
    flag: int = 0
    version: int = 0
    """Only checked: the general path refuses a version that is no number."""

    fields: PullMessage = msgspec.field(name="extFields")

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def to_command(self) -> Command:
        """Return the request without its fields, for a reply that is made in the general way."""
        return Command(code=self.code, opaque=self.opaque, flag=self.flag)


_decode: Final = msgspec.json.Decoder(PullRequest, strict=False).decode

_FOUND: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d","minOffset":"%%d","maxOffset":"%%d"},'
    b'"flag":1,"language":"PYTHON","opaque":%%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":%d}'
) % PROTOCOL_VERSION
"""The header of a reply with messages, filled by (suggested broker, next, first and last offset, opaque)."""


FOUND_HEAD_BYTES_MAX: Final = 512
"""More than the head and the header of such a reply ever have."""


def decode_pull(frame: Frame) -> PullRequest | None:
    """Return the decoded header of a pull; None for any other request, and for a pull in an unusual form."""
    header = frame.header
    if frame.serialization or not header.startswith(PULL_PREFIX) or len(header) > PULL_HEADER_BYTES_MAX:
        return None
    try:
        request = _decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if request.flag & FLAG_RESPONSE else request


def encode_found(broker_id: int, next_offset: int, first: int, last: int, opaque: int, body_bytes: int) -> bytes:
    """Return the frame of a reply with messages, without its body, which has ``body_bytes``."""
    header = _FOUND % (broker_id, next_offset, first, last, opaque)
    return FRAME_HEAD.pack(4 + len(header) + body_bytes, len(header)) + header
