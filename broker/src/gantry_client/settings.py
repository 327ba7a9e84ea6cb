"""The settings of a client, by concern. They are given in code: this package reads no configuration file."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gantry_access import Credentials, OwnAccount, SignatureKind
from gantry_remoting.settings import ClientTlsSettings
from gantry_wire.compress import Codec
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX, MESSAGE_BYTES_MAX

NameServerAddresses = str | Sequence[str]
"""`host:port`, several of them joined by `;`, or a sequence of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings that every kind of client has."""

    instance: str | None = None
    """A part of the client id; by default the process id and a random part, so that no two clients share an id."""

    connect_timeout_ms: int = 3000
    """The timeout for opening a connection; 3 s, as in RocketMQ's clients."""

    request_timeout_ms: int = 5000
    """The timeout of an ordinary request."""

    route_poll_interval_ms: int = 30_000
    """The interval between route refreshes; 30 s, as in RocketMQ's clients."""

    heartbeat_interval_ms: int = 30_000
    """The interval between heartbeats; brokers remove a client after 120 s without one."""

    silent_connection_timeout_ms: int = 10_000
    """A request that times out closes its connection if no reply arrived on it for this long: the host may have failed
    without closing it, which a new connection detects. A broker that is only slow sends other replies meanwhile."""

    tls: ClientTlsSettings | ssl.SSLContext | None = None
    """Use TLS; None uses plain text. Changed files are reloaded, a context is used unchanged."""

    credentials: Credentials | OwnAccount | None = None
    """The account that signs every request; None does not sign. `read_credentials` reads it from a file. A server that
    reloads its file gives an OwnAccount."""

    signature: SignatureKind = SignatureKind.V1
    """V1 signs like RocketMQ's clients. STRICT, for Gantry servers, also signs the request code, the time and a number,
    so that servers reject replays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer for sending messages."""

    send_timeout_ms: int = 3000
    """The deadline of a whole send, including retries and waiting for a free slot; RocketMQ's default."""

    attempt_timeout_ms: int | None = None
    """The timeout of one attempt before the next broker is tried; None gives each attempt all the remaining time.
    A short value leaves a stuck broker sooner, and stores a message twice if the broker is only slow."""

    retries: int = 2
    """The number of attempts after the first, on other brokers where possible; RocketMQ's default."""

    outstanding_max: int = 1000
    """The maximum number of sends without a reply; further sends wait. It bounds the memory when a broker is slow."""

    outstanding_bytes_max: int = 64 * 1024 * 1024
    """The maximum body bytes of sends without a reply; a thousand bodies of 4 MiB would be 4 GiB."""

    compress_above_bytes: int = 4096
    """Bodies larger than this are sent compressed; RocketMQ's default."""

    compress_codec: Codec = Codec.ZLIB
    """The compression codec; RocketMQ's default, which every client can read. Java's clients read LZ4 and Zstandard
    from 4.9.4 on; here they need the extra packages of `gantry-mq[codecs]`."""

    compress_level: int = 5
    """The level of zlib and Zstandard; RocketMQ's default."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Larger bodies are refused before they are sent; the default limit of a broker is 4 MiB."""

    batch_bytes_max: int = 1024 * 1024
    """`send_batch` starts a new request above this size; a broker accepts at most `message_bytes_max` in one."""

    default_topic_queues: int = 4
    """The number of queues of a topic that a broker creates for this producer; RocketMQ's default."""

    avoid_failed_broker_ms: int = 5000
    """How long other brokers are preferred after a failed connection."""


class StartFrom(Enum):
    """Where a group starts in a queue without a committed offset. Java's `ConsumeFromWhere`."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """At the end of the queue."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """At the first message of the queue."""

    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At the first message stored at or after `start_timestamp_ms`."""


class MessageModel(Enum):
    """Whether the consumers of a group share the messages, or each consumer receives all of them."""

    CLUSTERING = "CLUSTERING"
    """The consumers of the group share the queues."""

    BROADCASTING = "BROADCASTING"
    """Each consumer reads all queues, and keeps its own offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer for reading messages."""

    start_from: StartFrom = StartFrom.LAST
    """Where to start in a queue without a committed offset."""

    start_timestamp_ms: int = 0
    """The store time at which to start with StartFrom.TIMESTAMP."""

    model: MessageModel = MessageModel.CLUSTERING
    """Share the messages of a group (CLUSTERING), or receive all of them (BROADCASTING)."""

    broadcast_offsets_folder: Path | None = None
    """The folder of the offsets of a broadcast consumer; by default `~/.gantry/offsets`."""

    fetch_messages_max: int = 32
    """The maximum number of messages in one pull; RocketMQ's default, and the limit of its brokers."""

    suspend_ms: int = 15_000
    """How long a broker may hold a pull while there are no messages; RocketMQ's default."""

    cached_messages_max: int = 1000
    """Fetching of a queue pauses while it has this many messages that are not handled yet; RocketMQ's default. The last
    pull before that may exceed it."""

    cached_bytes_max: int = 100 * 1024 * 1024
    """Fetching of a queue pauses while its messages that are not handled yet have this many body bytes; RocketMQ's
    default, 100 MiB. The last pull before that may exceed it."""

    cached_span_max: int = 2000
    """Fetching of a queue pauses while the first message that is not handled yet is this far behind the next fetch;
    RocketMQ's default. It bounds how many messages are redelivered when a consumer with one stuck handler crashes."""

    commit_interval_ms: int = 5000
    """The interval between commits; RocketMQ's default. After a crash, what was consumed since the last one is consumed
    again, and what is after a message that was not done."""

    rebalance_interval_ms: int = 20_000
    """The interval between rebalances without a notification of the broker; RocketMQ's default."""

    damaged_attempts_max: int | None = 8
    """How often a message whose body does not match its checksum on any replica is fetched, before it is logged and
    skipped. With growing pauses 8 attempts take about 11 s, in which a broker heals it if a replica has it. None never
    skips: the queue waits until the message is healed or the group is reset, for consumers that must not miss any."""

    body_bytes_max: int = BODY_INFLATED_BYTES_MAX
    """The maximum size of a decompressed body; a larger body is not decompressed and its message fails."""

    concurrency: int = 20
    """The number of concurrent handlers of a push consumer; RocketMQ's default number of consumer threads."""

    consume_timeout_ms: int = 15 * 60 * 1000
    """The timeout of a handler for one message: then it is cancelled, and the message is redelivered. RocketMQ's
    default of 15 minutes; in Java the handler keeps running, and its result is ignored."""

    max_reconsume_times: int | None = None
    """The number of redeliveries before a message goes to the dead letter topic; None uses the configuration of the
    group (16), and for ordered consumption retries without limit, as in RocketMQ."""

    ordered_retry_delay_ms: int = 1000
    """The pause of an ordered queue after its handler failed; RocketMQ's default."""

    lock_interval_ms: int = 20_000
    """The interval between lock renewals of an ordered consumer; brokers hold locks for 60 s."""

    handover_timeout_ms: int = 2000
    """How long a queue that moves to another consumer waits for its running handlers. What they finish in time is
    committed; what they finish later is delivered to the other consumer again."""

    close_timeout_ms: int = 10_000
    """How long `close` waits for running handlers."""


def parse_name_servers(name_servers: NameServerAddresses) -> tuple[str, ...]:
    """Parse name server addresses. Raises ValueError if there are none."""
    texts = name_servers.split(";") if isinstance(name_servers, str) else name_servers
    addresses = tuple(text.strip() for text in texts if text.strip())
    if not addresses:
        raise ValueError("no name server address; expected host:port, for example 127.0.0.1:9876")
    return addresses
