"""Keeping the Lease for masters that nobody's ack is waited for: they may acknowledge while it is theirs.

A renewal counts from before the Lease was looked at. Whoever takes a new epoch replaces the Lease first, and waits from
then on for as long as a renewal lasts: so none that was given before outlives that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from gantry_cli.local.clock import now_ms
from gantry_cli.local.lease_file import LeaseFile
from gantry_cli.local.member import LocalMember
from gantry_spec.observed import Role
from gantry_status.order_client import OrderClient
from gantry_status.orders import Lease, OrderError

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
