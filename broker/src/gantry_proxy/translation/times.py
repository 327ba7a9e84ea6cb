"""Times of protocol buffers as milliseconds, and back. A time outside of the range of milliseconds is refused."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

_MS_MAX = (1 << 53) - 1
"""The greatest number of milliseconds: far beyond the years that protocol buffers allow."""


def duration_ms(duration: Duration) -> int:
    """Return a duration in milliseconds, towards zero, at most ``_MS_MAX``."""
    return _limited(duration.seconds * 1000 + int(duration.nanos / 1_000_000))


def timestamp_ms(timestamp: Timestamp) -> int:
    """Return a point in time in milliseconds since 1970."""
    return _limited(timestamp.seconds * 1000 + timestamp.nanos // 1_000_000)


def to_duration(ms: int) -> Duration:
    """Return milliseconds as a duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def to_timestamp(ms: int) -> Timestamp:
    """Return milliseconds since 1970 as a point in time."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def _limited(ms: int) -> int:
    return ms if -_MS_MAX <= ms <= _MS_MAX else max(-_MS_MAX, min(_MS_MAX, ms))
