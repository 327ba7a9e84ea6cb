"""The administrator's client: topics, groups, brokers and messages of a cluster.

One object per concern, so that each stays small: `admin.topics`, `admin.groups`, `admin.consumers`, `admin.brokers`,
`admin.messages`, `admin.replicas`, `admin.accounts`.
"""

from typing import final

from gantry_client.admin_accounts import Accounts
from gantry_client.admin_brokers import Brokers
from gantry_client.admin_consumers import Consumers
from gantry_client.admin_groups import Groups
from gantry_client.admin_messages import Messages
from gantry_client.admin_replicas import Replicas
from gantry_client.admin_topics import Topics
from gantry_client.client import Client
from gantry_client.session import Session
from gantry_client.settings import ClientSettings, NameServerAddresses

__all__ = ["Accounts", "Admin", "Brokers", "Consumers", "Groups", "Messages", "Replicas", "Topics"]


@final
class Admin(Client):
    """Administration of one cluster. Use it inside `async with`; it belongs to the event loop that starts it."""

    def __init__(self, name_servers: NameServerAddresses, *, client_settings: ClientSettings | None = None) -> None:
        super().__init__(Session(name_servers, client_settings))
        self.brokers = Brokers(self._session)
        self.topics = Topics(self._session, self.brokers)
        self.groups = Groups(self._session, self.brokers)
        self.consumers = Consumers(self._session, self.brokers)
        self.messages = Messages(self._session)
        self.replicas = Replicas(self._session)
        self.accounts = Accounts(self._session)
