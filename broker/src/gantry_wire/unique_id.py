"""The unique id that a client gives a message: 32 hex digits, or 56 if the client has an IPv6 address.

| address 4 (or 16) | process 2 | salt 4 | ms since the start of the month 4 | counter 2 |      bytes
"""

import os
from datetime import UTC, datetime
from itertools import count
from typing import final


@final
class UniqueIds:
    """A generator of unique ids for one client. It is not thread-safe."""

    def __init__(self, address: bytes, *, salt: int, process: int | None = None) -> None:
        process_number = os.getpid() if process is None else process
        self._prefix = (
            (address + (process_number & 0xFFFF).to_bytes(2, "big") + (salt & 0xFFFFFFFF).to_bytes(4, "big"))
            .hex()
            .upper()
        )
        self._counter = count()
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return the next id, at wall-clock time `now_ms`."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._enter_month(now_ms)
        return f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}{next(self._counter) & 0xFFFF:04X}"

    def _enter_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(following.timestamp() * 1000)
