"""Settings of a broker: the keys that RocketMQ users know, in a `broker.conf`, plus a few of our own.

    broker.conf < command line        (`server/core/live_settings`: keys that change at run time, and their precedence)

All settings are read once (`setting_keys`), checked for consistency (`settings_consistency`), and passed on in small
parts.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from gantry_access import AccessSettings
from gantry_broker.archive_settings import ArchiveSettings
from gantry_broker.ha.settings import ReplicationSettings
from gantry_broker.pop_settings import PopSettings
from gantry_broker.store.settings import (
    StoreSettings,
)
from gantry_remoting import (
    ClientTlsSettings,
    ListenerSettings,
    TlsMode,
    TlsSettings,
    join_address,
    listener_tls,
)
from gantry_remoting.file_access import FileAccess
from gantry_status.broker_ports import BROKER_PORT, fast_port_of, replication_port_of
from gantry_wire import WireLimits
from gantry_wire.limits import HEADER_BYTES_MAX
from gantry_wire.names import TRACE_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """All settings of one broker. The docstring of each field begins with its key in a `broker.conf`."""

    cluster_name: str = "DefaultCluster"
    """brokerClusterName: the cluster in which name servers list this broker; also the name of a topic."""

    broker_name: str = field(default_factory=socket.gethostname)
    """brokerName: the name of the shard, the same for all its members; by default the host's name."""

    broker_id: int = 0
    """brokerId: 0 for a fixed master; otherwise the number of a member, registered while it is a slave."""

    broker_ip: str = "127.0.0.1"
    """brokerIP1: the address that clients connect to and that message ids contain; IPv6 with or without brackets."""

    master_ip: str = ""
    """brokerMasterIP: an address that follows the master's role, such as a Service's; empty: brokerIP1.

    The master is registered under it, and message ids contain it, whichever member wrote the message, so that both stay
    valid when the role moves. Slaves are registered under brokerIP1.
    """

    external_address_path: str = ""
    """externalAddressPath: a file with the addresses by which clients outside of the network reach the group's brokers.

    It has lines like `master=203.0.113.7:10911` and, by brokerId, `2=203.0.113.8:10911`, and is read again every few
    seconds. Gantry's name servers give these addresses to clients of their `externalListenPort`. Empty: no client
    connects from outside.
    """

    memory_scope: str = ""
    """memoryScope: identifies the memory that holds unflushed messages, beside the machine's boot id; in a pod its uid.

    After a crash, a start in another scope treats them as lost: the buffers were the old pod's, and the volume may have
    been detached and mounted again, without the page cache. Empty: only the machine's boot id counts.
    """

    listen_host: str = "0.0.0.0"
    """bindAddress: the address to listen on. `::` is all addresses of both families, `0.0.0.0` those of IPv4."""

    listen_port: int = BROKER_PORT
    """listenPort: the main port, which serves all requests; by default 10911, as in RocketMQ."""

    fast_port: int | None = None
    """fastListenPort: the second port; by default listenPort minus 2, as clients and slaves expect. -1 disables it."""

    ha_port: int | None = None
    """haListenPort: the port that slaves follow, as name servers report it; by default listenPort plus 1.

    -1 disables replication to slaves.
    """

    ha_ip: str = ""
    """brokerIP2: the address that slaves connect to; empty: brokerIP1."""

    name_servers: tuple[str, ...] = ()
    """namesrvAddr: host:port of the name servers, separated by semicolons."""

    store_path: str = "store"
    """storePathRootDir: the directory of the log, the queues and the tables."""

    file_access: FileAccess = FileAccess.OWNER
    """fileAccess: which users may read the store's files, tables and status page.

    OWNER: only the broker's user (0600, directories 0700), since they contain every message. GROUP: its group, too
    (0640, 0750), for tools and jobs that run as another user and read the store's directory. Write buffers and the
    control socket are always the user's own (0600). A start removes further permissions from existing files of the
    store, but adds none; files of another user are not changed.
    """

    register_period_ms: int = 30_000
    """registerNameServerPeriod: milliseconds between two registrations at name servers; 10 to 60 s.

    A change is registered at once.
    """

    auto_create_topics: bool = True
    """autoCreateTopicEnable: whether the first message to an unknown topic creates it."""

    auto_create_groups: bool = True
    """autoCreateSubscriptionGroup: whether the first heartbeat, pull or query of an unknown group creates it."""

    default_topic_queues: int = 8
    """defaultTopicQueueNums: the largest number of queues of an auto-created topic."""

    message_bytes_max: int = 4 * 1024 * 1024
    """maxMessageSize: the largest body of a message, in bytes as stored."""

    batch_messages_max: int = 10_000
    """maxBatchMessages: messages in one batch send. A batch is one append, during which all other sends wait."""

    send_queue_capacity: int = 10_000
    """sendThreadPoolQueueCapacity: number of held sends, for the disk or slaves; further ones are answered "busy"."""

    wait_in_send_queue_ms: int = 200
    """waitTimeMillsInSendQueue: milliseconds that a send of an overloading connection may wait to be stored.

    A connection overloads the broker if it sends faster than it is served for five times as long, in CPU time. Its
    sends that cannot be stored in time are answered "busy". A burst is not.
    """

    page_cache_busy_ms: int = 1000
    """osPageCacheBusyTimeOutMills: milliseconds after which an append counts as slow.

    Sends that arrive during a slow append are answered "busy".
    """

    held_pulls_max: int = 100_000
    """pullThreadPoolQueueCapacity: number of long polls that may be held at once; each costs about a kilobyte."""

    held_pulls_per_connection_max: int = 10_000
    """maxHeldPullsPerConnection: long polls of one connection; a client holds one per queue that it consumes."""

    pull_messages_max: int = 1024
    """maxPullBatchSize: the most messages in the answer to one pull, even if the client requests more."""

    pull_bytes_max: int = 256 * 1024
    """maxTransferBytesOnMessageInMemory: bytes in the answer to one pull; one message is always returned."""

    pull_bytes_limit: int = 8 * 1024 * 1024
    """maxTransferBytesOnRequest: the most bytes that a client can request with its own maxMsgBytes."""

    is_cold_read_limited: bool = False
    """coldDataFlowControlEnable: limit consumer groups that read messages so old that they are probably not in memory.

    Such messages are farther from the end of the log than `accessMessageInMemoryMaxRatio` percent of the memory.
    """

    group_cold_bytes_max: int = 3 * 1024 * 1024
    """cgColdReadThreshold: bytes of old messages that one group may read in five seconds, if it has no threshold of its
    own (`mqadmin updateColdDataFlowCtrGroupConfig`)."""

    cold_bytes_max: int = 100 * 1024 * 1024
    """globalColdReadThreshold: bytes of old messages that all groups together may read in five seconds."""

    is_property_filter_enabled: bool = False
    """enablePropertyFilter: whether consumers may filter by properties, in SQL92.

    With false, RocketMQ's default, such subscriptions are refused.
    """

    is_reset_kept: bool = True
    """useServerSideResetOffset: whether this broker itself moves the consumers of a reset group to the new offset.

    With true it answers their pulls with 21, and ignores their commits until they have moved. With false, as in
    RocketMQ before 5, it notifies the connected consumers of the group (220).
    """

    is_reply_stored: bool = True
    """storeReplyMessageEnable: whether replies are stored in the cluster's reply topic, besides being pushed."""

    is_trace_topic_made: bool = False
    """traceTopicEnable: whether this broker creates the topic for clients' traces; RocketMQ's default is false."""

    trace_topic: str = TRACE_TOPIC
    """msgTraceTopicName: the name of that topic, which clients must also use; RMQ_SYS_TRACE_TOPIC by default."""

    offsets_interval_ms: int = 5_000
    """flushConsumerOffsetInterval: milliseconds between two writes of consumer and delay offsets to the disk."""

    rejects_transactions: bool = False
    """rejectTransactionMessage: whether half messages of transactions are refused with code 16."""

    transaction_timeout_ms: int = 6_000
    """transactionTimeOut: milliseconds until a producer is asked for the outcome of its transaction."""

    transaction_check_max: int = 15
    """transactionCheckMax: checks after which a transaction is abandoned and moved to TRANS_CHECK_MAX_TIME_TOPIC."""

    transaction_check_interval_ms: int = 30_000
    """transactionCheckInterval: milliseconds between two checks of one transaction."""

    is_timer_enabled: bool = True
    """timerWheelEnable: whether messages with a time or a delay of their own are accepted. Delay levels always are."""

    timer_precision_ms: int = 1
    """timerPrecisionMs: the time of a timer message is rounded up to a multiple of this. RocketMQ: 1000."""

    timer_delay_max_s: int = 40 * 24 * 3600
    """timerMaxDelaySec: the longest delay, in seconds: 40 days, where RocketMQ has 3. A longer one is refused."""

    is_recall_enabled: bool = True
    """recallMessageEnable: whether producers may recall timer messages. RocketMQ's default is false."""

    region: str = "DefaultRegion"
    """regionId: the region that clients get in every reply to a send."""

    connections_max: int = 8_000
    """serverMaxConnections: connections of one port; below the file limit, since queues need descriptors, too."""

    connections_per_address_max: int = 4_000
    """serverMaxConnectionsPerAddress: connections of one host, so that a faulty host does not block others."""

    idle_timeout_ms: int = 120_000
    """serverChannelMaxIdleTimeMills: milliseconds after which a silent connection is closed.

    Clients send a heartbeat every 30 s.
    """

    frame_bytes_max: int = 16 * 1024 * 1024
    """frameMaxLength: bytes of the largest request; RocketMQ sets it by a system property."""

    unfinished_frame_bytes_max: int = 128 * 1024 * 1024
    """maxUnfinishedFrameBytes: bytes of incomplete requests on one port, of all connections together.

    Beyond it the connections are closed whose incomplete requests use most memory for the longest time.
    """

    unauthenticated_frame_bytes_max: int = 32 * 1024 * 1024
    """maxUnauthenticatedFrameBytes: bytes of incomplete requests on one port, of connections without authentication.

    It applies with access control to connections that have not sent a validly signed request, and limits the memory
    that unknown clients can use. The default has room for eight first sends of 4 MiB at once.
    """

    unread_reply_bytes_max: int = 256 * 1024 * 1024
    """maxUnreadReplyBytes: bytes of unread replies on one port, of all connections together.

    Beyond it the connections are closed that have had most of them for the longest time.
    """

    turn_read_bytes_max: int = 1024 * 1024
    """maxReadBytesPerTurn: bytes of requests that one port serves in one turn of the event loop.

    Further bytes wait for the next turns, in order, so that many connections delay others no more than a few do.
    """

    deferred_answers_max: int = 1024
    """maxDeferredAnswers: requests of one port whose answers wait for the disk or a table, of all connections.

    The next request waits, and its connection is not read meanwhile.
    """

    deferred_answers_per_connection_max: int = 64
    """maxDeferredAnswersPerConnection: the same limit for one connection.

    Held pulls and sends that wait for the disk or for slaves have limits of their own and do not count.
    """

    tls_mode: TlsMode = TlsMode.PERMISSIVE
    """tlsMode: disabled, permissive or enforcing. Permissive without a certificate accepts plain text only."""

    tls_certificate: str = ""
    """tlsServerCertPath: PEM file with the whole certificate chain."""

    tls_key: str = ""
    """tlsServerKeyPath: PEM file of the private key, without a password."""

    tls_authority: str = ""
    """tlsServerTrustCertPath: PEM file of the CA of client certificates."""

    tls_needs_client_certificate: bool = False
    """tlsServerNeedClientAuth: whether clients without a certificate are refused; needs tlsMode=enforcing."""

    is_tls_enabled: bool = False
    """tlsEnable: whether name servers are contacted over TLS; RocketMQ uses the system property tls.enable."""

    tls_client_certificate: str = ""
    """tlsClientCertPath: PEM file with the whole chain; presented to name servers that require a certificate."""

    tls_client_key: str = ""
    """tlsClientKeyPath: PEM file of the private key, without a password."""

    tls_client_authority: str = ""
    """tlsClientTrustCertPath: PEM file of the CA of the name servers' certificates; empty: the system's CAs."""

    is_tls_server_verified: bool = True
    """tlsClientAuthServer: whether name servers must have a valid certificate. RocketMQ's default is false."""

    is_tls_host_name_checked: bool = True
    """tlsClientCheckHostName: whether the certificate must match the host in namesrvAddr; RocketMQ never checks it."""

    sync_flush_timeout_ms: int = 5_000
    """syncFlushTimeout: with SYNC_FLUSH, milliseconds that a send waits for the disk.

    After that it is answered 10: written, but not guaranteed to be on the disk.
    """

    status_page_path: str = ""
    """statusPagePath: the file in which the broker publishes its state; empty: `status` in storePathRootDir.

    It is best on a tmpfs that the monitoring process mounts, too.
    """

    live_settings_path: str = ""
    """liveSettingsPath: a file of settings that may change while the broker runs, in the form of a broker.conf.

    It is read again every few seconds. It has precedence over broker.conf and over changes by an administrator; a key
    in it can be changed only there. Empty: no such file.
    """

    ignores_unknown_settings: bool = False
    """ignoreUnknownSettings: whether unknown keys are ignored and logged, instead of stopping the start.

    Pods use it: the operator that writes their settings may be newer than their image. An invalid value is still
    refused.
    """

    shutdown_timeout_ms: int = 60_000
    """shutdownTimeout: milliseconds for a clean stop; after that the process exits with 1, and the next start recovers.

    Set it below the time after which the service manager sends `kill -9`.
    """

    store: StoreSettings = field(default_factory=StoreSettings)
    """Sizes and intervals of the store."""

    pop: PopSettings = field(default_factory=PopSettings)
    """Settings of pop consumption."""

    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    """Settings of reads from an archive."""

    ha: ReplicationSettings = field(default_factory=ReplicationSettings)
    """Settings of roles, replication and acknowledgement."""

    access: AccessSettings = field(default_factory=AccessSettings)
    """Settings of access control."""

    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The keys that were set, with their original texts."""

    @property
    def address(self) -> str:
        """Address that clients connect to."""
        return join_address(self.broker_ip, self.listen_port)

    @property
    def master_address(self) -> str:
        """Address that clients connect to while this broker is the master."""
        return join_address(self.master_ip or self.broker_ip, self.listen_port)

    @property
    def status_page(self) -> str:
        """Path of the status page."""
        return self.status_page_path or f"{self.store_path}/status"

    @property
    def control_path(self) -> str:
        """Path of the control socket."""
        return self.ha.control_path or f"{self.store_path}/control.sock"

    @property
    def ha_listen_port(self) -> int | None:
        if self.ha_port is None:
            return replication_port_of(self.listen_port) if self.listen_port else 0
        return self.ha_port if self.ha_port >= 0 else None

    @property
    def ha_address(self) -> str:
        """Address that slaves connect to."""
        return join_address(self.ha_ip or self.broker_ip, self.ha_listen_port or replication_port_of(self.listen_port))

    @property
    def fast_listen_port(self) -> int | None:
        if self.fast_port is None:
            port = fast_port_of(self.listen_port)
            return port if port > 0 else None
        return self.fast_port if self.fast_port >= 0 else None

    def listener(self, port: int) -> ListenerSettings:
        """Return the limits of one listening port."""
        return ListenerSettings(
            host=self.listen_host,
            port=port,
            connections_max=self.connections_max,
            connections_per_address_max=self.connections_per_address_max,
            idle_timeout_ms=self.idle_timeout_ms,
            unfinished_frame_bytes_max=self.unfinished_frame_bytes_max,
            unauthenticated_frame_bytes_max=self.unauthenticated_frame_bytes_max,
            unread_reply_bytes_max=self.unread_reply_bytes_max,
            turn_read_bytes_max=self.turn_read_bytes_max,
            deferred_answers_max=self.deferred_answers_max,
            deferred_answers_per_connection_max=self.deferred_answers_per_connection_max,
            is_guarded=self.access.is_guarded,
            first_frame_bytes_max=self.first_frame_bytes_max,
            wire=WireLimits(frame_bytes_max=self.frame_bytes_max),
            tls=self.listener_tls,
        )

    @property
    def first_frame_bytes_max(self) -> int:
        """Largest request of a connection that has not authenticated: the largest message and a header."""
        return min(self.frame_bytes_max, self.message_bytes_max + HEADER_BYTES_MAX)

    @property
    def listener_tls(self) -> TlsSettings | None:
        """TLS settings of the client ports. Raises ValueError when the keys contradict each other."""
        return listener_tls(
            self.tls_mode, self.tls_certificate, self.tls_key, self.tls_authority,
            requires_client_certificate=self.tls_needs_client_certificate,
        )  # fmt: skip

    @property
    def name_server_tls(self) -> ClientTlsSettings | None:
        """TLS settings for name servers; None is plain text. Raises ValueError as above."""
        if not self.is_tls_enabled:
            return None
        return ClientTlsSettings(
            authority_file=self.tls_client_authority or None,
            certificate_file=self.tls_client_certificate or None,
            key_file=self.tls_client_key or None,
            is_server_verified=self.is_tls_server_verified,
            is_host_name_checked=self.is_tls_host_name_checked,
        )
