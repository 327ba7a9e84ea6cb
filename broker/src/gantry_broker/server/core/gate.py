"""What is let through, by this broker's role: everything, everything but what changes something, or almost nothing.

    master               everything
    emptying             everything but sends of clients, which are answered 14; what was taken goes its way
    draining, a slave    reads; what would be stored is answered 14, which every client tries elsewhere
    without a role       questions about the broker itself; the rest is answered 14

Asked once for each request that is no plain send, and once for each read of a connection for those.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from gantry_broker.server.core.refusals import Refusal
from gantry_status import RefusalReason
from gantry_wire import RequestCode, ResponseCode

ABOUT_ITSELF: Final = frozenset(
    {
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
    }
)
"""Answered in every role: each broker has settings of its own."""

CHANGES: Final = frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
    }
)
"""For a master only, besides sends."""


@final
class Gate:
    """Owned by the loop."""

    def __init__(self) -> None:
        self.sends: Refusal | None = None
        """Why nothing is stored now, if so."""

        self.news: Refusal | None = None
        """Why clients send nothing more, if so, though the log goes on with what it has."""

        self.everything: Refusal | None = None
        """Why nothing is answered now, if so; sends are refused then, too."""

        self.is_still = False
        """Whether the store belongs to another thread right now: nothing of it may be touched."""

    def __repr__(self) -> str:
        return f"<Gate sends={self.sends} everything={self.everything}>"

    @property
    def is_refusing_sends(self) -> bool:
        """Whether clients cannot send now."""
        return self.sends is not None or self.news is not None

    def open(self) -> None:
        """This is a master that serves."""
        self.sends = self.news = self.everything = None

    def close_to_clients(self, reason: str) -> None:
        """Nothing more is sent; delayed messages, transactions and retries go on."""
        self.news = _refusal(reason, RefusalReason.DRAINING)

    def close_to_sends(self, reason: str) -> None:
        """Reads only."""
        self.sends, self.everything = _refusal(reason, RefusalReason.NOT_MASTER), None

    def close(self, reason: str) -> None:
        """Nothing."""
        self.sends = self.everything = _refusal(reason, RefusalReason.NOT_SERVING)

    @contextmanager
    def closed(self, reason: str) -> Iterator[None]:
        """Let nothing through for a while, and then what was let through before."""
        sends, everything = self.sends, self.everything
        self.close(reason)
        try:
            yield
        finally:
            self.sends, self.everything = sends, everything

    @contextmanager
    def store_lent(self) -> Iterator[None]:
        """Give the store to another thread for a while."""
        self.is_still = True
        try:
            yield
        finally:
            self.is_still = False

    def refusal(self, code: int) -> Refusal | None:
        """What to answer to a request that must not come in."""
        if self.everything is not None:
            return None if code in ABOUT_ITSELF else self.everything
        return self.sends if code in CHANGES else None


def _refusal(text: str, reason: RefusalReason) -> Refusal:
    return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, {text}", reason)
