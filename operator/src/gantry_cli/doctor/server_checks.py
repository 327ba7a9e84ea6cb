"""Decides from facts about the state of brokers and consumer groups: clocks, disks, memory, versions, slaves. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from gantry_cli.doctor.connection_checks import is_loopback, split_host
from gantry_cli.doctor.facts import BrokerFacts, ClockOffset, ConnectionFault, ConsumerGroupFacts, Facts, LocalFacts
from gantry_cli.doctor.results import Finding, fault, ok, skipped, warning
from gantry_status.text import bytes_text

CLOCK_OFFSET_MAX_MS: Final = 2_000
"""The clock offset that is reported. NTP keeps machines within milliseconds; runtime tables have whole seconds."""

USED_PERCENT_MAX, FORCED_PERCENT, FULL_PERCENT = 75, 85, 90
"""The defaults of diskMaxUsedSpaceRatio, diskSpaceCleanForciblyRatio and diskSpaceWarningLevelRatio, as in RocketMQ."""

LAG_BYTES_MAX: Final = 256 << 20
"""The lag from which a slave counts as not following: the default of RocketMQ's haSlaveFallbehindMax."""

VERSION_MIN: Final = (4, 9, 0)
"""The oldest RocketMQ that Gantry's clients are tested with."""


# -- clocks ------------------------------------------------------------------------------------------------------------


def check_clocks(facts: Facts) -> Iterator[Finding]:
    """Check that the clocks of brokers agree with that of this machine."""
    measured = [broker for broker in facts.brokers if broker.clock is not None]
    ahead = [broker for broker in measured if broker.clock is not None and broker.clock.low_ms > CLOCK_OFFSET_MAX_MS]
    behind = [broker for broker in measured if broker.clock is not None and broker.clock.high_ms < -CLOCK_OFFSET_MAX_MS]
    meaning = "times in messages, delays, timers, retention, leases and strict signatures depend on the clock"
    if len(measured) > 1 and len(measured) in (len(ahead), len(behind)):
        direction = "behind" if ahead else "ahead of"
        found = f"its clock is {direction} that of every broker by {_offset_text(measured[0].clock)}"
        yield fault("this machine", found, meaning, "synchronize this machine with NTP: timedatectl set-ntp true")
        return
    for broker in facts.brokers:
        clock = broker.clock
        if clock is None:
            yield skipped(broker.label, broker.unknown_reason or "it does not report its time")
        elif broker in ahead or broker in behind:
            found = f"its clock is {'ahead' if broker in ahead else 'behind'} by {_offset_text(clock)}"
            yield fault(broker.label, found, meaning, "synchronize its machine with NTP: timedatectl set-ntp true")
        elif clock.low_ms >= -CLOCK_OFFSET_MAX_MS and clock.high_ms <= CLOCK_OFFSET_MAX_MS:
            yield ok(broker.label, f"its clock is within {CLOCK_OFFSET_MAX_MS / 1000:g} s of that of this machine")
        else:
            yield skipped(
                broker.label, f"its answer was too slow: {clock.low_ms} ms to {clock.high_ms} ms is all that is known"
            )
    if not facts.brokers:
        yield skipped("-", "no broker is known (see name-server, tls, acl)")


def _offset_text(clock: ClockOffset | None) -> str:
    assert clock is not None, "only measured clocks are described"
    low, high = sorted((abs(clock.low_ms), abs(clock.high_ms)))
    return f"{low / 1000:.1f} s to {high / 1000:.1f} s"


# -- disks -------------------------------------------------------------------------------------------------------------


def check_disks(facts: Facts) -> Iterator[Finding]:
    """Check that the disk of each broker is below the limits at which it deletes messages or refuses sends."""
    for broker in facts.brokers:
        used = None if broker.runtime is None else disk_percent(broker.runtime)
        if used is None:
            yield skipped(broker.label, broker.unknown_reason or "it does not report the use of its disk")
            continue
        limits = disk_limits(broker.config or {})
        yield disk_finding(
            broker.label, used, limits, broker.runtime.get("commitLogDirCapacity", "") if broker.runtime else ""
        )
    if not facts.brokers:
        yield skipped("-", "no broker is known (see name-server, tls, acl)")


