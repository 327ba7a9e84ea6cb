"""Decides which requests this broker accepts in its present role.

    master                      all requests
    master, clients drained     all but sends of clients, which get code 14; stored messages are delivered as usual
    drained master, slave       reads; requests that would change the store get code 14, and clients retry elsewhere
    no role                     requests about the broker itself; all others get code 14

The gate is checked once for each request that is not a send; for sends once for each read of a connection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from gantry_broker.server.core.refusals import Refusal
from gantry_status import RefusalReason
from gantry_wire import RequestCode, ResponseCode

CODES_WITHOUT_ROLE: Final = frozenset(
    {
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
    }
)
"""Requests that are answered even without a role: they are about the broker itself, not about its messages."""

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
        RequestCode.RECALL_MESSAGE,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
"""Requests that only a master accepts, besides sends. Only a master knows which messages are popped."""


@final
class Gate:
    """The refusals that hold in the present role of the broker. Owned by the event loop.

    A reason is a clause that ends the text of the answer, such as "this broker is a slave".
    """

    def __init__(self) -> None:
        self.write_refusal: Refusal | None = None
        """The answer to every request that would change the store; None if they are accepted."""

        self.client_send_refusal: Refusal | None = None
        """The answer to sends of clients, while the broker itself still appends; None if they are accepted."""

        self.request_refusal: Refusal | None = None
        """The answer to almost every request, sends included; None if requests are accepted."""

        self.is_store_lent = False
        """Whether the store belongs to another thread now, so that the event loop must not access it."""

    @property
    def may_append(self) -> bool:
        """Whether this broker is the master and may append to the log, which no other thread is changing."""
        return self.write_refusal is None and not self.is_store_lent

    def __repr__(self) -> str:
        return f"<Gate changes={self.write_refusal} everything={self.request_refusal}>"

    @property
    def is_refusing_sends(self) -> bool:
        """Whether sends of clients are refused now."""
        return self.write_refusal is not None or self.client_send_refusal is not None

    def accept_all(self) -> None:
        """Accept all requests: this broker is a serving master."""
        self.write_refusal = self.client_send_refusal = self.request_refusal = None

    def accept_changes(self) -> None:
        """Accept requests that change the store again; sends of clients stay refused if they were."""
        self.write_refusal = None

    def refuse_client_sends(self, reason: str) -> None:
        """Refuse sends of clients; delayed messages, transactions and retries continue."""
        self.client_send_refusal = _refusal(reason, RefusalReason.DRAINING)

    def refuse_changes(self, reason: str, kind: RefusalReason = RefusalReason.NOT_MASTER) -> None:
        """Accept only requests that do not change the store. Refusals are counted as ``kind``."""
        self.write_refusal, self.request_refusal = _refusal(reason, kind), None

    def refuse_all(self, reason: str) -> None:
        """Refuse every request that is not about the broker itself."""
        self.write_refusal = self.request_refusal = _refusal(reason, RefusalReason.NOT_SERVING)

    @contextmanager
    def refusing_all(self, reason: str) -> Iterator[None]:
        """Refuse requests, as `refuse_all` does, within the context, and restore the gate's state afterwards."""
        changes, everything = self.write_refusal, self.request_refusal
        self.refuse_all(reason)
        try:
            yield
        finally:
            self.write_refusal, self.request_refusal = changes, everything

    @contextmanager
    def lend_store(self) -> Iterator[None]:
        """Mark the store as owned by another thread within the context."""
        self.is_store_lent = True
        try:
            yield
        finally:
            self.is_store_lent = False

    def refusal(self, code: int) -> Refusal | None:
        """Return the refusal of a request with this code; None if it is accepted."""
        if self.request_refusal is not None:
            return None if code in CODES_WITHOUT_ROLE else self.request_refusal
        return self.write_refusal if code in CHANGES else None


def _refusal(text: str, reason: RefusalReason) -> Refusal:
    return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, {text}", reason)
