"""Gantry's client: producers, consumers and administration for RocketMQ-compatible brokers.

The API is asyncio; `gantry_client.sync` has `Producer`, `PullConsumer`, `PollConsumer` and `Admin` for programs without
an event loop. Only the names that this package exports stay compatible.
"""

from gantry_access import AccessFileError, Credentials, SignatureKind, read_credentials
from gantry_client.admin import Admin
from gantry_client.admin_brokers import BrokerAddress
from gantry_client.admin_replicas import RawPullResult
from gantry_client.documents import (
    ClientConnection,
    ConsumerConnections,
    QueueOffsets,
    QueueProgress,
)
from gantry_client.errors import (
    Attempt,
    BadReply,
    BrokerRefused,
    ClientClosed,
    ClientError,
    DamagedMessage,
    InvalidMessage,
    NoMaster,
    NoReply,
    NoRoute,
    OffsetsUnreadable,
    RequestFailed,
    RequestTimeout,
    ResendStopped,
    RetryLater,
    RouteProblem,
    SendFailed,
    SendTimeout,
    Unavailable,
    UnreadableBody,
    is_transient,
)
from gantry_client.fetching import FetchResult, FetchStatus
from gantry_client.handling import Handler
from gantry_client.messages import Message, ReceivedMessage, SendReceipt, SendStatus
from gantry_client.poll_consumer import PollConsumer
from gantry_client.producer import Producer, Selector
from gantry_client.pull_consumer import PullConsumer
from gantry_client.push_consumer import PushConsumer
from gantry_client.replies import Reply
from gantry_client.routes import Route
from gantry_client.settings import (
    ClientSettings,
    ConsumerSettings,
    MessageModel,
    NameServerAddresses,
    ProducerSettings,
    StartFrom,
)
from gantry_client.subscriptions import Sql
from gantry_client.transactions import Check, Decision, HalfMessage, TransactionProducer
from gantry_remoting.settings import ClientTlsSettings
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.compress import Codec

__all__ = [
    "AccessFileError",
    "Admin",
    "Attempt",
    "BadReply",
    "BrokerAddress",
    "BrokerRefused",
    "Check",
    "ClientClosed",
    "ClientConnection",
    "ClientError",
    "ClientSettings",
    "ClientTlsSettings",
    "Codec",
    "ConsumerConnections",
    "ConsumerSettings",
    "Credentials",
    "DamagedMessage",
    "Decision",
    "FetchResult",
    "FetchStatus",
    "HalfMessage",
    "Handler",
    "InvalidMessage",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NameServerAddresses",
    "NoMaster",
    "NoReply",
    "NoRoute",
    "OffsetsUnreadable",
    "PollConsumer",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PushConsumer",
    "QueueOffsets",
    "QueueProgress",
    "RawPullResult",
    "ReceivedMessage",
    "Reply",
    "RequestFailed",
    "RequestTimeout",
    "ResendStopped",
    "RetryLater",
    "Route",
    "RouteProblem",
    "Selector",
    "SendFailed",
    "SendReceipt",
    "SendStatus",
    "SendTimeout",
    "SignatureKind",
    "Sql",
    "StartFrom",
    "SubscriptionGroupConfig",
    "TransactionProducer",
    "Unavailable",
    "UnreadableBody",
    "is_transient",
    "read_credentials",
]
