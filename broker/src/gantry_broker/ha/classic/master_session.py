"""A master's half of RocketMQ's replication stream, for a slave that is a Java broker: no socket, no clock of its own.

    first offset -> it is checked -> raw bytes from there on, until the stream ends; further offsets are acks

It has the interface of ``ha.master_session``, as far as this stream allows. The slave counts in the set of acks under
the address and port of its connection, since it reports no identity, and with a broker id below -1, which no slave of
ours has. It reports how far it has received the log, never how far it has flushed it: where flushed acks are wanted it
does not count. Nor does it count where the master's role may move while acks are waited for: a promotion relies on the
promises of those whose acks count, and this slave gives none.

The log is verified record by record before it is sent, though the stream has no notion of records: a slave of
RocketMQ's verifies no checksum. At a damaged record the stream waits until that is repaired.

The slave's log before its first offset cannot be checked. RocketMQ's own master sends to a slave that is ahead as soon
as it has reached that offset itself, and their logs diverge silently; here such a slave is refused, with a reason.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.ha.acknowledgement import AckSet, SlaveProgress
from gantry_broker.ha.classic.chunks import CHUNK_BYTES_MAX, CHUNK_HEAD, REPORT, REPORT_INTERVAL_S
from gantry_broker.ha.frames import Hello, Refusal, StreamBroken, Table
from gantry_broker.ha.master_session import MasterFacts, MasterLog

UNKNOWN_ID: Final = -1
"""Broker id of an unknown member. Slaves of RocketMQ's, which report none, get ids of their own below it."""


@final
class ClassicMasterSession:
    """One replication stream to a Java slave. Owned by the loop."""

    hello: Hello | None = None
    """Always None: this stream has no HELLO."""

    refusal: Refusal | None = None
    """Always None: a slave that is refused is disconnected without a REFUSAL."""

    def __init__(self, peer: str, facts: MasterFacts, log: MasterLog, slaves: AckSet) -> None:
        self.slave: SlaveProgress | None = None
        """What the slave has acknowledged; None before its first report."""
        self.sent = -1
        """Offset of the next byte to send; -1 before the stream."""

        self._peer: Final = peer
        self._facts: Final = facts
        self._file_bytes: Final = facts.file_bytes
        self._log: Final = log
        self._slaves: Final = slaves
        self._start = -1
        self._rest = b""
        self._verified = memoryview(b"")
        """The rest of verified records from ``sent`` on; when it is empty, a record begins at ``sent``."""
        self._quiet_since_ms = -1
        self._quiet_at = -1

    def __repr__(self) -> str:
        return f"<ClassicMasterSession {self._peer} streaming={self.is_streaming} sent={self.sent}>"

    @property
    def is_streaming(self) -> bool:
        return self.slave is not None

    def close(self) -> None:
        """Remove the slave and its acks, because the connection is closed."""
        if self.slave is not None:
            self._slaves.leave(self.slave)
            self.slave = None

    # -- receiving -----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> bytes:
        """Handle received offsets. There is never an answer. Raises ``StreamBroken``."""
        data = self._rest + data
        end = len(data) - len(data) % REPORT.size
        self._rest = data[end:]
        for (offset,) in REPORT.iter_unpack(memoryview(data)[:end]):
            if self.slave is None:
                self._begin(offset, now)
            else:
                self.slave.advance(offset or self._start, -1, self.sent, now)
        return b""

    def _begin(self, offset: int, now: float) -> None:
        """Begin the stream to a slave that reports that its log ends at ``offset``."""
        log = self._log
        if self._facts.is_comparing:
            raise StreamBroken("this master is still comparing its log with Gantry slaves")
        begin, wrote = log.history.begin, log.wrote
        if offset and not begin <= offset <= wrote:
            raise StreamBroken(f"the slave requested offset {offset}, but this log is {begin} to {wrote}")
        self._start = offset or self._start_for_empty_slave(begin)
        identity = f"classic {self._peer}"
        number = min([slave.broker_id for slave in self._slaves] + [UNKNOWN_ID]) - 1
        if self._facts.is_classic_counted:
            self.slave = self._slaves.join(identity, number, now)
            if self.slave is None:
                raise StreamBroken("a slave with that address is connected already")
        else:
            self.slave = SlaveProgress(identity, number)
        self.sent = self._quiet_at = self._start
        self.slave.advance(self._start, -1, self.sent, now)
        self._verified = memoryview(log.rest_of_record(self._start))

    def _start_for_empty_slave(self, begin: int) -> int:
        """Return where a slave with an empty disk begins: the last file, as with RocketMQ's master.

        RocketMQ's master sends such a slave no more than that, so an administrator knows how long the copy takes and
        what the slave has. But messages that a sender waits for must be in the copy, or the first ack of a later offset
        would count for messages that the slave never received. So a master that waits for slaves begins with the file
        that holds the first unconfirmed message.
        """
        confirmed_end = min(self._log.confirmed, self._log.wrote)
        return max(begin, confirmed_end - confirmed_end % self._file_bytes)

    # -- sending -------------------------------------------------------------------------------------------------------

    def pump(self, bytes_max: int) -> list[bytes]:
        """Return what may be sent now, about ``bytes_max``: nothing before the stream, at the end, and at damage."""
        parts: list[bytes] = []
        if self.slave is None:
            return parts
        log = self._log
        while bytes_max > 0 and self.sent < log.wrote:
            room = self._file_bytes - self.sent % self._file_bytes
            if not self._verified:
                self._verified = memoryview(log.read_verified(self.sent, min(CHUNK_BYTES_MAX, bytes_max)))
            data = bytes(self._verified[: min(CHUNK_BYTES_MAX, room)])
            self._verified = self._verified[len(data) :]
            if not data:
                if self.sent < log.history.begin:
                    raise StreamBroken(f"the log at offset {self.sent} has expired")
                break  # A damaged record has been reported; the stream waits until it is repaired.
            parts += (CHUNK_HEAD.pack(self.sent, len(data)), data)
            self.sent += len(data)
            bytes_max -= len(data)
        return parts

    def encode_heartbeat(self, now_ms: int) -> bytes:
        """Return a heartbeat, if nothing else was sent for a while."""
        if self.slave is None:
            return b""
        if self.sent != self._quiet_at or self._quiet_since_ms < 0:
            self._quiet_at, self._quiet_since_ms = self.sent, now_ms
        if now_ms - self._quiet_since_ms < REPORT_INTERVAL_S * 1000:
            return b""
        self._quiet_since_ms = now_ms
        return CHUNK_HEAD.pack(self.sent, 0)

    def encode_table(self, table: Table) -> bytes:
        """Return nothing: a slave of RocketMQ's requests tables itself, by remoting."""
        return b""
