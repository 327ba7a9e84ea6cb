"""What a broker is told about replication. Every field's key in a `broker.conf` is in its text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BrokerRole(StrEnum):
    """``brokerRole``: what a fixed role is, and for one that moves, what kind of master it becomes."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class RoleAtStart(StrEnum):
    """``roleAtStart``."""

    CONFIGURED = "CONFIGURED"
    UNASSIGNED = "UNASSIGNED"


class AckLevel(StrEnum):
    """``haAckLevel``."""

    RECEIVED = "RECEIVED"
    FLUSHED = "FLUSHED"


class Degrade(StrEnum):
    """``haDegrade``."""

    WAIT = "WAIT"
    ASYNC = "ASYNC"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Who follows whom, and what an answer waits for."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    """brokerRole: ASYNC_MASTER, SYNC_MASTER or SLAVE. A SYNC_MASTER answers 0 when slaves have the message."""

    role_at_start: RoleAtStart = RoleAtStart.CONFIGURED
    """roleAtStart: CONFIGURED takes brokerRole at the start. UNASSIGNED waits for an order over the control socket.

    Until then nothing is registered and everything is answered 14. Operators and supervisors want this.
    """

    in_sync_replicas: int | None = None
    """inSyncReplicas: how many brokers have a message, the master among them, before it is answered 0.

    2 by default with SYNC_MASTER, otherwise 1.
    """

    slave_timeout_ms: int = 3_000
    """slaveTimeout: with SYNC_MASTER, a send that too few slaves have by then is answered 12: not promised."""

    gap_bytes_max: int = 256 * 1024 * 1024
    """haMaxGapNotInSync: a slave that is farther behind is not waited for; with too few others: code 11."""

    ack_level: AckLevel = AckLevel.RECEIVED
    """haAckLevel: a slave counts when it has RECEIVED a message, where its process cannot lose it, or FLUSHED it."""

    degrade: Degrade = Degrade.WAIT
    """haDegrade: with too few slaves in sync, WAIT answers 11 and shows consumers nothing new; ASYNC goes on alone.

    With ASYNC consumers see all that is written, and what is answered 0 then is lost with the master.
    """

    master_address: str = ""
    """haMasterAddress: host:port that a slave follows; empty: what name servers say."""

    secret_path: str = ""
    """haSecretPath: a file with the secret that all brokers of a group know; empty: everybody may follow."""

    tls_certificate: str = ""
    """haTlsCertPath: PEM, shown by a master to slaves, and by a slave to its master if that asks."""

    tls_key: str = ""
    """haTlsKeyPath: PEM, without a password."""

    tls_authority: str = ""
    """haTlsTrustCertPath: who signs the certificates of the others; both sides ask for one then."""

    is_classic_allowed: bool = False
    """haClassicPeers: whether brokers of RocketMQ's may follow this master. They prove nothing, nor need anybody then.

    Whoever sends eight bytes to haListenPort gets the log, and counts as a slave. With SYNC_MASTER and haElectable they
    are copied to, and never waited for.
    """

    is_master_classic: bool = False
    """haMasterIsClassic: whether the master to follow is a broker of RocketMQ's; its log and tables are taken over."""

    classic_broker_address: str = ""
    """haMasterBrokerAddress: host:port of such a master's listenPort; empty: one below the port that is followed."""

    electable: tuple[int, ...] = ()
    """haElectable: brokerIds of the slaves that may be promoted, separated by semicolons.

    A master that is sure of none of them after a start that may have lost bytes takes no messages. With ASYNC_MASTER
    it acknowledges only while all of them, or its Lease, say that nobody was promoted. Orders may name others.
    """

    grant_ms: int = 3_000
    """haGrant: how long a slave's word that nobody was promoted holds; a promotion waits as long."""

    is_slave_read_suggested: bool = True
    """slaveReadEnable: whether a consumer that lags far is sent to a slave. Slaves always serve who asks them."""

    memory_percent_max: int = 40
    """accessMessageInMemoryMaxRatio: percent of the memory; a consumer that lags by more is far behind."""

    control_path: str = ""
    """controlSocketPath: where orders come from; empty: `control.sock` in storePathRootDir."""

    @property
    def replicas(self) -> int:
        """How many brokers have a message before it is answered 0."""
        if self.in_sync_replicas is not None:
            return self.in_sync_replicas
        return 2 if self.role is BrokerRole.SYNC_MASTER else 1

    @property
    def is_tail_hidden(self) -> bool:
        """Whether consumers wait until slaves, or a master, have confirmed what is new to them at the log's end."""
        is_fixed = self.role_at_start is RoleAtStart.CONFIGURED
        return self.acks_needed > 0 or self.role is not BrokerRole.ASYNC_MASTER or not is_fixed

    @property
    def acks_needed(self) -> int:
        """How many slaves must have a message before it is answered 0."""
        return 0 if self.role is BrokerRole.ASYNC_MASTER else self.replicas - 1
