"""Settings of replication. The docstring of each field begins with its key in a `broker.conf`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BrokerRole(StrEnum):
    """``brokerRole``: the role, if it is fixed; otherwise the kind of master that the broker can become."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """A master whose sends wait for no slave."""

    SYNC_MASTER = "SYNC_MASTER"
    """A master whose sends wait for slaves; see ``inSyncReplicas``."""

    SLAVE = "SLAVE"


class RoleAtStart(StrEnum):
    """``roleAtStart``: whether the configuration or an order assigns the first role."""

    CONFIGURED = "CONFIGURED"
    """The broker takes ``brokerRole`` at the start."""

    UNASSIGNED = "UNASSIGNED"
    """The broker waits for an order."""


class AckLevel(StrEnum):
    """``haAckLevel``: what a slave must have done with a message before its ack counts."""

    RECEIVED = "RECEIVED"
    """The slave has the message, safe from a crash of its process."""

    FLUSHED = "FLUSHED"
    """The slave has the message on its disk."""


class Degrade(StrEnum):
    """``haDegrade``: what a master does while too few slaves are in sync."""

    WAIT = "WAIT"
    """Sends are answered with code 11, and new messages stay hidden."""

    ASYNC = "ASYNC"
    """Sends no longer wait for slaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Settings of roles, replication and acknowledgement."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    """brokerRole: ASYNC_MASTER, SYNC_MASTER or SLAVE. A SYNC_MASTER answers 0 when enough slaves have the message."""

    role_at_start: RoleAtStart = RoleAtStart.CONFIGURED
    """roleAtStart: CONFIGURED takes brokerRole at the start. UNASSIGNED waits for an order over the control socket.

    Until then the broker is not registered, and answers 14 to all requests except those for its settings, runtime table
    and HA status. Operators and supervisors need UNASSIGNED.
    """

    in_sync_replicas: int | None = None
    """inSyncReplicas: number of brokers, including the master, that must have a message before it is answered 0.

    The default is 2 with SYNC_MASTER, otherwise 1.
    """

    slave_timeout_ms: int = 3_000
    """slaveTimeout: with SYNC_MASTER, milliseconds that a send waits for slaves.

    After that it is answered 12: stored by the master, but not guaranteed.
    """

    gap_bytes_max: int = 256 * 1024 * 1024
    """haMaxGapNotInSync: bytes by which a slave may lag before sends no longer wait for it.

    With too few other slaves, haDegrade decides: WAIT answers 11.
    """

    ack_level: AckLevel = AckLevel.RECEIVED
    """haAckLevel: an ack counts when the slave has RECEIVED a message, safe from a process crash, or FLUSHED it."""

    degrade: Degrade = Degrade.WAIT
    """haDegrade: with too few slaves in sync, WAIT answers 11 and hides new messages; ASYNC continues without slaves.

    With ASYNC consumers read all messages that are written, and messages that are answered 0 meanwhile are lost with
    the master.
    """

    master_address: str = ""
    """haMasterAddress: host:port of the master that a slave follows; empty: the master that name servers report."""

    secret_path: str = ""
    """haSecretPath: a file with the secret that all brokers of a group share; empty: slaves need not authenticate."""

    tls_certificate: str = ""
    """haTlsCertPath: PEM file that a master presents to slaves, and a slave to a master that requires it."""

    tls_key: str = ""
    """haTlsKeyPath: PEM file of the private key, without a password."""

    tls_authority: str = ""
    """haTlsTrustCertPath: PEM file of the CA of the other brokers; if it is set, both sides require a certificate."""

    is_classic_allowed: bool = False
    """haClassicPeers: whether RocketMQ's brokers may follow this master. They do not authenticate.

    So with this setting no peer has to authenticate: any peer that sends eight bytes to haListenPort gets the log, and
    counts as a slave. With SYNC_MASTER and haElectable such slaves get the log, and sends never wait for them.
    """

    is_master_classic: bool = False
    """haMasterIsClassic: whether the master to follow is a RocketMQ broker, whose log and tables are taken over."""

    classic_broker_address: str = ""
    """haMasterBrokerAddress: host:port of the RocketMQ master's listenPort; empty: its replication port minus one."""

    electable: tuple[int, ...] = ()
    """haElectable: brokerIds of the slaves that may be promoted, separated by semicolons.

    After a start that may have lost messages, a master accepts no messages until it has compared its log with enough of
    them to find every acknowledged message: with ASYNC_MASTER all. With ASYNC_MASTER it acknowledges only while all of
    them have given it a grant, or while it holds its Lease; with haDegrade=ASYNC and too few slaves, only while it
    holds its Lease. Orders may name other slaves.
    """

    grant_ms: int = 3_000
    """haGrant: milliseconds for which a slave's grant to acknowledge is valid; a promotion waits as long."""

    is_slave_read_suggested: bool = True
    """slaveReadEnable: whether a consumer that lags far behind is redirected to a slave.

    Slaves serve every consumer that connects to them, also with false.
    """

    memory_percent_max: int = 40
    """accessMessageInMemoryMaxRatio: a consumer is far behind if it lags by more than this percentage of the machine's
    memory."""

    control_path: str = ""
    """controlSocketPath: Unix socket for orders; empty: `control.sock` in storePathRootDir."""

    @property
    def replicas(self) -> int:
        """Number of brokers that must have a message before it is answered 0."""
        if self.in_sync_replicas is not None:
            return self.in_sync_replicas
        return 2 if self.role is BrokerRole.SYNC_MASTER else 1

    @property
    def is_unconfirmed_hidden(self) -> bool:
        """Whether messages stay hidden from consumers until slaves, or on a slave the master, have confirmed them."""
        is_fixed = self.role_at_start is RoleAtStart.CONFIGURED
        return self.acks_needed > 0 or self.role is not BrokerRole.ASYNC_MASTER or not is_fixed

    @property
    def acks_needed(self) -> int:
        """Number of slaves that must have a message before it is answered 0."""
        return 0 if self.role is BrokerRole.ASYNC_MASTER else self.replicas - 1
