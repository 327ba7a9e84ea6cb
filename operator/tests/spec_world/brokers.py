"""Brokers of a model world: their stores, promises and roles, with the rules of the control socket and the stream.

A log is a list of records with an epoch and a serial number; a promotion appends a record of its own, which represents
the entry in a real broker's list of epochs. Each record has ``RECORD_BYTES``, and offsets are multiples of it. What a
real broker does by itself (copy, acknowledge, grant, renew) is a method here, so that the world controls its progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_spec.observed import Report, Role
from gantry_status.broker_state import SlaveState

RECORD_BYTES: Final = 1 << 20
"""The size of every record of a log."""

GRANT_MS: Final = 3_000
"""How long a slave's grant, its permission to its master to acknowledge, holds."""

GRANT_MARGIN: Final = 0.9
"""The share of a grant's time that its master uses."""


class Record(NamedTuple):
    """A message, or the start of an epoch, in a log."""

    epoch: int
    serial: int
    """Unique in a world, so that two records are never taken for one."""


class Refused(Exception):
    """The broker refuses an order; nothing has changed."""


@final
@dataclass(eq=False)
class Store:
    """The data on a broker's disk."""

    identity: str
    log: list[Record] = field(default_factory=list)
    flushed: int = 0
    """The number of records that survive a power loss."""

    promised: int = 0
    """The epoch below which the member follows no master."""

    epoch: int = 0
    """The epoch of the broker's last role."""

    master_id: int | None = None
    """The number of the master in that epoch; the broker's own if it was the master itself, None if it is unknown."""

    electable: tuple[int, ...] = ()
    """The slaves of which one may be the next master, as the broker recorded them."""

    acks_recorded: int | None = None
    """The number of acks that a message needs in that epoch; None if it is unknown."""

    is_role_revoked: bool = False
    """Whether the broker was fenced in that epoch, or withdrawn: a new process does not regain the role."""

    lost: set[Record] = field(default_factory=set)
    """The records that this store had and lost, as the broker knows."""

    lost_with_earlier_disks: set[Record] = field(default_factory=set)
    """The records that earlier disks of this member had, which the broker does not know of."""

    @property
    def last_epoch(self) -> int:
        return self.log[-1].epoch if self.log else 0

    @property
    def is_complete(self) -> bool:
        """Whether no data is missing. A broker that lacks data reports this, or that it does not know."""
        return self.lost <= set(self.log)


