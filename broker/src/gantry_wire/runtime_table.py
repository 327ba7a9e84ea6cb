"""The runtime table, a broker's reply to GET_BROKER_RUNTIME_INFO: counters and facts as text, by RocketMQ's names."""

from collections.abc import Mapping


def log_range(table: Mapping[str, str]) -> tuple[int, int]:
    """Return ``[begin, end)`` of the broker's log. Raises ValueError if the table has no valid range.

    RocketMQ reports -1 for a log without a file, which begins and ends at 0.
    """
    try:
        begin, end = (max(int(table[name]), 0) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("the broker's reply to GET_BROKER_RUNTIME_INFO has no range of its log") from error
    if begin > end:
        raise ValueError(f"the broker reports a log that begins at {begin} and ends before, at {end}")
    return begin, end
