"""RocketMQ's remoting over sockets: listeners for broker and name server, and channels for their clients."""

from gantry_remoting.addresses import bare_host, is_same_address, join_address, listen, peer_address, split_address
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.client import Channel
from gantry_remoting.connection import PASS_REPLY_BYTES_MAX, Connection, Service
from gantry_remoting.errors import CannotConnect, ConnectionClosed, RemotingError, RemotingTimeout
from gantry_remoting.file_watch import FileWatch
from gantry_remoting.secret_file import read_secret
from gantry_remoting.server import CommandService, Listener
from gantry_remoting.settings import ClientTlsSettings, ListenerSettings, TlsMode, TlsSettings, listener_tls
from gantry_remoting.small_file import read_small_file
from gantry_remoting.tls_contexts import PeerContexts, peer_contexts

__all__ = [
    "PASS_REPLY_BYTES_MAX",
    "CannotConnect",
    "CertificateSource",
    "Channel",
    "ClientTlsSettings",
    "CommandService",
    "Connection",
    "ConnectionClosed",
    "FileWatch",
    "Listener",
    "ListenerSettings",
    "PeerContexts",
    "RemotingError",
    "RemotingTimeout",
    "Service",
    "TlsMode",
    "TlsSettings",
    "bare_host",
    "is_same_address",
    "join_address",
    "listen",
    "listener_tls",
    "peer_address",
    "peer_contexts",
    "read_secret",
    "read_small_file",
    "split_address",
]
