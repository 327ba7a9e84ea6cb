"""RocketMQ's remoting over sockets: listeners for broker and name server, channels for whoever calls them."""

from gantry_remoting.client import Channel, split_address
from gantry_remoting.connection import PASS_REPLY_BYTES_MAX, Connection, Service
from gantry_remoting.errors import CannotConnect, ConnectionClosed, RemotingError, RemotingTimeout
from gantry_remoting.server import CommandService, Listener
from gantry_remoting.settings import ListenerSettings, TlsMode, TlsSettings

__all__ = [
    "PASS_REPLY_BYTES_MAX",
    "CannotConnect",
    "Channel",
    "CommandService",
    "Connection",
    "ConnectionClosed",
    "Listener",
    "ListenerSettings",
    "RemotingError",
    "RemotingTimeout",
    "Service",
    "TlsMode",
    "TlsSettings",
    "split_address",
]
