"""A clock that a test controls."""

from __future__ import annotations

from typing import final


@final
class FakeClock:
    """All clocks of the port. ``advance`` moves all of them; ``jump_wall`` only the wall clock, as an administrator or
    NTP does.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 1_000
        self._boot_ms = 500_000
        self._boots = 1

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def advance(self, duration_ms: int) -> None:
        """Advance all clocks by the duration."""
        assert duration_ms >= 0, "time does not go backward; the wall clock may: jump_wall"
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms
        self._boot_ms += duration_ms

    def suspend(self, duration_ms: int) -> None:
        """Let time pass while the machine is suspended: the monotonic clock does not advance, the boot clock does."""
        self._wall_ms += duration_ms
        self._boot_ms += duration_ms

    def reboot(self, duration_ms: int) -> None:
        """Let time pass while the machine is off."""
        self._wall_ms += duration_ms
        self._boot_ms = 10_000
        self._boots += 1

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or backward, which must not affect deadlines."""
        self._wall_ms += by_ms
