"""Splits a byte stream into remoting frames and reads just enough of a header to name the frame.

    total 4 | type 1 | header length 3 | header | body        total counts all bytes after itself

Independent of `gantry_wire`: golden frames check that package, so it must not choose or name them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
SERIALIZATIONS = ("json", "binary")
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON")

REQUEST_NAMES = {
    10: "send-message", 11: "pull-message", 12: "query-message", 14: "query-consumer-offset",
    15: "update-consumer-offset", 17: "update-and-create-topic",
    18: "update-and-create-topics", 21: "get-all-topic-config",
    25: "update-broker-config", 26: "get-broker-config", 28: "get-broker-runtime-info",
    29: "search-offset-by-timestamp", 30: "get-max-offset", 31: "get-min-offset",
    32: "get-earliest-message-store-time", 33: "view-message-by-id", 34: "heart-beat", 35: "unregister-client",
    36: "consumer-send-message-back", 37: "end-transaction", 38: "get-consumer-list-by-group",
    39: "check-transaction-state", 40: "notify-consumer-ids-changed", 41: "lock-batch-queues",
    42: "unlock-batch-queues", 43: "get-all-consumer-offset", 45: "get-all-delay-offset",
    46: "check-client-config", 60: "get-timer-check-point", 61: "get-timer-metrics", 100: "put-kv-config",
    101: "get-kv-config", 102: "delete-kv-config", 103: "register-broker", 104: "unregister-broker",
    105: "get-route-by-topic", 106: "get-cluster-info", 200: "update-and-create-group",
    201: "get-all-group-config", 202: "get-topic-stats", 203: "get-consumer-connections",
    204: "get-producer-connections", 205: "wipe-write-permission", 206: "get-all-topics",
    207: "delete-group", 208: "get-consume-stats", 215: "delete-topic-in-broker",
    216: "delete-topic-in-name-server", 219: "get-kv-list", 220: "reset-consumer-offset-in-client",
    221: "get-consumer-status-from-client", 222: "reset-consumer-offset", 223: "get-consumer-status",
    224: "get-topics-by-cluster",
    225: "update-and-create-groups", 300: "query-who-consumes-topic", 303: "query-consume-time-span",
    304: "get-system-topics-from-name-server", 305: "get-system-topics-from-broker",
    306: "clean-expired-consume-queue", 307: "get-consumer-running-info", 309: "consume-message-directly",
    310: "send-message-v2", 314: "clone-group-offset", 315: "view-broker-stats", 319: "get-name-server-config",
    320: "send-batch-message", 321: "query-consume-queue", 322: "query-data-version", 324: "send-reply",
    325: "send-reply-v2", 326: "push-reply-to-client", 327: "add-write-permission", 343: "query-topics-of-group",
    345: "query-subscription", 351: "get-topic-config", 352: "get-group-config", 361: "lite-pull-message",
    400: "query-assignment", 401: "set-message-request-mode", 402: "get-all-message-request-modes",
    901: "get-broker-member-group", 907: "get-broker-ha-status", 200050: "pop-message", 200051: "ack-message",
    200053: "change-message-invisible-time", 200054: "notification",
    200151: "batch-ack-message",
}  # fmt: skip


@dataclass(frozen=True)
class WireFrame:
    """One frame as it was on the wire, and the fields of its header."""

    raw: bytes
    serialization: str
    code: int
    flag: int
    opaque: int
    language: str
    version: int
    remark: str
    fields: dict[str, str]
    body: bytes

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)


class Splitter:
    """Takes bytes as they arrive and yields complete frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[WireFrame]:
        self._buffer += data
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                return
            raw = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield parse(raw)


def parse(raw: bytes) -> WireFrame:
    """Parse the bytes of one complete frame."""
    header_end = 8 + int.from_bytes(raw[5:8], "big")
    header, body = raw[8:header_end], raw[header_end:]
    if raw[4] == 0:
        found: dict[str, Any] = json.loads(header)
        return WireFrame(
            raw=raw,
            serialization="json",
            code=found["code"],
            flag=found["flag"],
            opaque=found["opaque"],
            language=found["language"],
            version=found["version"],
            remark=str(found.get("remark") or ""),
            fields=dict(found.get("extFields") or {}),
            body=body,
        )
    code, language, version, opaque, flag, remark_length = struct.unpack_from(">HBHiii", header)
    position = 17 + remark_length
    end = position + 4 + int.from_bytes(header[position : position + 4], "big")
    return WireFrame(
        raw=raw,
        serialization="binary",
        code=code,
        flag=flag,
        opaque=opaque,
        language=LANGUAGES[language] if language < len(LANGUAGES) else str(language),
        version=version,
        remark=header[17:position].decode(),
        fields=dict(_pairs(header, position + 4, end)),
        body=body,
    )


def _pairs(header: bytes, position: int, end: int) -> Iterator[tuple[str, str]]:
    while position < end:
        key_length = int.from_bytes(header[position : position + 2], "big")
        key = header[position + 2 : position + 2 + key_length].decode()
        position += 2 + key_length
        value_length = int.from_bytes(header[position : position + 4], "big")
        yield key, header[position + 4 : position + 4 + value_length].decode()
        position += 4 + value_length
