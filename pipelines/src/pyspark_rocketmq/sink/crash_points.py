"""Crash points for fault injection: the shipped function does nothing; a test suite replaces it.

chunk-stored     a task has stored some of its rows as half messages
halves-known     the driver has the locations of all half messages
marker-stored    the batch is decided
one-ended        one half message was committed, and the broker has answered
all-ended        all half messages were committed
"""


def hit(point: str) -> None:
    """Mark that the process has reached a crash point."""
