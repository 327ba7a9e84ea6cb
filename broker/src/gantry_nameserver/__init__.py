"""The name server: the directory of brokers, their addresses and their topics.

Brokers register themselves and their topics, clients query routes. The broker data is kept in memory and comes back
with the next registrations; only the administrators' key-value table is on disk, and the settings that they changed.
Name servers do not communicate with each other: brokers register with all of them.
"""

from gantry_nameserver.routes import BrokerRegistration, RegistrationRefused, RouteTable
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.setting_kinds import SettingsError

__all__ = [
    "BrokerRegistration",
    "NameServer",
    "NameServerSettings",
    "RegistrationRefused",
    "RouteTable",
    "SettingsError",
]
