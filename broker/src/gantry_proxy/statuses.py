"""The status of a call: its code, a text, and which error of a broker or of this proxy leads to which code.

A call of the service succeeds at the level of gRPC also if it is refused; the refusal is the status in the reply. gRPC
errors are left to what has no reply of this protocol: overload, a shutdown, a deadline, a stream.
"""

from collections.abc import Sequence
from typing import Final, final

from gantry_client import errors as client_errors
from gantry_client.errors import BrokerRefused, ClientError, InvalidMessage, NoMaster, NoRoute, RequestTimeout
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_wire.codes import ResponseCode
from gantry_wire.pop_receipts import ReceiptError

TEXT_CHARACTERS_MAX: Final = 1024
"""The limit of a status text: it may quote what a client sent."""


@final
class ProxyError(Exception):
    """A call is refused with this code and text; the client should correct the call, or retry as its SDK decides."""

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


OK: Final = pb.Status(code=pb.OK, message="OK")

_FLOW_CONTROL: Final = 215
"""The code with which RocketMQ's brokers limit a client."""
_CODES: Final[dict[int, pb.Code]] = {
    ResponseCode.SUCCESS: pb.OK,
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    _FLOW_CONTROL: pb.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: pb.FORBIDDEN,
    ResponseCode.MESSAGE_ILLEGAL: pb.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SERVICE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
}
"""The codes of brokers. RocketMQ's proxy reports most of them as internal errors; SDKs retry after those, too, but a
person who reads the code learns nothing."""


def status(code: pb.Code, text: str = "") -> pb.Status:
    """Return a status; without a text, it has the name of the code."""
    found = pb.Status()
    found.code, found.message = code, text[:TEXT_CHARACTERS_MAX] or pb.Code.Name(code)
    return found


def status_of(error: Exception) -> pb.Status:
    """Return the status of a call that ended with this error. Raises it if it is a bug of the proxy."""
    if isinstance(error, ProxyError):
        return status(error.code, error.text)
    if isinstance(error, ReceiptError):
        return status(pb.INVALID_RECEIPT_HANDLE, str(error))
    if not isinstance(error, ClientError):
        raise error
    return status(_code_of(error), str(error))


def code_of_broker(code: int) -> pb.Code:
    """Return the code for a broker's response code."""
    return _CODES.get(code, pb.INTERNAL_SERVER_ERROR)


def _code_of(error: ClientError) -> pb.Code:
    if isinstance(error, BrokerRefused):
        return code_of_broker(error.code)
    if isinstance(error, NoMaster):
        return pb.HA_NOT_AVAILABLE
    if isinstance(error, NoRoute):
        return pb.TOPIC_NOT_FOUND
    if isinstance(error, RequestTimeout):
        return pb.PROXY_TIMEOUT
    if isinstance(error, InvalidMessage):
        return pb.BAD_REQUEST
    if isinstance(error, client_errors.Unavailable):
        return pb.HA_NOT_AVAILABLE
    return pb.INTERNAL_SERVER_ERROR


def joint_status(entries: Sequence[pb.Status], empty: str) -> pb.Status:
    """Return the status of a reply with one status for each of its entries; ``empty`` is the text without any."""
    if len(entries) == 1 and entries[0] is OK:
        return OK
    codes = {entry.code for entry in entries}
    if not codes:
        return status(pb.INTERNAL_SERVER_ERROR, empty)
    return status(pb.MULTIPLE_RESULTS) if len(codes) > 1 else status(codes.pop())
