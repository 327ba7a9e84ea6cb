"""What a call has beside its request: the client, its deadline, and the headers that SDKs send."""

from collections.abc import Mapping
from typing import Final, final

import msgspec

from gantry_access import Account
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
DATE_TIME: Final = "x-mq-date-time"
AUTHORIZATION: Final = "authorization"
CLIENT_ID_CHARACTERS_MAX: Final = 255
"""The limit of a client id; SDKs make them of host name, process id and a counter."""
NO_DEADLINE_MS: Final = 30_000
"""How long a call without a deadline may take; SDKs set a deadline of 3 s, and of more for long polls."""


@final
class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """One call from the view of a handler. It belongs to the task of the call."""

    client_id: str
    peer: str
    """The IP address of the client, or of the load balancer in front of the proxy."""

    remaining_ms: int
    """How long the client waits, at the beginning of the call."""

    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    account: Account | None = None
    """The account of the client; None without access control."""

    def __repr__(self) -> str:
        return f"<CallContext {self.client_id!r} peer={self.peer} account={self.account_key!r}>"

    @property
    def account_key(self) -> str:
        """The access key of the account; empty without access control, and for a trusted address."""
        return "" if self.account is None else self.account.access_key

    @property
    def language(self) -> str:
        return self.headers.get(LANGUAGE, "")

    @property
    def client_version(self) -> str:
        return self.headers.get(CLIENT_VERSION, "")


def require_client_id(context: CallContext) -> str:
    """Return the client id. Raises ProxyError for a call without a usable one."""
    if not context.client_id.strip():
        raise ProxyError(pb.CLIENT_ID_REQUIRED, f"the header {CLIENT_ID} is missing")
    if len(context.client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise ProxyError(pb.BAD_REQUEST, f"the header {CLIENT_ID} is longer than {CLIENT_ID_CHARACTERS_MAX} characters")
    return context.client_id
