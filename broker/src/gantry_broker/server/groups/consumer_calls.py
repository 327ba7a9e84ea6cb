"""What the broker asks of consumers on their own connections, and the deadline by which they answer.

    administrator -- 307, 309, 223 --> broker -- 307, 309, 221, on the member's connection --> member
                  <-- its answer, or 207 ---                                    <------------

Nobody but the administrator waits: the member's connection carries everything else meanwhile, and so does the
administrator's. Each waiting question is a task and a waiter, so there is a limit to them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, final

from gantry_broker.server.core.clients import ClientRegistry, Member
from gantry_broker.server.core.refusals import Refusal, Refusals
from gantry_broker.server.send.handlers import Refused
from gantry_status import RefusalReason
from gantry_wire import Command, ResponseCode

CALLS_MAX: Final = 256
"""Questions to members under way at once."""

CALL_TIMEOUT_MS: Final = 10_000
"""How long a member may take over 307 and 309; RocketMQ's brokers wait as long."""

STATUS_TIMEOUT_MS: Final = 5_000
"""How long all members together may take over 221."""

QUESTIONS_FULL: Final = Refusal(
    ResponseCode.SYSTEM_BUSY,
    "[OVERLOAD]system busy: too many questions to consumers under way",
    RefusalReason.QUESTIONS_FULL,
)

VERSION_RESET: Final = 28
"""V3_0_7_SNAPSHOT: clients from here on understand 220 and 221."""

VERSION_CALLS: Final = 62
"""V3_1_8_SNAPSHOT: clients from here on understand 307 and 309."""


@final
class ConsumerCalls:
    """Questions to members of groups. Owned by the event loop."""

    def __init__(self, clients: ClientRegistry, refusals: Refusals) -> None:
        self._clients = clients
        self._refusals = refusals
        self._running = 0

    def __repr__(self) -> str:
        return f"<ConsumerCalls running={self._running}>"

    def members(self, group: str) -> list[Member]:
        """Those that are connected now."""
        state = self._clients.consumers.get(group)
        return [] if state is None else [member for member in state.members.values() if member.connection.is_open]

    def member(self, group: str, client_id: str | None) -> Member | None:
        """The member of that name; the one that came last, where an old connection of it has not died yet."""
        found = [member for member in self.members(group) if member.client_id == client_id]
        return found[-1] if found else None

    async def ask(
        self, member: Member, code: int, ext: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> Command:
        """The member's answer. Raises ``Refused`` where too many wait, ConnectionClosed and RemotingTimeout."""
        with self._counted():
            return await member.connection.request(Command(code=code, ext=dict(ext), body=body), timeout_ms)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._running >= CALLS_MAX:
            self._refusals.count(QUESTIONS_FULL)
            raise Refused(QUESTIONS_FULL.code, QUESTIONS_FULL.remark)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
