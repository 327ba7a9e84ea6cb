"""The texts that clients keep and return: receipts of messages, and ids of open transactions.

    receipt         startOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgOffset physicalOffset
    transaction id  T1. and, in base64, the fields: uniqueId brokerName halfOffset physicalOffset

Both contain all that a later call needs, so any replica of the proxy can serve it. Receipts are those of RocketMQ's
proxy. Its transactions need the replica that sent the half message; ours do not. Neither text is signed: brokers
compare them with what they have stored, and a call needs the permissions of the topic and group that it names. Brokers
do not compare the physical offset of a receipt: code that uses it must compare the message that is stored there.
"""

import base64
import binascii
from typing import Final, NamedTuple

from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.pop_receipts import Receipt, ReceiptError, parse_receipt

_TRANSACTION_PREFIX: Final = "T1."
_TRANSACTION_CHARACTERS_MAX: Final = 2048
RECALL_HANDLE_CHARACTERS_MAX: Final = 2048
"""The longest recall handle: one with the longest names has fewer than 1,000 characters."""
_LONG_MAX: Final = (1 << 63) - 1
_RECEIPT_PARTS: Final = 9


class MessageReceipt(NamedTuple):
    """The receipt of one delivery of a message."""

    text: str
    receipt: Receipt
    physical_offset: int
    """The offset of the message in the log of its broker; -1 if the receipt does not have it."""

    @property
    def visible_at_ms(self) -> int:
        """When the message is delivered again, by the clock of its broker."""
        return self.receipt.pop_time_ms + self.receipt.invisible_ms


def with_physical_offset(receipt: str, physical_offset: int) -> str:
    """Return the receipt that a client gets for a message at this offset of its broker's log."""
    return f"{receipt} {physical_offset}"


def read_receipt(text: str, now_ms: int) -> MessageReceipt:
    """Return the receipt of a call. Raises ProxyError if it is malformed or has expired."""
    try:
        receipt = parse_receipt(text)
    except ReceiptError as error:
        raise ProxyError(pb.INVALID_RECEIPT_HANDLE, str(error)) from error
    if receipt.queue_id < 0 or receipt.queue_offset < 0:
        raise ProxyError(pb.INVALID_RECEIPT_HANDLE, f"the receipt {text[:128]!r} is incomplete")
    parts = text.count(" ") + 1
    last = text[text.rfind(" ") + 1 :] if parts == _RECEIPT_PARTS else ""
    is_number = last.isascii() and last.isdigit() and len(last) <= 19 and int(last) <= _LONG_MAX
    found = MessageReceipt(text, receipt, int(last) if is_number else -1)
    if parts > _RECEIPT_PARTS or (last not in ("", "-1") and not is_number):
        raise ProxyError(pb.INVALID_RECEIPT_HANDLE, f"the receipt {text[:128]!r} has an invalid end")
    if found.visible_at_ms <= now_ms:
        raise ProxyError(
            pb.INVALID_RECEIPT_HANDLE,
            f"the receipt expired {now_ms - found.visible_at_ms} ms ago: the message is delivered again",
        )
    return found


class OpenTransaction(NamedTuple):
    """Where the half message of a transaction is."""

    unique_id: str
    broker_name: str
    half_offset: int
    """Its offset in the queue of half messages."""

    physical_offset: int
    """Its offset in the log of the broker."""


def write_transaction_id(transaction: OpenTransaction) -> str:
    """Return the transaction id that a client gets."""
    text = " ".join(map(str, transaction))
    return _TRANSACTION_PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_transaction_id(text: str) -> OpenTransaction:
    """Return the transaction of a call. Raises ProxyError if the id was not issued by a Gantry proxy."""
    data = text.removeprefix(_TRANSACTION_PREFIX)
    if data == text or len(text) > _TRANSACTION_CHARACTERS_MAX:
        raise ProxyError(pb.INVALID_TRANSACTION_ID, f"{text[:128]!r} is not the id of a transaction of this proxy")
    try:
        parts = base64.b64decode(data + "=" * (-len(data) % 4), altchars=b"-_", validate=True).decode().split(" ")
        unique_id, broker_name, half_offset, physical_offset = parts
        transaction = OpenTransaction(unique_id, broker_name, int(half_offset), int(physical_offset))
    except (binascii.Error, ValueError) as error:
        raise ProxyError(pb.INVALID_TRANSACTION_ID, f"{text[:128]!r} is not the id of a transaction") from error
    if not (0 <= transaction.half_offset <= _LONG_MAX and 0 <= transaction.physical_offset <= _LONG_MAX):
        raise ProxyError(pb.INVALID_TRANSACTION_ID, f"{text[:128]!r} has an impossible offset")
    return transaction


def recall_broker(handle: str) -> str:
    """Return the name of the broker that has the message of a recall handle. Raises ProxyError.

    A handle is, in base64: `v1`, the topic, the broker, the delivery time, the message id.
    """
    if len(handle) > RECALL_HANDLE_CHARACTERS_MAX:
        raise ProxyError(
            pb.BAD_REQUEST,
            f"the recall handle has {len(handle)} characters, at most {RECALL_HANDLE_CHARACTERS_MAX} are allowed",
        )
    try:
        data = base64.b64decode(handle + "=" * (-len(handle) % 4), altchars=b"-_").decode()
        version, _, broker_name, _, _ = data.split(" ")
    except (binascii.Error, ValueError) as error:
        raise ProxyError(pb.BAD_REQUEST, f"{handle[:128]!r} is not the recall handle of a message") from error
    if version != "v1":
        raise ProxyError(pb.BAD_REQUEST, f"the recall handle has version {version[:16]!r}, expected v1")
    return broker_name
