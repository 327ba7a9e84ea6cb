"""Limits of frames, headers, bodies, records and names.

A peer decides how many bytes it sends, but not how many are kept: the sizes of a frame and of its header are checked on
their length fields, before memory is allocated for the bytes. The other limits apply to bytes that a frame has brought,
and that of a decompressed body during the decompression. Callers may replace all limits but those of properties and
names.
"""

from dataclasses import dataclass

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""RocketMQ's default limit of a frame, by its length field."""
HEADER_BYTES_MAX = 1024 * 1024
"""Limit of the header of a frame."""
EXT_FIELDS_MAX = 1024
"""Limit of the fields in a header."""
BODY_INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""Limit of a body after its decompression."""
PROPERTIES_BYTES_MAX = 32767
"""The longest properties that the length field of a record can express."""
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""RocketMQ's default limit of a body."""
TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 255
"""RocketMQ's limit of a group's name."""
RETRY_TOPIC_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class WireLimits:
    """The limits of one connection. The defaults are those of a RocketMQ 5 broker where it has one."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """The size of a frame with its length field: 16 MiB, beyond which Java's decoder closes the connection."""

    header_bytes_max: int = HEADER_BYTES_MAX
    """The size of a header: 1 MiB. Java has no such limit. The longest properties (32767 bytes) fit, even if JSON
    escapes each of their bytes as six."""

    ext_fields_max: int = EXT_FIELDS_MAX
    """The number of entries in a header's map: 1024. The largest real request has about thirty."""


DEFAULT_LIMITS = WireLimits()
