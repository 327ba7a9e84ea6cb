"""The topics and groups of a soak. Each feature has its own."""

from __future__ import annotations

from typing import Final

TOPICS: Final = (
    "normal", "batch", "one-way", "broadcast", "ordered", "tags", "sql", "retries", "levels", "timers", "transactions",
    "request-reply", "pull", "pop", "ordered-pop", "grpc", "guest",
)  # fmt: skip
GROUPS: Final = (*TOPICS, "dead-letters", "comers", "broadcast-offsets")
QUEUES: Final = 4


def topic_of(feature: str) -> str:
    """Return the name of a feature's topic."""
    return f"soak-{feature}"


def group_of(feature: str) -> str:
    """Return the name of a feature's consumer group."""
    return f"soak-{feature}-readers"
