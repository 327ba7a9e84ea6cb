"""Moments at which a suite ends a process: the shipped function does nothing, the suite's own does the rest.

chunk-stored     a task has stored some of its rows as half messages
halves-known     the driver knows where all of them are
marker-stored    the batch is decided
one-ended        one half message was committed, and answered
all-ended        all were
"""


def reach(point: str) -> None:
    """The process has come here."""
