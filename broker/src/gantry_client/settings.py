"""What a client can be told, by concern. Every field says its default's reason; nothing is read from elsewhere."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gantry_access import Credentials, SignatureKind
from gantry_remoting.settings import ClientTlsSettings
from gantry_wire.compress import Codec
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX, MESSAGE_BYTES_MAX

NameServerAddresses = str | Sequence[str]
"""`host:port`, several of them joined by `;`, or a sequence of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What every kind of client shares."""

    instance: str | None = None
    """Part of the client id; by default the process and a counter, so that no two clients of a host share an id."""

    connect_timeout_ms: int = 3000
    """How long a connection may take; 3 s, as RocketMQ's clients allow."""

    request_timeout_ms: int = 5000
    """How long an ordinary question may take."""

    route_poll_interval_ms: int = 30_000
    """How often known routes are asked for again; 30 s, as RocketMQ's clients do."""

    heartbeat_interval_ms: int = 30_000
    """How often brokers hear that we live; they forget a client after 120 s."""

    silent_connection_timeout_ms: int = 10_000
    """A request that times out on a connection that has brought nothing for so long closes it: the host may be gone
    without a word, and a new connection finds out. Merely slow brokers answer something in between."""

    tls: ClientTlsSettings | ssl.SSLContext | None = None
    """Speak TLS; None speaks plain text. Files are read again when they have changed, a context stays as it is."""

    credentials: Credentials | None = None
    """The account to sign every request with; None signs nothing. `read_credentials` has it from a file."""

    signature: SignatureKind = SignatureKind.V1
    """V1 signs as RocketMQ's clients do; STRICT also covers request, time and repetition, for servers of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer sends."""

    send_timeout_ms: int = 3000
    """The deadline of a whole send, retries and waiting for a free slot included; RocketMQ's default."""

    attempt_timeout_ms: int | None = None
    """How long one broker may take before the next is tried; None gives each attempt all the time that is left.
    A short value answers a stuck broker sooner, and stores a message twice when the broker was merely slow."""

    retries: int = 2
    """Further attempts after the first, on other brokers where there are some; RocketMQ's default."""

    outstanding_max: int = 1000
    """Sends without an answer; a further `send` waits. It bounds memory when a broker is slower than the producer."""

    outstanding_bytes_max: int = 64 * 1024 * 1024
    """The same for the bytes of their bodies; a thousand bodies of 4 MiB would be 4 GiB."""

    compress_above_bytes: int = 4096
    """Bodies larger than this are sent compressed; RocketMQ's default."""

    compress_codec: Codec = Codec.ZLIB
    """How; RocketMQ's default, which every client can read. LZ4 and Zstandard are read by Java's clients from 4.9.4 on,
    and need packages of their own here: `gantry-mq[codecs]`."""

    compress_level: int = 5
    """The level of zlib and Zstandard; RocketMQ's default."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Larger bodies are refused here already; a broker's default limit is 4 MiB."""

    batch_bytes_max: int = 1024 * 1024
    """`send_batch` begins a new request above this size; a broker takes at most `message_bytes_max` in one."""

    default_topic_queues: int = 4
    """Queues that a topic gets when a broker creates it for this producer; RocketMQ's default."""

    avoid_failed_broker_ms: int = 5000
    """After a failed connection other brokers are preferred for so long."""


class StartFrom(Enum):
    """Where a group begins in a queue of which it has no offset yet. Java's `ConsumeFromWhere`."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Whether the members of a group share the messages, or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer reads."""

    start_from: StartFrom = StartFrom.LAST
    """Where to begin without an offset."""

    start_timestamp_ms: int = 0
    """The store time to begin at, with StartFrom.TIMESTAMP."""

    model: MessageModel = MessageModel.CLUSTERING
    """Share the messages of a group, or get all of them."""

    broadcast_offsets_folder: Path | None = None
    """Where a broadcast consumer keeps its offsets; by default `~/.gantry/offsets`."""

    fetch_messages_max: int = 32
    """Messages asked for in one pull; RocketMQ's default, and a broker's limit for them."""

    suspend_ms: int = 15_000
    """How long a broker may hold a pull that finds nothing; RocketMQ's default."""

    cached_messages_max: int = 1000
    """Messages of one queue that were fetched and are not done; no further fetch above it. RocketMQ's default."""

    cached_bytes_max: int = 100 * 1024 * 1024
    """The same in bytes of bodies; RocketMQ's default of 100 MiB."""

    cached_span_max: int = 2000
    """How far fetching may be ahead of the first message that is not done; RocketMQ's default. It bounds how many
    messages come again when a consumer with one stuck handler dies."""

    commit_interval_ms: int = 5000
    """How often offsets are committed; RocketMQ's default. At most so much is consumed again after a crash."""

    rebalance_interval_ms: int = 20_000
    """How often the queues are shared out anew without a notice; RocketMQ's default."""

    damaged_attempts_max: int | None = 8
    """How often a message is asked for whose body does not match its checksum on any replica, before it is reported and
    stepped over. With growing pauses 8 take about 11 s, in which a broker heals it if a replica has it. None never
    steps over: the queue waits until the message is whole or the group is moved, for consumers that may miss none."""

    body_bytes_max: int = BODY_INFLATED_BYTES_MAX
    """How large a compressed body may become; a larger one is not unpacked and its message fails."""

    concurrency: int = 20
    """Handlers of a push consumer that run at once; RocketMQ's default number of consumer threads."""

    consume_timeout_ms: int = 15 * 60 * 1000
    """How long a handler may take for one message: then it is cancelled, and the message delivered again. RocketMQ's
    default of 15 minutes; there the handler goes on, and its result does not count any more."""

    max_reconsume_times: int | None = None
    """Deliveries after the first before a message goes to the dead letter topic; None leaves it to the group's
    configuration (16), and for ordered consumption means: for ever, as in RocketMQ."""

    ordered_retry_delay_ms: int = 1000
    """How long an ordered queue rests after its handler failed; RocketMQ's default."""

    lock_interval_ms: int = 20_000
    """How often the locks of an ordered consumer are renewed; brokers hold them 60 s."""

    handover_timeout_ms: int = 2000
    """How long a queue that goes to another member waits for its running handlers. What they finish in time is
    committed; what they finish later is delivered there once more."""

    close_timeout_ms: int = 10_000
    """How long `close` waits for handlers that are running."""


def parse_name_servers(name_servers: NameServerAddresses) -> tuple[str, ...]:
    """The addresses in `name_servers`. Raises ValueError when there is none."""
    texts = name_servers.split(";") if isinstance(name_servers, str) else name_servers
    addresses = tuple(text.strip() for text in texts if text.strip())
    if not addresses:
        raise ValueError("no name server address: write host:port, for example 127.0.0.1:9876")
    return addresses
