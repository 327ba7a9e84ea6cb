"""The administrator's client: topics, groups, brokers and messages of a cluster.

One object per concern, so that each stays small: `admin.topics`, `admin.groups`, `admin.members`, `admin.brokers`,
`admin.messages`, `admin.replicas`.
"""

from types import TracebackType
from typing import Self, final

from gantry_client.admin_brokers import Brokers
from gantry_client.admin_groups import Groups
from gantry_client.admin_members import Members
from gantry_client.admin_messages import Messages
from gantry_client.admin_replicas import Replicas
from gantry_client.admin_topics import Topics
from gantry_client.session import Session
from gantry_client.settings import ClientSettings, NameServerAddresses

__all__ = ["Admin", "Brokers", "Groups", "Members", "Messages", "Replicas", "Topics"]


@final
class Admin:
    """Administers a cluster. Use it inside `async with`; it belongs to the event loop that starts it."""

    def __init__(self, name_servers: NameServerAddresses, *, client_settings: ClientSettings | None = None) -> None:
        self._session = Session(name_servers, client_settings)
        self.brokers = Brokers(self._session)
        self.topics = Topics(self._session, self.brokers)
        self.groups = Groups(self._session, self.brokers)
        self.members = Members(self._session, self.brokers)
        self.messages = Messages(self._session)
        self.replicas = Replicas(self._session)

    def __repr__(self) -> str:
        return f"<Admin {self._session.client_id}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Open for questions."""
        await self._session.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
