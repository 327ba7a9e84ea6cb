"""Settings of a broker: the names that RocketMQ users know, in a `broker.conf`, plus a few of our own.

    file < command line

Everything is read once (`setting_keys`), checked together (`settings_together`), and passed on in small pieces.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from gantry_access import AccessSettings
from gantry_broker.ha.settings import ReplicationSettings
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
from gantry_wire import WireLimits
from gantry_wire.limits import HEADER_BYTES_MAX


class SettingsError(ValueError):
    """The settings cannot be used. The text names the keys and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Everything one broker can be told. The RocketMQ name is the key in `broker.conf`."""

    cluster_name: str = "DefaultCluster"
    """brokerClusterName: the cluster that name servers list this broker under; also a topic's name."""

    broker_name: str = field(default_factory=socket.gethostname)
    """brokerName; the host's name by default."""

    broker_id: int = 0
    """brokerId; 0 is a master that stays one. Others are a member's own number, registered while it is a slave."""

    broker_ip: str = "127.0.0.1"
    """brokerIP1, the address that clients are told and that message ids carry; IPv6 with or without brackets."""

    master_ip: str = ""
    """brokerMasterIP: an address that follows the master's role, such as a Service's; empty: brokerIP1.

    The master is registered under it, and message ids carry it, whoever wrote the message: so both stay right when the
    role moves. Slaves are registered under brokerIP1.
    """

    outside_path: str = ""
    """externalAddressPath: a file with the addresses by which clients outside of the network reach the group's brokers.

    Lines like `master=203.0.113.7:10911` and, by brokerId, `2=203.0.113.8:10911`. Looked at every few seconds; name
    servers of Gantry's tell them to whoever asks on their `externalListenPort`. Empty: nobody comes from there.
    """

    memory_scope: str = ""
    """memoryScope: whose memory holds what is not on the disk yet, beside this run of the machine; in a pod its uid.

    After a crash, a start in another scope takes that for lost: buffers are the old pod's, and the volume may have been
    torn off and mounted anew, with the page cache gone. Empty: the machine's alone.
    """

    listen_host: str = "0.0.0.0"
    """bindAddress: the address to listen on. `::` is all addresses of both families, `0.0.0.0` those of IPv4."""

    listen_port: int = 10911
    """listenPort: the main port, which serves everything."""

    fast_port: int | None = None
    """fastListenPort; two below listenPort by default, as clients and slaves expect. -1 switches it off."""

    ha_port: int | None = None
    """haListenPort: where slaves follow, and told to name servers; one above listenPort by default, -1 for none."""

    ha_ip: str = ""
    """brokerIP2: the address that slaves are told to come to; empty: brokerIP1."""

    name_servers: tuple[str, ...] = ()
    """namesrvAddr: host:port, several separated by semicolons."""

    store_path: str = "store"
    """storePathRootDir: where the log, the queues and the tables lie."""

    file_access: FileAccess = FileAccess.OWNER
    """fileAccess: who may read the store's files, tables, status page and buffers. OWNER: the broker's user alone
    (0600, directories 0700), since they hold every message. GROUP: its group, too (0640, 0750), for tools and jobs that
    run as another user and read the store's directory.

    Whatever the store holds already is limited to the same at the start; what belongs to another user stays as it is.
    """

    register_period_ms: int = 30_000
    """registerNameServerPeriod: how often name servers are told of us when nothing changes; 10 to 60 s."""

    auto_create_topics: bool = True
    """autoCreateTopicEnable: the first message to an unknown topic makes it."""

    auto_create_groups: bool = True
    """autoCreateSubscriptionGroup: the first contact of an unknown group makes it."""

    default_topic_queues: int = 8
    """defaultTopicQueueNums: the most queues that an auto-created topic gets."""

    message_bytes_max: int = 4 * 1024 * 1024
    """maxMessageSize: the largest body, stored bytes."""

    batch_messages_max: int = 10_000
    """maxBatchMessages: messages of one batch send. A batch is one append, and everybody else waits for it."""

    send_queue_capacity: int = 10_000
    """sendThreadPoolQueueCapacity: sends that may wait for the disk at once; more are answered "busy"."""

    wait_in_send_queue_ms: int = 200
    """waitTimeMillsInSendQueue: a connection that sends faster than it is served for five times as long, in CPU time,
    and whose waiting sends cannot be stored within this time, is answered "busy". A burst is not."""

    page_cache_busy_ms: int = 1000
    """osPageCacheBusyTimeOutMills: after an append that took longer, sends that came in meanwhile are answered
    "busy"."""

    held_pulls_max: int = 100_000
    """pullThreadPoolQueueCapacity: long polls that may wait at once; each costs about a kilobyte."""

    held_pulls_per_connection_max: int = 10_000
    """maxHeldPullsPerConnection: long polls of one connection; a client holds one per queue that it consumes."""

    pull_messages_max: int = 1024
    """maxPullBatchSize: messages in one pull's answer, whatever the client asks for."""

    pull_bytes_max: int = 256 * 1024
    """maxTransferBytesOnMessageInMemory: bytes in one pull's answer; one message is always given."""

    pull_bytes_limit: int = 8 * 1024 * 1024
    """maxTransferBytesOnRequest: the most that a client's own maxMsgBytes may raise it to."""

    is_property_filter_enabled: bool = False
    """enablePropertyFilter: consumers may filter by properties, in SQL92; false, as in RocketMQ, refuses them."""

    is_reset_kept: bool = True
    """useServerSideResetOffset: this broker sends the readers of a group that was reset to their place (answer 21), and
    passes over what they commit until they are there; false, as RocketMQ before 5: members are told (220), if there
    are any."""

    is_reply_stored: bool = True
    """storeReplyMessageEnable: replies are kept in the cluster's reply topic besides being pushed to who asked."""

    is_trace_topic_made: bool = False
    """traceTopicEnable: this broker has the topic that clients send their traces to; RocketMQ's default is false."""

    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    """msgTraceTopicName: what that topic is called; clients with another name say so to theirs."""

    offsets_interval_ms: int = 5_000
    """flushConsumerOffsetInterval: how often consumer and delay offsets go to disk."""

    rejects_transactions: bool = False
    """rejectTransactionMessage: answer the first half of a transaction with code 16."""

    transaction_timeout_ms: int = 6_000
    """transactionTimeOut: how long a producer has to end a transaction before it is asked."""

    transaction_check_max: int = 15
    """transactionCheckMax: after so many questions a transaction is given up, to TRANS_CHECK_MAX_TIME_TOPIC."""

    transaction_check_interval_ms: int = 30_000
    """transactionCheckInterval: between two questions about one transaction."""

    region: str = "DefaultRegion"
    """regionId, told to clients in every reply to a send."""

    connections_max: int = 8_000
    """serverMaxConnections: of one port; below the file limit, since queues need descriptors, too."""

    connections_per_address_max: int = 4_000
    """serverMaxConnectionsPerAddress: so that one runaway host does not shut out the others."""

    idle_timeout_ms: int = 120_000
    """serverChannelMaxIdleTimeMills: a connection silent for so long is closed; clients beat every 30 s."""

    frame_bytes_max: int = 16 * 1024 * 1024
    """frameMaxLength: the largest request; RocketMQ sets it by a system property."""

    unfinished_frame_bytes_max: int = 128 * 1024 * 1024
    """maxUnfinishedFrameBytes: of one port, what has come of requests that have not come as a whole, of all connections
    together. Beyond it the connections are closed whose part costs most memory for the longest time."""

    unauthenticated_frame_bytes_max: int = 32 * 1024 * 1024
    """maxUnauthenticatedFrameBytes: the same with aclEnable=true, for connections of which no request was signed well
    yet: all the memory that strangers may take. Room for eight first sends of 4 MiB at once."""

    unread_reply_bytes_max: int = 256 * 1024 * 1024
    """maxUnreadReplyBytes: of one port, replies that clients have not read, of all connections together. Beyond it the
    connections are closed that have most of them for the longest time."""

    turn_read_bytes_max: int = 1024 * 1024
    """maxReadBytesPerTurn: of one port, how many bytes of requests one turn of the event loop serves. What arrives
    beyond it waits for the next turns, in order, so that many connections delay others no more than a few do."""

    deferred_answers_max: int = 1024
    """maxDeferredAnswers: of one port, requests whose answers are under way because they wait for the disk or a table,
    of all connections together. The next one waits, and its connection is not read meanwhile."""

    deferred_answers_per_connection_max: int = 64
    """maxDeferredAnswersPerConnection: the same of one connection. Held pulls and sends that wait for the disk or for
    slaves have limits of their own and do not count."""

    tls_mode: TlsMode = TlsMode.PERMISSIVE
    """tlsMode: disabled, permissive or enforcing. Permissive without a certificate speaks plain text only."""

    tls_certificate: str = ""
    """tlsServerCertPath: PEM, the whole chain."""

    tls_key: str = ""
    """tlsServerKeyPath: PEM, without a password."""

    tls_authority: str = ""
    """tlsServerTrustCertPath: who signs client certificates."""

    tls_needs_client_certificate: bool = False
    """tlsServerNeedClientAuth: refuse clients without a certificate; needs tlsMode=enforcing."""

    is_tls_enabled: bool = False
    """tlsEnable: speak TLS with name servers, as RocketMQ's system property tls.enable asks for."""

    tls_client_certificate: str = ""
    """tlsClientCertPath: PEM, the whole chain; shown to name servers that ask for one."""

    tls_client_key: str = ""
    """tlsClientKeyPath: PEM, without a password."""

    tls_client_authority: str = ""
    """tlsClientTrustCertPath: who signs the name servers' certificates; empty: whom the system trusts."""

    is_tls_server_verified: bool = True
    """tlsClientAuthServer: refuse name servers without a good certificate. RocketMQ's default is false."""

    is_tls_host_name_checked: bool = True
    """tlsClientCheckHostName: the certificate must be for the host in namesrvAddr; RocketMQ never looks."""

    sync_flush_timeout_ms: int = 5_000
    """syncFlushTimeout: with SYNC_FLUSH, a send that is not on the disk by then is answered 10: not promised."""

    status_page_path: str = ""
    """statusPagePath: the file that the broker publishes its state in; empty: `status` in storePathRootDir.

    Best on a tmpfs that whoever watches the broker mounts, too.
    """

    live_settings_path: str = ""
    """liveSettingsPath: a file of settings that may change while the broker runs, in the form of a broker.conf.

    Looked at every few seconds. It wins over broker.conf and over what an administrator has changed; a key that it
    names is changed there only. Empty: no such file.
    """

    is_tolerant: bool = False
    """ignoreUnknownSettings: leave out keys that this version does not know, and say so, instead of refusing to start.

    For pods: the operator that writes their settings may be newer than their image. A value that is wrong is refused.
    """

    shutdown_timeout_ms: int = 60_000
    """shutdownTimeout: a stop that has not flushed everything by then ends with code 1, and the next start recovers.

    Less than the time that whoever stops the broker gives it before a `kill -9`.
    """

    store: StoreSettings = field(default_factory=StoreSettings)
    """Sizes and intervals of the store."""

    ha: ReplicationSettings = field(default_factory=ReplicationSettings)
    """Who follows whom, and what an answer waits for."""

    access: AccessSettings = field(default_factory=AccessSettings)
    """Whose requests are answered."""

    given: Mapping[str, str] = field(default_factory=dict)
    """The keys that were set, as they were written."""

    @property
    def address(self) -> str:
        """What clients connect to."""
        return join_address(self.broker_ip, self.listen_port)

    @property
    def master_address(self) -> str:
        """What clients connect to while this broker is the master."""
        return join_address(self.master_ip or self.broker_ip, self.listen_port)

    @property
    def status_page(self) -> str:
        """The path of the status page."""
        return self.status_page_path or f"{self.store_path}/status"

    @property
    def control_path(self) -> str:
        """The path of the control socket."""
        return self.ha.control_path or f"{self.store_path}/control.sock"

    @property
    def ha_listen_port(self) -> int | None:
        if self.ha_port is None:
            return self.listen_port + 1 if self.listen_port else 0
        return self.ha_port if self.ha_port >= 0 else None

    @property
    def ha_address(self) -> str:
        """Where slaves are told to come."""
        return join_address(self.ha_ip or self.broker_ip, self.ha_listen_port or self.listen_port + 1)

    @property
    def fast_listen_port(self) -> int | None:
        if self.fast_port is None:
            return self.listen_port - 2 if self.listen_port > 2 else None
        return self.fast_port if self.fast_port >= 0 else None

    def listener(self, port: int) -> ListenerSettings:
        """The limits of one listening port."""
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
            is_guarded=self.access.is_enabled,
            first_frame_bytes_max=self.first_frame_bytes_max,
            wire=WireLimits(frame_bytes_max=self.frame_bytes_max),
            tls=self.listener_tls,
        )

    @property
    def first_frame_bytes_max(self) -> int:
        """The largest request of a connection that has not authenticated: the largest message and a header."""
        return min(self.frame_bytes_max, self.message_bytes_max + HEADER_BYTES_MAX)

    @property
    def listener_tls(self) -> TlsSettings | None:
        """What clients are shown. Raises ValueError when the keys contradict each other."""
        return listener_tls(
            self.tls_mode, self.tls_certificate, self.tls_key, self.tls_authority,
            requires_client_certificate=self.tls_needs_client_certificate,
        )  # fmt: skip

    @property
    def name_server_tls(self) -> ClientTlsSettings | None:
        """How name servers are spoken to; None is plain text. Raises ValueError as above."""
        if not self.is_tls_enabled:
            return None
        return ClientTlsSettings(
            authority_file=self.tls_client_authority or None,
            certificate_file=self.tls_client_certificate or None,
            key_file=self.tls_client_key or None,
            is_server_verified=self.is_tls_server_verified,
            is_host_name_checked=self.is_tls_host_name_checked,
        )