def disk_limits(config: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the percentages from which expired files are deleted, any files are deleted, and sends are refused."""
    return (
        _percent(config, "diskMaxUsedSpaceRatio", USED_PERCENT_MAX),
        _percent(config, "diskSpaceCleanForciblyRatio", FORCED_PERCENT),
        _percent(config, "diskSpaceWarningLevelRatio", FULL_PERCENT),
    )


def disk_percent(runtime: Mapping[str, str]) -> int | None:
    """Return the used percentage of the fullest disk with a part of the log; None if it is not reported."""
    found = []
    for key, text in runtime.items():
        if key == "commitLogDiskRatio" or key.startswith("commitLogDiskRatio_"):
            try:
                found.append(round(float(text) * 100))
            except (ValueError, OverflowError):
                continue
    valid = [percent for percent in found if 0 <= percent <= 100]
    return max(valid, default=None)


def _percent(config: Mapping[str, str], key: str, default: int) -> int:
    text = config.get(key, "")
    return int(text) if text.isascii() and text.isdigit() else default


def disk_finding(subject: str, used: int, limits: tuple[int, int, int], capacity: str) -> Finding:
    """Return the finding about a disk. ``limits`` are those of expired files, of any files, and of sends."""
    used_max, forced, full = limits
    found = f"{used}% used (limits: {used_max}%, {forced}%, {full}%){'; ' + capacity if capacity else ''}"
    remedy = "enlarge the disk, or lower fileReservedTime so that messages are deleted earlier"
    if used >= full:
        return fault(subject, found, f"above {full}% (diskSpaceWarningLevelRatio) the broker refuses sends", remedy)
    if used >= forced:
        meaning = f"above {forced}% (diskSpaceCleanForciblyRatio) messages are deleted before fileReservedTime"
        return fault(subject, found, meaning, remedy)
    if used >= used_max:
        meaning = f"above {used_max}% (diskMaxUsedSpaceRatio) expired files are deleted at any hour"
        return warning(subject, found, meaning, remedy)
    return ok(subject, found)


# -- huge pages --------------------------------------------------------------------------------------------------------


def check_huge_pages(facts: Facts) -> Iterator[Finding]:
    """Check that write buffers which are configured on huge pages have them."""
    local = facts.local
    if local is not None and local.huge_pages is not None:
        yield _check_local_pages(local)
        return
    for broker in facts.brokers:
        yield _check_buffers(broker, facts.huge_mounts)
    if not facts.brokers:
        yield skipped("-", "no broker is known (see name-server, tls, acl)")


def _check_local_pages(local: LocalFacts) -> Finding:
    wanted = local.huge_pages
    assert wanted is not None, "the caller has checked it"
    needed = bytes_text(wanted.needed_bytes)
    if wanted.is_used:
        return ok(local.folder, f"the write buffers are on huge pages ({needed})")
    mounts = ", ".join(f"{path} has {bytes_text(free)} free" for path, free in wanted.mounts)
    found = f"the write buffers need {needed} of huge pages; {mounts or 'no hugetlbfs is mounted'}; tmpfs is used"
    pages = -(-wanted.needed_bytes // (2 << 20))
    mount = "" if wanted.mounts else "mount -t hugetlbfs -o pagesize=2M none /dev/hugepages, "
    # Other programs may use the present pages, so these are added to them.
    reserve = f"sysctl vm.nr_hugepages=$(($(cat /proc/sys/vm/nr_hugepages) + {pages}))"
    remedy = f"{mount}{reserve}, then restart the group; or set spec.writeBuffer.medium: Memory"
    return fault(local.folder, found, "the buffers take memory that can be swapped and needs more page tables", remedy)


def _check_buffers(broker: BrokerFacts, mounts: Mapping[str, int]) -> Finding:
    config = broker.config
    if config is None:
        return skipped(broker.label, broker.unknown_reason or "its settings are not readable")
    path = config.get("transientStorePoolPath", "")
    if config.get("transientStorePoolEnable") != "true" or not path:
        return ok(broker.label, "uses no huge pages")
    if not (is_loopback(split_host(broker.address)) or broker.connection.is_on_this_machine):
        return skipped(broker.label, f"its buffers are in {path} of another machine: run `gantry doctor` there")
    above = {str(one) for one in (PurePosixPath(path), *PurePosixPath(path).parents)}
    mount = next((one for one in sorted(mounts, key=len, reverse=True) if one in above), None)
    if mount is not None:
        return ok(broker.label, f"its buffers are on huge pages in {mount}")
    if "huge" not in path:
        return ok(broker.label, f"its buffers are in {path}, which is not on huge pages")
    found = f"transientStorePoolPath is {path}, but no hugetlbfs is mounted there"
    remedy = f"stop the broker, mount -t hugetlbfs -o pagesize=2M none {path}, set vm.nr_hugepages, and start it again"
    return fault(
        broker.label, found, "the buffers are on an ordinary file system, and appends wait for its disk", remedy
    )


# -- versions ----------------------------------------------------------------------------------------------------------


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Check that all servers run the same version, and one that is supported."""
    gantry, apache = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for broker in facts.brokers:
        described = (broker.runtime or {}).get("brokerVersionDesc", "")
        own = (broker.config or {}).get("gantryVersion")
        if broker.runtime is None or broker.config is None:
            yield skipped(broker.label, broker.unknown_reason or "its version is not readable")
        elif own is not None:
            gantry[own].append(broker.label)
        else:
            apache[described].append(broker.label)
            yield from _check_supported(broker.label, described)
    for server in facts.name_servers:
        if server.gantry_version is not None:
            gantry[server.gantry_version].append(f"name server {server.address}")
    for member in () if facts.local is None else facts.local.members:
        if member.sidecar_version is not None:
            gantry[member.sidecar_version].append(f"sidecar of {member.name}")
        elif member.sidecar_problem:
            yield skipped(f"sidecar of {member.name}", member.sidecar_problem)
    has_both = bool(apache) and any((broker.config or {}).get("gantryVersion") for broker in facts.brokers)
    if has_both:
        found = "brokers of Gantry and of RocketMQ are in one cluster"
        meaning = "this is meant for a migration; features of Gantry's brokers do not exist on the others"
        yield warning("the cluster", found, meaning, "finish the migration (docs/migration.md)")
    yield from _compare_versions(gantry, apache, facts.version)


def _check_supported(label: str, described: str) -> Iterator[Finding]:
    match = re.fullmatch(r"V(\d+)_(\d+)_(\d+)\w*", described)
    if match is None:
        yield skipped(label, f"unknown version {described!r}")
    elif tuple(map(int, match.groups())) < VERSION_MIN:
        supported = ".".join(map(str, VERSION_MIN))
        yield fault(
            label, f"runs RocketMQ {described}", "commands and clients of Gantry are not tested with it",
            f"upgrade the broker to RocketMQ {supported} or later",
        )  # fmt: skip


def _compare_versions(gantry: Mapping[str, list[str]], apache: Mapping[str, list[str]], own: str) -> Iterator[Finding]:
    for product, versions in (("Gantry", gantry), ("RocketMQ", apache)):
        if len(versions) > 1:
            found = "; ".join(f"{version}: {', '.join(labels)}" for version, labels in sorted(versions.items()))
            meaning = "a mix of versions is meant for the minutes of an upgrade"
            remedy = "finish the upgrade: restart the older servers with the newer version (docs/upgrade.md)"
            yield fault(f"{product} servers", found, meaning, remedy)
        for version in versions if len(versions) == 1 else ():
            yield ok(f"{product} servers", f"all run {version}")
    if gantry and own not in gantry:
        found = f"this command is {own}, the servers are {', '.join(sorted(gantry))}"
        yield warning("this command", found, "it may lack options, or show less", "install the version of the servers")


# -- slaves ------------------------------------------------------------------------------------------------------------


def check_slaves(facts: Facts) -> Iterator[Finding]:
    """Check that every shard has a master, and that its slaves receive the log from it."""
    shards = defaultdict[str, list[BrokerFacts]](list)
    for broker in facts.brokers:
        shards[broker.name].append(broker)
    for name, brokers in sorted(shards.items()):
        yield from _check_shard(name, brokers)
    yield from _check_local_members(facts)
    if not facts.brokers:
        yield skipped("-", "no broker is known (see name-server, tls, acl)")


def _check_shard(name: str, brokers: list[BrokerFacts]) -> Iterator[Finding]:
    master = next((one for one in brokers if one.broker_id == 0), None)
    slaves = [one for one in brokers if one.broker_id != 0]
    if master is None:
        yield fault(
            name, f"no master is registered, only {', '.join(one.label for one in slaves)}",
            "sends to this shard fail, and its slaves receive nothing",
            "wait for the failover (gantry status), start the master, or promote a slave: gantry ha promote",
        )  # fmt: skip
    for slave in slaves:
        yield _check_slave(slave, master)
    if master is not None and not slaves:
        yield ok(name, "has no slave")


def _check_slave(slave: BrokerFacts, master: BrokerFacts | None) -> Finding:
    if slave.connection.fault is ConnectionFault.SILENT:
        remedy = (
            "its process is suspended or blocked: resume it (kill -CONT PID) or restart it; its log names the cause"
        )
        return fault(
            slave.label, f"{slave.connection.fault}", "it copies nothing, and cannot replace its master", remedy
        )
    state = slave.replication
    if state is None:
        return _compare_logs(slave, master) or skipped(
            slave.label, slave.unknown_reason or "it does not report its replication"
        )
    if state.is_master:
        return skipped(slave.label, "it is the master now, and the name server does not list it so yet")
    if not state.is_streaming:
        meaning = "it copies nothing, and cannot replace its master without loss"
        return fault(slave.label, _following_text(state.master, master), meaning, _following_remedy(master))
    return _compare_logs(slave, master) or ok(slave.label, f"follows {state.master or 'its master'}")


def _following_text(master_address: str, master: BrokerFacts | None) -> str:
    if not master_address:
        return "it is not connected to a master, and knows the address of none"
    expected = "" if master is None else _replication_address(master)
    is_other = expected and expected != master_address
    return f"it is not connected to {master_address}{f', and its master is {expected}' if is_other else ''}"


def _following_remedy(master: BrokerFacts | None) -> str:
    address = "" if master is None else _replication_address(master)
    value = f"={address}" if address else ""
    return (
        f"set haMasterAddress{value} in its broker.conf (or order it with gantry ha follow), compare haSecretPath and "
        "the haTls... settings of both, and check that it reaches the port haListenPort"
    )


def _replication_address(master: BrokerFacts) -> str:
    config = master.config or {}
    host, port = config.get("brokerIP2", ""), config.get("haListenPort", "")
    return f"{host}:{port}" if host and port else ""


def _compare_logs(slave: BrokerFacts, master: BrokerFacts | None) -> Finding | None:
    """Return a fault if the slave is far behind; ok for brokers that report only ends of logs; None if undecided."""
    ends = [_log_end(slave), None if master is None else _log_end(master)]
    if ends[0] is None or ends[1] is None:
        return None
    behind = max(0, ends[1] - ends[0])
    if behind > LAG_BYTES_MAX:
        found = f"it lacks the last {bytes_text(behind)} of its master's log"
        remedy = "compare the speed of network and disk of both machines; its log names errors"
        return fault(slave.label, found, "it would lose these messages as the next master", remedy)
    if slave.replication is None and behind == 0 and ends[0] > 0:
        return ok(slave.label, "has the whole log of its master")
    return None


def _log_end(broker: BrokerFacts) -> int | None:
    text = (broker.runtime or {}).get("commitLogMaxOffset", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _check_local_members(facts: Facts) -> Iterator[Finding]:
    known = {broker.address for broker in facts.brokers}
    for member in () if facts.local is None else facts.local.members:
        is_running = member.process in ("", "running")
        if is_running and (member.address in known or not facts.brokers):
            continue
        found = f"its process: {member.process or 'unknown'}" if not is_running else "it is not registered"
        found += f"; {member.problem}" if member.problem else ""
        remedy = (
            f"see `gantry status`, and its log in {(facts.local and facts.local.folder) or ''}/logs/{member.name}.log"
        )
        yield fault(member.name, found, "its shard has one copy less, or no master", remedy)


# -- consumer groups ---------------------------------------------------------------------------------------------------


def check_subscriptions(facts: Facts) -> Iterator[Finding]:
    """Check that all members of a consumer group have the same subscriptions."""
    for group in facts.groups:
        yield _check_group(group)
    if facts.groups_problem:
        yield skipped("-", facts.groups_problem)
    elif not facts.brokers:
        yield skipped("-", "no broker is known (see name-server, tls, acl)")
    elif not facts.groups:
        yield ok("-", "no consumer group has members")


def _check_group(group: ConsumerGroupFacts) -> Finding:
    known = [member for member in group.members if member.subscriptions is not None]
    by_subscription = defaultdict[str, list[str]](list)
    for member in known:
        assert member.subscriptions is not None, "only known ones are compared"
        text = ", ".join(f"{topic} [{one}]" for topic, one in sorted(member.subscriptions.items()))
        by_subscription[text or "nothing"].append(member.client_id)
    if len(by_subscription) > 1:
        found = "; ".join(f"{', '.join(ids)}: {text}" for text, ids in sorted(by_subscription.items()))
        meaning = (
            "brokers use the newest subscription for all members, and queues are divided among all: messages that a "
            "member does not subscribe to are skipped"
        )
        remedy = "give each set of topics and filters a group of its own, or the same subscriptions to all members"
        return fault(group.name, found, meaning, remedy)
    silent = [member for member in group.members if member.subscriptions is None]
    if silent:
        reasons = "; ".join(f"{member.client_id}: {member.problem}" for member in silent)
        return skipped(group.name, f"not all members report their subscriptions: {reasons}")
    return ok(group.name, f"{len(known)} members with the same subscriptions" if len(known) > 1 else "one member")
