"""The name server: which broker has which topic, and where.

Brokers register themselves and their topics, clients ask for routes. Everything it knows about brokers lives in memory
and comes back with their next registration; only the operator's key-value table is on disk. Name servers do not know
of each other: brokers register with all of them.
"""

from gantry_nameserver.routes import BrokerRegistration, RegistrationRefused, RouteTable
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings, SettingsError

__all__ = [
    "BrokerRegistration",
    "NameServer",
    "NameServerSettings",
    "RegistrationRefused",
    "RouteTable",
    "SettingsError",
]
