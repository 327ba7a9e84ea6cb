"""The failovers that are run, and the report on each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gantry_interop import java, versions

BODY_BYTES = 1024
LAGGING_BODY_BYTES = 16 << 10
"""The size is so large that the backlog of a stopped slave fits into no buffer between it and its master."""


@dataclass(frozen=True)
class Plan:
    """The parameters of one failover."""

    is_sync: bool
    is_caught_up: bool = False
    """Whether the senders pause until the slaves have caught up, just before the kill."""

    is_lagging: bool = False
    """Whether the slaves are paused before the kill, so that the master's log has a tail that no slave has."""

    is_restart: bool = False
    """Whether the old master starts again and is promoted again, instead of a slave."""

    is_mixed: bool = False
    """Whether transactions, delays and failed deliveries are among the messages."""

    is_popping: bool = False
    """Whether the consumer's group is in pop mode."""

    poll_ms: int = 0
    """The client's pollNameServerInterval; 0 keeps the default of 30 s."""

    client: str = versions.PEER
    load_seconds: float = 5.0
    """The duration of the load before the kill, and again after the return of the old master."""

    @property
    def members(self) -> int:
        """The number of brokers: two slaves in a synchronous group, where code 0 needs one of them; else one slave."""
        return 3 if self.is_sync else 2

    @property
    def body_bytes(self) -> int:
        return LAGGING_BODY_BYTES if self.is_lagging else BODY_BYTES

    @property
    def may_lose_tail(self) -> bool:
        return not self.is_sync and not self.is_caught_up

    @property
    def name(self) -> str:
        kind = "sync, two slaves" if self.is_sync else "async, one slave"
        words = {"restart": self.is_restart, "mixed": self.is_mixed, "pop": self.is_popping}
        variant = "".join(f", {word}" for word, is_chosen in words.items() if is_chosen)
        state = "slave caught up" if self.is_caught_up else "slave behind" if self.is_lagging else "full load"
        return f"{kind}{variant}, {state}"

    @property
    def poll_text(self) -> str:
        return f"{self.poll_ms} ms" if self.poll_ms else "default"

    def settings(self) -> dict[str, str]:
        role = {"brokerRole": "SYNC_MASTER" if self.is_sync else "ASYNC_MASTER"}
        soon = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000", "messageDelayLevel": "1s 2s 3s 4s 5s"}
        return role | (soon if self.is_mixed else {})


PLANS = (
    *(
        Plan(is_sync=True, is_mixed=True, is_restart=is_restart, poll_ms=1_000, client=client)
        for client in (versions.PEER, versions.OLDEST)
        for is_restart in (False, True)
    ),
    *(
        Plan(
            is_sync=is_sync,
            is_caught_up=state == "caught up",
            is_lagging=state == "lagging",
            poll_ms=poll_ms,
            client=client,
        )
        for is_sync, state, poll_ms, client in (
            (False, "load", 0, versions.PEER),
            (False, "load", 1_000, versions.PEER),
            (False, "caught up", 1_000, versions.PEER),
            (False, "lagging", 1_000, versions.PEER),
            (False, "lagging", 1_000, versions.OLDEST),
            (True, "load", 0, versions.PEER),
            (True, "load", 1_000, versions.PEER),
            (True, "lagging", 1_000, versions.PEER),
            (True, "load", 1_000, versions.OLDEST),
        )
    ),
)
"""Four failovers with mixed messages, then nine of synchronous and asynchronous groups: with both poll intervals,
without a load, and with lagging slaves.
"""

POP_PLANS = tuple(
    Plan(is_popping=True, poll_ms=1_000, client=client, is_sync=is_sync, is_mixed=is_mixed, is_restart=is_restart)
    for client in java.POP_CLIENTS
    for is_sync, is_mixed, is_restart in (
        (True, True, False), (True, True, True), (True, False, False), (False, False, False),
    )
)  # fmt: skip
"""Failovers and restarts under Java consumers in pop mode."""


@dataclass
class FailoverReport:
    """The results of one failover."""

    plan: Plan
    broken: list[str] = field(default_factory=list)
    """The guarantees that were violated, as text."""
    answered: int = 0
    """Attempts to send that were acknowledged (answered 0)."""
    per_second: int = 0
    """Acknowledgements per second before the kill."""

    lost: int = 0
    """Acknowledged messages that are not in the new master's log at the place of their answer."""

    vanished: int = 0
    """Consumed messages that are not in the new master's log at the place where they were delivered."""

    unseen: int = 0
    """Acknowledged messages that are in the log and were never delivered."""

    redelivered: int = 0
    """Deliveries of a message from a place from which it had been delivered before."""

    repeated: int = 0
    """Popped messages that were delivered again, although the listener had not failed them."""

    unknown: dict[str, int] = field(default_factory=dict)
    """The attempts to send whose result is unknown, by reason: the message may be stored."""

    command_seconds: float = 0.0
    """The duration of the command, with its start, its orders and the wait for grants; in a restart, also of the start
    of the old master.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    """The steps of `gantry ha promote` with their durations."""

    first_answer_seconds: float = 0.0
    """The time from the order to the first new acknowledgement."""

    first_delivery_seconds: float = 0.0
    """The time from the order to the delivery of a message that was sent after it."""

    tail_messages: int = 0
    """The messages that only the old master had, acknowledged or not."""

    log_bytes: int = 0
    """The end of the log up to which the members' logs were compared."""

    @property
    def orders_seconds(self) -> float:
        """The duration of the orders without the start of the command, which is slow on a busy machine."""
        return float(sum(step["took_ms"] for step in self.steps)) / 1000

    @property
    def kept(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "orders_seconds": self.orders_seconds}
