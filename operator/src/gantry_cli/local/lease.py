"""The Lease of one shard as a file: replaced whole, durably, and only by whoever has seen what it replaces.

    read       version 7  -->  decide  -->  write(expected 7)   version 8
                                            write(expected 7)   refused: somebody was faster

One supervisor at a time holds the lock of the folder, and it is the only writer; the comparison is for its own late
decisions, as in a cluster. A renewal writes nothing: whoever starts after a crash takes it that the master was renewed
until the moment at which the file was first read, and waits for as long as that may count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.local.member import LocalMember
from gantry_cli.local.state import GroupState, machine_boot, now_ms, read_whole
from gantry_remoting.durable_files import replace_file
from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import LastWord, ObservedLease, Role, last_word_after
from gantry_status.order_client import OrderClient
from gantry_status.orders import Lease, OrderError

REMEDY: Final = "restore it, or remove it: the shard then elects a master from what its stores have recorded"


@final
class LeaseFile:
    """Owned by one supervisor."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Reads it. Raises CliError when it is damaged."""
        self.path: Final = path
        self._now_ms: Final = now_ms
        self._seen: ObservedLease = ObservedLease(record=read_whole(path, LeaseRecord, REMEDY), seen_ms=now_ms())

    def __repr__(self) -> str:
        return f"<LeaseFile {self.path.name} {self._seen.record}>"

    @property
    def observed(self) -> ObservedLease:
        """As it is."""
        return self._seen

    def write(self, expected: str | None, record: LeaseRecord) -> bool:
        """Replace the version that was seen; False if it is another one by now. Raises OSError."""
        current = self._seen.record
        if expected != (None if current is None else current.version):
            return False
        version = str(int("0" if current is None else current.version) + 1)
        new = msgspec.structs.replace(record, version=version)
        # A loss that a person has accepted is a size as manifests write it; here it is its number.
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(new, enc_hook=int)), mode=0o600)
        self._seen = ObservedLease(record=new, seen_ms=self._now_ms())
        return True


# -- renewing it -------------------------------------------------------------------------------------------------------
# Keeping the Lease for masters that nobody's ack is waited for: they may acknowledge while it is theirs.
#
# A renewal counts from before the Lease was looked at. Whoever takes a new epoch replaces the Lease first, and waits
# from then on for as long as a renewal lasts: so none that was given before outlives that.


RENEWAL_TIMEOUT_S: Final = 1.0


async def renew(leases: Sequence[tuple[int, LeaseFile]], member_of: Callable[[int, int], LocalMember | None]) -> None:
    """Tell the masters of these shards, side by side."""
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


# -- last words of masters ---------------------------------------------------------------------------------------------
# The last word of each shard's newest master, kept over its death and over that of whoever supervises.
#
# How much a promotion may lose, where no acknowledgement waits for slaves, is counted from it: what the master had
# written when it was heard last. Without a last word nobody knows, and nothing moves by itself.


@final
class LastWords:
    """Of one supervisor."""

    def __init__(self, state: GroupState) -> None:
        """Those that are known. Raises CliError when they are damaged."""
        self._state: Final = state
        self._machine_boot: Final = machine_boot()
        self._words: Final = state.read_words(self._machine_boot)

    def of(self, shard: int) -> LastWord | None:
        """Of its newest master."""
        return self._words.get(shard)

    def keep(self, members: Iterable[LocalMember]) -> None:
        """After a look."""
        before = dict(self._words)
        for member in members:
            shard = member.record.shard
            word = None if member.report is None else last_word_after(self._words.get(shard), member.report)
            if word is not None:
                self._words[shard] = word
        if self._words != before:
            with suppress(OSError):  # whoever comes next then knows less of what may be lost, and promises less
                self._state.write_words(self._machine_boot, self._words)
