"""What an acknowledged message of a group survives, in one sentence for people. Pure.

where it is    the master's memory or disk, and the memory or disks of the slaves that the send waited for
machine        copies on other machines survive the loss of one
power          disks survive a power failure; memory loses what was not flushed yet
"""

from __future__ import annotations

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.parts import FlushMode
from gantry_spec.manifest.quantities import duration_text


def describe_promise(spec: Spec) -> str:
    """Return where an acknowledged message of the group is, and what a machine's loss and a power failure cost."""
    copies, is_on_disk = spec.replication.acks_needed, spec.flush.mode is FlushMode.SYNC
    where = "on the master's disk" if is_on_disk else "in the master's memory"
    if copies:
        slaves = "a slave" if copies == 1 else f"{copies} slaves"
        is_on_disk |= spec.replication.waits_for_disks
        where += f" and {_place(copies, is_on_disk=spec.replication.waits_for_disks)} of {slaves}"
        machine = "the loss of one machine loses nothing"
    elif spec.slaves:
        machine = "the loss of the master's machine loses what its slaves lack"
    else:
        machine = "the loss of the machine loses everything"
    power = "a power failure loses nothing" if is_on_disk else _lost_by_power_failure(spec)
    return f"Acknowledged messages are {where}: {machine}, and {power}."


def _place(copies: int, *, is_on_disk: bool) -> str:
    if is_on_disk:
        return "on the disk" if copies == 1 else "on the disks"
    return "in the memory"


def _lost_by_power_failure(spec: Spec) -> str:
    machines = "the machine" if not spec.slaves else "all machines"
    return f"a power failure of {machines} loses the last {duration_text(spec.flush.interval)}"
