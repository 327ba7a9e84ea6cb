"""The Lease of one shard as a file: replaced as a whole, durably, and only if its version is the expected one.

    read       version 7  -->  decide  -->  write(expected 7)   version 8
                                            write(expected 7)   refused: the file has version 8 by now

One supervisor at a time holds the lock of the folder, and it is the only writer; the comparison guards against its own
late decisions, as in a cluster. A renewal writes nothing: a supervisor that starts after a crash assumes that the
master's lease was renewed until the moment at which the file was first read, and waits for that lease to expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.local.member import LocalMember
from gantry_cli.local.state import GroupState, machine_boot, now_ms, read_json_file
from gantry_remoting.durable_files import replace_file
from gantry_spec.lease import LeaseRecord, encode_record
from gantry_spec.observed import LastReport, ObservedLease, Role, last_report_after
from gantry_status.order_client import OrderClient
from gantry_status.orders import Lease, OrderError

REMEDY: Final = "restore the file, or remove it: the shard then elects a master from what its stores have recorded"
"""The remedy for a damaged Lease file."""


@final
class LeaseFile:
    """The Lease file of one shard. Only the supervisor may write it; other processes create one to read the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Read the file. Raises CliError when it is damaged."""
        self.path: Final = path
        self._now_ms: Final = now_ms
        self._observed: ObservedLease = ObservedLease(
            record=read_json_file(path, LeaseRecord, REMEDY), seen_ms=now_ms()
        )

    def __repr__(self) -> str:
        return f"<LeaseFile {self.path.name} {self._observed.record}>"

    @property
    def observed(self) -> ObservedLease:
        """The present record, and when it was read or written."""
        return self._observed

    def write(self, expected: str | None, record: LeaseRecord) -> bool:
        """Replace the record if its version is the expected one, else return False. Raises OSError."""
        current = self._observed.record
        if expected != (None if current is None else current.version):
            return False
        version = str(int("0" if current is None else current.version) + 1)
        new = msgspec.structs.replace(record, version=version)
        replace_file(self.path, msgspec.json.format(encode_record(new, with_version=True)), mode=0o600)
        self._observed = ObservedLease(record=new, seen_ms=self._now_ms())
        return True


# -- renewal -----------------------------------------------------------------------------------------------------------
# Renews the lease of masters that wait for no slave's ack: they may acknowledge only while they hold the lease.
#
# A renewal counts from before the Lease was read. A new epoch replaces the Lease first, and then waits for the duration
# of a lease: so no earlier renewal is still valid after that.


RENEWAL_TIMEOUT_S: Final = 1.0
"""How long a renewal waits for the answer of a master."""


async def renew(leases: Sequence[tuple[int, LeaseFile]], member_of: Callable[[int, int], LocalMember | None]) -> None:
    """Send a lease renewal to the masters of these shards, in parallel."""
    await asyncio.gather(*(_renew(shard, lease, member_of) for shard, lease in leases))


async def _renew(shard: int, lease: LeaseFile, member_of: Callable[[int, int], LocalMember | None]) -> None:
    renewed_ms, record = now_ms(), lease.observed.record
    if record is None or record.newest is None or not record.is_settled or record.newest.acks_needed:
        return
    member = member_of(shard, record.newest.master)
    report = None if member is None else member.report
    is_master = report is not None and (report.role, report.epoch) == (Role.MASTER, record.epoch)
    if member is None or not is_master or not member.is_answering:
        return
    order = Lease(renewed_ms=renewed_ms, duration_ms=record.duration_ms)
    with suppress(OrderError):
        async with OrderClient(member.control) as client:
            await client.call(order, timeout_s=RENEWAL_TIMEOUT_S)


# -- last reports of masters -------------------------------------------------------------------------------------------
# The last report of each shard's newest master, kept after the end of the master and of the supervisor.
#
# Where no acknowledgement waits for slaves, it bounds what a promotion may lose: what the master had written when it
# answered last. Without a last report the loss is unknown, and no master is promoted automatically.


@final
class LastReportCache:
    """The last reports of all shards' masters, in memory and in the group's folder. Owned by one supervisor."""

    def __init__(self, state: GroupState) -> None:
        """Read the recorded reports. Raises CliError when the file is damaged."""
        self._state: Final = state
        self._machine_boot: Final = machine_boot()
        self._reports: Final = state.read_last_reports(self._machine_boot)

    def get(self, shard: int) -> LastReport | None:
        """Return the last report of the shard's newest master, if there is one."""
        return self._reports.get(shard)

    def update(self, members: Iterable[LocalMember]) -> None:
        """Adopt newer reports of these members after an observation, and write them down."""
        before = dict(self._reports)
        for member in members:
            shard = member.record.shard
            report = None if member.report is None else last_report_after(self._reports.get(shard), member.report)
            if report is not None:
                self._reports[shard] = report
        if self._reports != before:
            with suppress(OSError):  # a later supervisor then has to assume a larger loss
                self._state.write_last_reports(self._machine_boot, self._reports)
