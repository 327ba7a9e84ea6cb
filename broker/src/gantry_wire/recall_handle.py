"""The handle by which a producer recalls a timer message: RocketMQ's format, version 1.

    base64url("v1" " " topic " " broker name " " time in ms " " unique id)

The time is the delivery time as the broker has stored it; a producer only returns it. None of the parts has a space.
"""

import base64
import binascii
from typing import Final, NamedTuple, Self

from gantry_wire.errors import RemoteProtocolError

VERSION: Final = "v1"
HANDLE_BYTES_MAX: Final = 4096
"""The limit of a handle that is decoded. One with the longest names has less than 1000 bytes."""
PARTS_MIN: Final = 5
"""The number of parts of version 1; RocketMQ ignores further ones."""
INVALID: Final = "recall handle is invalid"
"""RocketMQ's text for a handle that it cannot decode."""


class RecallHandle(NamedTuple):
    """The decoded handle of one timer message."""

    topic: str
    broker_name: str
    deliver_ms: str
    """The delivery time, as text: a handle of another program may have no number there."""
    unique_id: str

    def encode(self) -> str:
        """Return the handle as it is in the reply to a send."""
        return base64.urlsafe_b64encode(" ".join((VERSION, *self)).encode("utf-8", "surrogatepass")).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Decode a handle. Raises RemoteProtocolError, with RocketMQ's text, for one that is not of this format."""
        if not text or len(text) > HANDLE_BYTES_MAX:
            raise RemoteProtocolError(INVALID)
        try:
            data = base64.b64decode(text.encode("ascii").ljust(-(-len(text) // 4) * 4, b"="), b"-_", validate=True)
            parts = data.decode("utf-8").split(" ")
        except (UnicodeError, binascii.Error, ValueError) as error:
            raise RemoteProtocolError(INVALID) from error
        if parts[0] != VERSION or len(parts) < PARTS_MIN:
            raise RemoteProtocolError(INVALID)
        return cls(*parts[1:PARTS_MIN])
