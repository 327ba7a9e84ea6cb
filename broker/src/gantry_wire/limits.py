"""Every bound that the wire layer enforces, in one frozen value.

A peer decides how many bytes it sends, never how many we keep: each limit is checked on the length field itself,
before anything is allocated for it.
"""

from dataclasses import dataclass

FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = 1024 * 1024
EXT_FIELDS_MAX = 1024
BODY_INFLATED_BYTES_MAX = 64 * 1024 * 1024
PROPERTIES_BYTES_MAX = 32767
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 255
RETRY_TOPIC_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits of one connection. The defaults are those of a RocketMQ 5.3.3 broker where it has one."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """A whole frame with its length field; 16 MiB, what Java's decoder takes before it closes the connection."""

    header_bytes_max: int = HEADER_BYTES_MAX
    """One header; 1 MiB. Java has no limit of its own here; properties (32767 bytes) escaped to JSON fit six times."""

    ext_fields_max: int = EXT_FIELDS_MAX
    """Entries in one header's map; 1024. The largest real request has about thirty."""


DEFAULT_LIMITS = WireLimits()