@final
@dataclass(eq=False)
class Broker:
    """One member's process, on its store."""

    number: int
    store: Store
    acks_needed: int
    """How many slaves must acknowledge a message, by the settings of the process."""

    template: str
    """The hash of the pod template with which the process was started."""

    is_up: bool = False
    """Whether the process runs."""

    boot: int = 0
    """How often the broker was started; it identifies the process."""

    role: Role = Role.UNASSIGNED
    is_draining: bool = False
    """Whether a master refuses sends until it is promoted again or its role ends."""

    is_withdrawn: bool = False
    """Whether a master refuses sends without a time limit."""

    master: str = ""
    last_heartbeat_ms: int | None = None
    granted_until_ms: int = 0
    """Until when a grant of this member may still hold."""

    acks: dict[int, tuple[str, int]] = field(default_factory=dict)
    """In a master: the store and the number of received records of each slave, by number."""

    grants: dict[int, int] = field(default_factory=dict)
    """In a master: the expiry of each slave's grant, by number."""

    lease_until_ms: int = 0
    """In a master: until when the Lease permits it to acknowledge."""

    @property
    def address(self) -> str:
        return f"{self.number}.example:10912"

    def start(self, template: str, acks_needed: int, now_ms: int) -> None:
        """Start a new process without a role. Its predecessor may have given a grant just before."""
        self.template, self.acks_needed = template, acks_needed
        self.is_up, self.boot, self.role = True, self.boot + 1, Role.UNASSIGNED
        self.reset_role_state()
        if self.store.epoch and self.store.master_id != self.number:
            self.granted_until_ms = now_ms + GRANT_MS

    def reset_role_state(self) -> None:
        """Reset the state that a process keeps only in a role."""
        self.is_draining, self.master, self.last_heartbeat_ms = False, "", None
        self.is_withdrawn = False
        self.acks, self.grants, self.lease_until_ms = {}, {}, 0

    # -- orders --------------------------------------------------------------------------------------------------------

    def promise(self, epoch: int) -> None:
        """Promise to follow no master below an epoch, and end a role of an older one."""
        self._record_promise(epoch)
        if self.store.epoch < epoch:
            if self.role is Role.MASTER:
                self._lose_role()
            self.master, self.last_heartbeat_ms = "", None

    def promote(self, epoch: int, electable: tuple[int, ...], serial: int) -> bool:
        """Make the broker master of an epoch, and return whether a new epoch has begun.

        ``serial`` is the number of the record that begins the epoch.
        """
        store = self.store
        if self.role is Role.MASTER and store.epoch == epoch:
            self.is_draining = self.is_withdrawn = store.is_role_revoked = False
            return False
        if epoch <= max(store.last_epoch, store.epoch):
            raise Refused("the epoch is not new")
        self._record_promise(epoch)
        self.reset_role_state()
        self.role, store.epoch, store.master_id, store.is_role_revoked = Role.MASTER, epoch, self.number, False
        store.electable = tuple(number for number in electable if number != self.number)
        store.acks_recorded = self.acks_needed
        store.log.append(Record(epoch, serial))
        store.lost.clear()  # from now on its own log is the reference
        return True

    def follow(self, epoch: int, master: str) -> None:
        if self.role is Role.MASTER and epoch <= self.store.epoch:
            raise Refused("it is the master of that epoch")
        if (self.role, self.store.epoch, self.master) == (Role.SLAVE, epoch, master):
            return
        self._record_promise(epoch)
        self.reset_role_state()
        self.role, self.master, self.store.is_role_revoked = Role.SLAVE, master, False
        if self.store.epoch != epoch:
            self.store.epoch, self.store.master_id, self.store.electable = epoch, None, ()
            self.store.acks_recorded = None

    def fence(self, epoch: int) -> None:
        """Take the role of an epoch or an older one away, and promise the epoch."""
        if self.role is Role.MASTER and epoch < self.store.epoch:
            raise Refused("it is the master of a newer epoch")
        self._record_promise(epoch)
        self._lose_role()
        self.store.is_role_revoked = True

    @property
    def may_regain(self) -> bool:
        """Whether only the end of its process has ended the broker's role, as far as the broker knows."""
        store = self.store
        is_left = self.role is Role.UNASSIGNED and store.epoch > 0 and not store.is_role_revoked
        is_same = store.last_epoch == store.epoch and store.acks_recorded == self.acks_needed
        is_master = store.master_id == self.number
        return is_left and store.promised <= store.epoch and (not is_master or (is_same and store.is_complete))

    def regain(self, epoch: int) -> None:
        """Become master of the same epoch again, after a restart."""
        store = self.store
        if (store.epoch, store.master_id) != (epoch, self.number) or not self.may_regain:
            raise Refused("the role cannot be recovered")
        self.reset_role_state()
        self.role = Role.MASTER

    def drain(self, *, withdraw: bool = False, clients_only: bool = False) -> None:
        """Refuse sends, and flush the log unless ``clients_only`` is set.

        With ``withdraw`` the broker also takes its write permission out of the routes, and does not regain the role.
        """
        if self.role is not Role.MASTER:
            raise Refused("only a master drains")
        self.is_withdrawn = self.is_withdrawn or withdraw
        self.store.is_role_revoked |= withdraw
        if clients_only:
            return
        self.is_draining = True
        self.store.flushed = len(self.store.log)

    def _record_promise(self, epoch: int) -> None:
        if epoch < self.store.promised:
            raise Refused("a newer epoch was promised")
        self.store.promised = epoch

    def _lose_role(self) -> None:
        self.reset_role_state()
        self.role = Role.UNASSIGNED

    # -- replication ---------------------------------------------------------------------------------------------------

    def copy_from(self, master: Broker, records: int, now_ms: int) -> None:
        """Copy some records from the master, and send it an ack and a grant."""
        mine, theirs = self.store.log, master.store.log
        same = 0
        while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
            same += 1
        if same < len(mine) and self.store.last_epoch >= master.store.epoch:
            return  # the slave has more of the same epoch, so the master refuses it
        del mine[same:]
        self.store.flushed = min(self.store.flushed, same)
        store = self.store
        store.electable, store.master_id = master.store.electable, master.number
        store.acks_recorded = master.acks_needed
        mine += theirs[same : same + records]
        self.last_heartbeat_ms, self.granted_until_ms = now_ms, now_ms + GRANT_MS
        if len(mine) == len(theirs):
            store.lost.clear()  # it has everything that its master has, which is the reference
            store.lost_with_earlier_disks.clear()
        master.acks[self.number] = (store.identity, len(mine))
        master.grants[self.number] = now_ms + int(GRANT_MS * GRANT_MARGIN)

    @property
    def epoch_start(self) -> int:
        """The index of the first record of the log's last epoch."""
        return next((at for at, record in enumerate(self.store.log) if record.epoch == self.store.last_epoch), 0)

    @property
    def acked(self) -> int | None:
        """How many records enough slaves have; None until they have one of this epoch, and where no acks are needed."""
        if self.acks_needed == 0:
            return None
        voters = [
            end for number, (_, end) in self.acks.items() if number in self.store.electable or not self.store.electable
        ]
        ends = sorted(voters, reverse=True)
        end = ends[self.acks_needed - 1] if len(ends) >= self.acks_needed else 0
        return end if end > self.epoch_start else None

    def acknowledged(self, now_ms: int) -> int:
        """Return how many records may be acknowledged to clients now."""
        if self.role is not Role.MASTER or not self.is_up:
            return 0
        if self.acks_needed:
            return self.acked or 0
        electable = self.store.electable
        by_slaves = min((self.grants.get(number, -1) for number in electable), default=1 << 62)
        return len(self.store.log) if now_ms < max(by_slaves, self.lease_until_ms) else 0

    # -- reports -------------------------------------------------------------------------------------------------------

    def report(self, asked_ms: int, now_ms: int, peak_bytes_per_s: int) -> Report:
        """Return the broker's report at this moment."""
        store, acked = self.store, self.acked
        is_master = self.role is Role.MASTER
        wrote = len(store.log) * RECORD_BYTES
        return Report(
            asked_ms=asked_ms,
            answered_ms=now_ms,
            boot_id=f"{self.number}-{self.boot}",
            role=self.role,
            broker_id=self.number,
            may_regain=self.may_regain,
            epoch=store.epoch,
            promised_epoch=store.promised,
            identity=store.identity,
            last_epoch=store.last_epoch,
            epoch_start=self.epoch_start * RECORD_BYTES,
            wrote=wrote,
            committed=wrote,
            flushed=store.flushed * RECORD_BYTES,
            acked=None if acked is None or not is_master else acked * RECORD_BYTES,
            confirmed=wrote if not self.acks_needed else None if acked is None else acked * RECORD_BYTES,
            slaves=tuple(
                SlaveState(number=number, identity=identity, received=end * RECORD_BYTES, flushed=None)
                for number, (identity, end) in sorted(self.acks.items())
            )
            if is_master
            else (),
            electable=store.electable,
            acks_needed=store.acks_recorded,
            master_id=store.master_id,
            ha_address=self.address,
            master=self.master,
            heartbeat_age_ms=None if self.last_heartbeat_ms is None else now_ms - self.last_heartbeat_ms,
            granted_ms=max(0, self.granted_until_ms - now_ms),
            is_complete=store.is_complete or (None if self.boot % 2 else False),
            is_draining=self.is_draining,
            is_withdrawn=self.is_withdrawn,
            is_crash_safe=True,
            peak_bytes_per_s=peak_bytes_per_s,
        )
